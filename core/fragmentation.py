"""Expected fragmentation: how much of what is idle could not be used by the work that is expected.

By the measure of fragmentation gradient descent (Weng and others, USENIX ATC 2023): a kind of task that needs no
device, or cannot run on a node (by model, CPUs or number of fitting devices), leaves all that is idle there unused; any
other leaves what is idle on devices with less left than it needs of each. The sum over the mix, weighted by how often
each kind is asked for, is the node's fragmentation; a task goes where it grows least.

Two rules judge by the change. `fragmentation` takes 100 times its sigmoid, cut to a whole number, as the score: many
nodes tie, and their names decide. `tight` takes the change itself, less an eight-hundredth of what is left of the node,
where CPUs count double.

Everything is in whole numbers: fragmentation is in thousandths of a device times the mix's total weight, and the cut
sigmoid is looked up among the changes at which it steps.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.core.resources import Demand
from muster.core.scheme import Mix, Scheme
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.types import Device

if TYPE_CHECKING:
    from muster.core.node_room import NodeRoom

KEPT_CHOICES: Final = 200_000

TIGHTNESS: Final = 800
"""Under `tight`, so many thousandths of a device left weigh as much as one more that nobody could use."""

_EXACT: Final = Context(prec=40)


class Traits(NamedTuple):
    """What tells kinds of devices apart."""

    model: str
    memory_mib: int
    nominal_mib: int
    single: bool


class DeviceLeft(NamedTuple):
    """What is left of one device of a kind."""

    kind: int
    compute: int
    memory_mib: int


class NodeLeft(NamedTuple):
    """What is left of a node, as far as the measure sees it: nodes of which the same is left are alike."""

    cpus: int
    devices: tuple[DeviceLeft, ...]  # in order


class Choice(NamedTuple):
    """Where on a node a task goes, and how good that is: the greater the score the better."""

    score: int
    devices: tuple[DeviceLeft, ...]


class _Kind(NamedTuple):
    cpus: int
    gpus: int
    compute: int
    weight: int


class Measure:
    """Fragmentation under one mix."""

    def __init__(self, mix: Mix) -> None:
        self._mix: Final = mix
        self._cpus: Final = sorted({task.cpus for task, _ in mix})
        self._by_model: Final[dict[str, tuple[int, list[_Kind]]]] = {}
        self._amounts: Final[dict[tuple[int, tuple[DeviceLeft, ...]], int]] = {}
        self.kinds: Final[list[Device]] = []  # a kind is a number here: devices that differ in nothing that counts
        self.traits: Final[list[Traits]] = []  # by kind
        self._numbers: Final[dict[tuple[str, int, int, bool], int]] = {}
        self.total: Final = sum(weight for _, weight in mix)
        self._steps: Final = _steps(self.total)

    def kind(self, device: Device, *, single: bool = False) -> int:
        """The number of a device's kind; `single` ones take work of one device only."""
        traits = (device.model, device.memory_mib, device.nominal_mib, single)
        number = self._numbers.get(traits)
        if number is None:
            number = self._numbers[traits] = len(self.kinds)
            self.kinds.append(device)
            self.traits.append(Traits(*traits))
        return number

    def score(self, change: int) -> int:
        """0..99, the greater the better: by how much fragmentation would fall (`change` > 0) or grow."""
        return bisect_right(self._steps, change)

    def amount(self, cpus: int, devices: tuple[DeviceLeft, ...]) -> int:
        """The fragmentation of a node."""
        key = (bisect_right(self._cpus, cpus), devices)
        amount = self._amounts.get(key)
        if amount is None:
            if len(self._amounts) >= KEPT_CHOICES:
                self._amounts.clear()
            amount = self._amounts[key] = self._compute(cpus, devices)
        return amount

    def _compute(self, cpus: int, devices: tuple[DeviceLeft, ...]) -> int:
        by_model: dict[str, list[int]] = {}
        for device in devices:
            by_model.setdefault(self.kinds[device.kind].model, []).append(device.compute)
        return sum(self._of_model(model, cpus, sorted(left)) for model, left in by_model.items())

    def _of_model(self, model: str, cpus: int, left: list[int]) -> int:
        useless, kinds = self._kinds_on(model)
        idle = sum(left)
        amount = useless * idle
        for kind in kinds:
            too_small = bisect_left(left, kind.compute)
            fits = kind.cpus <= cpus and len(left) - too_small >= kind.gpus
            amount += kind.weight * (sum(left[:too_small]) if fits else idle)
        return amount

    def _kinds_on(self, model: str) -> tuple[int, list[_Kind]]:
        """The weight of what can never use devices of a model, and the kinds that can."""
        found = self._by_model.get(model)
        if found is None:
            kinds = [
                _Kind(task.cpus, task.gpus, task.compute, weight)
                for task, weight in self._mix
                if task.gpus and (not task.models or model in task.models)
            ]
            useless = self.total - sum(kind.weight for kind in kinds)
            found = self._by_model[model] = (useless, kinds)
        return found


