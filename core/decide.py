"""One pass: what follows now from the state, as decisions with their commands. Pure: no memory, clock or chance.

In order: nodes whose lease has run out are lost; workers that must end are told to; attempts that are over are
requeued; waiting jobs are placed, first come first served. The head that does not fit holds back those behind it,
unless nothing could ever make it fit, or only its own refused starts hold it. A pass ends where one atomic append is
full; what is left is the next pass, on a new basis.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from muster.core.capacity import Capacity
from muster.core.cluster import Cluster
from muster.core.commands import start_commands, stop_commands
from muster.core.order import ENGINE_VERSION, POLICY
from muster.core.placement import Allotment, place
from muster.core.resources import Demand
from muster.core.state import Attempt, Job
from muster.events import types as t
from muster.events.log import BATCH_LIMIT

_NONE: Final[frozenset[str]] = frozenset()


class _Plan:
    """The pass so far. `add` takes a decision with all its commands, or refuses both when the append is full."""

    def __init__(self, cluster: Cluster) -> None:
        state = cluster.state
        self.cluster = cluster
        self.basis = t.Basis(state.sequence, state.chain.hex(), POLICY, ENGINE_VERSION)
        self.events: list[t.Event] = []

    def add(self, decision: t.Decision, commands: Sequence[t.Command] = ()) -> bool:
        if len(self.events) + 1 + len(commands) > BATCH_LIMIT:
            return False
        self.events.append(decision)
        self.events += commands
        return True


def decide(cluster: Cluster) -> list[t.Event]:
    """The decisions and commands of one pass, in the order of their append; [] = nothing follows."""
    plan = _Plan(cluster)
    if _declare_lost(plan) and _order_stops(plan) and _stop_strays(plan) and _requeue(plan):
        _allocate(plan)
    return plan.events


def next_time(cluster: Cluster) -> int | None:
    """The logical time at which `decide` may give something that it does not give now (None = never by time)."""
    times = [cluster.state.nodes[name].lost_at for name in cluster.silent]
    times += [start_by_at for start_by_at in cluster.starting.values() if start_by_at > cluster.state.time_at][:1]
    for job_id in cluster.excluding:
        times += [until for until in cluster.state.jobs[job_id].excluded.values() if until > cluster.state.time_at]
    return min(times, default=None)


def _declare_lost(plan: _Plan) -> bool:
    cluster = plan.cluster
    for name in sorted(cluster.silent):
        node = cluster.state.nodes[name]
        if cluster.state.time_at < node.lost_at:
            continue
        attempts = {job_id: cluster.state.jobs[job_id] for job_id, _ in cluster.workers_on[name]}
        ended = [t.AllocationRef(job.id, job.attempts) for _, job in sorted(attempts.items()) if may_run_elsewhere(job)]
        lost = t.NodeLost(plan.basis, name, node.incarnation, node.last_beat_ns, node.lease_ms, ended)
        if not plan.add(lost):
            return False
    return True


def may_run_elsewhere(job: Job) -> bool:
    """Whether a job whose node is lost is tried again on another."""
    return "node_fail" in job.spec.retry.on and job.tries < job.spec.retry.max_attempts


def _order_stops(plan: _Plan) -> bool:
    cluster = plan.cluster
    time_at = cluster.state.time_at
    overdue = takewhile(lambda job_id: cluster.starting[job_id] <= time_at, cluster.starting)
    for job_id in sorted(cluster.to_stop.union(overdue)):
        attempt = cluster.state.jobs[job_id].attempt
        assert attempt is not None
        if attempt.stop_ordered:
            continue
        refs = _live_workers(attempt)
        order = t.StopOrdered(plan.basis, job_id, attempt.number, attempt.stop or "start_overdue", refs)
        if not plan.add(order, stop_commands(order)):
            return False
    return True


def _live_workers(attempt: Attempt) -> list[t.WorkerRef]:
    return [
        t.WorkerRef(worker.rank, worker.node, worker.incarnation)
        for worker in attempt.workers
        if worker.phase != "gone"
    ]


def _stop_strays(plan: _Plan) -> bool:
    cluster = plan.cluster
    for name in sorted(cluster.with_strays):
        node = cluster.state.nodes[name]
        for stray in node.strays[node.strays_told :]:
            refs = [t.WorkerRef(stray.rank, name, node.incarnation)]
            order = t.StopOrdered(plan.basis, stray.job, stray.attempt, "stray", refs)
            if not plan.add(order, stop_commands(order)):
                return False
    return True


def _requeue(plan: _Plan) -> bool:
    cluster = plan.cluster
    for job_id in sorted(cluster.to_judge):
        attempt = cluster.state.jobs[job_id].attempt
        assert attempt is not None
        cause = attempt.failure or "never_started"
        if not plan.add(t.JobRequeued(plan.basis, job_id, attempt.number, cause, attempt.counted)):
            return False
    return True


def _allocate(plan: _Plan) -> None:
    if not plan.cluster.pending:
        return
    room = plan.cluster.room()
    touched: list[str] = []
    ports: list[tuple[str, int]] = []
    try:
        _allocate_in_order(plan, room, touched, ports)
    finally:
        plan.cluster.touch(touched)
        for address, port in ports:
            room.give_port(address, port)


def _allocate_in_order(plan: _Plan, room: Capacity, touched: list[str], ports: list[tuple[str, int]]) -> None:
    cluster = plan.cluster
    jobs = cluster.state.jobs
    nodes = cluster.state.nodes
    for key in cluster.pending:
        job = jobs[key[-1]]
        if cluster.hopeless.get(job.id) == cluster.hardware_version:
            continue
        demand = cluster.demand(job)
        excluded = exclusions(job, cluster.state.time_at) if job.excluded else _NONE
        found, port = place_with_port(room, demand, excluded, job.id)
        if found is None:
            if not excluded and holds_back(cluster, job):
                return
            continue
        address = nodes[found.shares[0].node].inventory.address
        decision = _allocation(plan, job, found, address, port)
        if not plan.add(decision, start_commands(cluster, decision)):
            return
        for share in found.shares:
            room.take(share, demand)
            touched.append(share.node)
        room.take_port(address, port)
        ports.append((address, port))


def place_with_port(
    room: Capacity, demand: Demand, excluded: frozenset[str], job_id: int
) -> tuple[Allotment | None, int]:
    """Where the demand goes now, and a rendezvous port there; a node that has no port left cannot be the first."""
    while (found := place(room, demand, excluded)) is not None:
        first = found.shares[0].node
        port = room.free_port(first, job_id)
        if port:
            return found, port
        excluded |= {first}
    return None, 0


def _allocation(plan: _Plan, job: Job, found: Allotment, address: str, port: int) -> t.JobAllocated:
    nodes = plan.cluster.state.nodes
    placements = [
        t.Placement(rank, share.node, nodes[share.node].incarnation, list(share.devices))
        for rank, share in enumerate(found.shares)
    ]
    return t.JobAllocated(plan.basis, job.id, job.attempts + 1, placements, address, port, found.why)


def exclusions(job: Job, time_at: int) -> frozenset[str]:
    """The nodes that a job is not placed on for now, since they refused its start."""
    return frozenset(node for node, until in job.excluded.items() if until > time_at)


def holds_back(cluster: Cluster, job: Job) -> bool:
    """Whether a job that does not fit now holds back those behind it: not where no state of the cluster's nodes, with
    nothing running, could hold it."""
    if cluster.hopeless.get(job.id) == cluster.hardware_version:
        return False
    if place(cluster.hardware, cluster.demand(job)) is not None:
        return True
    cluster.hopeless[job.id] = cluster.hardware_version
    return False
