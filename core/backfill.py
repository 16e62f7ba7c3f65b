"""Backfill: what may start past a job that does not fit.

The first job that waits for room keeps a reservation (EASY): the place it gets when running work ends as expected.
Those behind it may start where they end before that time, or leave that place alone. A job that waits for its queue's
limit keeps the same kind of reservation on that limit, for the jobs under it.
"""

from collections.abc import Iterator
from heapq import merge
from typing import TYPE_CHECKING, Final

from muster.core.estimates import expected_s
from muster.core.holdings import Claim
from muster.core.ledger import Claimant, negative
from muster.core.placement import Allotment, place
from muster.core.plan import Draft
from muster.core.queues import ENDLESS, UNBOUNDED, Queue, Vector, minus, plus, within
from muster.core.releasing import Asker, Releaser, first_fit
from muster.core.schedule import SECOND_NS, End
from muster.core.state import Job
from muster.events.policy import Backfill

if TYPE_CHECKING:
    from muster.core.node_room import NodeRoom, Share
    from muster.core.resources import Demand


class Hold:
    """A reservation on the limits of a job's queues and on what lanes leave: `slack` is what may stay beside the job
    when it starts at `at` (`ENDLESS` = nobody knows when)."""

    def __init__(self, draft: Draft, asker: Asker, at: int) -> None:
        self.job: Final = asker.job.id
        self.at: Final = at
        ledger, who, claim = draft.ledger, asker.claimant, asker.least
        tree = ledger.tree
        self._slack: Final[dict[tuple[str, str], Vector]] = {}  # of queues; of a user in one, or of its urgent work
        for queue in who.queue.upwards():
            if queue.limited:
                self._slack[queue.path, ""] = minus(queue.ceiling, plus(ledger.staying(queue), claim))
            if queue.user_bound is not UNBOUNDED:
                held = ledger.staying_of_user(queue.path, who.user)
                self._slack[queue.path, f"user {who.user}"] = minus(queue.user_bound, plus(held, claim))
            if queue.path in who.urgent:
                held = ledger.staying_urgent(queue.path)
                self._slack[queue.path, "urgent"] = minus(queue.urgent_bound, plus(held, claim))
        self._lane_slack: Final = [
            ENDLESS if admitted else tree.total[0] - lane.size - counts[0] + counts[1] - claim[0]
            for lane, admitted, counts in zip(tree.lanes, who.lanes, ledger.outside, strict=True)
        ]
        lanes = sum(lane.size for lane in tree.lanes)
        large = ledger.large[0] - ledger.large[1]
        self._large_slack = ENDLESS if who.small or not lanes else tree.total[0] - lanes - large - claim[0]
        kept = ledger.kept_by_others(who.queue, staying=True)
        left = minus(minus(tree.total, kept), plus(ledger.staying(tree.root), claim))
        a, b, c, d = (part if keeps else ENDLESS for part, keeps in zip(left, kept, strict=True))
        self._kept_slack: Vector = (a, b, c, d)
        self._keepers: Final = [queue for queue, _ in tree.keeping(who.queue, ledger.staying)]

    def bars(self, who: Claimant, claim: Vector) -> bool:
        """Whether a claim that is still held at that time would stand in the job's way."""
        if any(not within(claim, self._slack[key]) for key in self._keys(who)):
            return True
        if not within(claim, self._kept_slack) and not self._is_kept_for(who):
            return True
        if not who.small and claim[0] > self._large_slack:
            return True
        lanes = zip(who.lanes, self._lane_slack, strict=True)
        return any(not admitted and claim[0] > slack for admitted, slack in lanes)

    def note(self, who: Claimant, claim: Vector) -> None:
        """Such a claim is held."""
        for key in self._keys(who):
            self._slack[key] = minus(self._slack[key], claim)
        if not self._is_kept_for(who):
            self._kept_slack = minus(self._kept_slack, claim)
        if not who.small:
            self._large_slack -= claim[0]
        for number, admitted in enumerate(who.lanes):
            if not admitted:
                self._lane_slack[number] -= claim[0]

    def _is_kept_for(self, who: Claimant) -> bool:
        """Whether a claim comes out of what its own queue keeps."""
        return any(who.queue.is_under(keeper) for keeper in self._keepers)

    def _keys(self, who: Claimant) -> Iterator[tuple[str, str]]:
        """The bounds that a claim and the job share."""
        for queue in who.queue.upwards():
            kinds = "", f"user {who.user}", "urgent" if queue.path in who.urgent else ""
            yield from (key for key in dict.fromkeys((queue.path, kind) for kind in kinds) if key in self._slack)


