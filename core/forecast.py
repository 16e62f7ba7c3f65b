"""When waiting jobs are expected to start, where everything runs for as long as it is expected to and nothing new
comes.

A simulation by the pass's own rules (`muster.core.allocate`) on a copy of the cluster with the first of those that
wait: what can start starts, what is expected to end first ends, and so on. Whom the next passes stop for others goes at
once and waits again; later on nobody is stopped, and what nobody knows the end of never ends. Whoever is booked by the
pass is expected to start as booked.
"""

from typing import Final

import msgspec

from muster.core.allocate import Allocator, in_order
from muster.core.bookings import Bookings
from muster.core.cluster import Cluster
from muster.core.estimates import note_expected
from muster.core.health import readmit
from muster.core.plan import Draft, Plan, placements
from muster.core.queues import ENDLESS
from muster.core.reservations import use_reservations
from muster.core.state import Job, Node, Room, State
from muster.core.virtual import begin_attempt, end_attempt
from muster.events import types as t
from muster.events.policy import Preemption

LOOKED_AT: Final = 100
"""So many waiting jobs take part, or twice as many as are asked for."""
PASSES_MOST: Final = 200
PASSES_EXACT: Final = 100
"""After so many passes, ends that are close together (within a twentieth of the time since now) are taken as one."""
PASSES_BOOKED: Final = 20
"""So many passes with bookings, each of which costs much more than others, and after half of them likewise: the first
already says when all start that it books."""


def expected_starts(cluster: Cluster, most: int) -> dict[int, int | None]:
    """Logical times at which the first `most` waiting jobs are expected to start, those with room reserved first
    (None = nobody knows). The cluster is left as it is."""
    return Forecast(cluster, most).starts()


class Forecast:
    """The same in two steps: to be made copies what it needs of the cluster, which is quick; `starts` takes long, and
    may be called once, in another thread too, while the cluster goes on."""

    def __init__(self, cluster: Cluster, most: int) -> None:
        reserved = list(cluster.state.rooms)
        waiting = in_order(cluster, max(LOOKED_AT, 2 * most))
        jobs = cluster.state.jobs
        self._asked: Final = [job for job in (*reserved, *waiting) if jobs[job].phase == "PENDING"][:most]
        self._refused: Final = {job for job in self._asked if cluster.is_refused(jobs[job])}
        self._state: Final = _copy_of(cluster, [*reserved, *waiting])
        self.places: dict[int, list[t.Placement]] = {}  # where those go that start, once `starts` has come to it

    @property
    def time_at(self) -> int:
        """The logical time of the cluster that was copied, until time passes."""
        return self._state.time_at

    def starts(self) -> dict[int, int | None]:
        """As `expected_starts`. Of a job that every node has refused, nobody knows whether the next try succeeds."""
        if not self._asked:
            return dict.fromkeys(self._refused)
        simulation = _Simulation(self._state)
        starts, self.places = simulation.run(self._asked), simulation.places
        return starts | dict.fromkeys(self._refused)


