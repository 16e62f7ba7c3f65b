"""Who starts: queue after queue by who is furthest under its share, each queue's jobs in its order.

A job that does not fit has others stopped for it where it may; else it is the head of its queue, and what is behind it
starts only by the rules of backfill (`muster.core.backfill`, `muster.core.bookings`); without backfill nothing of its
queue does, and other queues do not go beyond their shares. A job that nothing could ever place, or that only its own
refused starts or its own bounds keep, blocks nobody.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

from muster.core.backfill import Hold, Shadow, cast_shadow, depth_behind, ends_in_time, hold_limit
from muster.core.bookings import Bookings
from muster.core.cluster import Cluster
from muster.core.floating import FloatingShadow
from muster.core.ledger import Obstacle
from muster.core.lines import Line
from muster.core.order import duration_s, faded
from muster.core.placement import place
from muster.core.plan import NOWHERE, Draft, Plan, place_with_ports
from muster.core.preempt import Preemptor
from muster.core.queues import ENDLESS, NOTHING, Vector
from muster.core.releasing import Asker
from muster.core.state import Job
from muster.core.strictness import Strictness
from muster.core.turns import OpenLine, Turns
from muster.core.waiting import exclusions, may_wait

Verdict = Literal["taken", "passed", "full"]

BACKFILLED: Final = "; backfilled past job "
"""What the reason of a start ends with where it passed a head, before that job's number."""