class Shadow(Hold):
    """The reservation of the first job that waits for room. The draft's room is shown in one of two views: all of it,
    or what leaves the reservation alone."""

    floats = False  # whether it keeps a time and no place

    def __init__(self, draft: Draft, asker: Asker, at: int, found: Allotment, _gone: list[Job]) -> None:
        super().__init__(draft, asker, at)
        self._draft = draft
        self._later: Final[dict[str, NodeRoom]] = {}
        self._now: Final[dict[str, NodeRoom]] = {}  # while the reservation is left alone: the nodes as they are
        self._keep(found, asker.demand)

    def _keep(self, found: Allotment, demand: "Demand") -> None:
        """Keep this place of the draft's room, which is as it will be then."""
        self._later.clear()
        for share in found.shares:
            room = self._draft.room.rooms[share.node]
            self._later[share.node] = room.lesser(room)
            self._later[share.node].claim(share, demand)

    def go_on(self, draft: Draft) -> None:
        """The same in another pass: nothing has changed but who waits behind the head."""
        self._draft = draft

    @property
    def nodes(self) -> frozenset[str]:
        """Where the job will start."""
        return frozenset(self._later)

    def spare(self, *, wanted: bool) -> None:
        """Show only the room that leaves the reservation alone, or all of it."""
        room = self._draft.room
        if wanted and not self._now:
            for name, later in self._later.items():
                now = room.rooms[name]
                self._now[name] = room.put_room(name, now.lesser(later))
        elif not wanted and self._now:
            for name, now in self._now.items():
                room.put_room(name, now)
            self._now.clear()

    def leaves_room(self, _shares: "list[Share]", _demand: "Demand") -> bool:
        """Whether a job that lasts longer may start here, in the view that leaves the reservation alone."""
        return True

    def note_started(self, who: Claimant, claims: list[Claim], claim: Vector) -> None:
        """A job that may still run at that time was started, in the view that leaves the reservation alone."""
        self.note(who, claim)
        for share, demand in claims:
            if share.node in self._now:
                self._now[share.node].claim(share, demand)
                self._later[share.node].claim(share, demand)


def cast_shadow(draft: Draft, asker: Asker, kind: type[Shadow] = Shadow) -> Shadow | None:
    """The reservation of a job that waits for room; None where no end of what runs gives it room."""
    if place(draft.cluster.healthy, asker.demand, asker.excluded) is None:
        return None
    jobs = draft.cluster.state.jobs
    ends: dict[int, int] = {}

    def candidates() -> Iterator[Job]:
        for end_at, job_id in _ends(draft, None):
            ends[job_id] = end_at
            yield jobs[job_id]

    releaser = Releaser(draft, candidates(), lambda _: True)
    try:
        found = first_fit(draft, releaser, asker, releaser.foresee(asker))
        if found is None:
            return None
        last = releaser.sequence[releaser.gone - 1].id if releaser.gone else 0
        at = max(draft.plan.now_at, ends.get(last, 0))
        return kind(draft, asker, at, found, releaser.sequence[: releaser.gone])
    finally:
        releaser.close()


def hold_until(draft: Draft, asker: Asker, at: int) -> Hold:
    """The reservation, on what queues and lanes may hold, of a job that is to start then."""
    jobs, ledger = draft.cluster.state.jobs, draft.ledger
    released: list[tuple[Claimant, Vector]] = []
    for end_at, job_id in _ends(draft, None):
        if end_at > at:
            break
        if job_id not in draft.cluster.leaving:
            who, claim = ledger.claimant(jobs[job_id]), draft.held_by(jobs[job_id])
            ledger.leave(who, claim)
            released.append((who, claim))
    hold = Hold(draft, asker, at)
    for who, claim in released:
        ledger.leave(who, negative(claim))
    return hold


def hold_limit(draft: Draft, asker: Asker, queue: Queue) -> Hold:
    """The reservation of a job that waits for what its queue, or one that it is in, may hold."""
    jobs = draft.cluster.state.jobs
    ledger = draft.ledger
    over = minus(plus(ledger.staying(queue), asker.least), queue.ceiling)
    at = draft.plan.now_at
    released: list[tuple[Claimant, Vector]] = []
    for end_at, job_id in _ends(draft, queue):
        if max(over) <= 0:
            break
        job = jobs[job_id]
        if job_id in draft.cluster.leaving:
            continue
        claim = draft.vector(draft.claims_of(job))
        who = ledger.claimant(job)
        ledger.leave(who, claim)
        released.append((who, claim))
        over = minus(over, claim)
        at = max(at, end_at)
    hold = Hold(draft, asker, at if max(over) <= 0 else ENDLESS)
    for who, claim in released:
        ledger.leave(who, negative(claim))
    return hold


def depth_behind(backfill: Backfill, queues: int) -> int:
    """How many jobs are looked at behind each head where jobs of so many queues wait."""
    return backfill.depth // max(1, queues) if backfill.mode == "conservative" else backfill.depth


def ends_in_time(draft: Draft, job: Job, at: int) -> bool:
    """Whether a job that starts now is expected to have ended by then; not where nobody knows when that is."""
    if at == ENDLESS:
        return False
    seconds = expected_s(draft.cluster.state, job)[0]
    return seconds > 0 and draft.plan.now_at + seconds * SECOND_NS <= at


def _ends(draft: Draft, under: Queue | None) -> Iterator[End]:
    """The expected ends of what runs, and of what the pass has started, under a queue or anywhere; whoever the pass
    stops for others is spoken for."""
    cluster = draft.cluster
    queue_of = draft.ledger.tree.queue_of
    ends = {
        path: line
        for path, line in cluster.schedule.by_queue.items()
        if under is None or queue_of(path).is_under(under)
    }
    started: list[End] = []
    for job_id in draft.started:
        job = cluster.state.jobs[job_id]
        seconds = expected_s(cluster.state, job)[0]
        if under is None or queue_of(job.spec.queue).is_under(under):
            started.append((draft.plan.now_at + seconds * SECOND_NS if seconds else ENDLESS, job_id))
    for end in merge(sorted(started), *ends.values()):
        if end[1] not in draft.victims:
            yield end
