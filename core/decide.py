"""One pass: what follows now from the state, as decisions with their commands. Pure: no memory, clock or chance.

In order: nodes whose lease has run out are lost; devices whose probation is over take work again; attempts whose time
is over, and workers that must end, are told to; attempts that are over are requeued; waiting jobs are placed
(`muster.core.settling`), where nothing before changes what is free for them. A pass ends where one atomic append is
full; what is left is the next pass, on a new basis.
"""

from itertools import takewhile

from muster.core.cluster import Cluster
from muster.core.commands import stop_commands
from muster.core.plan import Plan, live_workers
from muster.core.queues import ENDLESS
from muster.core.settling import place_waiting
from muster.core.state import Job
from muster.events import types as t


def decide(cluster: Cluster) -> list[t.Event]:
    """The decisions and commands of one pass, in the order of their append; [] = nothing follows."""
    plan = Plan(cluster)
    steps = _declare_lost, _readmit, _time_out, _order_stops, _stop_strays, _requeue
    if all(step(plan) for step in steps) and not any(map(_makes_room, plan.events)):
        place_waiting(plan)
    return plan.events


def _makes_room(event: t.Event) -> bool:
    """Whether attempts are over by this, or devices come back: who is placed or stopped beside is decided on what is
    true then."""
    return isinstance(event, t.NodeLost | t.DeviceReadmitted | t.JobTimedOut) or (
        isinstance(event, t.StopOrdered) and event.cause == "start_overdue"
    )


def next_time(cluster: Cluster) -> int | None:
    """The logical time at which `decide`, which has just given nothing, may give something (None = never by time)."""
    now_at = cluster.state.time_at
    times = [cluster.state.nodes[name].lost_at for name in cluster.silent]
    times += [start_by_at for start_by_at in cluster.starting.values() if start_by_at > now_at][:1]
    times += [limit_at for limit_at, _ in cluster.schedule.limits[:1]]
    times += [until_at for waiting in cluster.on_probation.values() for until_at in waiting.values()]
    for job_id in cluster.excluding:
        times += [until for until in cluster.state.jobs[job_id].excluded.values() if until > now_at]
    if cluster.look_at is not None and now_at < cluster.look_at < ENDLESS:
        times.append(cluster.look_at)
    return min(times, default=None)


def _declare_lost(plan: Plan) -> bool:
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


def _readmit(plan: Plan) -> bool:
    cluster = plan.cluster
    for name, waiting in sorted(cluster.on_probation.items()):
        node = cluster.state.nodes[name]
        for index, uuid in enumerate(node.uuids()):
            if not 0 < waiting.get(uuid, 0) <= plan.now_at:
                continue
            condition = node.conditions[uuid]
            why = f"{condition.action} since entry {condition.sequence}, and nothing has happened since"
            if not plan.add(t.DeviceReadmitted(plan.basis, name, uuid, why, index)):
                return False
    return True


def may_run_elsewhere(job: Job) -> bool:
    """Whether a job whose node is lost is tried again on another."""
    return "node_fail" in job.spec.retry.on and job.tries < job.spec.retry.max_attempts


def _time_out(plan: Plan) -> bool:
    cluster = plan.cluster
    for _, job_id in takewhile(lambda limit: limit[0] <= plan.now_at, cluster.schedule.limits):
        job = cluster.state.jobs[job_id]
        attempt = job.attempt
        assert attempt is not None
        action = job.spec.limits.on_timeout
        order = t.JobTimedOut(plan.basis, job_id, attempt.number, action, live_workers(attempt))
        if not plan.add(order, stop_commands(job.spec, order, "timed_out")):
            return False
    return True


def _order_stops(plan: Plan) -> bool:
    cluster = plan.cluster
    time_at = cluster.state.time_at
    overdue = takewhile(lambda job_id: cluster.starting[job_id] <= time_at, cluster.starting)
    for job_id in sorted(cluster.to_stop.union(overdue)):
        attempt = cluster.state.jobs[job_id].attempt
        assert attempt is not None
        if attempt.stop_ordered:
            continue
        refs = live_workers(attempt)
        cause = attempt.stop or "start_overdue"
        order = t.StopOrdered(plan.basis, job_id, attempt.number, cause, refs)
        if not plan.add(order, stop_commands(cluster.state.jobs[job_id].spec, order, cause)):
            return False
    return True


def _stop_strays(plan: Plan) -> bool:
    cluster = plan.cluster
    for name in sorted(cluster.with_strays):
        node = cluster.state.nodes[name]
        for stray in node.strays[node.strays_told :]:
            refs = [t.WorkerRef(stray.rank, name, node.incarnation)]
            order = t.StopOrdered(plan.basis, stray.job, stray.attempt, "stray", refs)
            if not plan.add(order, stop_commands(None, order, "stray")):
                return False
    return True


def _requeue(plan: Plan) -> bool:
    cluster = plan.cluster
    for job_id in sorted(cluster.to_judge):
        attempt = cluster.state.jobs[job_id].attempt
        assert attempt is not None
        cause: t.RequeueCause = attempt.failure or "never_started"
        if attempt.failure is None and (attempt.stop == "preempted" or attempt.stop == "timed_out"):  # noqa: PLR1714  mypy narrows by ==
            cause = attempt.stop
        if not plan.add(t.JobRequeued(plan.basis, job_id, attempt.number, cause, attempt.counted)):
            return False
    return True
