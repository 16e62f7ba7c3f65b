"""A reservation that keeps a time and no place: the head starts then wherever it fits. Jobs that last longer may start
where the rule of placement puts them, as long as the head still has a place at that time."""

from typing import TYPE_CHECKING, Final

from muster.core.backfill import Shadow, ends_in_time
from muster.core.node_room import NodeRoom, Share
from muster.core.placement import Allotment, place
from muster.core.releasing import Asker, Releaser
from muster.core.state import Job

if TYPE_CHECKING:
    from muster.core.holdings import Claim
    from muster.core.ledger import Claimant
    from muster.core.plan import Draft
    from muster.core.queues import Vector
    from muster.core.resources import Demand


class FloatingShadow(Shadow):
    """The reservation with the place that it has for now. `gone` is what has ended by then."""

    floats = True

    def __init__(self, draft: "Draft", asker: Asker, at: int, found: Allotment, gone: list[Job]) -> None:
        super().__init__(draft, asker, at, found, gone)
        self._asker: Final = asker
        self._gone: Final = gone
        self._is_noted = False  # whether the later rooms have what `leaves_room` was last asked of

    def spare(self, *, wanted: bool) -> None:
        """All of the room is shown: no place is kept."""

    def leaves_room(self, shares: list[Share], demand: "Demand") -> bool:
        """Whether the head has a place, the one at hand or another, beside a job that starts here and lasts."""
        self._is_noted = False
        if demand.exclusive and self._asker.demand.exclusive and all(self._is_beside(each, demand) for each in shares):
            return True
        self._is_noted = self._move(shares, demand)
        return self._is_noted

    def note_started(self, who: "Claimant", claims: "list[Claim]", claim: "Vector") -> None:
        """That job was started."""
        self.note(who, claim)
        if not self._is_noted:
            for share, demand in claims:
                room = self._later.get(share.node)
                if room is not None:
                    room.claim(share._replace(devices=tuple(_like(room, share, demand))), demand)

    def _is_beside(self, share: Share, demand: "Demand") -> bool:
        """Whether the head's place leaves so many devices; which of them it takes is open until then."""
        room = self._later.get(share.node)
        if room is None:
            return True
        fits = room.fits_host(share.cpus, share.memory_mib)
        return fits and len(_like(room, share, demand)) == len(share.devices)

    def _move(self, shares: list[Share], demand: "Demand") -> bool:
        """Find the head another place; whether there is one."""
        draft, head = self._draft, self._asker
        jobs = draft.cluster.state.jobs
        brief = [jobs[job_id] for job_id in draft.started if ends_in_time(draft, jobs[job_id], self.at)]
        known = {job.id for job in self._gone}
        gone = [*self._gone, *(job for job in brief if job.id not in known)]
        claims = [(share, demand) for share in shares]
        releaser = Releaser(draft, iter(()), lambda _: True)
        releaser.sequence += gone
        try:
            releaser.move_to(len(gone))
            draft.room.take_all(claims)
            found = place(draft.room, head.demand, head.excluded)
            if found is not None:
                self._keep(found, head.demand)
            draft.room.give_all(claims)
        finally:
            releaser.close()
        return found is not None


def _like(room: NodeRoom, share: Share, demand: "Demand") -> list[int]:
    """As many devices as a share has, of the same model, that are free in a view of its node."""
    if not share.devices:
        return []
    model = room.inventory.devices[share.devices[0]].model
    return room.fitting(model, demand)[: len(share.devices)]
