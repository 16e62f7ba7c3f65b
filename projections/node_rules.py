"""What each event of a node's life, and each of a leader's observations, does to the state."""

from msgspec.structs import replace

from muster.core.cluster import Cluster
from muster.core.order import note_use
from muster.core.schedule import SECOND_NS
from muster.core.state import Node, Stray, Worker
from muster.events import types as t
from muster.projections import device_rules, worker_rules

LEASE_MARGIN_NS = 30 * SECOND_NS
"""How much longer than an agent the scheduler counts a lease."""
LONGEST_LEASE_MS = 366 * 24 * 3600 * 1000
"""Beyond it a time in ns would not fit where the state is written."""

ABSENT_KEPT = 64
"""Of so many devices that a node has no more, and that bear nothing, it is known what was wrong with them."""


def node_registered(cluster: Cluster, event: t.NodeRegistered, touched: set[int]) -> str | None:
    """An agent began a life: what it does not list is not running and never will be, and what it does not list as wrong
    is over."""
    flaw = _flaw(event)
    if flaw:
        return f"{event.node} {flaw}"
    node = _begin_life(cluster, event)
    state = cluster.state
    listed = {(report.job, report.attempt, report.rank): report for report in event.workers}
    for (job_id, rank), worker in _workers_on(cluster, event.node):
        job = state.jobs[job_id]
        attempt = job.attempt
        assert attempt is not None
        touched.add(job_id)
        report = listed.pop((job_id, attempt.number, rank), None)
        if report is None:
            never_ran = worker.phase == "placed"
            worker_rules.lose_worker(cluster, job, worker, "its agent does not know it any more", never_ran=never_ran)
            continue
        worker.incarnation = event.incarnation
        worker_rules.mark_running(cluster, job, attempt, worker, report.pid)
        if report.exit is not None:
            worker_rules.worker_gone(cluster, job, attempt, worker, report.exit)
        else:
            attempt.stop_ordered = False
            cluster.review(job)
    node.strays = [Stray(*place) for place, report in listed.items() if report.exit is None]
    device_rules.note_listed(cluster, node, event.faults, touched)
    cluster.index_node(node)
    return None


def _workers_on(cluster: Cluster, name: str) -> list[tuple[tuple[int, int], Worker]]:
    """The workers on a node that are not gone, by job and rank: a restored fold has placed them in another order."""
    return sorted(cluster.workers_on.get(name, {}).items(), key=lambda item: item[0])


def _flaw(event: t.NodeRegistered) -> str:
    """What is wrong with a registration ("" = nothing)."""
    inventory = event.inventory
    count = len(inventory.devices)
    if [device.index for device in inventory.devices] != list(range(count)):
        return "does not number its devices from 0 in order"
    if len({device.uuid for device in inventory.devices}) < count:
        return "has two devices of one uuid"
    if inventory.topology and [len(row) for row in inventory.topology] != [count] * count:
        return f"does not say of each two of its {count} devices how they are connected"
    if inventory.first_port > inventory.last_port:
        return f"has no ports: {inventory.first_port} to {inventory.last_port}"
    if event.lease_ms > LONGEST_LEASE_MS:
        return f"has a lease of {event.lease_ms} ms, which is longer than a year"
    return ""


def _begin_life(cluster: Cluster, event: t.NodeRegistered) -> Node:
    """Put the node in place of what it was in its life before. What is known of its devices, and what they bear, goes
    with them."""
    state = cluster.state
    node = Node(
        event.node, event.incarnation, event.inventory, event.lease_ms, state.timestamp_ns, degraded=event.degraded
    )
    node.foreign_mib = device_rules.foreign_use(node, event.foreign)
    old = state.nodes.get(event.node)
    if old is None:
        state.nodes[event.node] = node
        return node
    node.cordoned = old.cordoned
    workers = cluster.workers_on[event.node]
    rooms = [state.rooms[job_id] for job_id in cluster.reserved_on.get(event.node, ())]
    borne = {number for worker in workers.values() for number in worker.devices}
    borne.update(number for room in rooms for place in room.placements for number in _numbers_on(place, event.node))
    numbers = _take_over_devices(old, node, borne)
    held = {key: cluster.occupied(state.jobs[key[0]], worker) for key, worker in workers.items()}
    state.nodes[event.node] = node
    for key, worker in workers.items():
        worker.devices = [numbers[number] for number in worker.devices]
        job = state.jobs[key[0]]
        note_use(cluster.state, job, cluster.occupied(job, worker) - held[key], cluster.fading)
    for room in rooms:
        places = [
            replace(place, incarnation=event.incarnation, devices=[numbers[number] for number in place.devices])
            if place.node == event.node
            else place
            for place in room.placements
        ]
        cluster.replace_room(replace(room, placements=places))
    return node


