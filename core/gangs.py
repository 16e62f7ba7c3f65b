"""Gangs over several nodes, by best fit under every rule.

One model; on one named fabric unless the job waives the link. First within one value of the tightest topology label,
then of the next, then anywhere on a fabric (or anywhere at all). On a level as few nodes as can be, then where the
fewest devices are idle, then by name; an even split where one exists on that number of nodes; the nodes with the fewest
idle devices, then with least left.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from muster.core.capacity import Capacity
from muster.core.health import SOUND
from muster.core.node_room import NodeRoom, Share
from muster.core.pools import Entry, Height, Pool
from muster.core.resources import Demand


class Allotment(NamedTuple):
    """The shares of a gang in order of rank, and the rule that chose them, in words."""

    shares: list[Share]
    why: str


class _Part(NamedTuple):
    """One node's part of a gang."""

    name: str
    pool: Pool
    devices: int


_Group = list[Pool]
"""Pools of one model that may hold a gang together."""


def admits(room: NodeRoom, name: str, demand: Demand, excluded: frozenset[str]) -> bool:
    """Whether the job's constraints let a node be used."""
    if name in excluded or (demand.node_names and name not in demand.node_names):
        return False
    if not demand.runs_on(room.inventory):
        return False
    if demand.labels:
        labels = room.inventory.labels
        return all(labels.get(label) == value for label, value in demand.labels)
    return True


def fitness(
    capacity: Capacity, pool: Pool, demand: Demand, excluded: frozenset[str], devices: int, workers: int
) -> Callable[[str], bool]:
    """Whether a node, by name, can take `devices` devices of one of `workers` workers. It is asked of nodes on shelves
    of `Pool.heights`."""
    cpus, memory_mib = demand.host_share(devices, workers)
    rooms, model = capacity.rooms, pool.model
    plain = not (excluded or demand.constrained)
    whole = demand.exclusive and demand.device_memory_mib == 0

    def fits(name: str) -> bool:
        room = rooms[name]
        if room.cpus < cpus or room.memory_mib < memory_mib:
            return False
        if not (plain or admits(room, name, demand, excluded)):
            return False
        return (whole and room.ailments is SOUND) or len(room.fitting(model, demand)) >= devices

    return fits


def models_of(pools: Iterable[Pool], demand: Demand) -> Iterable[Pool]:
    """The pools of the models that the demand allows."""
    return [pool for pool in pools if pool.model in demand.models] if demand.models else pools


def share_of(capacity: Capacity, pool: Pool, demand: Demand, name: str, devices: int, workers: int) -> Share:
    """What one of `workers` workers takes of a node with so many devices."""
    room = capacity.rooms[name]
    chosen = room.choose(room.fitting(pool.model, demand), devices)
    return Share(name, tuple(sorted(chosen)), *demand.host_share(devices, workers))


def place_on_several(capacity: Capacity, demand: Demand, excluded: frozenset[str]) -> Allotment | None:
    """Where a gang goes on several nodes, or None where it does not fit."""
    anywhere = _anywhere(capacity, demand)
    narrow = [_within(label, capacity, demand) for label in capacity.scheme.topology]
    if any(narrow) and not any(_split(capacity, group, demand, excluded) for group in anywhere):
        return None
    for groups in (*narrow, anywhere):
        parts = _best_of(capacity, groups, demand, excluded)
        if parts:
            shares = [share_of(capacity, part.pool, demand, part.name, part.devices, len(parts)) for part in parts]
            shares.sort(key=lambda share: share.node)
            split = "an even split" if len({part.devices for part in parts}) == 1 else "an uneven split"
            return Allotment(shares, f"best-fit: {split} over {len(parts)} nodes{_where(parts[0].pool, demand)}")
    return None


def _where(pool: Pool, demand: Demand) -> str:
    if pool.domain:
        return f" of {pool.domain}"
    return f" on fabric {pool.fabric}" if demand.linked else ""


def _within(label: str, capacity: Capacity, demand: Demand) -> list[_Group]:
    """The nodes with one value of a topology label, for each value by which the gang may have room."""
    pools = models_of(capacity.domains.get(label, {}).values(), demand)
    least = _least_idle(demand)
    roomy = [pool for pool in pools if pool.idle_devices >= least and (pool.fabric or not demand.linked)]
    roomy.sort(key=lambda pool: pool.idle_devices)
    return [[pool] for pool in roomy]


def _anywhere(capacity: Capacity, demand: Demand) -> list[_Group]:
    """The nodes that may hold a gang together at all: those of one fabric, or of one model without the link."""
    groups: dict[tuple[str, str], _Group] = {}
    for pool in models_of(capacity.pools.values(), demand):
        if pool.fabric or not demand.linked:
            groups.setdefault((pool.model, pool.fabric if demand.linked else ""), []).append(pool)
    idle = {key: sum(pool.idle_devices for pool in group) for key, group in groups.items()}
    least = _least_idle(demand)
    return [groups[key] for key in sorted(groups, key=lambda key: (idle[key], key)) if idle[key] >= least]


def _least_idle(demand: Demand) -> int:
    return demand.gpus if demand.exclusive else 0


