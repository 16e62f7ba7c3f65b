"""Where a job goes, all or none, by the rule of `Capacity.scheme`. What one rule can place, all can.

One node where one will do, chosen by the rule; a gang over several nodes by `muster.core.gangs` under every rule.

- `best-fit`: the node of which least is left, devices and CPUs weighed together (ties: model, then node name); on a
  node, for shares, devices in use first, fullest first; then idle ones.
- `spread`: the node with the most idle devices, then of which most is left (ties: model, then node name); on a node the
  emptiest devices.
- `fragmentation`, `tight`: the node and the devices where expected fragmentation grows least, by the scores of
  `muster.core.fragmentation` (ties: node name, then the fullest device). While no work is expected they are `best-fit`.

Under every rule, of a node's idle devices that do equally well those that `muster.core.links` prefers, then the lowest
numbers.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from muster.core.capacity import Capacity
from muster.core.fragmentation import Fragmentation
from muster.core.gangs import Allotment, admits, fitness, models_of, place_on_several, share_of
from muster.core.node_room import NodeRoom, Share
from muster.core.pools import Entry, Pool
from muster.core.resources import Demand

__all__ = ["RULE", "Allotment", "admits", "place"]

RULE: Final = "best-fit"
"""The rule where none is named."""


def place(capacity: Capacity, demand: Demand, excluded: frozenset[str] = frozenset()) -> Allotment | None:
    """Where the demand goes now, or None where it does not fit."""
    if isinstance(demand.nodes, int) and demand.nodes > 1:
        several = place_on_several if demand.gpus else _place_workers_without_devices
        return several(capacity, demand, excluded)
    if demand.gpus > capacity.largest:
        return None if demand.nodes == 1 else place_on_several(capacity, demand, excluded)
    single = _place_on_one(capacity, demand, excluded)
    if single is not None or demand.nodes in (None, 1) or not demand.gpus:
        return single
    return place_on_several(capacity, demand, excluded)


def _place_on_one(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    if capacity.fragmentation is not None:
        return _place_by_fragmentation(capacity, capacity.fragmentation, demand, excluded)
    if not demand.gpus:
        return _place_without_devices(capacity, demand, excluded)
    return _place_on_devices(capacity, demand, excluded)


# -- best-fit and spread ----------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A node that fits: the least `rank` is the best."""

    rank: tuple[int, int]
    name: str
    pool: Pool


def _place_on_devices(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    spread = capacity.scheme.rule == "spread"
    search = _most_idle if spread else _least_left
    best: _Found | None = None
    for pool in models_of(capacity.models.values(), demand):
        found = search(capacity, pool, demand, excluded)
        if found is not None and (best is None or found.rank < best.rank):
            best = found
    if best is None:
        return None
    room = capacity.rooms[best.name]
    idle = len(room.idle[best.pool.model])
    if not spread or demand.exclusive:
        share = share_of(capacity, best.pool, demand, best.name, demand.gpus, 1)
    else:
        fitting = room.fitting(best.pool.model, demand)
        fitting.sort(key=lambda index: (-room.device_compute[index], -room.device_memory_mib[index], index))
        chosen = room.choose(fitting, demand.gpus)
        share = Share(best.name, tuple(sorted(chosen)), *demand.host_share(demand.gpus, 1))
    return Allotment([share], f"{'spread' if spread else RULE}: {idle} idle on {best.name}{_linked(room, share)}")


def _linked(room: NodeRoom, share: Share) -> str:
    """How a share's devices are linked, where that was a choice."""
    if room.links is None or len(share.devices) <= 1:
        return ""
    return f", devices linked by {room.links.words(share.devices)}"


def _least_left(capacity: Capacity, pool: Pool, demand: Demand, excluded: frozenset[str]) -> _Found | None:
    fits = fitness(capacity, pool, demand, excluded, demand.gpus, 1)
    best: Entry | None = None
    for height in pool.heights(demand.gpus, demand.compute):
        for entry in pool.shelves[height]:
            if best is not None and best < entry:
                break
            if fits(entry[1]):
                best = entry
                break
    return None if best is None else _Found((best[0], 0), best[1], pool)


def _most_idle(capacity: Capacity, pool: Pool, demand: Demand, excluded: frozenset[str]) -> _Found | None:
    fits = fitness(capacity, pool, demand, excluded, demand.gpus, 1)
    heights = reversed(pool.heights(demand.gpus, demand.compute))
    for idle, shelves in groupby(heights, key=lambda height: height[0]):
        first = [next((e for e in _most_left_first(pool.shelves[shelf]) if fits(e[1])), None) for shelf in shelves]
        found = [(-left, name) for left, name in filter(None, first)]
        if found:
            less_left, name = min(found)
            return _Found((-idle, less_left), name, pool)
    return None


def _most_left_first(shelf: list[Entry]) -> Iterator[Entry]:
    """The nodes of a shelf, those of which most is left first, then by name."""
    end = len(shelf)
    while end:
        start = bisect_left(shelf, (shelf[end - 1][0], ""))
        yield from shelf[start:end]
        end = start


# -- fragmentation ----------------------------------------------------------------------------------------------------


def _place_by_fragmentation(
    capacity: Capacity, fragmentation: Fragmentation, demand: Demand, excluded: frozenset[str]
) -> Allotment | None:
    cpus, memory_mib = demand.host_share(demand.gpus, 1)
    rooms = capacity.rooms

    def may_use(name: str) -> bool:
        return rooms[name].memory_mib >= memory_mib and admits(rooms[name], name, demand, excluded)

    found = fragmentation.best(rooms, demand, may_use)
    if found is None:
        return None
    name, choice = found
    devices = fragmentation.devices_of(rooms[name], choice)
    share = Share(name, devices, cpus, memory_mib)
    why = f"{capacity.scheme.rule}: least harm on {name}{_linked(rooms[name], share)}"
    return Allotment([share], why)


# -- work without devices ---------------------------------------------------------------------------------------------


def _place_without_devices(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    cpus, memory_mib = demand.host_share(0, 1)
    spread = capacity.scheme.rule == "spread"
    entries: Iterable[Entry] = _most_left_first(capacity.by_left) if spread else capacity.by_left
    for _, name in _with_host_room(capacity, entries, cpus, memory_mib):
        if admits(capacity.rooms[name], name, demand, excluded):
            words = "spread: most left" if spread else f"{RULE}: least left"
            return Allotment([Share(name, (), cpus, memory_mib)], f"{words} of {name}")
    return None


def _place_workers_without_devices(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    workers = demand.nodes if isinstance(demand.nodes, int) else 1
    cpus, memory_mib = demand.host_share(0, workers)
    by_fabric: dict[str, list[str]] = {}
    for _, name in _with_host_room(capacity, capacity.by_left, cpus, memory_mib):
        room = capacity.rooms[name]
        fabric = room.inventory.fabric if demand.linked else "*"
        if not fabric or not admits(room, name, demand, excluded):
            continue
        names = by_fabric.setdefault(fabric, [])
        names.append(name)
        if len(names) == workers:
            shares = [Share(name, (), cpus, memory_mib) for name in sorted(names)]
            return Allotment(shares, f"{RULE}: {workers} nodes of which least is left")
    return None


def _with_host_room(capacity: Capacity, entries: Iterable[Entry], cpus: int, memory_mib: int) -> Iterator[Entry]:
    if not capacity.by_cpus or capacity.by_cpus[-1][0] < cpus:
        return
    rooms = capacity.rooms
    for entry in entries:
        if rooms[entry[1]].fits_host(cpus, memory_mib):
            yield entry