class _Simulation:
    """A copy of the cluster in which time passes."""

    def __init__(self, state: State) -> None:
        self._state: Final = state
        self._began_at: Final = state.time_at
        self._cluster: Final = Cluster(state)
        self._starts: Final[dict[int, int | None]] = {}
        self.places: Final[dict[int, list[t.Placement]]] = {}  # of the last start of each
        for job_id in sorted(self._cluster.to_judge):
            self._requeue(state.jobs[job_id])

    def run(self, asked: list[int]) -> dict[int, int | None]:
        """Let time pass until all that are asked for have started, or nothing that is known follows."""
        booked = self._state.policy.backfill.mode == "conservative"
        most, exact = (PASSES_BOOKED, PASSES_BOOKED // 2) if booked else (PASSES_MOST, PASSES_EXACT)
        for number in range(most):
            if not self._pass():
                if all(job_id in self._starts for job_id in asked):
                    break
                following = self._next_time(exact=number < exact)
                if following is None:
                    break
                self._go_to(following)
                self._end_what_is_due()
        return {job_id: self._starts.get(job_id) for job_id in asked}

    def _go_to(self, time_at: int) -> None:
        state = self._state
        if time_at > state.time_at:
            state.time_at = time_at
            state.policy = msgspec.structs.replace(state.policy, preemption=Preemption(mode="none"))

    def _pass(self) -> bool:
        """Start what can start; whether anything did."""
        plan = Plan(self._cluster)
        draft = Draft(plan)
        allocator = Allocator(draft)
        try:
            if use_reservations(draft):
                allocator.run()
        finally:
            allocator.close()
            draft.close()
        if not plan.events and allocator.bookings is not None:
            self._note_booked(allocator.bookings)
        for event in plan.events:
            if isinstance(event, t.JobAllocated):
                self._start(event)
            elif isinstance(event, t.RoomReleased):
                self._release(self._state.jobs[event.job])
            elif isinstance(event, t.JobPreempted):
                self._stop(self._state.jobs[event.job])
            elif isinstance(event, t.RoomReserved):
                self._cluster.reserve(Room(event.job, 0, event.placements, event.victims, event.why))
        return bool(plan.events)

    def _note_booked(self, bookings: Bookings) -> None:
        for job_id, slot in bookings.made.items():
            self._starts.setdefault(job_id, max(self._state.time_at, slot.at))
            self.places.setdefault(job_id, placements(self._cluster, slot.found.shares))

    def _start(self, event: t.JobAllocated) -> None:
        cluster, now_at = self._cluster, self._state.time_at
        job = self._state.jobs[event.job]
        self._starts[job.id] = now_at
        self.places[job.id] = event.placements
        if job.id in self._state.rooms:
            cluster.unreserve(job)
        begin_attempt(cluster, event)

    def _stop(self, job: Job) -> None:
        assert job.attempt is not None
        job.attempt.stop = "preempted"
        job.preemptions += 1
        job.phase = "STOPPING"
        self._cluster.review(job)

    def _release(self, job: Job) -> None:
        self._cluster.unreserve(job)
        if job.phase == "PENDING":
            self._cluster.enqueue(job)

    def _next_time(self, *, exact: bool) -> int | None:
        """When the next of what runs is expected to end, or a node may be used again by a job that it refused."""
        now_at = self._state.time_at
        lines = self._cluster.schedule.by_queue.values()
        times = [line[0][0] for line in lines]
        times += [until for waiting in self._cluster.on_probation.values() for until in waiting.values()]
        for job_id in self._cluster.excluding:
            times += [until for until in self._state.jobs[job_id].excluded.values() if until > now_at]
        following = min(times, default=ENDLESS)
        if following == ENDLESS:
            return None
        until = following if exact else following + (following - self._began_at) // 20
        return max((end_at for line in lines for end_at, _ in line if end_at <= until), default=following)

    def _end_what_is_due(self) -> None:
        lines = self._cluster.schedule.by_queue.values()
        due = [job_id for line in lines for end_at, job_id in line if end_at <= self._state.time_at]
        for job_id in sorted(due):
            self._end(self._state.jobs[job_id])
        for name in sorted(self._cluster.on_probation):
            self._readmit(self._state.nodes[name])

    def _readmit(self, node: Node) -> None:
        """Devices whose probation is over take work again."""
        due = [uuid for uuid, each in node.conditions.items() if 0 < each.until_at <= self._state.time_at]
        for uuid in due:
            readmit(node, uuid)
        if due:
            self._cluster.review_devices(node)

    def _end(self, job: Job) -> None:
        cluster, attempt = self._cluster, job.attempt
        assert attempt is not None
        again = attempt.stop == "preempted" or (attempt.stop == "timed_out" and job.spec.limits.on_timeout == "requeue")
        end_attempt(cluster, job)
        if again and not job.cancelled_by:
            self._requeue(job)
        else:
            job.phase = "COMPLETED"
            cluster.close(job)

    def _requeue(self, job: Job) -> None:
        """The job waits again, in its old place or behind the others, as after `JobRequeued`."""
        attempt = job.attempt
        assert attempt is not None
        if attempt.stop == "timed_out":
            job.since, job.since_at = self._state.sequence + job.id, self._state.time_at
        job.phase = "PENDING"
        note_expected(self._state, job)
        self._cluster.close(job)
        self._cluster.enqueue(job)


def _copy_of(cluster: Cluster, waiting: list[int]) -> State:
    """The state with what is live, and of what waits these jobs. What may change is copied."""
    state = cluster.state
    placed = (job_id for line in cluster.schedule.by_queue.values() for _, job_id in line)
    return State(
        sequence=state.sequence,
        time_at=state.time_at,
        jobs={job_id: _copy(state.jobs[job_id]) for job_id in sorted({*placed, *cluster.to_judge, *waiting})},
        nodes={name: _copy_node(node) for name, node in state.nodes.items()},
        queues=dict(state.queues),
        policy=state.policy,
        rooms=dict(state.rooms),
        learned=dict(state.learned),
        past_use={key: msgspec.structs.replace(use) for key, use in state.past_use.items()},
        mix=dict(state.mix),
    )


def _copy(job: Job) -> Job:
    """A job with an attempt and workers of its own."""
    excluded, attempt = dict(job.excluded), job.attempt
    if attempt is None:
        return msgspec.structs.replace(job, excluded=excluded)
    workers = [msgspec.structs.replace(worker) for worker in attempt.workers]
    return msgspec.structs.replace(job, excluded=excluded, attempt=msgspec.structs.replace(attempt, workers=workers))


def _copy_node(node: Node) -> Node:
    return msgspec.structs.replace(node, strays=list(node.strays), conditions=dict(node.conditions))