@cache
def _logits() -> tuple[Decimal, ...]:
    """ln(s / (100 - s)) for s = 1, 2 .. 99: where 100 times the sigmoid is s. Decimal, so the same on any machine."""
    return tuple(_EXACT.ln(_EXACT.divide(Decimal(s), Decimal(100 - s))) for s in range(1, 100))


def _steps(total: int) -> list[int]:
    """The least changes of fragmentation, times the mix's total weight, at which the score is 1, 2 .. 99."""
    return [int((logit * 1000 * total).to_integral_value(ROUND_CEILING)) for logit in _logits()]


class Fragmentation:
    """The nodes grouped by what is left of them, and what was found out about each group for each kind of demand, which
    follows from the group and the demand alone. `stale` names the nodes whose group is not known any more."""

    def __init__(self, scheme: Scheme, names: Iterable[str]) -> None:
        self.measure: Final = Measure(scheme.mix)
        self._tight: Final = scheme.rule == "tight"
        self._cpus_per_device: Final = scheme.cpus_per_device
        self.stale: Final = set(names)
        self._groups: Final[dict[NodeLeft, list[str]]] = {}
        self._group_of: Final[dict[str, NodeLeft]] = {}
        self._choices: Final[dict[tuple[object, ...], dict[NodeLeft, Choice | None]]] = {}
        self._kept = 0

    def best(
        self, rooms: Mapping[str, "NodeRoom"], demand: Demand, admits: Callable[[str], bool]
    ) -> tuple[str, Choice] | None:
        """The node where a task on one node does least harm (ties: the smallest name), and its devices there."""
        self._regroup(rooms)
        choices = self._choices_for(demand)
        best_name, best = "", None
        for group, names in self._groups.items():
            choice = choices.get(group, _UNKNOWN)
            if choice is _UNKNOWN:
                choice = choices[group] = self._choose(group, demand)
                self._kept += 1
            if choice is None or (best is not None and choice.score < best.score):
                continue
            for name in names:
                if best is not None and choice.score == best.score and name > best_name:
                    break
                if admits(name):
                    best_name, best = name, choice
                    break
        return None if best is None else (best_name, best)

    def devices_of(self, room: "NodeRoom", choice: Choice) -> tuple[int, ...]:
        """The devices on a node that are as chosen: of those alike the best connected, then the lowest numbers."""
        numbers: list[int] = []
        left = self._left(room)
        for wanted, count in Counter(choice.devices).items():
            alike = [index for index, device in enumerate(left) if device == wanted]
            numbers += room.choose(alike, count, numbers)
        return tuple(sorted(numbers))

    def _left(self, room: "NodeRoom") -> list[DeviceLeft]:
        kind, devices, single = self.measure.kind, room.inventory.devices, room.ailments.single
        kinds = [kind(each, single=each.index in single) for each in devices] if single else map(kind, devices)
        return list(map(DeviceLeft, kinds, room.device_compute, room.device_memory_mib))

    def _regroup(self, rooms: Mapping[str, "NodeRoom"]) -> None:
        for name in sorted(self.stale):
            group = self._group_of.pop(name, None)
            if group is not None:
                names = self._groups[group]
                del names[bisect_left(names, name)]
                if not names:
                    del self._groups[group]
            room = rooms[name]
            if room.available:
                group = self._group_of[name] = NodeLeft(room.cpus, tuple(sorted(self._left(room))))
                insort(self._groups.setdefault(group, []), name)
        self.stale.clear()

    def _choices_for(self, demand: Demand) -> dict[NodeLeft, Choice | None]:
        if self._kept >= KEPT_CHOICES:
            self._choices.clear()
            self._kept = 0
        key = (demand.gpus, demand.cpus, demand.compute, demand.device_memory_mib, demand.models)
        return self._choices.setdefault(key, {})

    def _choose(self, group: NodeLeft, demand: Demand) -> Choice | None:
        """The devices of a node on which a task does least harm (ties: the fullest); None = it does not fit."""
        cpus = group.cpus - demand.host_share(demand.gpus, 1)[0]
        if cpus < 0:
            return None
        before = self.measure.amount(group.cpus, group.devices)
        best: Choice | None = None
        for chosen in self._ways(group, demand):
            after = self._without(group.devices, chosen, demand)
            choice = Choice(self._score(group, before - self.measure.amount(cpus, after)), chosen)
            if best is None or choice.score > best.score:
                best = choice
        return best

    def _score(self, group: NodeLeft, change: int) -> int:
        if not self._tight:
            return self.measure.score(change)
        compute = sum(device.compute for device in group.devices)
        left = compute * self._cpus_per_device + 2 * WHOLE_COMPUTE * group.cpus
        return change * TIGHTNESS * self._cpus_per_device - self.measure.total * left

    def _ways(self, group: NodeLeft, demand: Demand) -> Iterable[tuple[DeviceLeft, ...]]:
        """The sets of devices that are tried, fullest first: each that fits where one is wanted, the fullest of each
        model where several are."""
        if not demand.gpus:
            return [()]
        fitting: dict[str, list[DeviceLeft]] = {}
        for device in sorted(group.devices, key=self._fullest):
            if self._fits(device, demand):
                fitting.setdefault(self.measure.kinds[device.kind].model, []).append(device)
        if demand.gpus == 1:
            each = dict.fromkeys(device for devices in fitting.values() for device in devices)
            return [(device,) for device in sorted(each, key=self._fullest)]
        return [
            tuple(devices[: demand.gpus])
            for _, devices in sorted(fitting.items(), key=lambda of_model: of_model[0])
            if len(devices) >= demand.gpus
        ]

    def _fullest(self, device: DeviceLeft) -> tuple[int, int, Traits]:
        """The order of devices, whichever kinds were met first."""
        return device.compute, device.memory_mib, self.measure.traits[device.kind]

    def _fits(self, device: DeviceLeft, demand: Demand) -> bool:
        kind = self.measure.kinds[device.kind]
        if demand.gpus > 1 and self.measure.traits[device.kind].single:
            return False
        if demand.models and kind.model not in demand.models:
            return False
        claim_mib = device_claim_mib(kind, demand.device_memory_mib)
        return device.compute >= demand.compute and device.memory_mib >= claim_mib

    def _without(
        self, devices: tuple[DeviceLeft, ...], chosen: tuple[DeviceLeft, ...], demand: Demand
    ) -> tuple[DeviceLeft, ...]:
        """What is left of a node's devices once a demand has its claims on those chosen."""
        left = list(devices)
        for device in chosen:
            left.remove(device)
            claim_mib = device_claim_mib(self.measure.kinds[device.kind], demand.device_memory_mib)
            insort(left, DeviceLeft(device.kind, device.compute - demand.compute, device.memory_mib - claim_mib))
        return tuple(left)


_UNKNOWN: Final = Choice(-1, ())
