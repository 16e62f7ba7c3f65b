"""What each event of a node's life, and each of a leader's observations, does to the state."""

from muster.core.cluster import Cluster
from muster.core.schedule import SECOND_NS
from muster.core.state import Node, Stray
from muster.events import types as t
from muster.projections import worker_rules

LEASE_MARGIN_NS = 30 * SECOND_NS
"""How much longer than an agent the scheduler counts a lease."""
LONGEST_LEASE_MS = 366 * 24 * 3600 * 1000
"""Beyond it a time in ns would not fit where the state is written."""


def node_registered(cluster: Cluster, event: t.NodeRegistered, touched: set[int]) -> str | None:
    """An agent began a life: what it does not list is not running and never will be."""
    if [device.index for device in event.inventory.devices] != list(range(len(event.inventory.devices))):
        return f"{event.node}'s devices are not numbered from 0 in order"
    if event.inventory.first_port > event.inventory.last_port:
        return f"{event.node} has no ports: {event.inventory.first_port} to {event.inventory.last_port}"
    if event.lease_ms > LONGEST_LEASE_MS:
        return f"{event.node}'s lease of {event.lease_ms} ms is longer than a year"
    state = cluster.state
    old = state.nodes.get(event.node)
    node = Node(
        event.node,
        event.incarnation,
        event.inventory,
        event.lease_ms,
        state.timestamp_ns,
        cordoned=old.cordoned if old is not None else "",
    )
    state.nodes[event.node] = node
    listed = {(report.job, report.attempt, report.rank): report for report in event.workers}
    for (job_id, rank), worker in list(cluster.workers_on.get(event.node, {}).items()):
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
        attempt.stop_ordered = False
        worker_rules.mark_running(cluster, job, attempt, worker, report.pid)
        if report.exit is not None:
            worker_rules.worker_gone(cluster, job, attempt, worker, report.exit)
        else:
            cluster.review(job)
    node.strays = [Stray(*place) for place, report in listed.items() if report.exit is None]
    cluster.index_node(node)
    return None


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
    for (job_id, _), worker in list(cluster.workers_on.get(event.node, {}).items()):
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
