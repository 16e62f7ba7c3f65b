"""Where a gang goes: best fit, all or none.

Rules, in order. One node where one will do: the node with the fewest idle devices that still fits (ties: model, then
node name). Several nodes: one model, on one named fabric unless the job waives the link; as few nodes
as can be; an even split where one exists on that number of nodes. Inside a node: devices already shared first
(for shares), then the lowest numbers.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from muster.core.capacity import Capacity, NodeRoom, Pool, Share
from muster.core.resources import Demand

RULE: Final = "best-fit"


class Allotment(NamedTuple):
    """The shares of a gang in order of rank, and the rule that chose them, in words."""

    shares: list[Share]
    why: str


def place(capacity: Capacity, demand: Demand, excluded: frozenset[str] = frozenset()) -> Allotment | None:
    """Where the demand goes now, or None where it does not fit."""
    if not demand.gpus:
        return _place_without_devices(capacity, demand, excluded)
    nodes = demand.nodes
    if isinstance(nodes, int) and nodes > 1:
        return _place_on_several(capacity, demand, excluded)
    one_must_do = nodes == 1 or (nodes is None and demand.gpus <= capacity.largest)
    single = _place_on_one(capacity, demand, excluded) if demand.gpus <= capacity.largest else None
    return single if single is not None or one_must_do else _place_on_several(capacity, demand, excluded)


def admits(room: NodeRoom, name: str, demand: Demand, excluded: frozenset[str]) -> bool:
    """Whether the job's constraints let a node be used."""
    if name in excluded or (demand.node_names and name not in demand.node_names):
        return False
    if demand.labels:
        labels = room.inventory.labels
        return all(labels.get(label) == value for label, value in demand.labels)
    return True


def _of_models(pools: Iterable[Pool], demand: Demand) -> Iterable[Pool]:
    return [pool for pool in pools if pool.model in demand.models] if demand.models else pools


def _candidates(
    capacity: Capacity, pool: Pool, demand: Demand, excluded: frozenset[str], devices: int, workers: int
) -> Iterator[str]:
    """The nodes of a pool that can take `devices` devices of a gang, fullest first, then by name."""
    cpus, memory_mib = demand.host_share(devices, workers)
    rooms = capacity.rooms
    plain = not (excluded or demand.constrained)
    whole = demand.exclusive and demand.device_memory_mib == 0
    first = devices if demand.exclusive else 0
    for shelf in pool.shelves[first:]:
        for name in shelf:
            room = rooms[name]
            if not room.fits_host(cpus, memory_mib) or not (plain or admits(room, name, demand, excluded)):
                continue
            if whole or len(room.fitting(pool.model, demand)) >= devices:
                yield name


def _share(capacity: Capacity, pool: Pool, demand: Demand, name: str, devices: int, workers: int) -> Share:
    chosen = capacity.rooms[name].fitting(pool.model, demand)[:devices]
    return Share(name, tuple(sorted(chosen)), *demand.host_share(devices, workers))


def _place_on_one(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    best: tuple[int, Pool, str] | None = None
    for pool in _of_models(capacity.models.values(), demand):
        name = next(_candidates(capacity, pool, demand, excluded, demand.gpus, 1), None)
        if name is None:
            continue
        idle = len(capacity.rooms[name].idle[pool.model])
        if best is None or idle < best[0]:
            best = (idle, pool, name)
            if idle == demand.gpus:
                break
    if best is None:
        return None
    idle, pool, name = best
    return Allotment([_share(capacity, pool, demand, name, demand.gpus, 1)], f"{RULE}: {idle} idle on {name}")


def _place_on_several(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    groups: dict[str, list[Pool]] = {}
    for pool in _of_models(capacity.pools.values(), demand):
        if not demand.linked:
            groups.setdefault(pool.model, []).append(pool)
        elif pool.fabric:
            groups[f"{pool.model}\n{pool.fabric}"] = [pool]
    best: list[tuple[str, Pool, int]] | None = None
    for pools in groups.values():
        split = _split(capacity, pools, demand, excluded)
        if split is not None and (best is None or len(split) < len(best)):
            best = split
    if best is None:
        return None
    best.sort(key=lambda part: part[0])
    shares = [_share(capacity, pool, demand, name, devices, len(best)) for name, pool, devices in best]
    sizes = {devices for _, _, devices in best}
    split_words = "an even split" if len(sizes) == 1 else "an uneven split"
    fabric = f" on fabric {best[0][1].fabric}" if demand.linked else ""
    return Allotment(shares, f"{RULE}: {split_words} over {len(best)} nodes{fabric}")


Part = tuple[str, Pool, int]


def _split(capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str]) -> list[Part] | None:
    """A gang over the nodes of linked pools of one model: (node, pool, devices) each, or None."""
    if demand.exclusive and sum(pool.idle_devices for pool in pools) < demand.gpus:
        return None
    if isinstance(demand.nodes, int):
        return _split_over(capacity, pools, demand, excluded, demand.nodes)
    if demand.nodes == "fewest":
        return _split_whole_nodes(capacity, pools, demand, excluded)
    roomiest = _roomiest(capacity, pools, demand, excluded)
    count = len(roomiest)
    if not count:
        return None
    if demand.gpus % count == 0:
        even = _split_over(capacity, pools, demand, excluded, count)
        if even is not None:
            return even
    return roomiest


def _split_over(
    capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str], count: int
) -> list[Part] | None:
    """Exactly `count` nodes, as even as can be; those with one device more are chosen first."""
    base, larger = divmod(demand.gpus, count)
    parts: list[Part] = []
    taken: set[str] = set()
    for devices, wanted in ((base + 1, larger), (base, count - larger)):
        found = _best_fits(capacity, pools, demand, excluded, devices, wanted, count, taken) if wanted else []
        if len(found) < wanted:
            return None
        parts += found
    return parts


