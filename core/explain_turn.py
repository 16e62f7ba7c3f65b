"""A pass as far as the turn of a waiting job: what an explanation looks at.

The pass is the real one (`muster.core.allocate`), on a draft that is taken back: what those before the job get is
what they will get.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from muster.core.allocate import Allocator
from muster.core.backfill import ends_in_time
from muster.core.cluster import Cluster
from muster.core.holdings import Claim
from muster.core.placement import Allotment, place
from muster.core.plan import Draft, Plan, place_with_ports
from muster.core.releasing import Asker
from muster.core.reservations import use_reservations
from muster.core.state import Job
from muster.core.waiting import exclusions

if TYPE_CHECKING:
    from muster.core.turns import OpenLine


class Turn:
    """A draft of the pass in which it is a job's turn; where it is not `reached`, the pass is over without it. `found`
    is where the job goes as far as room is concerned, `spared` where it goes with what backfill keeps left alone, if it
    may still run when that begins."""

    def __init__(self, draft: Draft, allocator: Allocator, job: Job, *, reached: bool) -> None:
        self.draft: Final = draft
        self.allocator: Final = allocator
        self.cluster: Final = draft.cluster
        self.job: Final = job
        self.reached: Final = reached
        self.asker: Final = Asker(draft, job, exclusions(job, draft.plan.now_at))
        self.line: Final[OpenLine | None] = allocator.lines.get(job.spec.queue)
        self._started_on: Final[dict[str, list[tuple[int, Claim]]]] = {}
        for job_id, claims in draft.started.items():
            for claim in claims:
                self._started_on.setdefault(claim[0].node, []).append((job_id, claim))
        allocator.close()
        self.unported: Final = place(draft.room, self.asker.demand, self.asker.excluded)
        fits = self._place()
        self.spared: Final = self._spared(fits)
        self.found: Final = self.spared or fits

    @property
    def now_at(self) -> int:
        """The pass's logical time."""
        return self.draft.plan.now_at

    def claims_on(self, name: str) -> Iterator[tuple[int, Claim]]:
        """What is claimed of a node, by the job that claims it: now, and by what the pass has started."""
        for (job_id, _), worker in self.cluster.workers_on[name].items():
            job = self.cluster.state.jobs[job_id]
            yield job_id, (self.cluster.share_of(job, worker), self.cluster.demand(job))
        yield from self._started_on.get(name, ())

    def _place(self) -> Allotment | None:
        if self.unported is None:
            return None
        placed = place_with_ports(self.draft.room, self.asker.demand, self.asker.excluded, self.job.id)
        return placed[0] if placed is not None else None

    def _spared(self, fits: Allotment | None) -> Allotment | None:
        if self.allocator.bookings is not None:
            if fits is None or self.allocator.is_alone(self.job):
                return fits
            booked = self.allocator.bookings.place_now(self.asker)
            return booked[0] if booked is not None else None
        shadow = self.allocator.shadow
        if shadow is None or fits is None or ends_in_time(self.draft, self.job, shadow.at):
            return fits
        if shadow.floats:
            return fits if shadow.leaves_room(fits.shares, self.asker.demand) else None
        shadow.spare(wanted=True)
        try:
            return self._place()
        finally:
            shadow.spare(wanted=False)


@contextmanager
def pass_of(cluster: Cluster) -> Iterator[tuple[Draft, Allocator, Iterator[Job]]]:
    """A pass that is taken back, job by job: each is given just before it is considered."""
    draft = Draft(Plan(cluster))
    allocator = Allocator(draft)
    try:
        yield draft, allocator, allocator.turns() if use_reservations(draft) else iter(())
    finally:
        allocator.close()
        draft.close()


@contextmanager
def turn_of(cluster: Cluster, job: Job) -> Iterator[tuple[Turn, Iterator[Job]]]:
    """The pass at a job's turn, and the turns that are left: the next step considers the job."""
    with pass_of(cluster) as (draft, allocator, turns):
        reached = any(each.id == job.id for each in turns)
        yield Turn(draft, allocator, job, reached=reached), turns
