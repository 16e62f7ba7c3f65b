"""The state with its indexes: what is waiting, who holds what, what is left of each node, what a pass must look at.

Indexes are computed from the state and kept in step by the methods here; `Cluster(state)` rebuilds all of them, so a
restored snapshot decides as the live one does.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from muster.core.holdings import Holdings, milli_of
from muster.core.lines import Lines
from muster.core.order import duration_s
from muster.core.schedule import SECOND_NS, Schedule
from muster.core.state import Attempt, Job, Node, Room, State, Worker

if TYPE_CHECKING:
    from muster.core.backfill import Shadow
    from muster.core.fading import Fading

_T = TypeVar("_T")

START_WINDOW_NS: Final = 120 * SECOND_NS
"""How long a worker may stay unreported before its attempt is given up. More than one step of logical time."""


class Cluster(Holdings):
    """The whole cluster at one sequence. Only the fold changes it; `decide` plans on its room and its ledger."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.lines: Final = Lines(state, partial(milli_of, self._demands))  # knows no cluster: nothing goes in a circle
        self.schedule: Final = Schedule()
        self.to_stop: Final[set[int]] = set()  # jobs whose attempt has workers to be told to stop
        self.to_judge: Final[set[int]] = set()  # jobs whose attempt is over and may be retried
        self.starting: Final[dict[int, int]] = {}  # job → when its workers must be reported; in that order
        self.silent: Final[set[str]] = set()  # suspect nodes whose lease is running out
        self.with_strays: Final[set[str]] = set()
        self.on_probation: Final[dict[str, dict[str, int]]] = {}  # node → device → when it takes work again
        self.excluding: Final[set[int]] = set()  # waiting jobs that some node has refused
        self.keys: Final[dict[tuple[str, str], int]] = {(key.user, key.key): key.job for key in state.keys}
        self.settled_until: int | None = None  # nothing can be placed before; None = something may
        self.fresh: Final[set[int]] = set()  # jobs that have come to wait since then
        self.heads: Final[dict[str, int]] = {}  # queue → who waited there at its head then
        self.reservation: Shadow | None = None  # what the first of them kept then, as far as anybody had to ask
        self.fading: Fading | None = None  # None = nobody has asked yet
        self.look_at: int | None = None  # when to look again for what can be placed although nothing has changed
        for node in state.nodes.values():
            self.index_node(node)
        for job in state.jobs.values():
            self._index_job(job)
        for room in state.rooms.values():
            self._reserve(room)
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
            self.hold_ports(attempt)
        self.review(job)

    # -- jobs -----------------------------------------------------------------------------------------------------

    @staticmethod
    def is_live(job: Job) -> bool:
        """Whether the job has an attempt that is not over and done with."""
        return job.phase in ("STARTING", "RUNNING", "STOPPING")

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
        super()._leave(job, attempt)
        self.settled_until = None

    # -- what is held ---------------------------------------------------------------------------------------------

    def release(self, job_id: int, worker: Worker) -> None:
        """Free what a worker held, once its tree is gone."""
        super().release(job_id, worker)
        self.settled_until = None

    def reserve(self, room: Room) -> None:
        """Keep room for a waiting job."""
        self.state.rooms[room.job] = room
        self.dequeue(self.state.jobs[room.job])
        self._reserve(room)

    def unreserve(self, job: Job) -> None:
        """Keep room for a job no more."""
        self._unreserve(self.state.rooms.pop(job.id))
        self.settled_until = None

    # -- rules and nodes ------------------------------------------------------------------------------------------

    def reconfigure(self) -> None:
        """Queues or the policy have changed."""
        self._ledger = None
        self.settled_until = None
        self.lines.reorder()
        self._scheme_is_stale = True

    def note_kind(self) -> None:
        """The mix of what is asked for has changed."""
        self._scheme_is_stale = True

    def index_node(self, node: Node) -> None:
        """Take in a node, or what it now has."""
        self._index_inventory(node)
        self._note_probations(node)
        self.review_node(node)

    def review_node(self, node: Node) -> None:
        """Bring what depends on a node's status in step."""
        self._review_status(node)
        _keep(self.silent, node.name, wanted=node.status == "suspect" and node.lost_at > 0)
        _keep(self.with_strays, node.name, wanted=len(node.strays) > node.strays_told)
        self.settled_until = None

    def review_devices(self, node: Node) -> None:
        """Bring what depends on the state of a node's devices in step."""
        self._note_probations(node)
        if self._review_ailments(node):
            self.settled_until = None

    def _note_probations(self, node: Node) -> None:
        waiting = {uuid: condition.until_at for uuid, condition in node.conditions.items() if condition.until_at}
        if waiting:
            self.on_probation[node.name] = waiting
        else:
            self.on_probation.pop(node.name, None)

    def replace_room(self, room: Room) -> None:
        """The same room under other numbers, or in another life of its nodes."""
        self._unreserve(self.state.rooms[room.job])
        self.state.rooms[room.job] = room
        self._reserve(room)
        self.settled_until = None


def _keep(members: set[_T], member: _T, *, wanted: bool) -> None:
    if wanted:
        members.add(member)
    else:
        members.discard(member)
