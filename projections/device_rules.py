"""What agents' reports of devices do to the state, and what operators and the leader decide about devices.

Every rule gives None, or why it was not applied. What is known of a device is kept by its uuid, so that it outlives
any order of the node's devices.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from muster.core.cluster import Cluster
from muster.core.health import LASTING, in_words, readmit, worse
from muster.core.order import duration_s
from muster.core.schedule import SECOND_NS
from muster.core.state import Condition, ConditionAction, CountedError, Job, Node
from muster.events import types as t

_Told = t.DeviceFaulted | t.DeviceRecovered | t.ForeignUsageChanged | t.NodeDegraded | t.NodeRestored

BESIDE: Final = "; "
"""Between the things that are wrong with a device, in a fault's detail."""
ENDS_ALL_WORK: Final = ("reset", "quarantine")
"""Conditions under which no work goes on."""


# -- faults ---------------------------------------------------------------------------------------------------------


def device_faulted(cluster: Cluster, event: t.DeviceFaulted, touched: set[int]) -> str | None:
    """Something is wrong with a device, or went wrong on it."""
    node = _in_that_life(cluster, event)
    if node is None:
        return f"{event.node} is not in that life"
    number = _number(node, event.fault.uuid)
    if number is None:
        return _no_device(event.node, event.fault.uuid)
    if _is_vouched_for(node, event.fault):
        recover(cluster, node, event.fault.uuid, "")  # nothing else is wrong any more
    else:
        apply_fault(cluster, node, number, event.fault, touched)
    cluster.review_devices(node)
    return None


def apply_fault(cluster: Cluster, node: Node, number: int, fault: t.DeviceFault, touched: set[int]) -> None:
    """What a fault does to a node's device of that number, and to the work on it."""
    holders = list(_holders(cluster, node, number))
    match fault.action:
        case "note":
            return
        case "count" | "fail_job":
            _count(cluster, node, fault, holders)
        case "suspect":
            _suspect(cluster, node, fault)
        case "no_gangs" | "drain" | "reset" | "quarantine":
            _worsen(node, fault.uuid, _condition(cluster, fault, fault.action))
    failure: t.RequeueCause = fault.failure if fault.action == "fail_job" else "device_fault"
    for job in holders:
        if _fails(fault, job):
            touched.add(job.id)
            _fail(cluster, job, failure, _reason(node, number, fault.cause, fault.xid, fault.detail))


def _fails(fault: t.DeviceFault, holder: Job) -> bool:
    """Whether the work of a job that holds the device ends by its fault."""
    if fault.action == "fail_job":
        attempt = holder.attempt
        return not fault.job or (attempt is not None and (holder.id, attempt.number) == (fault.job, fault.attempt))
    return _ends_work_of(fault.action, holder)


def _ends_work_of(action: t.FaultAction | ConditionAction, holder: Job) -> bool:
    """Whether a device in this condition bears no work of a job that has it."""
    return action in ENDS_ALL_WORK or (action == "no_gangs" and holder.spec.gpus > 1)


def _reason(node: Node, number: int, cause: t.FaultCause, xid: int, detail: str) -> str:
    return f"device {number} of {node.name}: {in_words(cause, xid, detail)}"


def _holders(cluster: Cluster, node: Node, number: int) -> Iterator[Job]:
    """The jobs whose workers, not gone yet, have a device of a node."""
    for (job_id, _), worker in cluster.workers_on.get(node.name, {}).items():
        if number in worker.devices:
            yield cluster.state.jobs[job_id]


def _fail(cluster: Cluster, job: Job, failure: t.RequeueCause, reason: str) -> None:
    """A live attempt has failed, unless it has already, or is being stopped: its workers are to end."""
    attempt = job.attempt
    if attempt is None or attempt.failure is not None or attempt.stop is not None:
        return
    attempt.failure = failure
    attempt.stop = "device_fault"
    job.reason = reason
    job.phase = "STOPPING"
    cluster.review(job)


def fail_on_arrival(cluster: Cluster, job: Job) -> None:
    """Work was placed, on an earlier basis, on a device that has failed since: it ends as if it had been there. Such a
    try does not count."""
    attempt = job.attempt
    assert attempt is not None
    for worker in attempt.workers:
        node = cluster.state.nodes.get(worker.node)
        if node is None or worker.phase == "gone" or not node.conditions:
            continue
        uuids = node.uuids()
        for number in worker.devices:
            condition = node.conditions.get(uuids[number]) if number < len(uuids) else None
            if condition is not None and attempt.stop is None and _ends_work_of(condition.action, job):
                attempt.counted = False
                reason = _reason(node, number, condition.cause, condition.xid, condition.detail)
                _fail(cluster, job, "device_fault", reason)


