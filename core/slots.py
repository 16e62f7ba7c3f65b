"""When and where a waiting job can first be for as long as it runs, beside what runs and what is booked.

Of the places at the earliest time the first is taken, in an order of nodes that is always the same. So a job that
starts where it was booked moves nobody else: whoever was booked is given the same time again by every later pass, while
everything ends when it is expected to. Only a gang that any split will do for may start before, on what is free.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.core.gangs import Allotment, admits, usable
from muster.core.node_room import NodeRoom, Share
from muster.core.queues import ENDLESS
from muster.core.resources import Demand
from muster.core.timetable import AT_ONCE, Found, Part, Timetable

if TYPE_CHECKING:
    from muster.core.plan import Draft

_Bound = tuple[int, int, str]
"""A time before which a node has no room for a worker, the node's place in order, and its name."""


class Slot(NamedTuple):
    """From when on (logical; `AT_ONCE` = now) a job has which place."""

    at: int
    found: Allotment


class _Group(NamedTuple):
    """Nodes among which workers may be, in order: of one model, of one fabric, of one value of a label."""

    key: tuple[str, ...]
    model: str
    names: list[str]


class Slots:
    """The search, for one pass. Booking only takes room: no job has room before the time that was found for one that
    asks for the same and lasts no longer."""

    def __init__(self, draft: "Draft", timetable: Timetable) -> None:
        self._draft: Final = draft
        self._timetable: Final = timetable
        self._bounds: Final[dict[tuple[tuple[str, ...], Part, Demand], list[_Bound]]] = {}
        self._known: Final[dict[tuple[tuple[str, ...], tuple[Part, ...], Demand], list[tuple[int, int]]]] = {}
        self._splits: Final[dict[tuple[tuple[str, ...], Demand], list[list[int]]]] = {}
        self._largest: Final = draft.room.largest
        rooms = draft.room.rooms
        available = sorted(name for name, room in rooms.items() if room.available)
        self._everywhere: Final = _Group((), "", available)
        models = sorted({model for name in available for model in rooms[name].idle})
        self._of_model: Final = [
            _Group((model,), model, [name for name in available if model in rooms[name].idle]) for model in models
        ]
        self._linked: Final[dict[tuple[tuple[str, ...], bool], list[_Group]]] = {}

    def earliest(self, demand: Demand, excluded: frozenset[str], lasts_ns: int) -> Slot | None:
        """The first slot of a job that lasts so long (`ENDLESS` = nobody knows how long); None = there is none, or
        nobody knows when."""
        best: Slot | None = None
        for group, parts in self._options(demand):
            searches = [
                (self._search(group, part, demand, excluded, lasts_ns), len(list(same)))
                for part, same in groupby(parts)
            ]
            known = self._known.setdefault((group.key, tuple(parts), demand), [])
            after = max((at for lasted_ns, at in known if lasted_ns <= lasts_ns), default=AT_ONCE)
            found = _first(searches, after, ENDLESS if best is None else best.at)
            if found is not None:
                at, shares = found
                if not excluded:
                    known.append((lasts_ns, at))
                shares.sort(key=lambda share: share.node)
                where = shares[0].node if len(shares) == 1 else f"{len(shares)} nodes"
                best = Slot(at, Allotment(shares, f"the first with room until it ends: {where}"))
                if at == AT_ONCE:
                    return best
        return self._scattered(demand, excluded, lasts_ns) or best

    def _scattered(self, demand: Demand, excluded: frozenset[str], lasts_ns: int) -> Slot | None:
        """Room at once for a gang that any split will do for: whatever each node has."""
        if not demand.gpus or not (demand.nodes == "any" or (demand.nodes is None and demand.gpus > self._largest)):
            return None
        for of_model in self._of_model:
            if demand.models and of_model.model not in demand.models:
                continue
            if demand.exclusive and self._draft.room.models[of_model.model].idle_devices < demand.gpus:
                continue
            for group in self._together(of_model, demand):
                shares = self._pick(group, demand, excluded, lasts_ns)
                if shares:
                    return Slot(AT_ONCE, Allotment(shares, f"what has room until it ends: {len(shares)} nodes"))
        return None

    def _pick(self, group: _Group, demand: Demand, excluded: frozenset[str], lasts_ns: int) -> list[Share]:
        shares: list[Share] = []
        rooms, now_at, left = self._draft.room.rooms, self._draft.plan.now_at, demand.gpus
        for name in group.names:
            for devices in range(min(left, usable(rooms[name], name, group.model, demand, excluded)), 0, -1):
                part = Part(group.model, devices, *demand.host_share(devices, 1))
                found = self._timetable.timeline(name).earliest(part, demand, AT_ONCE, lasts_ns, now_at)
                if found is not None and found.at == AT_ONCE:
                    shares.append(Share(name, tuple(sorted(found.devices)), part.cpus, part.memory_mib))
                    left -= devices
                    break
            if not left:
                return shares
        return []

    # -- where it may be ------------------------------------------------------------------------------------------

    def _options(self, demand: Demand) -> Iterator[tuple[_Group, list[Part]]]:
        """Nodes, and what its workers take of them, the largest first."""
        workers = demand.nodes if isinstance(demand.nodes, int) else 1
        if not demand.gpus:
            part = Part("", 0, *demand.host_share(0, workers))
            for group in self._together(self._everywhere, demand) if workers > 1 else [self._everywhere]:
                yield group, [part] * workers
            return
        models = [group for group in self._of_model if not demand.models or group.model in demand.models]
        fits_on_one = demand.gpus <= self._largest
        if workers == 1 and fits_on_one:
            for group in models:
                yield group, [Part(group.model, demand.gpus, *demand.host_share(demand.gpus, 1))]
        if workers > 1 or (demand.nodes != 1 and (demand.nodes is not None or not fits_on_one)):
            for group in (near for group_of_model in models for near in self._together(group_of_model, demand)):
                for split in self._split(group, demand):
                    yield (
                        group,
                        [Part(group.model, devices, *demand.host_share(devices, len(split))) for devices in split],
                    )

    def _together(self, group: _Group, demand: Demand) -> list[_Group]:
        """The parts of a group that keep a gang together: by topology, tightest first, then by fabric."""
        known = self._linked.get((group.key, demand.linked))
        if known is None:
            rooms = self._draft.room.rooms
            found: dict[tuple[str, ...], list[str]] = {}
            for name in group.names:
                inventory = rooms[name].inventory
                if demand.linked and not inventory.fabric:
                    continue
                for level, label in enumerate(self._draft.room.scheme.topology):
                    if label in inventory.labels:
                        found.setdefault((str(level), inventory.fabric, inventory.labels[label]), []).append(name)
                found.setdefault(("~", inventory.fabric if demand.linked else ""), []).append(name)
            known = self._linked[group.key, demand.linked] = [
                _Group((*group.key, *key), group.model, found[key]) for key in sorted(found)
            ]
        return known

    def _split(self, group: _Group, demand: Demand) -> list[list[int]]:
        """How many devices each worker may have."""
        known = self._splits.get((group.key, demand))
        if known is None:
            known = self._splits[group.key, demand] = list(self._splits_of(group, demand))
        return known

    def _splits_of(self, group: _Group, demand: Demand) -> Iterator[list[int]]:
        if isinstance(demand.nodes, int):
            yield _even(demand.gpus, demand.nodes)
            return
        rooms = self._draft.cluster.healthy.rooms
        if demand.nodes == "fewest":
            most = [max(_size(rooms[name], group.model) for name in group.names)] * len(group.names)
        else:
            room_on = [usable(rooms[name], name, group.model, demand, frozenset()) for name in group.names]
            most = sorted(room_on, reverse=True)
        split, left = [], demand.gpus
        for devices in most:
            if left > 0 and devices > 0:
                split.append(min(devices, left))
                left -= devices
        if left > 0:
            return
        if demand.nodes != "fewest" and demand.gpus % len(split) == 0 and len(set(split)) > 1:
            yield _even(demand.gpus, len(split))
        yield split

    # -- when ---------------------------------------------------------------------------------------------------------

    def _search(self, group: _Group, part: Part, demand: Demand, excluded: frozenset[str], lasts_ns: int) -> "_Search":
        known = self._bounds.get((group.key, part, demand))
        if known is None:
            known = self._bounds[group.key, part, demand] = self._bounds_of(group, part, demand)
        known.sort()

        def look(name: str, after: int) -> Found | None:
            if name in excluded:
                return None
            timeline = self._timetable.timeline(name)
            return timeline.earliest(part, demand, after, lasts_ns, self._draft.plan.now_at)

        return _Search(part, known, look)

    def _bounds_of(self, group: _Group, part: Part, demand: Demand) -> list[_Bound]:
        rooms = self._draft.room.rooms
        bounds = []
        for rank, name in enumerate(group.names):
            if admits(rooms[name], name, demand, frozenset()):
                if not (part.devices and demand.exclusive):
                    bounds.append((AT_ONCE, rank, name))
                    continue
                idle_from = self._timetable.idle_from(name, part.model)
                if len(idle_from) >= part.devices:
                    bounds.append((idle_from[part.devices - 1], rank, name))
        return bounds


