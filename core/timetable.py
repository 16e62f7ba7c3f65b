"""What will be free when, node by node, if everything ends when it is expected to, beside what is booked."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.core.health import SOUND
from muster.core.node_room import NodeRoom, Share
from muster.core.queues import ENDLESS
from muster.core.resources import Demand

if TYPE_CHECKING:
    from muster.core.plan import Draft

AT_ONCE: Final = -1
"""The time of what is free already."""
LEAVING_AT: Final = 0
"""The time at which what is being stopped is expected to be gone: before everything else."""


class Part(NamedTuple):
    """What a worker takes of whatever node: devices of a model, CPUs, host memory."""

    model: str
    devices: int
    cpus: int
    memory_mib: int


class Found(NamedTuple):
    """From when on a worker has room for as long as it lasts, on which devices, and since when it has any at all."""

    at: int
    devices: list[int]
    any_at: int


class Timeline:
    """One node from now on: what is left of it from each of `times` on, until the next."""

    __slots__ = ("rooms", "times")

    def __init__(self, room: NodeRoom) -> None:
        self.times: Final = [AT_ONCE]
        self.rooms: Final = [room]

    def give(self, at: int, share: Share, demand: Demand) -> None:
        """A share that is taken at first becomes free."""
        for room in self.rooms[self._cut(at) :]:
            room.unclaim(share, demand)

    def take(self, at: int, until: int, share: Share, demand: Demand) -> None:
        """A share is taken from one time until another."""
        first = self._cut(at)
        for room in self.rooms[first : self._cut(until) if until < ENDLESS else None]:
            room.claim(share, demand)

    def _cut(self, at: int) -> int:
        """Let a step begin at a time; its place."""
        place = bisect_left(self.times, at)
        if place == len(self.times) or self.times[place] != at:
            before = self.rooms[place - 1]
            self.times.insert(place, at)
            self.rooms.insert(place, before.lesser(before))
        return place

    def earliest(self, part: Part, demand: Demand, after: int, lasts_ns: int, now_at: int) -> Found | None:
        """The first time from `after` on at which a worker has room for as long as it lasts; None = there is none."""
        first, any_at = bisect_right(self.times, after) - 1, ENDLESS
        while first < len(self.times):
            at = max(after, self.times[first])
            fitting = self._fitting(part, demand, first)
            if fitting is None:
                first += 1
                continue
            any_at = min(any_at, at)
            barred = self._narrow(fitting, part, demand, first, max(at, now_at) + lasts_ns)
            if barred is None:
                return Found(at, self.rooms[first].choose(sorted(fitting), part.devices), any_at)
            first = barred + 1
        return None

    def _narrow(self, fitting: set[int], part: Part, demand: Demand, first: int, until: int) -> int | None:
        """Leave only the devices that fit until then; else the step with which no such time can begin."""
        for place in range(first + 1, len(self.times)):
            if self.times[place] >= until:
                break
            then = self._fitting(part, demand, place)
            if then is None:
                return place
            fitting &= then
            if len(fitting) < part.devices:
                return first
        return None

    def _fitting(self, part: Part, demand: Demand, place: int) -> set[int] | None:
        """The devices that fit in one step; None where a worker does not."""
        room = self.rooms[place]
        if room.cpus < part.cpus or room.memory_mib < part.memory_mib:
            return None
        if not part.devices:
            return set()
        idle = room.idle[part.model]
        if demand.exclusive and len(idle) < part.devices:
            return None
        whole = demand.exclusive and not demand.device_memory_mib and room.ailments is SOUND
        fitting = idle if whole else room.fitting(part.model, demand)
        return set(fitting) if len(fitting) >= part.devices else None


class Timetable:
    """Every node's timeline, from the draft's room on; a node's is made when somebody asks for it."""

    def __init__(self, draft: "Draft") -> None:
        self._draft: Final = draft
        self._timelines: Final[dict[str, Timeline]] = {}
        self._booked: Final[dict[str, list[tuple[int, int, Share, Demand]]]] = {}
        self._idle_from: Final[dict[tuple[str, str], list[int]]] = {}

    def timeline(self, name: str) -> Timeline:
        """A node's."""
        known = self._timelines.get(name)
        if known is not None:
            return known
        room = self._draft.room.rooms[name]
        timeline = self._timelines[name] = Timeline(room.lesser(room))
        for at, share, demand in self._ends(name):
            timeline.give(at, share, demand)
        for at, until, share, demand in self._booked.get(name, ()):
            if at > AT_ONCE:
                timeline.take(at, until, share, demand)
        return timeline

    def book(self, at: int, until: int, shares: Iterable[Share], demand: Demand) -> None:
        """A job has these shares from one time until another. One that begins at once was started in the draft."""
        for share in shares:
            self._booked.setdefault(share.node, []).append((at, until, share, demand))
            timeline = self._timelines.get(share.node)
            if timeline is not None:
                timeline.take(at, until, share, demand)

    def idle_from(self, name: str, model: str) -> list[int]:
        """When one device of a model is idle on a node, when two are, and so on: not before these times, whatever is
        booked."""
        times = self._idle_from.get((name, model))
        if times is None:
            free = set(self._draft.room.rooms[name].idle.get(model, ()))
            times = self._idle_from[name, model] = [AT_ONCE] * len(free)
            for at, devices in sorted((at, share.devices) for at, share, _ in self._ends(name)):
                free.update(devices)
                times += [at] * (len(free) - len(times))
        return times

    def _ends(self, name: str) -> Iterator[tuple[int, Share, Demand]]:
        """When what is taken of a node now becomes free, as far as anybody knows. What leaves a node on which room is
        reserved is spoken for."""
        draft, cluster = self._draft, self._draft.cluster
        spoken_for = name in draft.reserved_nodes()
        for (job_id, _), worker in cluster.workers_on[name].items():
            leaving = job_id in cluster.leaving or job_id in draft.victims
            at = LEAVING_AT if leaving else cluster.schedule.end_of(job_id)
            if at is not None and at < ENDLESS and not (leaving and spoken_for):
                job = cluster.state.jobs[job_id]
                yield at, cluster.share_of(job, worker), cluster.demand(job)
        for at, until, share, demand in self._booked.get(name, ()):
            if at == AT_ONCE and until < ENDLESS:
                yield until, share, demand
