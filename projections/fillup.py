"""Filling a cluster: tasks that never leave arrive one by one, and what fits nowhere is dropped for good.

The experiment of the paper on fragmentation gradient descent (Weng and others, USENIX ATC 2023): how much of the GPUs
is in use, and how much of the idle part could not be used by the tasks of the list (`fragmented`), once the arrivals
have asked for so many percent of the cluster: the mean over the arrivals that round to it.

The rules are the product's own, on the product's own room; `random` is beside them for comparison: any node with room,
and any of its devices.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from muster.core.capacity import Capacity
from muster.core.fragmentation import DeviceLeft, Measure
from muster.core.node_room import NodeRoom, Share
from muster.core.placement import place
from muster.core.resources import Demand
from muster.core.scheme import BY_MIX, Mix, Rule, Scheme, TaskClass, mix_of
from muster.projections.fill_lists import Filling

FillRule = Literal[Rule, "random"]
RULES: Final[tuple[FillRule, ...]] = (*get_args(Rule), "random")
COLUMNS: Final = (50, 80, 100, 130)
CPUS_PER_DEVICE: Final = 16_000


class Step(NamedTuple):
    """After an arrival: thousandths of devices asked for so far and in use, and where it went ("" = nowhere)."""

    arrived: int
    used: int
    node: str


class Column(NamedTuple):
    """Percent of the devices, in use and fragmented, as means over some arrivals."""

    allocation_pct: float
    fragmented_pct: float


class Filled(NamedTuple):
    """What a filling gave, by percent asked for (rounded, as far as the arrivals go). `placed` of `arrivals` tasks
    found room; `end` is the state after the last one."""

    columns: dict[int, Column]
    end: Column
    arrivals: int
    placed: int


Placer = Callable[[Capacity, Demand], Share | None]


def scheme(filling: Filling, rule: Rule) -> Scheme:
    """The rule, with the whole list as the mix that is expected."""
    return Scheme(rule, (), mix(filling, BY_MIX.get(rule, 0)), CPUS_PER_DEVICE)


def mix(filling: Filling, percent: int) -> Mix:
    """The most frequent kinds of the list's tasks, until they make up so much of it."""
    counts = Counter(
        TaskClass(task.host_share(task.gpus, 1)[0], task.gpus, task.compute, task.models) for task in filling.tasks
    )
    return mix_of(counts, percent)


def empty_cluster(filling: Filling, rule: FillRule) -> Capacity:
    """The cluster with nothing running, under a rule that knows the whole list."""
    capacity = Capacity()
    capacity.scheme = scheme(filling, "best-fit" if rule == "random" else rule)
    for name, inventory in filling.nodes.items():
        capacity.set_node(name, inventory)
        capacity.set_available(name, available=True)
    return capacity


def fill(capacity: Capacity, tasks: Iterable[Demand], placer: Placer | None = None) -> Iterator[Step]:
    """Let tasks arrive one by one; each goes where the capacity's rule says, or where `placer` does. What has found no
    room once never will: room only shrinks."""
    where = placer or by_rule
    arrived = used = 0
    refused: set[Demand] = set()
    for demand in tasks:
        asked = demand.gpus * demand.compute
        arrived += asked
        share = None if demand in refused else where(capacity, demand)
        if share is None:
            refused.add(demand)
        else:
            used += asked
            capacity.take(share, demand)
        yield Step(arrived, used, share.node if share is not None else "")


def by_rule(capacity: Capacity, demand: Demand) -> Share | None:
    """Where the capacity's own rule puts a task."""
    found = place(capacity, demand)
    return None if found is None else found.shares[0]


def by_chance(seed: int) -> Placer:
    """Any node with room, all as likely, and any of its devices; the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311  an experiment, no secret

    def choose(capacity: Capacity, demand: Demand) -> Share | None:
        names = list(capacity.rooms)
        for place_ in range(len(names)):
            drawn = chance.randrange(place_, len(names))
            names[place_], names[drawn] = names[drawn], names[place_]
            name = names[place_]
            ways = _ways(capacity.rooms[name], demand)
            if ways:
                devices = chance.sample(chance.choice(ways), demand.gpus)
                return Share(name, tuple(sorted(devices)), *demand.host_share(demand.gpus, 1))
        return None

    return choose


def _ways(room: NodeRoom, demand: Demand) -> list[list[int]]:
    """The devices of a node on which a task fits, by model; [] = it does not."""
    if not room.fits_host(*demand.host_share(demand.gpus, 1)):
        return []
    if not demand.gpus:
        return [[]]
    models = [model for model in room.idle if not demand.models or model in demand.models]
    return [found for model in models if len(found := room.fitting(model, demand)) >= demand.gpus]


class Fragments:
    """How much of a cluster's idle devices is fragmented, kept up to date node by node."""

    def __init__(self, filling: Filling, rooms: Mapping[str, NodeRoom]) -> None:
        self._measure: Final = Measure(mix(filling, BY_MIX["fragmentation"]))
        self._rooms: Final = rooms
        self._amounts: Final = {name: self._amount(name) for name in rooms}
        self._sum = sum(self._amounts.values())
        self._whole: Final = self._measure.total * filling.milli

    @property
    def percent(self) -> float:
        """Of all the devices."""
        return 100 * self._sum / self._whole if self._whole else 0.0

    def review(self, name: str) -> None:
        """Something was placed on a node."""
        amount = self._amount(name)
        self._sum += amount - self._amounts[name]
        self._amounts[name] = amount

    def _amount(self, name: str) -> int:
        room, kind = self._rooms[name], self._measure.kind
        kinds = map(kind, room.inventory.devices)
        left = sorted(map(DeviceLeft, kinds, room.device_compute, room.device_memory_mib))
        return self._measure.amount(room.cpus, tuple(left))


def run(
    filling: Filling,
    rule: FillRule,
    tasks: Sequence[Demand],
    seed: int,
    told: Callable[[Step, Column], object] = lambda *_: None,
) -> Filled:
    """Fill the cluster once; `told` hears of each arrival. The seed is what `random` draws by."""
    capacity = empty_cluster(filling, rule)
    fragments = Fragments(filling, capacity.rooms)
    milli = max(filling.milli, 1)
    gathered: dict[int, list[Column]] = {column: [] for column in COLUMNS}
    now = Column(0.0, fragments.percent)
    placed = 0
    for step in fill(capacity, tasks, by_chance(seed) if rule == "random" else None):
        if step.node:
            placed += 1
            fragments.review(step.node)
            now = Column(100 * step.used / milli, fragments.percent)
        column = gathered.get(round(100 * step.arrived / milli))
        if column is not None:
            column.append(now)
        told(step, now)
    columns = {percent: _mean(found) for percent, found in gathered.items() if found}
    return Filled(columns, now, len(tasks), placed)


def _mean(found: Sequence[Column]) -> Column:
    """Of allocations as the experiment has them, rounded to hundredths of a percent."""
    allocated = sum(round(one.allocation_pct, 2) for one in found)
    return Column(allocated / len(found), sum(one.fragmented_pct for one in found) / len(found))