class Allocator:
    """One pass over the lines, or over some of the jobs in them."""

    def __init__(self, draft: Draft, only: Mapping[str, Sequence[int]] | None = None) -> None:
        cluster = draft.cluster
        self._draft: Final = draft
        self._cluster: Final = cluster
        self._policy: Final = cluster.state.policy
        self._preemptor: Final = Preemptor(draft)
        self.is_whole: Final = only is None
        self.lines: Final = (
            {path: OpenLine(self._walk(path, line)) for path, line in cluster.lines.by_queue.items()}
            if only is None
            else {path: OpenLine(iter(jobs)) for path, jobs in only.items()}
        )
        self._turns: Final = Turns(draft, self.lines)
        self._misfits: Final[set[int]] = set()  # shapes that have no place
        self._spared_misfits: Final[set[int]] = set()  # nor one that leaves the head's reservation alone
        self._kind: Final = FloatingShadow if self._policy.backfill.keep == "time" else Shadow
        self.reservation: Shadow | None = None  # as far as it was needed
        self._asker: Asker | None = None  # whose it is
        self._is_awaited = False  # whether it is still to be made
        self.holds: Final[dict[str, Hold]] = {}
        self.bookings: Final = Bookings(draft) if self._policy.backfill.mode == "conservative" else None
        self.depth: Final = depth_behind(self._policy.backfill, len(self.lines))
        self._taken = 0
        self._possible: Final = _could_start(draft)
        self._others: list[int] = []  # of those, the first that have not started
        self.strictness: Final = Strictness(draft, self._turns)
        self._wake_at = ENDLESS

    @property
    def wake_at(self) -> int:
        """When time alone may let something start, if nothing is stopped for others."""
        return min(self._wake_at, self._turns.wake_at, self._preemptor.wake_at or ENDLESS)

    @property
    def has_looked_for_victims(self) -> bool:
        """Whether a job has asked for others to be stopped: as time goes by, others may be cheaper."""
        return self._preemptor.tried

    def promises(self) -> dict[int, int]:
        """From when on (logical) each job that backfill keeps a place for has it, as far as anybody knows."""
        if self.bookings is not None:
            now_at = self._draft.plan.now_at
            return {job_id: max(now_at, slot.at) for job_id, slot in self.bookings.made.items()}
        known = self.reservation is not None and self.reservation.at < ENDLESS
        return {self.reservation.job: self.reservation.at} if known and self.reservation is not None else {}

    def close(self) -> None:
        """Show the room as it is."""
        if self.reservation is not None:
            self.reservation.spare(wanted=False)

    @property
    def shadow(self) -> Shadow | None:
        """The reservation of the first head that waits for room. It is made when somebody asks for it: until a job
        behind the head is known to fit at all, nobody need."""
        if self._is_awaited and self._asker is not None:
            self._is_awaited = False
            kept = None if self.is_whole else self._cluster.reservation
            if kept is not None and kept.job == self._asker.job.id and kept.at >= self._draft.plan.now_at:
                kept.go_on(self._draft)
                self.reservation = kept
            else:
                self.reservation = cast_shadow(self._draft, self._asker, self._kind)
        return self.reservation

    def run(self) -> None:
        """Work through the lines until all are done or the append is full."""
        for _ in self._work(quickly=True):
            pass

    def turns(self) -> Iterator[Job]:
        """Work through the lines likewise, and give each job just before it is considered."""
        return self._work(quickly=False)

    def _work(self, *, quickly: bool) -> Iterator[Job]:
        """Quickly: behind a head, those like others that had no place are passed over at a glance."""
        while (path := self._turns.next_line()) is not None:
            line = self.lines[path]
            if quickly and line.blocked_by and self.bookings is None:
                line.pass_over(self._is_like_a_misfit)
                if line.next is None:
                    self._turns.forget_line(path)
                    continue
            assert line.next is not None
            job = self._cluster.state.jobs[line.next]
            yield job
            verdict = self._consider(line, job)
            if verdict == "full":
                return
            self._taken += verdict == "taken"
            self._turns.looked_at(path, started=verdict == "taken")

    # -- whose turn it is -----------------------------------------------------------------------------------------

    def _walk(self, path: str, line: Line) -> Iterator[int]:
        state, ledger = self._cluster.state, self._draft.ledger
        half_life_s = duration_s(state.policy.half_life)

        def score(user: str) -> int:
            """What a user took, fading, and what it holds now as if for a half-life."""
            use = state.past_use.get(f"{path}\n{user}")
            held = ledger.users.get((path, user), NOTHING)[0]
            return (faded(use, half_life_s, state.time_at) if use is not None else 0) + held * half_life_s

        return line.walk(score)

    def by_turn(self) -> Iterator[int]:
        """The jobs in the order in which they are looked at, each as if it had started before the next one."""
        while (path := self._turns.next_line()) is not None:
            job_id = self.lines[path].next
            assert job_id is not None
            asker = Asker(self._draft, self._cluster.state.jobs[job_id], NOWHERE)
            self._draft.suppose(asker.claimant, asker.least)
            self._turns.looked_at(path, started=True)
            yield job_id

    # -- one job --------------------------------------------------------------------------------------------------

    def _consider(self, line: OpenLine, job: Job) -> Verdict:
        cluster, draft = self._cluster, self._draft
        shape = cluster.shape(job)
        if line.blocked_by and self.bookings is None and self._is_like_a_misfit(job.id):
            return "passed"
        excluded = exclusions(job, draft.plan.now_at) if job.excluded else NOWHERE
        if excluded:
            self._wake_at = min(self._wake_at, *(until for until in job.excluded.values() if until > draft.plan.now_at))
        asker = Asker(draft, job, excluded)
        obstacles = draft.ledger.obstacles(asker.claimant, asker.least)
        if self.strictness.bars(asker):
            if may_wait(cluster, asker, obstacles):
                line.depth = 0  # nobody borrows what the head of another queue waits for
            return "passed"
        if not obstacles:
            planned = self.bookings is not None and not self.is_alone(job)
            verdict = self._try_booked(line, asker, shape) if planned else self._try_start(line, asker, shape)
            if verdict != "passed":
                return verdict
        if excluded or not may_wait(cluster, asker, obstacles):
            return "passed"
        verdict = "passed" if line.blocked_by else self._make_room_or_block(line, asker, obstacles)
        if verdict == "passed" and not obstacles and self.bookings is not None:
            self.bookings.make(asker)
        return verdict

    def _is_like_a_misfit(self, job_id: int) -> bool:
        """Whether another job of this one's shape was found to have no place: the one look at most of a long line."""
        cluster = self._cluster
        shape = cluster.shape_of.get(job_id, -1)
        if shape in self._misfits:
            return job_id not in cluster.excluding
        if shape not in self._spared_misfits or self.reservation is None or job_id in cluster.excluding:
            return False
        return not ends_in_time(self._draft, cluster.state.jobs[job_id], self.reservation.at)

    def _try_start(self, line: OpenLine, asker: Asker, shape: int) -> Verdict:
        draft, job = self._draft, asker.job
        if self._is_awaited and not self._has_room(asker, shape):
            return "passed"
        lasting = self._lasting(asker)
        if lasting is None:
            return "passed"
        shadow = self.shadow
        if shadow is not None:
            shadow.spare(wanted=lasting)
        misfits = self._spared_misfits if lasting else self._misfits
        if not asker.excluded and (shape in self._misfits or shape in misfits):
            return "passed"
        placed = place_with_ports(draft.room, asker.demand, asker.excluded, job.id)
        if placed is None:
            if not asker.excluded:
                (self._misfits if shadow is not None and shadow.floats else misfits).add(shape)
            return "passed"
        found, endpoints = placed
        claims = [(share, asker.demand) for share in found.shares]
        exact = draft.vector(claims)
        if not draft.ledger.admits(asker.claimant, exact):
            return "passed"
        if lasting and shadow is not None and not shadow.leaves_room(found.shares, asker.demand):
            if not asker.excluded:
                misfits.add(shape)
            return "passed"
        past = line.blocked_by or (shadow.job if shadow is not None else 0)
        why = f"{found.why}{BACKFILLED}{past}" if past else found.why
        if not draft.start(job, asker.claimant, found, endpoints, why):
            return "full"
        self._cluster.reservation = None
        if lasting and shadow is not None:
            shadow.note_started(asker.claimant, claims, exact)
        if shadow is not None and shadow.floats:
            self._spared_misfits.clear()  # the rule of placement may put them elsewhere now
        self._note_held(asker, exact)
        return "taken"

    def holds_on(self, asker: Asker) -> Iterator[Hold]:
        """What is kept of what queues and lanes may hold, of which a job would take its part and not have ended."""
        found = [self.holds.get(queue.path) for queue in asker.claimant.queue.upwards()]
        if self.bookings is not None:
            found.append(self.bookings.hold)
        return (hold for hold in found if hold is not None and not ends_in_time(self._draft, asker.job, hold.at))

    def _note_held(self, asker: Asker, claim: Vector) -> None:
        for hold in self.holds_on(asker):
            hold.note(asker.claimant, claim)

    def _is_held_back(self, asker: Asker) -> bool:
        return any(hold.bars(asker.claimant, asker.least) for hold in self.holds_on(asker))

    def is_alone(self, job: Job) -> bool:
        """Whether nobody waits but the job whose turn it is, of those that could ever start: then nobody's booking can
        be in its way, nor its in anybody's."""
        if self._cluster.lines.count - self._taken == 1:
            return True
        self._others = [other for other in self._others if other not in self._draft.started]
        while not any(other != job.id for other in self._others):
            following = next(self._possible, None)
            if following is None:
                return True
            if following not in self._draft.started:
                self._others.append(following)
        return False

    def _try_booked(self, line: OpenLine, asker: Asker, shape: int) -> Verdict:
        """Start a job that has its place at once beside all that are booked."""
        draft, job, bookings = self._draft, asker.job, self.bookings
        assert bookings is not None
        if not self._has_room(asker, shape) or self._is_held_back(asker):
            return "passed"
        found = bookings.place_now(asker)
        if found is None:
            return "passed"
        shares, endpoints = found
        claims = [(share, asker.demand) for share in shares.shares]
        exact = draft.vector(claims)
        if not draft.ledger.admits(asker.claimant, exact):
            return "passed"
        past = line.blocked_by or next(iter(bookings.made), 0)
        why = f"{shares.why}{BACKFILLED}{past}" if past else shares.why
        if not draft.start(job, asker.claimant, shares, endpoints, why):
            return "full"
        bookings.note_started(job)
        self._note_held(asker, exact)
        return "taken"

    def _has_room(self, asker: Asker, shape: int) -> bool:
        """Whether a job would fit if nothing were reserved."""
        if asker.excluded:
            return True
        if shape not in self._misfits and place(self._draft.room, asker.demand) is None:
            self._misfits.add(shape)
        return shape not in self._misfits

    def _lasting(self, asker: Asker) -> bool | None:
        """Whether a job may still run when a reservation begins, so that it must leave it alone; None where it would
        stand in the way of one on a limit."""
        draft, shadow = self._draft, self.shadow
        if self._is_held_back(asker):
            return None
        if shadow is None or ends_in_time(draft, asker.job, shadow.at):
            return False
        return None if shadow.bars(asker.claimant, asker.least) else True

    def _make_room_or_block(self, line: OpenLine, asker: Asker, obstacles: list[Obstacle]) -> Verdict:
        draft, job = self._draft, asker.job
        if self.shadow is not None:
            self.shadow.spare(wanted=False)
        lacked = ", ".join(f"{obstacle.kind} {obstacle.name}".rstrip() for obstacle in obstacles) or "room"
        why = f"job {job.id} of {job.spec.queue} lacked {lacked}"
        made = self._preemptor.make_room(asker, why, head_waits=self.shadow is not None)
        if made is False:
            return "full"
        if made:
            self._turns.forget_shares()
            self._renew_shadow()
            return "taken"
        line.blocked_by = job.id
        limits = [obstacle.name for obstacle in obstacles if obstacle.kind == "queue_limit"]
        if self._policy.backfill.mode == "none":
            line.depth = 0
            self.strictness.note(asker, limits[-1] if limits else "")
            return "passed"
        line.depth = self.depth + 1  # with the head itself
        if self._policy.backfill.mode == "greedy":
            return "passed"
        if limits:
            queue = draft.ledger.tree.queues[limits[-1]]
            if queue.path not in self.holds:
                self.holds[queue.path] = hold_limit(draft, asker, queue)
        elif self.shadow is None and self.bookings is None:
            self._asker = asker
            self._is_awaited = True
        return "passed"

    def _renew_shadow(self) -> None:
        """Room was reserved where the head was to start, perhaps: look again where that is."""
        if self.bookings is not None:
            self.bookings.renew()
        if self.reservation is not None:
            self._is_awaited = True
            self._spared_misfits.clear()


def _could_start(draft: Draft) -> Iterator[int]:
    """Who waits and could ever start."""
    cluster = draft.cluster
    for line in cluster.lines.by_queue.values():
        for *_, job_id in line.keys:
            asker = Asker(draft, cluster.state.jobs[job_id], NOWHERE)
            if cluster.could_start(asker.claimant, asker.job, asker.least):
                yield job_id


def in_order(cluster: Cluster, most: int, last: int = 0) -> list[int]:
    """The first of the waiting jobs in the order in which a pass looks at them, were each of them to start: at most so
    many, and none after job `last`."""
    draft = Draft(Plan(cluster))
    found: list[int] = []
    try:
        for job_id in islice(Allocator(draft).by_turn(), most):
            found.append(job_id)
            if job_id == last:
                break
    finally:
        draft.close()
    return found