class _Search:
    """On which nodes there is room for a worker of one kind, and from when on. No more are looked at than need be."""

    def __init__(self, part: Part, bounds: list[_Bound], look: Callable[[str, int], Found | None]) -> None:
        self.part: Final = part
        self.found: Final[dict[str, Found]] = {}
        self._bounds: Final = bounds
        self._look: Final = look
        self._next = 0
        self._ranks: Final[dict[str, int]] = {}
        self._times: list[int] = []  # of what was found, in order

    def is_hopeless(self, count: int, before: int) -> bool:
        """Whether the bounds alone say, before any node is looked at, that so many have no room before a time."""
        return len(self._bounds) < count or self._bounds[count - 1][0] >= before

    def when(self, count: int, after: int, before: int) -> int | None:
        """The first time from `after` on at which so many nodes have room at once; None where that is not before
        another."""
        while True:
            self._look_at_more(count, after)
            at = max(after, self._times[count - 1]) if len(self._times) >= count else before
            if at >= before:
                return None
            early = [name for name, found in self.found.items() if found.at < at]
            if not early:
                return at
            for name in early:
                then = self._look(name, at)
                if then is None:
                    del self.found[name]
                else:
                    self.found[name] = then
            self._times = sorted(found.at for found in self.found.values())

    def _look_at_more(self, count: int, after: int) -> None:
        bounds = self._bounds
        while self._next < len(bounds):
            bound, rank, name = bounds[self._next]
            if len(self._times) >= count:
                limit = max(after, self._times[count - 1])
                if bound > limit or limit == AT_ONCE:
                    break
            found = self._look(name, max(after, bound))
            if found is not None:
                self.found[name] = found
                self._ranks[name] = rank
                insort(self._times, found.at)
                if after <= bound:
                    bounds[self._next] = found.any_at, rank, name
            self._next += 1

    def choose(self, count: int, at: int, taken: set[str]) -> list[Share]:
        """The first of the nodes that have room at that time and are not taken."""
        names = [name for name, found in self.found.items() if found.at == at and name not in taken]
        names.sort(key=self._ranks.__getitem__)
        taken.update(names[:count])
        return [
            Share(name, tuple(sorted(self.found[name].devices)), self.part.cpus, self.part.memory_mib)
            for name in names[:count]
        ]


def _first(searches: Sequence[tuple[_Search, int]], after: int, before: int) -> tuple[int, list[Share]] | None:
    """When all workers have room at once, from one time on and before another, and where."""
    counts = accumulate(more for _, more in searches)
    if any(search.is_hopeless(count, before) for (search, _), count in zip(searches, counts, strict=True)):
        return None
    at, settled = after, False
    while not settled:
        settled, count = True, 0
        for search, more in searches:
            count += more
            then = search.when(count, at, before)
            if then is None:
                return None
            if then > at:
                at, settled = then, False
    taken: set[str] = set()
    return at, [share for search, count in searches for share in search.choose(count, at, taken)]


def _size(room: NodeRoom, model: str) -> int:
    return sum(device.model == model for device in room.inventory.devices)


def _even(devices: int, workers: int) -> list[int]:
    base, larger = divmod(devices, workers)
    return [base + 1] * larger + [base] * (workers - larger)
