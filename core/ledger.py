"""Who holds how much: sums over the live claims, by queue, user, urgency and lane, and the bounds that they are
held to.

Everything is a sum of claims and of reservations; `leaving` is the part that is being given up. A pass plans on the
ledger and takes back what it planned.
"""

from functools import reduce
from typing import Final, Literal, NamedTuple

from muster.core.quantities import MILLION
from muster.core.queues import ENDLESS, NOTHING, UNBOUNDED, Queue, Tree, Vector, minus, plus, within
from muster.core.state import Job

ObstacleKind = Literal["queue_limit", "user_limit", "urgent_limit", "job_limit", "lane", "kept"]


class Obstacle(NamedTuple):
    """A bound that a job would break: whose it is, what is held of it, what the bound is, what the job adds."""

    kind: ObstacleKind
    name: str
    held: Vector
    bound: Vector
    adds: Vector


class Claimant(NamedTuple):
    """What the ledger must know of a job."""

    queue: Queue
    user: str
    urgent: tuple[str, ...]  # the queues in whose sense it is urgent
    lanes: tuple[bool, ...]  # which lanes admit it
    small: bool  # whether any does


class Ledger:
    """The sums. `held` counts everything; `leaving` what stops."""

    def __init__(self, tree: Tree) -> None:
        self.tree: Final = tree
        self.held: Final[dict[str, Vector]] = dict.fromkeys(tree.queues, NOTHING)
        self.leaving: Final[dict[str, Vector]] = dict.fromkeys(tree.queues, NOTHING)
        self.users: Final[dict[tuple[str, str], Vector]] = {}
        self.users_leaving: Final[dict[tuple[str, str], Vector]] = {}
        self.urgent: Final[dict[str, Vector]] = {}
        self.urgent_leaving: Final[dict[str, Vector]] = {}
        self.all_held: Vector = NOTHING
        self.all_leaving: Vector = NOTHING
        self.outside: Final[list[list[int]]] = [[0, 0] for _ in tree.lanes]  # of each lane: held, leaving
        self.large: Final = [0, 0]  # of jobs that no lane admits
        self._claimants: Final[dict[int, Claimant]] = {}

    def claimant(self, job: Job) -> Claimant:
        """A job in the ledger's terms."""
        known = self._claimants.get(job.id)
        if known is None:
            known = self._claimants[job.id] = self._claimant(job)
        return known

    def forget(self, job: int) -> None:
        """An ended job has left the state."""
        self._claimants.pop(job, None)

    def _claimant(self, job: Job) -> Claimant:
        queue = self.tree.queue_of(job.spec.queue)
        urgent = tuple(
            each.path for each in queue.upwards() if each.urgent_bound != UNBOUNDED and job.priority >= each.urgent_from
        )
        lanes = tuple(lane.admits(job) for lane in self.tree.lanes)
        return Claimant(queue, job.user, urgent, lanes, any(lanes))

    def charge(self, who: Claimant, claim: Vector) -> None:
        """Book a claim."""
        self._add(self.held, self.users, self.urgent, 0, who, claim)
        self.all_held = plus(self.all_held, claim)

    def leave(self, who: Claimant, claim: Vector) -> None:
        """A claim that is booked is being given up."""
        self._add(self.leaving, self.users_leaving, self.urgent_leaving, 1, who, claim)
        self.all_leaving = plus(self.all_leaving, claim)

    def _add(
        self,
        queues: dict[str, Vector],
        users: dict[tuple[str, str], Vector],
        urgent: dict[str, Vector],
        column: int,
        who: Claimant,
        claim: Vector,
    ) -> None:
        for queue in who.queue.upwards():
            queues[queue.path] = plus(queues[queue.path], claim)
            key = queue.path, who.user
            if queue.user_bound is not UNBOUNDED or queue is who.queue:
                _book(users, key, claim)
        for path in who.urgent:
            _book(urgent, path, claim)
        for counts, admitted in zip(self.outside, who.lanes, strict=True):
            if not admitted:
                counts[column] += claim[0]
        if not who.small:
            self.large[column] += claim[0]

    def staying(self, queue: Queue) -> Vector:
        """What a queue holds less what it is giving up."""
        if queue.parent is None:
            return minus(self.all_held, self.all_leaving)
        return minus(self.held[queue.path], self.leaving[queue.path])

    def staying_of_user(self, queue: str, user: str) -> Vector:
        """What a user holds in a queue less what is being given up."""
        key = queue, user
        return minus(self.users.get(key, NOTHING), self.users_leaving.get(key, NOTHING))

    def staying_urgent(self, queue: str) -> Vector:
        """What a queue's urgent jobs hold less what is being given up."""
        return minus(self.urgent.get(queue, NOTHING), self.urgent_leaving.get(queue, NOTHING))

    def over_guarantee(self, queue: Queue) -> bool:
        """Whether a queue holds more than it is guaranteed, less what it is giving up."""
        return not within(self.staying(queue), queue.guarantee)

    def may_lose(self, queue: Queue, *, devices: bool) -> bool:
        """Whether others may take from a queue work with or without devices."""
        return self.over_guarantee(queue) or (queue.is_guaranteed_by_number and not devices)

    def keeps_guarantee(self, queue: Queue, claim: Vector) -> bool:
        """Whether a claim is within what a queue is guaranteed, beside what it holds."""
        if queue.is_guaranteed_by_number and not claim[0]:
            return False
        return queue.guarantee != NOTHING and within(plus(self.staying(queue), claim), queue.guarantee)

    def part_of_guarantee_ppm(self, queue: Queue) -> int:
        """What a queue holds of its guarantee, in millionths: the largest of the four."""
        return _part_ppm(self.staying(queue), queue.guarantee)

    def part_of_share_ppm(self, queue: Queue) -> int:
        """What a queue holds of what it is entitled to, in millionths."""
        return self.tree.share_ppm(self.staying(queue)) * MILLION // queue.entitled_ppm

    def obstacles(self, who: Claimant, claim: Vector, *, staying: bool = False) -> list[Obstacle]:
        """Every bound that a claim would break now, or, where `staying`, once all that leaves has left."""
        found: list[Obstacle] = []

        def check(kind: ObstacleKind, name: str, held: Vector, bound: Vector) -> None:
            if not within(plus(held, claim), bound):
                found.append(Obstacle(kind, name, held, bound, claim))

        for queue in who.queue.upwards():
            path = queue.path
            if queue.limited:
                held = self._now(self.held[path], self.leaving[path], staying=staying)
                check("queue_limit", path, held, queue.ceiling)
            if queue.user_bound is not UNBOUNDED:
                key = path, who.user
                held, leaving = self.users.get(key, NOTHING), self.users_leaving.get(key, NOTHING)
                check("user_limit", path, self._now(held, leaving, staying=staying), queue.user_bound)
            if queue.job_bound is not UNBOUNDED:
                check("job_limit", path, NOTHING, queue.job_bound)
            if path in who.urgent:
                held, leaving = self.urgent.get(path, NOTHING), self.urgent_leaving.get(path, NOTHING)
                check("urgent_limit", path, self._now(held, leaving, staying=staying), queue.urgent_bound)
        if self.tree.lanes or self.tree.keepers:
            found += self._cluster_obstacles(who, claim, staying=staying)
        return found

    def admits(self, who: Claimant, claim: Vector, *, staying: bool = False) -> bool:
        """Whether no bound is broken."""
        return not self.obstacles(who, claim, staying=staying)

    @staticmethod
    def _now(held: Vector, leaving: Vector, *, staying: bool) -> Vector:
        return minus(held, leaving) if staying else held

    def _cluster_obstacles(self, who: Claimant, claim: Vector, *, staying: bool) -> list[Obstacle]:
        """Lanes, and what queues keep for themselves, both against the whole cluster."""
        found: list[Obstacle] = []
        total = self.tree.total
        kept = self.kept_by_others(who.queue, staying=staying)
        held = self._now(self.all_held, self.all_leaving, staying=staying)
        if kept != NOTHING:
            a, b, c, d = (whole - part if part else ENDLESS for whole, part in zip(total, kept, strict=True))
            if not within(plus(held, claim), (a, b, c, d)):
                found.append(Obstacle("kept", "", held, (a, b, c, d), claim))
        for lane, admitted, counts in zip(self.tree.lanes, who.lanes, self.outside, strict=True):
            outside = counts[0] - (counts[1] if staying else 0)
            if not admitted and outside + claim[0] + kept[0] > total[0] - lane.size:
                found.append(_device_obstacle("lane", lane.name, outside, total[0] - lane.size - kept[0], claim))
        if not who.small and len(self.tree.lanes) > 1:
            size = sum(lane.size for lane in self.tree.lanes)
            large = self.large[0] - (self.large[1] if staying else 0)
            if large + claim[0] + kept[0] > total[0] - size:
                names = ", ".join(lane.name for lane in self.tree.lanes)
                found.append(_device_obstacle("lane", names, large, total[0] - size - kept[0], claim))
        return found

    def kept_by_others(self, queue: Queue, *, staying: bool) -> Vector:
        """What other queues keep for themselves and do not hold."""
        held = self.staying if staying else self._held
        return reduce(plus, (kept for _, kept in self.tree.keeping(queue, held)), NOTHING)

    def _held(self, queue: Queue) -> Vector:
        return self.held[queue.path]


def _book(sums: dict[tuple[str, str], Vector] | dict[str, Vector], key: object, claim: Vector) -> None:
    known: dict[object, Vector] = sums  # type: ignore[assignment]
    total = plus(known.get(key, NOTHING), claim)
    if total == NOTHING:
        known.pop(key, None)
    else:
        known[key] = total


def negative(claim: Vector) -> Vector:
    """The claim taken back."""
    return -claim[0], -claim[1], -claim[2], -claim[3]


def _device_obstacle(kind: ObstacleKind, name: str, held: int, bound: int, claim: Vector) -> Obstacle:
    return Obstacle(kind, name, (held, 0, 0, 0), (bound, ENDLESS, ENDLESS, ENDLESS), claim)


def _part_ppm(used: Vector, bound: Vector) -> int:
    return max(
        (part * MILLION // most for part, most in zip(used, bound, strict=True) if most and most != ENDLESS),
        default=0,
    )
