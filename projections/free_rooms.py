"""Rooms in which running jobs are put one after another, and taken out again last in, first out: what free preemption
asks for at every event. Both kinds place by the product's rules; `EqualNodes` does what best fit does where nodes
differ in nothing but how many devices are idle, many times as fast."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Protocol

from muster.core.capacity import Capacity
from muster.core.placement import Allotment, place
from muster.core.resources import Demand, demand_of
from muster.core.scheme import BY_MIX, Rule, scheme_of
from muster.events.types import Inventory
from muster.projections.policy_rules import note_mix
from muster.projections.traces import WHOLE, TraceJob
from muster.projections.virtual import spec_of


class Room(Protocol):
    """What is left of a cluster. Jobs of one kind are placed alike: where one does not fit, none does."""

    def kind(self, job: TraceJob) -> Hashable:
        """The kind of a job that comes."""
        ...

    def take(self, kind: Hashable) -> bool:
        """Put a job of a kind in; whether it fitted."""
        ...

    def keep(self, count: int) -> None:
        """Take all out but the first so many."""
        ...


class EqualNodes:
    """So many nodes of so many devices each, for jobs of whole devices: up to a node's worth goes on one node, the one
    with the fewest idle devices; more goes on nodes that are wholly idle, and the rest on one more."""

    def __init__(self, nodes: int, devices: int) -> None:
        self._devices: Final = devices
        self._nodes: Final = [0] * devices + [nodes]  # idle devices → how many nodes have so many
        self._taken: Final[list[tuple[int, int, int]]] = []  # whole nodes, the rest, and what was idle where that is

    def kind(self, job: TraceJob) -> int:
        """How many devices it takes."""
        return job.gpus

    def take(self, kind: Hashable) -> bool:
        """Put a job of so many devices in; whether it fitted."""
        assert isinstance(kind, int)
        nodes, devices = self._nodes, self._devices
        whole, rest = divmod(kind, devices) if kind > devices else (0, kind)
        if whole > nodes[devices]:
            return False
        nodes[devices] -= whole
        idle = rest
        while rest and not nodes[idle]:
            idle += 1
            if idle > devices:
                nodes[devices] += whole
                return False
        nodes[0] += whole
        nodes[idle] -= 1
        nodes[idle - rest] += 1
        self._taken.append((whole, rest, idle))
        return True

    def keep(self, count: int) -> None:
        """Take all out but the first so many."""
        nodes, taken = self._nodes, self._taken
        while len(taken) > count:
            whole, rest, idle = taken.pop()
            nodes[idle - rest] -= 1
            nodes[idle] += 1
            nodes[0] -= whole
            nodes[self._devices] += whole


class AnyNodes:
    """Nodes of all kinds under any rule, as the scheduler sees them."""

    def __init__(self, nodes: Mapping[str, Inventory], rule: Rule) -> None:
        self._rule: Final = rule
        self._capacity: Final = Capacity()
        self._capacity.scheme = scheme_of(rule, (), {})
        self._mix: Final[dict[str, int]] = {}
        self._taken: Final[list[tuple[Allotment, Demand]]] = []
        for name, inventory in nodes.items():
            self._capacity.set_node(name, inventory)
            self._capacity.set_available(name, available=True)

    def kind(self, job: TraceJob) -> Demand:
        """What it demands; it counts for the mix that is expected."""
        demand = demand_of(spec_of(job, self._capacity.largest))
        if self._rule in BY_MIX:
            note_mix(self._mix, demand)
            self._capacity.scheme = scheme_of(self._rule, (), self._mix)
        return demand

    def take(self, kind: Hashable) -> bool:
        """Put a job with a demand in; whether it fitted."""
        assert isinstance(kind, Demand)
        found = place(self._capacity, kind)
        if found is None:
            return False
        self._capacity.take_all((share, kind) for share in found.shares)
        self._taken.append((found, kind))
        return True

    def keep(self, count: int) -> None:
        """Take all out but the first so many."""
        while len(self._taken) > count:
            found, demand = self._taken.pop()
            self._capacity.give_all((share, demand) for share in found.shares)


def room_of(nodes: Mapping[str, Inventory], rule: Rule, jobs: Sequence[TraceJob]) -> Room:
    """The fastest room that does."""
    sizes = {len(inventory.devices) for inventory in nodes.values()}
    models = {device.model for inventory in nodes.values() for device in inventory.devices}
    plain = all(not (job.cpus or job.memory_mib or job.models) and job.compute == WHOLE and job.gpus for job in jobs)
    if rule == "best-fit" and len(sizes) == len(models) == 1 and plain:
        return EqualNodes(len(nodes), sizes.pop())
    return AnyNodes(nodes, rule)
