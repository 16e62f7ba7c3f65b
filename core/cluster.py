"""The state with its indexes: what is waiting, who holds what, what is left of each node, what a pass must look at.

Indexes are computed from the state and kept in step by the methods here; `Cluster(state)` rebuilds all of them, so a
restored snapshot decides as the live one does.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Final, TypeVar

from muster.core.capacity import Capacity
from muster.core.ledger import Claimant, Ledger, negative
from muster.core.lines import Lines
from muster.core.node_room import NodeRoom, Share
from muster.core.order import duration_s
from muster.core.placement import place
from muster.core.queues import NOTHING, Queue, Tree, Vector, plus
from muster.core.resources import Demand, demand_of
from muster.core.schedule import SECOND_NS, Schedule
from muster.core.scheme import scheme_of
from muster.core.state import Attempt, Job, Node, Room, State, Worker
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.types import Inventory

__all__ = ("SECOND_NS", "START_WINDOW_NS", "Cluster")

_T = TypeVar("_T")

START_WINDOW_NS: Final = 120 * SECOND_NS
"""How long a worker may stay unreported before its attempt is given up. More than one step of logical time."""

Claim = tuple[Share, Demand]


class Cluster:
    """The whole cluster at one sequence. Only the fold changes it; `decide` plans on its room and its ledger."""

    def __init__(self, state: State) -> None:
        self.state: Final = state
        self.lines: Final = Lines(state)
        self.schedule: Final = Schedule()
        self._capacity: Final = Capacity()
        self._stale: Final[set[str]] = set()  # nodes whose room must be computed anew before it is looked at
        self.hardware: Final = Capacity()  # the nodes as if nothing ran: what could ever be placed
        self.healthy: Final = Capacity()  # those that take new work, likewise
        self.workers_on: Final[dict[str, dict[tuple[int, int], Worker]]] = {}
        self.reserved_on: Final[dict[str, dict[int, Claim]]] = {}  # node → job → what is reserved for it there
        self._totals: Final[dict[str, Vector]] = {}  # what each node adds to the cluster
        self._scheme_is_stale = True
        self._ledger: Ledger | None = None  # None = to be added up anew before it is looked at
        self._bare: Ledger | None = None  # the bounds, with nothing held
        self._charges: Final[dict[tuple[int, int], tuple[Claimant, Vector]]] = {}  # of workers, as the ledger has them
        self.leaving: Final[set[int]] = set()  # jobs whose workers are being stopped
        self.to_stop: Final[set[int]] = set()  # jobs whose attempt has workers to be told to stop
        self.to_judge: Final[set[int]] = set()  # jobs whose attempt is over and may be retried
        self.starting: Final[dict[int, int]] = {}  # job → when its workers must be reported; in that order
        self.silent: Final[set[str]] = set()  # suspect nodes whose lease is running out
        self.with_strays: Final[set[str]] = set()
        self.excluding: Final[set[int]] = set()  # waiting jobs that some node has refused
        self.keys: Final[dict[tuple[str, str], int]] = {(key.user, key.key): key.job for key in state.keys}
        self.settled_until: int | None = None  # nothing can be placed before; None = something may
        self.fresh: Final[set[int]] = set()  # jobs that have come to wait since then
        self.heads: Final[dict[str, int]] = {}  # queue → who waited there at its head then
        self.look_at: int | None = None  # when to look again for what can be placed although nothing has changed
        self._demands: Final[dict[int, Demand]] = {}
        self._shapes: Final[dict[Demand, int]] = {}
        self._shape_of: Final[dict[int, int]] = {}
        self._placeable: Final[dict[int, bool]] = {}  # shape → whether the hardware could hold it
        for node in state.nodes.values():
            self.index_node(node)
        for job in state.jobs.values():
            self._index_job(job)
        for room in state.rooms.values():
            self._index_room(room)
        in_order = sorted(self.starting.items(), key=lambda item: (item[1], item[0]))
        self.starting.clear()
        self.starting.update(in_order)

    def _index_job(self, job: Job) -> None:
        if job.phase == "PENDING" and job.id not in self.state.rooms:
            self.enqueue(job)
        attempt = job.attempt
        if attempt is None or not self.is_live(job):
            return
        for worker in attempt.workers:
            if worker.phase != "gone":
                self.claim(job.id, worker)
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

    def shape(self, job: Job) -> int:
        """A number that jobs of equal demands share."""
        shape = self._shape_of.get(job.id)
        if shape is None:
            shape = self._shape_of[job.id] = self._shapes.setdefault(self.demand(job), len(self._shapes))
        return shape

    def could_hold(self, job: Job) -> bool:
        """Whether the cluster's nodes, with nothing running, could hold a job."""
        shape = self.shape(job)
        known = self._placeable.get(shape)
        if known is None:
            known = self._placeable[shape] = place(self.hardware, self.demand(job)) is not None
        return known

    def could_admit(self, who: Claimant, claim: Vector) -> bool:
        """Whether the bounds of queues and lanes, with nothing running, would let a claim in."""
        tree = self.ledger().tree
        if self._bare is None or self._bare.tree is not tree:
            self._bare = Ledger(tree)
        return self._bare.admits(who, claim)

    def enqueue(self, job: Job) -> None:
        """Put a job among those that wait."""
        if job.excluded:
            self.excluding.add(job.id)
        self.lines.add(job)
        if self.settled_until is not None:
            self.fresh.add(job.id)

    def dequeue(self, job: Job) -> None:
        """Take a job from those that wait."""
        self.lines.remove(job)
        self.excluding.discard(job.id)
        self.fresh.discard(job.id)
        self.settled_until = None

    def forget(self, job: int) -> None:
        """Drop what is kept beside an ended job's state."""
        self._demands.pop(job, None)
        if self._ledger is not None:
            self._ledger.forget(job)
        self._shape_of.pop(job, None)
        if len(self._shapes) > 4 * len(self._shape_of) + 1000:
            self._shapes.clear()
            self._shape_of.clear()
            self._placeable.clear()

    def close(self, job: Job) -> None:
        """Drop an ended job from the pass's work lists."""
        self.to_judge.discard(job.id)
        self.to_stop.discard(job.id)
        self.starting.pop(job.id, None)
        self.leaving.discard(job.id)
        self.schedule.drop(job)
        if job.id in self.state.rooms:
            self.settled_until = None

    def review(self, job: Job) -> None:
        """Bring the pass's work lists in step with a job's attempt."""
        attempt = job.attempt
        live = attempt if attempt is not None and self.is_live(job) else None
        _keep(self.to_judge, job.id, wanted=live is not None and live.over)
        untold = live is not None and live.stop is not None and not live.stop_ordered and not live.over
        _keep(self.to_stop, job.id, wanted=untold)
        if live is not None and live.awaits_start():
            self.starting[job.id] = live.start_by_at
        else:
            self.starting.pop(job.id, None)
        if live is not None and not live.over:
            self.schedule.note(job, live)
            if job.phase == "STOPPING" and job.id not in self.leaving:
                self._leave(job, live)
        else:
            self.schedule.drop(job)
            self.leaving.discard(job.id)

    def note_running(self, job: Job, attempt: Attempt) -> None:
        """An attempt's first worker runs: its end is expected later, and the first while in which it is left alone is
        running out."""
        self.schedule.note(job, attempt)
        if attempt.expected_s:
            self.settled_until = None
        elif self.settled_until is not None:
            first_while_ns = duration_s(self.state.policy.preemption.min_runtime) * SECOND_NS
            self.settled_until = self.look_at = min(self.settled_until, self.state.time_at + first_while_ns)

    def _leave(self, job: Job, attempt: Attempt) -> None:
        self.leaving.add(job.id)
        self.settled_until = None
        for worker in attempt.workers:
            if worker.phase != "gone":
                self._stale.add(worker.node)
                if self._ledger is not None:
                    self._ledger.leave(*self._charges[job.id, worker.rank])

    # -- claims ---------------------------------------------------------------------------------------------------

    def share_of(self, job: Job, worker: Worker) -> Share:
        """What a worker claims of its node."""
        demand = self.demand(job)
        assert job.attempt is not None
        cpus, memory_mib = demand.host_share(len(worker.devices), len(job.attempt.workers))
        return Share(worker.node, tuple(worker.devices), cpus, memory_mib)

    def vector_of(self, share: Share, demand: Demand) -> Vector:
        """A share of a node in the ledger's terms: nothing on a lost node, which adds nothing to the cluster."""
        node = self.state.nodes.get(share.node)
        if node is None or node.status == "lost":
            return NOTHING
        devices = node.inventory.devices
        claimed = [devices[index] for index in share.devices if index < len(devices)]
        mib = sum(device_claim_mib(device, demand.device_memory_mib) for device in claimed)
        return len(share.devices) * demand.compute, mib, share.cpus, share.memory_mib

    def claim(self, job_id: int, worker: Worker) -> None:
        """Book a placed worker."""
        on_node = self.workers_on.get(worker.node)
        if on_node is None:
            on_node = self.workers_on[worker.node] = {}
        on_node[job_id, worker.rank] = worker
        self._stale.add(worker.node)
        self._charge(self.state.jobs[job_id], worker)

    def _charge(self, job: Job, worker: Worker) -> None:
        if self._ledger is not None:
            charge = self._ledger.claimant(job), self.vector_of(self.share_of(job, worker), self.demand(job))
            self._charges[job.id, worker.rank] = charge
            self._ledger.charge(*charge)
            if job.id in self.leaving:
                self._ledger.leave(*charge)

    def _discharge(self, job_id: int, worker: Worker) -> None:
        charge = self._charges.pop((job_id, worker.rank), None)
        if charge is not None and self._ledger is not None:
            who, claim = charge
            self._ledger.charge(who, negative(claim))
            if job_id in self.leaving:
                self._ledger.leave(who, negative(claim))

    def release(self, job_id: int, worker: Worker) -> None:
        """Free what a worker held, once its tree is gone."""
        self.workers_on[worker.node].pop((job_id, worker.rank), None)
        self._stale.add(worker.node)
        self._discharge(job_id, worker)
        self.settled_until = None

    def ledger(self) -> Ledger:
        """The sums over all claims. A reader may plan on it if it takes back what it booked."""
        if self._ledger is None:
            total = reduce(plus, self._totals.values(), NOTHING)
            self._ledger = Ledger(Tree(self.state.queues, self.state.policy, total))
            self._charges.clear()
            for workers in self.workers_on.values():
                for (job_id, _), worker in workers.items():
                    self._charge(self.state.jobs[job_id], worker)
            for room in self.state.rooms.values():
                self._charge_room(room)
        return self._ledger

    def reconfigure(self) -> None:
        """Queues or the policy have changed."""
        self._ledger = None
        self.settled_until = None
        self.lines.reorder()
        self._scheme_is_stale = True

    def note_kind(self) -> None:
        """The mix of what is asked for has changed."""
        self._scheme_is_stale = True

    def queue_of(self, job: Job) -> Queue:
        """The queue a job is in."""
        return self.ledger().tree.queues[job.spec.queue]

    def hold_port(self, attempt: Attempt) -> None:
        """Hold the rendezvous port of an attempt."""
        self._capacity.take_port(attempt.master_address, attempt.master_port)

    def free_port(self, attempt: Attempt) -> None:
        """Let the rendezvous port of an attempt go."""
        self._capacity.give_port(attempt.master_address, attempt.master_port)

    # -- reservations ---------------------------------------------------------------------------------------------

    def room_claims(self, room: Room) -> list[Claim]:
        """What a reservation claims of each node."""
        demand = self.demand(self.state.jobs[room.job])
        claims = []
        for each in room.placements:
            cpus, memory_mib = demand.host_share(len(each.devices), len(room.placements))
            claims.append((Share(each.node, tuple(each.devices), cpus, memory_mib), demand))
        return claims

    def reserve(self, room: Room) -> None:
        """Keep room for a waiting job."""
        self.state.rooms[room.job] = room
        self.dequeue(self.state.jobs[room.job])
        self._index_room(room)
        if self._ledger is not None:
            self._charge_room(room)

    def _index_room(self, room: Room) -> None:
        for claim in self.room_claims(room):
            self.reserved_on.setdefault(claim[0].node, {})[room.job] = claim
            self._stale.add(claim[0].node)

    def unreserve(self, job: Job) -> None:
        """Keep room for a job no more."""
        room = self.state.rooms.pop(job.id)
        for share, demand in self.room_claims(room):
            on_node = self.reserved_on[share.node]
            del on_node[job.id]
            if not on_node:
                del self.reserved_on[share.node]
            self._stale.add(share.node)
            if self._ledger is not None:
                self._ledger.charge(self._ledger.claimant(job), negative(self.vector_of(share, demand)))
        self.settled_until = None

    def _charge_room(self, room: Room) -> None:
        assert self._ledger is not None
        job = self.state.jobs[room.job]
        for share, demand in self.room_claims(room):
            self._ledger.charge(self._ledger.claimant(job), self.vector_of(share, demand))

    # -- room -----------------------------------------------------------------------------------------------------

    def room(self) -> Capacity:
        """What is free now. A reader may plan on it if it names the nodes it touched by `touch` afterwards."""
        if self._scheme_is_stale:
            policy = self.state.policy
            self._capacity.scheme = scheme_of(policy.placement, policy.topology, self.state.mix)
            self._scheme_is_stale = False
        if self._stale:
            for name in sorted(self._stale):
                if name in self._capacity.rooms:
                    later = self.claims_later(name) if name in self.reserved_on else None
                    self._capacity.refill(name, self.claims_on(name), later)
            self._stale.clear()
        return self._capacity

    def touch(self, nodes: Iterable[str]) -> None:
        """These nodes' room was planned on: compute it anew before it is next looked at."""
        self._stale.update(nodes)

    def claims_on(self, name: str) -> list[Claim]:
        """What is claimed of a node now."""
        return list(self._claims_of(name, leaving=True))

    def claims_later(self, name: str) -> list[Claim]:
        """What is claimed of a node once all that leaves has left and whom room is reserved for has come."""
        return [*self._claims_of(name, leaving=False), *self.reserved_on.get(name, {}).values()]

    def _claims_of(self, name: str, *, leaving: bool) -> Iterator[Claim]:
        jobs = self.state.jobs
        for (job_id, _), worker in self.workers_on[name].items():
            if leaving or job_id not in self.leaving:
                yield self.share_of(jobs[job_id], worker), self.demand(jobs[job_id])

    def room_now(self, name: str) -> NodeRoom:
        """A node with what is claimed of it now, whatever is reserved."""
        room = NodeRoom(self.state.nodes[name].inventory)
        for share, demand in self._claims_of(name, leaving=True):
            room.claim(share, demand)
        return room

    # -- nodes ----------------------------------------------------------------------------------------------------

    def index_node(self, node: Node) -> None:
        """Take in a node, or what it now has."""
        self.workers_on.setdefault(node.name, {})
        if node.name not in self._capacity.rooms or self._capacity.rooms[node.name].inventory != node.inventory:
            self._ledger = None  # its workers' claims may be others now
        self._capacity.set_node(node.name, node.inventory)
        self.hardware.set_node(node.name, node.inventory)
        self.hardware.set_available(node.name, available=True)
        self.healthy.set_node(node.name, node.inventory)
        self._placeable.clear()
        self._stale.add(node.name)
        self.review_node(node)

    def review_node(self, node: Node) -> None:
        """Bring what depends on a node's status in step."""
        self._capacity.set_available(node.name, available=node.available)
        self.healthy.set_available(node.name, available=node.available)
        total = NOTHING if node.status == "lost" else _total(node.inventory)
        if self._totals.get(node.name) != total:
            self._totals[node.name] = total
            self._ledger = None
        _keep(self.silent, node.name, wanted=node.status == "suspect" and node.lost_at > 0)
        _keep(self.with_strays, node.name, wanted=len(node.strays) > node.strays_told)
        self.settled_until = None


def _total(inventory: Inventory) -> Vector:
    devices = inventory.devices
    mib = sum(device.memory_mib for device in devices)
    return WHOLE_COMPUTE * len(devices), mib, inventory.cpus, inventory.memory_mib


def _keep(members: set[_T], member: _T, *, wanted: bool) -> None:
    if wanted:
        members.add(member)
    else:
        members.discard(member)
