"""The state with its indexes: what is waiting, who runs where, what is left of each node, what a pass must look at.

Indexes are computed from the state and kept in step by the methods here; `Cluster(state)` rebuilds all of them, so a
restored snapshot decides as the live one does.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final, TypeVar

from muster.core.capacity import Capacity, Share
from muster.core.order import ORDER, SortKey
from muster.core.resources import Demand, demand_of
from muster.core.state import Attempt, Job, Node, State, Worker

_T = TypeVar("_T")

SECOND_NS: Final = 1_000_000_000
START_WINDOW_NS: Final = 120 * SECOND_NS
"""How long a worker may stay unreported before its attempt is given up. More than one step of logical time."""


class Cluster:
    """The whole cluster at one sequence. Only the fold changes it; `decide` plans on its room."""

    def __init__(self, state: State) -> None:
        self.state: Final = state
        self.pending: Final[list[SortKey]] = []
        self._capacity: Final = Capacity()
        self._stale: Final[set[str]] = set()  # nodes whose room must be computed anew before it is looked at
        self.hardware: Final = Capacity()  # the nodes as if nothing ran: what could ever be placed
        self.workers_on: Final[dict[str, dict[tuple[int, int], Worker]]] = {}
        self.to_stop: Final[set[int]] = set()  # jobs whose attempt has workers to be told to stop
        self.to_judge: Final[set[int]] = set()  # jobs whose attempt is over and may be retried
        self.starting: Final[dict[int, int]] = {}  # job → when its workers must be reported; in that order
        self.silent: Final[set[str]] = set()  # suspect nodes whose lease is running out
        self.with_strays: Final[set[str]] = set()
        self.excluding: Final[set[int]] = set()  # waiting jobs that some node has refused
        self.hopeless: Final[dict[int, int]] = {}  # job → hardware version on which it cannot be placed
        self.keys: Final[dict[tuple[str, str], int]] = {(key.user, key.key): key.job for key in state.keys}
        self.hardware_version = 0
        self._demands: Final[dict[int, Demand]] = {}
        for job in state.jobs.values():
            self._index_job(job)
        in_order = sorted(self.starting.items(), key=lambda item: (item[1], item[0]))
        self.starting.clear()
        self.starting.update(in_order)
        for node in state.nodes.values():
            self.index_node(node)

    def _index_job(self, job: Job) -> None:
        if job.phase == "PENDING":
            self.enqueue(job)
        attempt = job.attempt
        if attempt is None or not self.is_live(job):
            return
        for worker in attempt.workers:
            if worker.phase != "gone":
                self.workers_on.setdefault(worker.node, {})[job.id, worker.rank] = worker
        if not attempt.over:
            self.hold_port(attempt)
        self.review(job)

    # -- jobs -----------------------------------------------------------------------------------------------------

    @staticmethod
    def is_live(job: Job) -> bool:
        """Whether the job has an attempt that is not over and done with."""
        return job.phase in ("STARTING", "RUNNING", "STOPPING")

    def demand(self, job: Job) -> Demand:
        """What the job asks for."""
        demand = self._demands.get(job.id)
        if demand is None:
            demand = self._demands[job.id] = demand_of(job.spec)
        return demand

    def enqueue(self, job: Job) -> None:
        """Put a job among those that wait."""
        if job.excluded:
            self.excluding.add(job.id)
        key = ORDER(job)
        if not self.pending or self.pending[-1] < key:
            self.pending.append(key)
        else:
            insort(self.pending, key)

    def dequeue(self, job: Job) -> None:
        """Take a job from those that wait."""
        key = ORDER(job)
        pending = self.pending
        place = 0 if pending and pending[0] == key else bisect_left(pending, key)
        if place < len(pending) and pending[place] == key:
            del pending[place]
        self.hopeless.pop(job.id, None)
        self.excluding.discard(job.id)

    def forget(self, job: int) -> None:
        """Drop what is kept beside an ended job's state."""
        self._demands.pop(job, None)

    def close(self, job_id: int) -> None:
        """Drop an ended job from the pass's work lists."""
        self.to_judge.discard(job_id)
        self.to_stop.discard(job_id)
        self.starting.pop(job_id, None)

    def review(self, job: Job) -> None:
        """Bring the pass's work lists in step with a job's attempt."""
        attempt = job.attempt
        live = attempt is not None and self.is_live(job)
        _keep(self.to_judge, job.id, wanted=live and attempt is not None and attempt.over)
        _keep(
            self.to_stop,
            job.id,
            wanted=live
            and attempt is not None
            and attempt.stop is not None
            and not attempt.stop_ordered
            and not attempt.over,
        )
        if live and attempt is not None and attempt.awaits_start():
            self.starting[job.id] = attempt.start_by_at
        else:
            self.starting.pop(job.id, None)

    # -- claims ---------------------------------------------------------------------------------------------------

    def share_of(self, job: Job, worker: Worker) -> Share:
        """What a worker claims of its node."""
        demand = self.demand(job)
        assert job.attempt is not None
        cpus, memory_mib = demand.host_share(len(worker.devices), len(job.attempt.workers))
        return Share(worker.node, tuple(worker.devices), cpus, memory_mib)

    def claim(self, job_id: int, worker: Worker) -> None:
        """Book a placed worker."""
        on_node = self.workers_on.get(worker.node)
        if on_node is None:
            on_node = self.workers_on[worker.node] = {}
        on_node[job_id, worker.rank] = worker
        self._stale.add(worker.node)

    def release(self, job_id: int, worker: Worker) -> None:
        """Free what a worker held, once its tree is gone."""
        self.workers_on[worker.node].pop((job_id, worker.rank), None)
        self._stale.add(worker.node)

    def hold_port(self, attempt: Attempt) -> None:
        """Hold the rendezvous port of an attempt."""
        self._capacity.take_port(attempt.master_address, attempt.master_port)

    def free_port(self, attempt: Attempt) -> None:
        """Let the rendezvous port of an attempt go."""
        self._capacity.give_port(attempt.master_address, attempt.master_port)

    def room(self) -> Capacity:
        """What is free now. A reader may plan on it if it names the nodes it touched by `touch` afterwards."""
        if self._stale:
            for name in sorted(self._stale):
                if name in self._capacity.rooms:
                    self._capacity.refill(name, self._claims_on(name))
            self._stale.clear()
        return self._capacity

    def touch(self, nodes: Iterable[str]) -> None:
        """These nodes' room was planned on: compute it anew before it is next looked at."""
        self._stale.update(nodes)

    def _claims_on(self, name: str) -> list[tuple[Share, Demand]]:
        jobs = self.state.jobs
        return [
            (self.share_of(jobs[job_id], worker), self.demand(jobs[job_id]))
            for (job_id, _), worker in self.workers_on[name].items()
        ]

    # -- nodes ----------------------------------------------------------------------------------------------------

    def index_node(self, node: Node) -> None:
        """Take in a node, or what it now has."""
        self.workers_on.setdefault(node.name, {})
        self._capacity.set_node(node.name, node.inventory)
        self.hardware.set_node(node.name, node.inventory)
        self.hardware.set_available(node.name, available=True)
        self.hardware_version += 1
        self._stale.add(node.name)
        self.review_node(node)

    def review_node(self, node: Node) -> None:
        """Bring what depends on a node's status in step."""
        self._capacity.set_available(node.name, available=node.available)
        _keep(self.silent, node.name, wanted=node.status == "suspect" and node.lost_at > 0)
        _keep(self.with_strays, node.name, wanted=len(node.strays) > node.strays_told)


def _keep(members: set[_T], member: _T, *, wanted: bool) -> None:
    if wanted:
        members.add(member)
    else:
        members.discard(member)
