"""What would fit if running work were gone: the first of its attempts, in a given order, after which a job fits.

Room only grows as more of them go, so the least number is found by doubling and halving. Everything is put back.
"""

from collections.abc import Callable, Iterator

from muster.core.holdings import Claim
from muster.core.ledger import Claimant, negative
from muster.core.placement import Allotment, place
from muster.core.plan import Draft
from muster.core.queues import Vector
from muster.core.resources import Demand
from muster.core.state import Job


class Asker:
    """Who asks for room: the job in the ledger's terms, its demand, and where it must not go."""

    __slots__ = ("claimant", "demand", "excluded", "job", "least")

    def __init__(self, draft: Draft, job: Job, excluded: frozenset[str]) -> None:
        self.job = job
        self.claimant: Claimant = draft.ledger.claimant(job)
        self.demand: Demand = draft.cluster.demand(job)
        self.excluded = excluded
        self.least = least_vector(self.demand, draft.ledger.tree.largest_mib)


def least_vector(demand: Demand, largest_mib: int) -> Vector:
    """What a demand claims at least, wherever it goes (`largest_mib`: the nominal memory of the largest device). Device
    memory is known once it has its devices."""
    workers = demand.nodes if isinstance(demand.nodes, int) else 1
    cpus, memory_mib = demand.host_share(demand.gpus, 1) if demand.gpus else demand.host_share(0, workers)
    hosts = 1 if demand.gpus else workers
    milli = demand.occupies_at_least(largest_mib) if demand.gpus else 0
    return demand.gpus * milli, 0, cpus * hosts, memory_mib * hosts


class Releaser:
    """A draft in which the first so many jobs of a sequence are taken to be gone. `permits` is asked of each job when
    its turn comes; those refused are passed over."""

    def __init__(self, draft: Draft, candidates: Iterator[Job], permits: Callable[[Job], bool]) -> None:
        self._draft = draft
        self._candidates = candidates
        self._permits = permits
        self.sequence: list[Job] = []
        self.gone = 0

    def move_to(self, count: int) -> bool:
        """Let the first `count` be gone; whether there are so many."""
        while self.gone > count:
            self.gone -= 1
            self.put_back(self.sequence[self.gone])
        while self.gone < count:
            if self.gone == len(self.sequence):
                job = next((job for job in self._candidates if self._permits(job)), None)
                if job is None:
                    return False
                self.sequence.append(job)
            self.let_go(self.sequence[self.gone])
            self.gone += 1
        return True

    def let_go(self, job: Job) -> None:
        """Take a job to be gone."""
        draft = self._draft
        claims = draft.claims_of(job)
        leaving = job.id in draft.cluster.leaving
        if not leaving:
            draft.ledger.leave(draft.ledger.claimant(job), draft.vector(claims))
        for share, demand in self._free(claims, leaving=leaving):
            draft.room.give(share, demand)

    def put_back(self, job: Job) -> None:
        """Take it to be there after all."""
        draft = self._draft
        claims = draft.claims_of(job)
        leaving = job.id in draft.cluster.leaving
        if not leaving:
            draft.ledger.leave(draft.ledger.claimant(job), negative(draft.vector(claims)))
        for share, demand in self._free(claims, leaving=leaving):
            draft.room.take(share, demand)

    def _free(self, claims: list[Claim], *, leaving: bool) -> Iterator[Claim]:
        """What becomes free of the claims: what leaves a node on which room is reserved is spoken for."""
        reserved = self._draft.reserved_nodes()
        for claim in claims:
            name = claim[0].node
            if not (leaving and name in reserved):
                yield claim

    def close(self) -> None:
        """Put everything back."""
        self.move_to(0)


def fits(draft: Draft, asker: Asker) -> Allotment | None:
    """Where a job goes as the draft is, with its queue's bounds as they are once all that leaves has left."""
    if not draft.ledger.admits(asker.claimant, asker.least, staying=True):
        return None
    found = place(draft.room, asker.demand, asker.excluded)
    if found is None:
        return None
    exact = draft.vector((share, asker.demand) for share in found.shares)
    return found if draft.ledger.admits(asker.claimant, exact, staying=True) else None


def first_fit(draft: Draft, releaser: Releaser, asker: Asker) -> Allotment | None:
    """The place that a job gets after the least number of the sequence is gone; the releaser stands there. None = it
    does not fit even when all are gone."""
    low, high, found = 0, 0, fits(draft, asker)
    while found is None:
        low, high = high + 1, max(1, 2 * high)
        if not releaser.move_to(high):
            high = releaser.gone
            if high < low:
                return None
            found = fits(draft, asker)
            if found is None:
                return None
            break
        found = fits(draft, asker)
    while low < high:
        middle = (low + high) // 2
        releaser.move_to(middle)
        at_middle = fits(draft, asker)
        if at_middle is None:
            low = middle + 1
        else:
            high, found = middle, at_middle
    releaser.move_to(high)
    return found