def _best_of(capacity: Capacity, groups: list[_Group], demand: Demand, excluded: frozenset[str]) -> list[_Part]:
    """The gang on the fewest nodes of one group, of groups with as few the first."""
    fixed = isinstance(demand.nodes, int)
    best: list[_Part] = []
    for group in groups:
        if best and (fixed or (demand.exclusive and _least_nodes(group, demand.gpus) >= len(best))):
            continue
        parts = _split(capacity, group, demand, excluded)
        if parts and (not best or len(parts) < len(best)):
            best = parts
    return best


def _least_nodes(group: _Group, devices: int) -> int:
    """How many nodes it takes at least for so many whole devices, by idle devices alone."""
    nodes = 0
    heights = sorted(
        ((height[0], len(shelf)) for pool in group for height, shelf in pool.shelves.items()), reverse=True
    )
    for idle, count in heights:
        if not idle or devices <= 0:
            break
        needed = min(-(-devices // idle), count)
        nodes += needed
        devices -= needed * idle
    return nodes


def _split(capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str]) -> list[_Part] | None:
    """A gang over the nodes of pools of one model, or None."""
    if isinstance(demand.nodes, int):
        return _split_over(capacity, pools, demand, excluded, demand.nodes)
    if demand.nodes == "fewest":
        return _split_whole_nodes(capacity, pools, demand, excluded)
    roomiest = _roomiest(capacity, pools, demand, excluded)
    if roomiest and demand.gpus % len(roomiest) == 0:
        even = _split_over(capacity, pools, demand, excluded, len(roomiest))
        if even is not None:
            return even
    return roomiest


def _split_over(
    capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str], count: int
) -> list[_Part] | None:
    """Exactly `count` nodes, as even as can be; those with one device more are chosen first."""
    base, larger = divmod(demand.gpus, count)
    if demand.exclusive and sum(pool.count(base) for pool in pools) < count:
        return None
    parts: list[_Part] = []
    taken: set[str] = set()
    for devices, wanted in ((base + 1, larger), (base, count - larger)):
        found = _best_fits(capacity, pools, demand, excluded, devices, wanted, count, taken) if wanted else []
        if len(found) < wanted:
            return None
        parts += found
    return parts


def _split_whole_nodes(
    capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str]
) -> list[_Part] | None:
    """As many whole nodes as the gang fills, then the rest on one more."""
    size = max((pool.size for pool in pools), default=0)
    if not size:
        return None
    whole, rest = divmod(demand.gpus, size)
    if demand.exclusive and sum(pool.count(size) for pool in pools) < whole:
        return None
    count = whole + (1 if rest else 0)
    taken: set[str] = set()
    parts = _best_fits(capacity, pools, demand, excluded, size, whole, count, taken) if whole else []
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
) -> list[_Part]:
    """Up to `wanted` nodes not yet `taken` that have room for `devices`, fullest first; adds them to `taken`."""
    found: list[tuple[Height, Entry, _Part]] = []
    for pool in pools:
        fits = fitness(capacity, pool, demand, excluded, devices, workers)
        fitting = 0
        for height, entry in _fullest_first(pool, devices, demand.compute):
            name = entry[1]
            if name not in taken and fits(name):
                found.append((height, entry, _Part(name, pool, devices)))
                fitting += 1
                if fitting == wanted:
                    break
    if len(pools) > 1:
        found.sort(key=lambda one: one[:2])
    parts = [part for _, _, part in found[:wanted]]
    taken.update(part.name for part in parts)
    return parts


def _fullest_first(pool: Pool, devices: int, compute: int) -> Iterator[tuple[Height, Entry]]:
    for height in pool.heights(devices, compute):
        for entry in pool.shelves[height]:
            yield height, entry


def _roomiest(capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str]) -> list[_Part]:
    """The smallest set of nodes that holds the gang: the roomiest first, the last one by best fit; [] = none."""
    parts: list[_Part] = []
    left = demand.gpus
    heights = {height for pool in pools for height in pool.heights(1, demand.compute)}
    for height in sorted(heights, key=lambda height: (-height[0], height[1])):
        for pool in pools:
            for _, name in pool.shelves.get(height, ()):
                devices = min(usable(capacity.rooms[name], name, pool.model, demand, excluded), left)
                if devices:
                    parts.append(_Part(name, pool, devices))
                    left -= devices
                if left == 0:
                    return _last_by_best_fit(capacity, pools, demand, excluded, parts)
    return []


def _last_by_best_fit(
    capacity: Capacity, pools: list[Pool], demand: Demand, excluded: frozenset[str], parts: list[_Part]
) -> list[_Part]:
    *others, last = parts
    taken = {part.name for part in others}
    return others + (_best_fits(capacity, pools, demand, excluded, last.devices, 1, len(parts), taken) or [last])


def usable(room: NodeRoom, name: str, model: str, demand: Demand, excluded: frozenset[str]) -> int:
    """How many devices of a gang a node can take, by devices, CPUs, host memory and constraints."""
    if not admits(room, name, demand, excluded):
        return 0
    devices = len(room.fitting(model, demand))
    if demand.cpus:
        devices = min(devices, room.cpus // demand.cpus)
    if demand.memory_mib:
        devices = min(devices, room.memory_mib // demand.memory_mib)
    return max(devices, 0)
