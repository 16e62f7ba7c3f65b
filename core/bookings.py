"""Conservative backfill: every job that waits for room and is looked at is booked, beside those booked before it, and a
job starts only where nobody's booking is in its way.

Nothing is remembered: each pass books anew. While everything ends when it is expected to, it finds the same times again
(`muster.core.slots`). What queues and lanes may hold is kept for the first of them only.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from muster.core.backfill import Hold, hold_until
from muster.core.estimates import expected_s
from muster.core.node_room import Share
from muster.core.placement import Allotment
from muster.core.plan import meeting_nodes
from muster.core.queues import ENDLESS
from muster.core.resources import Demand
from muster.core.schedule import SECOND_NS
from muster.core.slots import Slot, Slots
from muster.core.timetable import AT_ONCE, Timetable
from muster.events.types import Endpoint

if TYPE_CHECKING:
    from muster.core.plan import Draft
    from muster.core.releasing import Asker
    from muster.core.state import Job


class Bookings:
    """Those of one pass, in the order in which they were made."""

    def __init__(self, draft: "Draft") -> None:
        self._draft: Final = draft
        self._askers: Final[dict[int, Asker]] = {}
        self._made: Final[dict[int, Slot]] = {}
        self._hold: Hold | None = None
        self._is_stale = False
        self._begin()

    @property
    def made(self) -> Mapping[int, Slot]:
        """Who is booked, and where."""
        self._refresh()
        return self._made

    @property
    def hold(self) -> Hold | None:
        """What is kept for the first of them of what queues and lanes may hold."""
        self._refresh()
        return self._hold

    def _begin(self) -> None:
        self._timetable = Timetable(self._draft)
        self._slots = Slots(self._draft, self._timetable)
        self._last: tuple[tuple[Demand, frozenset[str], int], Slot | None] | None = None  # asked for, as things are
        for job_id in self._draft.started:
            self.note_started(self._draft.cluster.state.jobs[job_id])

    def slot_of(self, asker: "Asker", excluded: frozenset[str]) -> Slot | None:
        """The first slot that a job has beside those booked; None = nobody knows when it has one."""
        self._refresh()
        key = asker.demand, excluded, self.lasts_ns(asker.job)
        if self._last is None or self._last[0] != key:
            self._last = key, self._slots.earliest(*key)
        return self._last[1]

    def place_now(self, asker: "Asker") -> tuple[Allotment, list[Endpoint]] | None:
        """The place that a job has at once beside all that are booked, and the ports there."""
        excluded = asker.excluded
        while (slot := self.slot_of(asker, excluded)) is not None and slot.at == AT_ONCE:
            nodes = meeting_nodes(asker.demand, [share.node for share in slot.found.shares])
            endpoints = self._draft.room.free_endpoints(nodes, asker.job.id)
            if len(endpoints) == len(nodes):
                return slot.found, endpoints
            excluded |= {nodes[len(endpoints)]}
        return None

    def lasts_ns(self, job: "Job") -> int:
        """How long a job lasts (`ENDLESS` = nobody knows)."""
        return expected_s(self._draft.cluster.state, job)[0] * SECOND_NS or ENDLESS

    def make(self, asker: "Asker") -> None:
        """Book a job that waits for room, if anybody knows when it has some."""
        slot = self.slot_of(asker, asker.excluded)
        if slot is None:
            return
        until = self.end_of(asker.job, slot.at)
        self._book(slot.at, until, slot.found.shares, asker.demand)
        self._made[asker.job.id] = slot
        self._askers[asker.job.id] = asker
        if self._hold is None:
            self._hold = hold_until(self._draft, asker, max(slot.at, self._draft.plan.now_at))

    def end_of(self, job: "Job", at: int) -> int:
        """When a job is expected to end that begins then."""
        return min(ENDLESS, max(at, self._draft.plan.now_at) + self.lasts_ns(job))

    def note_started(self, job: "Job") -> None:
        """The draft has started a job."""
        claims = self._draft.started[job.id]
        until = self.end_of(job, AT_ONCE)
        self._book(AT_ONCE, until, [share for share, _ in claims], self._draft.cluster.demand(job))

    def _book(self, at: int, until: int, shares: list[Share], demand: Demand) -> None:
        self._last = None
        self._timetable.book(at, until, shares, demand)

    def renew(self) -> None:
        """The draft's room is another, since somebody is stopped for others: book everybody anew, once anybody asks."""
        self._is_stale = True

    def _refresh(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False
        askers = list(self._askers.values())
        self._askers.clear()
        self._made.clear()
        self._hold = None
        self._begin()
        for asker in askers:
            self.make(asker)

    def in_the_way(self, job: "Job", shares: Sequence[Share]) -> list[int]:
        """Who is booked before a job would have ended that starts now with these shares: on the same devices, or else
        on the same nodes, or else anywhere."""
        until = self.end_of(job, AT_ONCE)
        early = {other: slot.found.shares for other, slot in self.made.items() if slot.at < until}
        nodes = {share.node for share in shares}
        devices = {(share.node, index) for share in shares for index in share.devices}
        on_devices = [
            other for other, its in early.items() if any((s.node, index) in devices for s in its for index in s.devices)
        ]
        return on_devices or [other for other, its in early.items() if any(s.node in nodes for s in its)] or list(early)