def _split_whole_nodes(
    capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str]
) -> list[Part] | None:
    """As many whole nodes as the gang fills, then the rest on one more."""
    size = max(len(pool.shelves) - 1 for pool in pools)
    whole, rest = divmod(demand.gpus, size)
    count = whole + (1 if rest else 0)
    taken: set[str] = set()
    parts = _best_fits(capacity, pools, demand, excluded, size, whole, count, taken)
    if len(parts) < whole:
        return None
    if rest:
        last = _best_fits(capacity, pools, demand, excluded, rest, 1, count, taken)
        if not last:
            return None
        parts += last
    return parts


def _best_fits(
    capacity: Capacity,
    pools: list[Pool],
    demand: Demand,
    excluded: frozenset[str],
    devices: int,
    wanted: int,
    workers: int,
    taken: set[str],
) -> list[Part]:
    """Up to `wanted` nodes not yet `taken` that have room for `devices`, fullest first; adds them to `taken`."""
    found: list[Part] = []
    for pool in pools:
        fits = 0
        for name in _candidates(capacity, pool, demand, excluded, devices, workers):
            if name not in taken:
                found.append((name, pool, devices))
                fits += 1
                if fits == wanted:
                    break
    if len(pools) > 1:
        found.sort(key=lambda part: (len(capacity.rooms[part[0]].idle[part[1].model]), part[0]))
    del found[wanted:]
    taken.update(name for name, _, _ in found)
    return found


def _roomiest(capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str]) -> list[Part]:
    """The smallest set of nodes that holds the gang: the roomiest first, the last one by best fit; [] = none."""
    parts: list[Part] = []
    left = demand.gpus
    tallest = max(len(pool.shelves) for pool in pools)
    for height in range(tallest - 1, -1, -1):
        for pool in pools:
            shelf = pool.shelves[height] if height < len(pool.shelves) else []
            for name in shelf:
                devices = min(_usable(capacity.rooms[name], name, pool, demand, excluded), left)
                if devices:
                    parts.append((name, pool, devices))
                    left -= devices
                if left == 0:
                    return _last_by_best_fit(capacity, pools, demand, excluded, parts)
    return []


def _last_by_best_fit(
    capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str], parts: list[Part]
) -> list[Part]:
    *others, last = parts
    taken = {name for name, _, _ in others}
    return others + (_best_fits(capacity, pools, demand, excluded, last[2], 1, len(parts), taken) or [last])


def _usable(room: NodeRoom, name: str, pool: Pool, demand: Demand, excluded: frozenset[str]) -> int:
    """How many devices of a gang a node can take, by devices, CPUs, host memory and constraints."""
    if not admits(room, name, demand, excluded):
        return 0
    devices = len(room.fitting(pool.model, demand))
    if demand.cpus:
        devices = min(devices, room.cpus // demand.cpus)
    if demand.memory_mib:
        devices = min(devices, room.memory_mib // demand.memory_mib)
    return max(devices, 0)


def _place_without_devices(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    workers = demand.nodes if isinstance(demand.nodes, int) else 1
    cpus, memory_mib = demand.host_share(0, workers)
    by_fabric: dict[str, list[str]] = {}
    for index in range(bisect_left(capacity.by_cpus, (cpus, "")), len(capacity.by_cpus)):
        name = capacity.by_cpus[index][1]
        room = capacity.rooms[name]
        if room.memory_mib < memory_mib or not admits(room, name, demand, excluded):
            continue
        fabric = room.inventory.fabric if demand.linked and workers > 1 else "*"
        if not fabric:
            continue
        names = by_fabric.setdefault(fabric, [])
        names.append(name)
        if len(names) == workers:
            shares = [Share(name, (), cpus, memory_mib) for name in sorted(names)]
            return Allotment(shares, f"{RULE}: fewest free CPUs")
    return None
