"""Rooms that are reserved: used as soon as they are free, and let go when nobody needs them or they are no more."""

from muster.core.health import ailing, ailments_of
from muster.core.ledger import Obstacle, negative
from muster.core.node_room import NodeRoom
from muster.core.plan import Draft, meeting_nodes
from muster.core.state import Job, Room


def use_reservations(draft: Draft) -> bool:
    """Start or release what can be. False where the append is full."""
    cluster = draft.cluster
    for job_id, room in cluster.state.rooms.items():
        job = cluster.state.jobs[job_id]
        if job.phase != "PENDING":
            if not draft.release(job, "beneficiary_gone", f"job {job.id} is {job.phase}"):
                return False
            continue
        loss = _loss(draft, room) or _bar(draft, job, room)
        if loss:
            if not draft.release(job, "room_lost", loss):
                return False
            continue
        if _is_free(draft, job, room):
            nodes = meeting_nodes(cluster.demand(job), [place.node for place in room.placements])
            endpoints = draft.room.free_endpoints(nodes, job.id)
            if len(endpoints) == len(nodes) and not draft.enter(job, endpoints):
                return False
    return True


def _loss(draft: Draft, room: Room) -> str:
    """Why the room is no more ("" = it is)."""
    cluster = draft.cluster
    lives = {place.node: place.incarnation for place in room.placements}
    for share, demand in cluster.room_claims(room):
        node = cluster.state.nodes.get(share.node)
        if node is None:
            return f"{share.node} is not there"
        if node.cordoned:
            return f"{share.node} is cordoned"
        if node.status != "ready":
            return f"{share.node} is {node.status}"
        if node.degraded:
            return f"{share.node} is degraded: {node.degraded}"
        if any(index >= len(node.inventory.devices) for index in share.devices):
            return f"{share.node} has not all of its devices any more"
        alone = NodeRoom(node.inventory, ailments_of(node)).holds(share, demand)
        if node.incarnation != lives[share.node] or not alone or draft.later(share.node).is_overbooked(share):
            ill = ailing(node, share.devices, cluster.state.time_at)
            return f"{share.node}: {ill}" if ill else f"{share.node} has changed"
    return ""


def _bar(draft: Draft, job: Job, room: Room) -> str:
    """Which bound has been changed so that it keeps the job out of its room for ever ("" = none)."""
    barred = _obstacles(draft, job, room, staying=True)
    return f"{barred[0].kind} {barred[0].name}".strip() + " keeps it out" if barred else ""


def _is_free(draft: Draft, job: Job, room: Room) -> bool:
    """Whether all of it is free now, and the queue's bounds let the job in."""
    cluster = draft.cluster
    for share, demand in cluster.room_claims(room):
        if not cluster.state.nodes[share.node].available or not draft.now(share.node).holds(share, demand):
            return False
    return not _obstacles(draft, job, room, staying=False)


def _obstacles(draft: Draft, job: Job, room: Room, *, staying: bool) -> list[Obstacle]:
    ledger = draft.ledger
    who, claim = ledger.claimant(job), draft.vector(draft.cluster.room_claims(room))
    ledger.charge(who, negative(claim))  # what is reserved counts already
    try:
        return ledger.obstacles(who, claim, staying=staying)
    finally:
        ledger.charge(who, claim)