def _numbers_on(place: t.Placement, name: str) -> list[int]:
    return place.devices if place.node == name else []


def _take_over_devices(old: Node, node: Node, borne: set[int]) -> dict[int, int]:
    """Keep what is known of the devices of a node's life before, and give the new numbers of those that bear work or
    are reserved. Devices that are not there any more are numbered behind those that are."""
    before, present = old.uuids(), {device.uuid for device in node.inventory.devices}
    bearing = {before[number] for number in borne if number < len(before)}
    known = (old.conditions.keys() | old.device_cordons.keys()) - bearing
    missing = [uuid for uuid in before if uuid not in present]
    node.absent = [uuid for uuid in missing if uuid in bearing]
    node.absent += [uuid for uuid in missing if uuid in known][:ABSENT_KEPT]
    after = node.uuids()
    node.conditions = {uuid: condition for uuid, condition in old.conditions.items() if uuid in after}
    node.device_cordons = {uuid: why for uuid, why in old.device_cordons.items() if uuid in after}
    node.device_vouched = {uuid: what for uuid, what in old.device_vouched.items() if uuid in after}
    node.device_errors = {uuid: errors for uuid, errors in old.device_errors.items() if uuid in after}
    number_of = {uuid: number for number, uuid in enumerate(after)}
    return {n: number_of[before[n]] if n < len(before) else len(after) + n for n in sorted(borne)}


def node_suspected(cluster: Cluster, event: t.NodeSuspected) -> str | None:
    """A node is silent: it gets no new work and keeps what it has until its lease has run out on both sides."""
    node = cluster.state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation or node.status == "lost":
        return f"{event.node} is not in that life, or lost already"
    node.status = "suspect"
    node.last_beat_ns = event.last_beat_ns
    left_ns = node.lease_ms * 1_000_000 + LEASE_MARGIN_NS - event.silent_ms * 1_000_000
    node.lost_at = cluster.state.time_at + max(left_ns, 0) if node.lease_ms else 0
    cluster.review_node(node)
    return None


def node_recovered(cluster: Cluster, event: t.NodeRecovered) -> str | None:
    """A suspect node beats again."""
    node = cluster.state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation or node.status != "suspect":
        return f"{event.node} is not suspect in that life"
    node.status = "ready"
    node.lost_at = 0
    cluster.review_node(node)
    return None


def node_lost(cluster: Cluster, event: t.NodeLost, touched: set[int]) -> str | None:
    """A node's lease has run out: the attempts named are over there."""
    node = cluster.state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return f"{event.node} is not in that life"
    node.status = "lost"
    node.lost_at = 0
    over = {(ref.job, ref.attempt) for ref in event.ended}
    for (job_id, _), worker in _workers_on(cluster, event.node):
        job = cluster.state.jobs[job_id]
        if job.attempt is not None and (job_id, job.attempt.number) in over:
            touched.add(job_id)
            worker_rules.lose_worker(cluster, job, worker, "the node's lease ran out", never_ran=False)
    cluster.review_node(node)
    return None


def leader_started(cluster: Cluster, event: t.LeaderStarted) -> str | None:
    """A term begins. Time before it may have been time without a broker: silence is counted anew from here."""
    state = cluster.state
    state.leader = event.scheduler
    for name in sorted(cluster.silent):
        node = state.nodes[name]
        node.lost_at = state.time_at + node.lease_ms * 1_000_000 + LEASE_MARGIN_NS
    return None


def node_cordoned(cluster: Cluster, event: t.NodeCordoned) -> str | None:
    """No new work goes there."""
    node = cluster.state.nodes.get(event.node)
    if node is None:
        return f"there is no node {event.node}"
    node.cordoned = f"by {event.user}" + (f": {event.reason}" if event.reason else "")
    cluster.review_node(node)
    return None


def node_uncordoned(cluster: Cluster, event: t.NodeUncordoned) -> str | None:
    """Work goes there again."""
    node = cluster.state.nodes.get(event.node)
    if node is None or not node.cordoned:
        return f"there is no cordoned node {event.node}"
    node.cordoned = ""
    cluster.review_node(node)
    return None


def stop_failed(cluster: Cluster, event: t.StopFailed) -> str | None:
    """A tree outlived every signal: what it holds stays held, and the node takes no new work."""
    node = cluster.state.nodes.get(event.node)
    if node is None:
        return f"there is no node {event.node}"
    node.cordoned = node.cordoned or f"worker {event.job}.{event.attempt}.{event.rank} could not be stopped"
    cluster.review_node(node)
    return None
