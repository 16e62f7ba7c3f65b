"""Explanations, room: which nodes cannot hold a waiting job and why, and the least that would have to end for it to
fit."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from muster.core.capacity import Capacity
from muster.core.explain_ends import last_end, once_ended
from muster.core.explain_nodes import Refused, ill_devices, ill_in_words, node_matches
from muster.core.explain_turn import Turn
from muster.core.explain_words import LISTED, SHOWN, jobs_named, listed
from muster.core.explanation import Reason, ReasonKind
from muster.core.health import SOUND, ailments_of
from muster.core.placement import Allotment, place
from muster.core.queues import ENDLESS
from muster.core.resources import Demand
from muster.core.state import Node

RETURNS_TRIED: Final = 200
"""Of so many jobs each is taken back that need not end; of more, the first in time that suffice are named."""


class RoomNeeded(NamedTuple):
    """What would make room: jobs that end, jobs whose reservation goes, and where the job is then placed; `opened` says
    whether nodes that take no new work, or not of this job, are among those, `healed` whether devices that take none
    are; `instead` is where it is placed without those nodes, once nothing is wrong with the devices there (None =
    nowhere, while others hold what they do)."""

    ends: list[int]
    reservations: list[int]
    found: Allotment
    opened: bool
    healed: bool = False
    instead: Allotment | None = None


class _WhatIf:
    """The nodes that a demand may go to, as they would be with some jobs gone and their reservations too; `healed`:
    with nothing wrong with their devices."""

    def __init__(self, turn: Turn, names: list[str], *, healed: bool) -> None:
        draft = turn.draft
        self._draft = draft
        self._gone: set[int] = set()
        self._nodes_of: dict[int, set[str]] = {}
        self._claims = {name: list(turn.claims_on(name)) for name in names}
        self._leaving = draft.cluster.leaving | draft.victims
        self.capacity = Capacity()
        for node in draft.cluster.state.nodes.values():  # all of them: the largest says which gangs may be split
            self.capacity.set_node(node.name, node.inventory, SOUND if healed else ailments_of(node))
        for name in names:
            self.capacity.set_available(name, available=True)
            for job_id in (*(job_id for job_id, _ in self._claims[name]), *draft.reserved_on(name)):
                self._nodes_of.setdefault(job_id, set()).add(name)
            if self._claims[name] or draft.reserved_on(name):
                self._renew(name)

    def holders(self) -> list[int]:
        """Who holds anything there, in the order in which they are expected to end; whom room is reserved for last."""
        schedule, rooms = self._draft.cluster.schedule, self._draft.cluster.state.rooms
        benefits = rooms.keys() | self._draft.benefits

        def end(job_id: int) -> tuple[bool, int, int]:
            end_at = schedule.end_of(job_id)
            return job_id in benefits, ENDLESS if end_at is None else end_at, job_id

        return sorted(self._nodes_of, key=end)

    def set_gone(self, job_id: int, *, gone: bool) -> None:
        """Take a job, and what is reserved for it, to be gone or there."""
        (self._gone.add if gone else self._gone.discard)(job_id)
        for name in sorted(self._nodes_of[job_id]):
            self._renew(name)

    def _renew(self, name: str) -> None:
        room = self.capacity.rooms[name].emptied()
        for job_id, (share, demand) in self._claims[name]:
            if job_id not in self._gone:
                room.claim(share, demand)
        reserved = {job: claim for job, claim in self._draft.reserved_on(name).items() if job not in self._gone}
        if reserved:
            later = room.emptied()
            for job_id, (share, demand) in self._claims[name]:
                if job_id not in self._gone and job_id not in self._leaving:
                    later.claim(share, demand)
            for share, demand in reserved.values():
                later.claim(share, demand)
            room = room.lesser(later)
        self.capacity.put_room(name, room)


def room_needed(turn: Turn) -> RoomNeeded | None:
    """The least that would have to end for the job to fit; None where nothing would do."""
    nodes, demand = turn.cluster.state.nodes, turn.asker.demand
    fitting = sorted(name for name, node in nodes.items() if node_matches(node, demand))
    open_now = [name for name in fitting if nodes[name].available and name not in turn.asker.excluded]
    for names, healed in ((open_now, False), (fitting, False), (open_now, True), (fitting, True)):
        answer = _least_gone(_WhatIf(turn, names, healed=healed), demand)
        if answer is not None:
            gone, found = answer
            rooms = turn.cluster.state.rooms.keys() | turn.draft.benefits
            ends, dropped = [job for job in gone if job not in rooms], [job for job in gone if job in rooms]
            opened = names is fitting and len(open_now) < len(fitting)
            instead = None
            if opened and not healed:
                instead = place(_WhatIf(turn, open_now, healed=True).capacity, demand)
            return RoomNeeded(ends, dropped, found, opened, healed, instead)
    return None


def _least_gone(what_if: _WhatIf, demand: Demand) -> tuple[list[int], Allotment] | None:
    """The first holders after whose end the demand fits, without those that need not end."""
    holders, capacity = what_if.holders(), what_if.capacity
    low, gone, found = 0, 0, place(capacity, demand)
    while found is None:
        if gone == len(holders):
            return None
        low = gone + 1
        gone = _move(what_if, holders, gone, min(len(holders), max(1, 2 * gone)))
        found = place(capacity, demand)
    while low < gone:
        middle = (low + gone) // 2
        _move(what_if, holders, gone, middle)
        at_middle = place(capacity, demand)
        if at_middle is None:
            _move(what_if, holders, middle, gone)
            low = middle + 1
        else:
            gone, found = middle, at_middle
    kept = holders[:gone]
    for job_id in reversed(holders[:gone] if gone <= RETURNS_TRIED else []):
        what_if.set_gone(job_id, gone=False)
        without = place(capacity, demand)
        if without is None:
            what_if.set_gone(job_id, gone=True)
        else:
            kept.remove(job_id)
            found = without
    return kept, found


def _move(what_if: _WhatIf, holders: list[int], gone: int, count: int) -> int:
    for job_id in holders[gone:count]:
        what_if.set_gone(job_id, gone=True)
    for job_id in holders[count:gone]:
        what_if.set_gone(job_id, gone=False)
    return count


def room_reasons(turn: Turn, needed: RoomNeeded | None, refused: list[Refused], missing: str) -> Iterator[Reason]:
    """Why what is free is not enough, and what stands in the way on the nodes that might have been."""
    if turn.found is not None:
        return
    if turn.unported is not None:
        yield _port(turn)
        return
    ends = needed.ends if needed is not None else []
    demand = turn.asker.demand
    linked = demand.linked and place(turn.draft.room, demand._replace(linked=False), turn.asker.excluded) is not None
    by_jobs = f"; it fits once {once_ended(turn.cluster, ends)}" if ends else ""
    yield Reason(
        "fabric" if linked else "room",
        f"{missing}{by_jobs}",
        jobs=ends[:LISTED],
        jobs_count=len(ends),
        at=last_end(turn.cluster, ends),
    )
    yield from _node_reasons(turn, needed, refused)


def _node_reasons(turn: Turn, needed: RoomNeeded | None, refused: list[Refused]) -> Iterator[Reason]:
    """Nodes that could hold it, were they open to it; room there that is kept for others."""
    nodes, draft = turn.cluster.state.nodes, turn.draft
    might = [nodes[each.node] for each in refused if each.matches]
    yield from _shut("cordon", "cordoned", [node.name for node in might if node.cordoned])
    silent = [node.name for node in might if node.status != "ready"]
    yield from _shut("silent", "silent, so what runs there is kept and nothing new comes", silent)
    yield from _degraded([node for node in might if node.degraded])
    mismatches = {each.node for each in refused if not each.matches}
    yield from _ill(turn, [node for node in nodes.values() if node.name not in mismatches])
    strays = [node.name for node in might if node.strays]
    yield from _shut("strays", "not free yet of a worker of an earlier attempt", strays)
    excluded = [node.name for node in might if node.name in turn.asker.excluded]
    until = min((turn.job.excluded[name] for name in excluded), default=None)
    yield from _shut("excluded", "left out, having refused to start this job a while ago", excluded, until)
    shut = [each.node for each in refused if each.kind == "reservation"]
    dropped = needed.reservations if needed is not None else []
    jobs = sorted({*dropped, *(job for name in shut for job in draft.reserved_on(name))})
    if jobs:
        where = sorted(name for name in draft.reserved_nodes() if not draft.reserved_on(name).keys().isdisjoint(jobs))
        detail = f"room on {listed(where)} is reserved for {jobs_named(jobs)}"
        yield Reason("reservation", detail, jobs=jobs[:LISTED], jobs_count=len(jobs), nodes=where[:LISTED])


def _shut(kind: ReasonKind, words: str, names: list[str], until: int | None = None) -> Iterator[Reason]:
    if names:
        many = f"{len(names)} node{' is' if len(names) == 1 else 's are'}"
        yield Reason(kind, f"{many} {words}: {listed(sorted(names))}", nodes=sorted(names)[:LISTED], at=until)


def _degraded(nodes: list[Node]) -> Iterator[Reason]:
    if nodes:
        many = f"{len(nodes)} node{' is' if len(nodes) == 1 else 's are'}"
        words = listed([f"{node.name} ({node.degraded})" for node in nodes])
        yield Reason("degraded", f"{many} degraded: {words}", nodes=[node.name for node in nodes][:LISTED])


def _ill(turn: Turn, nodes: list[Node]) -> Iterator[Reason]:
    """Devices that it would fit on, were nothing wrong with them; until when the first of them takes no work."""
    found = {node.name: devices for node in nodes if (devices := ill_devices(node, turn.asker.demand))}
    if not found:
        return
    by_name = turn.cluster.state.nodes
    words = [f"{name}: {ill_in_words(by_name[name], devices, turn.now_at)}" for name, devices in found.items()]
    more = f"; and on {len(words) - SHOWN} more nodes" if len(words) > SHOWN else ""
    until = min(
        (
            condition.until_at
            for name, devices in found.items()
            for index in devices
            if (condition := by_name[name].conditions.get(by_name[name].inventory.devices[index].uuid)) is not None
            and condition.until_at
        ),
        default=None,
    )
    yield Reason("devices", "; ".join(words[:SHOWN]) + more, nodes=sorted(found)[:LISTED], at=until)


def _port(turn: Turn) -> Reason:
    """No node that it fits on has a rendezvous port left."""
    assert turn.unported is not None
    nodes, jobs = turn.cluster.state.nodes, turn.cluster.state.jobs
    addresses = {node.inventory.address for node in nodes.values() if node_matches(node, turn.asker.demand)}
    holders = sorted(
        job.id
        for job in jobs.values()
        if turn.cluster.is_live(job)
        and job.attempt
        and any(endpoint.address in addresses for endpoint in job.attempt.ports())
    )
    where = [share.node for share in turn.unported.shares]
    detail = f"fits on {listed(where)}, where no rendezvous port is left: held by {jobs_named(holders)}"
    return Reason("port", detail, jobs=holders[:LISTED], jobs_count=len(holders), nodes=where[:LISTED])
