"""The tree of queues with every portion resolved to what it means on the cluster as it is.

A vector counts thousandths of devices, device memory in MiB, CPUs and host memory in MiB. A number of devices bounds
the first only; a percentage bounds all four. A queue's share is the dominant one: the largest of the four, in
millionths of the cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Final

from muster.core.quantities import MILLION, percent_ppm, priority_number
from muster.core.state import Job
from muster.events.binding import WHOLE_COMPUTE
from muster.events.policy import Lane, Policy, Portion, QueueSpec
from muster.events.types import Inventory

Vector = tuple[int, int, int, int]

NOTHING: Final[Vector] = (0, 0, 0, 0)
ENDLESS: Final = 1 << 62
UNBOUNDED: Final[Vector] = (ENDLESS, ENDLESS, ENDLESS, ENDLESS)
DEFAULT_QUEUE: Final = "default"


def plus(a: Vector, b: Vector) -> Vector:
    """The sum."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


def minus(a: Vector, b: Vector) -> Vector:
    """The difference."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]


def within(a: Vector, bound: Vector) -> bool:
    """Whether no dimension is above its bound."""
    return a[0] <= bound[0] and a[1] <= bound[1] and a[2] <= bound[2] and a[3] <= bound[3]


def above(a: Vector, floor: Vector) -> Vector:
    """How far each dimension is above a floor, at least nothing."""
    return max(0, a[0] - floor[0]), max(0, a[1] - floor[1]), max(0, a[2] - floor[2]), max(0, a[3] - floor[3])


def greater(a: Vector, b: Vector) -> Vector:
    """The larger of each dimension."""
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


def lesser(a: Vector, b: Vector) -> Vector:
    """The smaller of each dimension."""
    return min(a[0], b[0]), min(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])


def total_of(inventory: Inventory) -> Vector:
    """What a node adds to the cluster."""
    devices = inventory.devices
    mib = sum(device.memory_mib for device in devices)
    return WHOLE_COMPUTE * len(devices), mib, inventory.cpus, inventory.memory_mib


def resolve(portion: Portion, whole: Vector) -> Vector:
    """What a portion of a whole bounds. Of what is unbounded, a percentage is unbounded."""
    if isinstance(portion, int):
        return portion * WHOLE_COMPUTE, ENDLESS, ENDLESS, ENDLESS
    ppm = percent_ppm(portion)
    a, b, c, d = (part if part == ENDLESS else part * ppm // MILLION for part in whole)
    return a, b, c, d


def with_default(specs: Mapping[str, QueueSpec]) -> Mapping[str, QueueSpec]:
    """The queues by path, with the default one, which is there although nobody made it."""
    return specs if DEFAULT_QUEUE in specs else {**specs, DEFAULT_QUEUE: QueueSpec(DEFAULT_QUEUE)}


class Queue:
    """One queue. `ceiling` is what it may hold at most; `kept` the part of its guarantee that is lent to nobody;
    `entitled_ppm` its share if everybody asked: the guarantee, and by weight a part of what is guaranteed to nobody."""

    __slots__ = (
        "ceiling",
        "children",
        "entitled_ppm",
        "guarantee",
        "job_bound",
        "kept",
        "limited",
        "order",
        "parent",
        "path",
        "spec",
        "step",
        "urgent_bound",
        "urgent_from",
        "user_bound",
    )

    def __init__(self, spec: QueueSpec, parent: "Queue | None", policy: Policy) -> None:
        self.spec: Final = spec
        self.path: Final = spec.name
        self.parent: Final = parent
        self.order: Final = spec.order or policy.order
        self.children: Final[list[Queue]] = []
        above = parent if parent is not None else self
        self.guarantee = NOTHING
        self.ceiling = UNBOUNDED
        self.entitled_ppm = MILLION
        self.limited = False  # whether anybody said what it may hold at most: else its ceiling is the cluster
        if parent is not None:
            parent.children.append(self)
            self._resolve(spec, above)
        self.kept = NOTHING
        if spec.lend is not None and spec.guarantee is not None:
            lent = resolve(spec.lend, self.guarantee)
            a, b, c, d = (
                0 if whole == ENDLESS else max(0, whole - part)
                for whole, part in zip(self.guarantee, lent, strict=True)
            )
            self.kept = (a, b, c, d)
        self.user_bound = self._part(spec.user_limit)
        self.urgent_bound = self._part(spec.urgent_limit)
        self.urgent_from = priority_number(spec.urgent_from)
        self.step = UNBOUNDED if spec.reclaim_step is None else resolve(spec.reclaim_step, self.guarantee)
        self.job_bound = self._part(spec.max_job_share)
        if spec.max_job_devices is not None:
            self.job_bound = lesser(self.job_bound, resolve(spec.max_job_devices, self.ceiling))

    def _resolve(self, spec: QueueSpec, parent: "Queue") -> None:
        self.limited = parent.limited or self.has_own_limit
        if spec.guarantee is not None:
            self.guarantee = resolve(spec.guarantee, parent.guarantee)
        if spec.limit is not None:
            self.ceiling = resolve(spec.limit, parent.ceiling)
        else:
            self.ceiling = parent.ceiling
        if spec.borrow is not None:
            borrowed = resolve(spec.borrow, self.guarantee)
            self.ceiling = lesser(self.ceiling, plus(self.guarantee, borrowed))

    def _part(self, portion: Portion | None) -> Vector:
        return UNBOUNDED if portion is None else resolve(portion, self.ceiling)

    @property
    def has_own_limit(self) -> bool:
        """Whether what it may hold at most was said of it, not of a queue that it is in."""
        return self.spec.limit is not None or self.spec.borrow is not None

    @property
    def is_leaf(self) -> bool:
        """Whether jobs wait here."""
        return not self.children

    @property
    def is_guaranteed_by_number(self) -> bool:
        """Whether its guarantee is a number of devices, which is no word on work without devices."""
        return self.guarantee[2] == ENDLESS

    def upwards(self) -> "Iterator[Queue]":
        """This queue and those it is in, without the root."""
        queue = self
        while queue.parent is not None:
            yield queue
            queue = queue.parent

    def is_under(self, ancestor: "Queue") -> bool:
        """Whether it is the other one, or in it."""
        return ancestor.parent is None or self.path == ancestor.path or self.path.startswith(f"{ancestor.path}/")


class BoundLane:
    """A lane with its size in thousandths of devices."""

    __slots__ = ("max_devices", "max_time_s", "name", "size")

    def __init__(self, lane: Lane, total: Vector) -> None:
        self.name: Final = lane.name
        self.size: Final = min(resolve(lane.devices, total)[0], total[0])
        self.max_devices: Final = lane.max_devices
        self.max_time_s: Final = lane.max_time if isinstance(lane.max_time, int) else ENDLESS

    def admits(self, job: Job) -> bool:
        """Whether a job is small enough: by its devices, and by a time limit where the lane asks for one."""
        if job.spec.gpus > self.max_devices:
            return False
        limit = job.spec.limits.time_limit
        return self.max_time_s == ENDLESS or (isinstance(limit, int) and limit <= self.max_time_s)


class Tree:
    """All queues. `total` is what the nodes that are not lost have, `largest_mib` the nominal memory of their largest
    device (0 = unknown)."""

    def __init__(self, specs: Mapping[str, QueueSpec], policy: Policy, total: Vector, largest_mib: int = 0) -> None:
        self.total: Final = total
        self.largest_mib: Final = largest_mib
        self.policy: Final = policy
        self.root: Final = Queue(QueueSpec("root"), None, policy)
        self.root.guarantee = self.root.ceiling = total
        self.queues: Final[dict[str, Queue]] = {}
        every = with_default(specs)
        for path in sorted(every, key=lambda path: path.split("/")):
            above = path.rpartition("/")[0]
            parent = self.queues[above] if above else self.root
            self.queues[path] = Queue(every[path], parent, policy)
        self.keepers: Final = [queue for queue in self.queues.values() if queue.kept != NOTHING]
        self.lanes: Final = [BoundLane(lane, total) for lane in policy.lanes]
        self._entitle(self.root)

    def _entitle(self, parent: Queue) -> None:
        guaranteed = [self._guaranteed_ppm(queue) for queue in parent.children]
        spare = max(0, parent.entitled_ppm - sum(guaranteed))
        weights = sum(queue.spec.weight for queue in parent.children)
        for queue, ppm in zip(parent.children, guaranteed, strict=True):
            queue.entitled_ppm = max(1, ppm + spare * queue.spec.weight // weights)
            self._entitle(queue)

    def _guaranteed_ppm(self, queue: Queue) -> int:
        return 0 if queue.guarantee == NOTHING else queue.guarantee[0] * MILLION // max(1, self.total[0])

    def queue_of(self, path: str) -> Queue:
        """A job's queue. One that was taken away while the job was being given its place counts as the default one."""
        return self.queues.get(path) or self.queues[DEFAULT_QUEUE]

    def keeping(self, queue: Queue, held: Callable[[Queue], Vector]) -> list[tuple[Queue, Vector]]:
        """The outermost queues that keep something from another, and how much beside what they hold: of their own
        guarantee, or for those in them together, whichever is more."""
        found: list[tuple[Queue, Vector]] = []
        for keeper in self.keepers:  # parents come before their children
            if not queue.is_under(keeper) and not any(keeper.is_under(other) for other, _ in found):
                found.append((keeper, _keeps(keeper, held)))
        return found

    def share_ppm(self, used: Vector) -> int:
        """The dominant share of the cluster, in millionths."""
        return max((part * MILLION // whole for part, whole in zip(used, self.total, strict=True) if whole), default=0)


def _keeps(queue: Queue, held: Callable[[Queue], Vector]) -> Vector:
    """What a queue and those in it keep and do not hold."""
    inside = reduce(plus, (_keeps(child, held) for child in queue.children), NOTHING)
    return inside if queue.kept == NOTHING else greater(inside, above(queue.kept, held(queue)))