def _count(cluster: Cluster, node: Node, fault: t.DeviceFault, holders: list[Job]) -> None:
    """An error of a job on a device. So many, of different jobs, within the window make the device suspect; an error
    that names no job is the holder's where there is one alone, and counts by itself where it can be nobody's."""
    state = cluster.state
    health = state.policy.health
    job = fault.job or (holders[0].id if len(holders) == 1 else 0)
    is_nobodys = not job and fault.action == "count"
    since_at = state.time_at - duration_s(health.window) * SECOND_NS
    recent = [error for error in node.device_errors.get(fault.uuid, []) if error.at > since_at]
    errors = [error for error in recent if is_nobodys or error.job != job]
    errors.append(CountedError(job, fault.xid, state.time_at))
    if len(errors) < health.errors:
        node.device_errors[fault.uuid] = errors
        return
    node.device_errors.pop(fault.uuid, None)
    _suspect(cluster, node, fault)


def _suspect(cluster: Cluster, node: Node, fault: t.DeviceFault) -> None:
    condition = _condition(cluster, fault, "suspect", until_at=_probation_ends_at(cluster))
    if condition.until_at > cluster.state.time_at:
        _worsen(node, fault.uuid, condition)


def _probation_ends_at(cluster: Cluster) -> int:
    return cluster.state.time_at + duration_s(cluster.state.policy.health.probation) * SECOND_NS


def _condition(cluster: Cluster, fault: t.DeviceFault, action: ConditionAction, until_at: int = 0) -> Condition:
    state = cluster.state
    return Condition(action, fault.cause, fault.xid, fault.detail, state.sequence, state.timestamp_ns, until_at)


def _worsen(node: Node, uuid: str, condition: Condition) -> None:
    node.conditions[uuid] = worse(node.conditions.get(uuid), condition)


# -- recoveries -----------------------------------------------------------------------------------------------------


def device_recovered(cluster: Cluster, event: t.DeviceRecovered) -> str | None:
    """What was wrong is over, as far as the agent can see: the device is on probation, or takes work again."""
    node = _in_that_life(cluster, event)
    if node is None:
        return f"{event.node} is not in that life"
    if _number(node, event.uuid) is None:
        return _no_device(event.node, event.uuid)
    node.device_vouched.pop(event.uuid, None)
    recover(cluster, node, event.uuid, event.detail)
    cluster.review_devices(node)
    return None


def recover(cluster: Cluster, node: Node, uuid: str, detail: str) -> None:
    """End a lasting condition of a device. What is suspect or on probation ends by time alone."""
    state = cluster.state
    condition = node.conditions.get(uuid)
    if condition is None or condition.action not in LASTING:
        return
    del node.conditions[uuid]
    until_at = max(_probation_ends_at(cluster), condition.until_at)
    if condition.action != "drain" and until_at > state.time_at:
        node.conditions[uuid] = replace(
            condition,
            action="probation",
            detail=f"recovered: {detail or condition.detail}"[: t.DETAIL_LIMIT],
            sequence=state.sequence,
            since_ns=state.timestamp_ns,
            until_at=until_at,
        )


def note_listed(cluster: Cluster, node: Node, faults: Iterable[t.DeviceFault], touched: set[int]) -> None:
    """An agent that begins a life lists what is wrong with its devices: what it leaves out is over. What somebody has
    vouched for is wrong no more, until the agent says something else."""
    numbers = {device.uuid: device.index for device in node.inventory.devices}
    listed = [fault for fault in faults if fault.action in LASTING and fault.uuid in numbers]
    vouched = {fault.uuid: node.device_vouched[fault.uuid] for fault in listed if _is_vouched_for(node, fault)}
    node.device_vouched = vouched
    listed = [fault for fault in listed if fault.uuid not in vouched]
    actions = {(fault.uuid, fault.action) for fault in listed}
    wrong = {fault.uuid for fault in listed}
    for uuid, condition in list(node.conditions.items()):
        if uuid in numbers and uuid not in wrong:
            recover(cluster, node, uuid, "")
        elif uuid in numbers and condition.action in LASTING and (uuid, condition.action) not in actions:
            del node.conditions[uuid]  # it is another thing that is wrong now
    for fault in listed:
        apply_fault(cluster, node, numbers[fault.uuid], fault, touched)


