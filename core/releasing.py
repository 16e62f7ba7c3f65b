"""What would fit if running work were gone: the first of its attempts, in a given order, after which a job fits.

Room only grows as more of them go, so the least number is found by doubling and halving. Everything is put back.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from muster.core.capacity import Capacity
from muster.core.holdings import Claim
from muster.core.ledger import Claimant, negative
from muster.core.placement import Allotment, place
from muster.core.plan import Draft
from muster.core.queues import NOTHING, Vector, plus
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


class _Held(NamedTuple):
    """What a job gives up if it goes: of the ledger, where it is not leaving already, and of the room."""

    who: Claimant
    claim: Vector
    freed: list[Claim]


class Releaser:
    """A draft in which the first so many jobs of a sequence are taken to be gone. `permits` is asked of each job when
    its turn comes; those refused are passed over."""

    def __init__(self, draft: Draft, candidates: Iterator[Job], permits: Callable[[Job], bool]) -> None:
        self._draft = draft
        self._candidates = candidates
        self._permits = permits
        self._held: dict[int, _Held] = {}
        self.sequence: list[Job] = []
        self.gone = 0

    def move_to(self, count: int) -> bool:
        """Let the first `count` be gone; whether there are so many."""
        if count <= self.gone:
            self._put_back(self.sequence[count : self.gone])
            self.gone = count
            return True
        known = self.sequence[self.gone : count]
        self._let_go(known)
        self.gone += len(known)
        while self.gone < count:
            job = next((job for job in self._candidates if self._permits(job)), None)
            if job is None:
                return False
            self.sequence.append(job)
            self.let_go(job)
            self.gone += 1
        return True

    def foresee(self, asker: Asker) -> int:
        """How many of the sequence must be gone at least: with fewer, too few nodes have the idle devices that the
        workers take. Counting costs little beside looking for a place. Whoever comes is permitted whoever is gone."""
        room, seen = self._draft.room, len(self.sequence)
        nodes, devices = _idle_nodes(asker.demand, room)
        count = sum(pool.count(devices) for pool in room.models.values()) if nodes else 0
        idle: dict[str, int] = {}
        while count < nodes:
            job = next((job for job in self._candidates if self._permits(job)), None)
            if job is None:
                break
            self.sequence.append(job)
            seen += 1
            for share, _ in self._held_by(job).freed:
                name = share.node
                before = idle.get(name)
                if before is None:
                    before = max((len(of_model) for of_model in room.rooms[name].idle.values()), default=0)
                after = idle[name] = before + len(share.devices)
                count += before < devices <= after
        return seen

    def let_go(self, job: Job) -> None:
        """Take a job to be gone."""
        self._let_go([job])

    def put_back(self, job: Job) -> None:
        """Take it to be there after all."""
        self._put_back([job])

    def _let_go(self, jobs: list[Job]) -> None:
        every = [self._held_by(job) for job in jobs]
        for who, claim in _sums(every):
            self._draft.ledger.leave(who, claim)
        self._draft.room.give_all([claim for held in every for claim in held.freed])

    def _put_back(self, jobs: list[Job]) -> None:
        every = [self._held_by(job) for job in jobs]
        for who, claim in _sums(every):
            self._draft.ledger.leave(who, negative(claim))
        self._draft.room.take_all([claim for held in every for claim in held.freed])

    def _held_by(self, job: Job) -> "_Held":
        known = self._held.get(job.id)
        if known is None:
            draft = self._draft
            claims = draft.claims_of(job)
            leaving = job.id in draft.cluster.leaving
            claim = NOTHING if leaving else draft.held_by(job)
            freed = list(self._free(claims, leaving=leaving))
            known = self._held[job.id] = _Held(draft.ledger.claimant(job), claim, freed)
        return known

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


def _sums(every: list[_Held]) -> list[tuple[Claimant, Vector]]:
    """What is given up in the ledger by each kind of claimant: adding them up first costs less than booking each."""
    sums: dict[Claimant, Vector] = {}
    for held in every:
        if held.claim != NOTHING:
            sums[held.who] = plus(sums.get(held.who, NOTHING), held.claim)
    return list(sums.items())


def fits(draft: Draft, asker: Asker) -> Allotment | None:
    """Where a job goes as the draft is, with its queue's bounds as they are once all that leaves has left."""
    if not draft.ledger.admits(asker.claimant, asker.least, staying=True):
        return None
    found = place(draft.room, asker.demand, asker.excluded)
    if found is None:
        return None
    exact = draft.vector((share, asker.demand) for share in found.shares)
    return found if draft.ledger.admits(asker.claimant, exact, staying=True) else None


def first_fit(draft: Draft, releaser: Releaser, asker: Asker, least: int = 0) -> Allotment | None:
    """The place that a job gets after the least number of the sequence is gone; the releaser stands there. None = it
    does not fit even when all are gone. With fewer than `least` it is known not to fit."""
    if not releaser.move_to(least):
        return None
    low, high, step, found = least, least, 1, fits(draft, asker)
    while found is None:
        low, high, step = high + 1, high + step, 2 * step
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


def _idle_nodes(demand: Demand, room: Capacity) -> tuple[int, int]:
    """At least so many nodes must have at least so many idle devices of a model each; (0, 0) = not known."""
    if not demand.gpus or not demand.exclusive:
        return 0, 0
    if isinstance(demand.nodes, int):
        return demand.nodes, demand.gpus // demand.nodes
    if demand.nodes is None and demand.gpus <= room.largest:
        return 1, demand.gpus
    sizes = {size for pool in room.models.values() for size in pool.sizes}
    if demand.nodes != "fewest" or len(sizes) != 1:
        return 0, 0
    size = sizes.pop()
    return (demand.gpus // size, size) if demand.gpus >= size else (1, demand.gpus)