def device_readmitted(cluster: Cluster, event: t.DeviceReadmitted) -> str | None:
    """A device has been suspect, or on probation, for its time: it takes work again."""
    node = cluster.state.nodes.get(event.node)
    condition = node.conditions.get(event.uuid) if node is not None else None
    if node is None or condition is None or not 0 < condition.until_at <= cluster.state.time_at:
        return f"device {event.uuid} of {event.node} does not wait for its time, or that is not over"
    readmit(node, event.uuid)
    cluster.review_devices(node)
    return None


# -- operators ------------------------------------------------------------------------------------------------------


def device_cordoned(cluster: Cluster, event: t.DeviceCordoned) -> str | None:
    """No new work goes to the device; what runs there goes on."""
    node = cluster.state.nodes.get(event.node)
    if node is None or _number(node, event.uuid) is None:
        return _no_device(event.node, event.uuid)
    node.device_cordons[event.uuid] = f"by {event.user}" + (f": {event.reason}" if event.reason else "")
    cluster.review_devices(node)
    return None


def device_uncordoned(cluster: Cluster, event: t.DeviceUncordoned) -> str | None:
    """Somebody vouches for the device: whatever was wrong is forgotten, and not believed again before it was over."""
    node = cluster.state.nodes.get(event.node)
    known = (node.device_cordons, node.conditions, node.device_errors) if node is not None else ()
    if node is None or not any(event.uuid in kept for kept in known):
        return f"nothing is wrong with a device {event.uuid} of {event.node}"
    condition = node.conditions.pop(event.uuid, None)
    if condition is not None and condition.action in LASTING:
        node.device_vouched[event.uuid] = condition.detail
    node.device_cordons.pop(event.uuid, None)
    node.device_errors.pop(event.uuid, None)
    cluster.review_devices(node)
    return None


def _is_vouched_for(node: Node, fault: t.DeviceFault) -> bool:
    """Whether all that a lasting fault says was vouched for. Its detail says one thing after the other."""
    vouched = node.device_vouched.get(fault.uuid)
    return (
        vouched is not None
        and fault.action in LASTING
        and set(fault.detail.split(BESIDE)) <= set(vouched.split(BESIDE))
    )


# -- foreign memory, and nodes as a whole -----------------------------------------------------------------------------


def foreign_usage_changed(cluster: Cluster, event: t.ForeignUsageChanged) -> str | None:
    """Foreign processes hold this much now, and nothing elsewhere on the node."""
    node = _in_that_life(cluster, event)
    if node is None:
        return f"{event.node} is not in that life"
    node.foreign_mib = foreign_use(node, event.foreign)
    cluster.review_devices(node)
    return None


def foreign_use(node: Node, foreign: Iterable[t.ForeignUse]) -> dict[str, int]:
    """What is reported of the devices that the node has, by uuid."""
    uuids = {device.uuid for device in node.inventory.devices}
    return {use.uuid: use.memory_mib for use in foreign if use.memory_mib and use.uuid in uuids}


def node_degraded(cluster: Cluster, event: t.NodeDegraded) -> str | None:
    """No new work goes to the node; what runs there goes on."""
    node = _in_that_life(cluster, event)
    if node is None:
        return f"{event.node} is not in that life"
    node.degraded = f"{event.cause}: {event.detail}" if event.detail else event.cause
    cluster.review_node(node)
    return None


def node_restored(cluster: Cluster, event: t.NodeRestored) -> str | None:
    """Work goes to the node again."""
    node = _in_that_life(cluster, event)
    if node is None or not node.degraded:
        return f"{event.node} is not degraded in that life"
    node.degraded = ""
    cluster.review_node(node)
    return None


def _in_that_life(cluster: Cluster, event: _Told) -> Node | None:
    """The node, where the report is of its present life."""
    node = cluster.state.nodes.get(event.node)
    return node if node is not None and node.incarnation == event.incarnation else None


def _number(node: Node, uuid: str) -> int | None:
    """The number of a device that the node has."""
    return next((device.index for device in node.inventory.devices if device.uuid == uuid), None)


def _no_device(node: str, uuid: str) -> str:
    return f"{node} has no device {uuid}"
