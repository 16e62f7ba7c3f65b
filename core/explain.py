"""Why a job waits, or why it got what it got: four steps, computed when asked, at any state. Pure.

Filter: which nodes could hold a worker of it, and why the others cannot. Order: its place, and who holds it back.
Allocation: what it gets, or what is missing. Environment: what its workers see.
"""

from typing import Final

import msgspec

from muster.core.allocate import exclusions, in_order, may_wait
from muster.core.capacity import Capacity, NodeRoom
from muster.core.cluster import Cluster
from muster.core.commands import start_commands
from muster.core.order import ENGINE_VERSION, policy_name
from muster.core.placement import place
from muster.core.plan import place_with_port
from muster.core.resources import Demand
from muster.core.spec_check import capacity_problems
from muster.core.state import Job, Node
from muster.events import types as t
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib, device_environment, rendezvous

EXAMPLES: Final = 5
SHOWN_AHEAD: Final = 10


class Check(msgspec.Struct, frozen=True):
    """One reason, how many nodes it shuts out, and some of them."""

    reason: str
    nodes: int
    examples: list[str]


class FilterStep(msgspec.Struct, frozen=True):
    """Of `nodes` nodes, `candidates` could hold a worker now; `refused` says why the others cannot."""

    nodes: int
    candidates: list[str]
    refused: list[Check]


class OrderStep(msgspec.Struct, frozen=True):
    """The job's place (from 1) among `waiting`; `held_back_by` is the job ahead that does not fit yet (0 = none)."""

    policy: str
    place: int
    waiting: int
    ahead: list[int]
    held_back_by: int


class WorkerPlace(msgspec.Struct, frozen=True):
    """One worker's node and devices."""

    rank: int
    node: str
    devices: list[int]


class AllocationStep(msgspec.Struct, frozen=True):
    """What it holds, or would get now if it were its turn; `free_devices` have the room asked of each; `why` in words,
    with numbers."""

    fits: bool
    asked_devices: int
    free_devices: int
    workers: list[WorkerPlace]
    why: str


class WorkerEnvironment(msgspec.Struct, frozen=True):
    """The variables that carry one worker's devices and rendezvous."""

    rank: int
    node: str
    variables: dict[str, str]


class Explanation(msgspec.Struct, frozen=True):
    """The answer, at `sequence`. `filter` and `order` are None for a job that does not wait."""

    job: int
    phase: str
    sequence: int
    summary: str
    filter: FilterStep | None
    order: OrderStep | None
    allocation: AllocationStep
    environment: list[WorkerEnvironment]


def explain(cluster: Cluster, job_id: int) -> Explanation:
    """The four steps for a job. Raises KeyError for a job that the state does not have."""
    job = cluster.state.jobs[job_id]
    if job.phase == "PENDING":
        return _explain_waiting(cluster, job)
    return _explain_placed(cluster, job)


def _explain_waiting(cluster: Cluster, job: Job) -> Explanation:
    filtered = _filter(cluster, job)
    order = _order(cluster, job)
    allocation = _allocation(cluster, job)
    if order.held_back_by:
        summary = f"waits behind job {order.held_back_by}, which does not fit yet ({order.policy}); it {allocation.why}"
    elif allocation.fits:
        summary = "fits now: it starts with the next pass"
    else:
        summary = allocation.why
    return Explanation(job.id, job.phase, cluster.state.sequence, summary, filtered, order, allocation, [])


def _explain_placed(cluster: Cluster, job: Job) -> Explanation:
    attempt = job.attempt
    if attempt is None:
        step = AllocationStep(fits=False, asked_devices=job.spec.gpus, free_devices=0, workers=[], why="never placed")
        summary = job.reason or f"is {job.phase}"
        return Explanation(job.id, job.phase, cluster.state.sequence, summary, None, None, step, [])
    workers = [WorkerPlace(worker.rank, worker.node, worker.devices) for worker in attempt.workers]
    step = AllocationStep(
        fits=True,
        asked_devices=job.spec.gpus,
        free_devices=0,
        workers=workers,
        why=f"entry {attempt.allocated}: {attempt.why}",
    )
    reasons = [reason for reason in (job.reason, _awaited_ends(cluster, job)) if reason]
    summary = f"is {job.phase}" + (f": {'; '.join(reasons)}" if reasons else "")
    return Explanation(job.id, job.phase, cluster.state.sequence, summary, None, None, step, _environment(cluster, job))


def _awaited_ends(cluster: Cluster, job: Job) -> str:
    """Whose word a job that is being stopped waits for ("" = nobody's)."""
    if job.phase != "STOPPING" or job.attempt is None:
        return ""
    live = [worker for worker in job.attempt.workers if worker.phase != "gone"]
    if not live:
        return ""
    names = []
    for worker in live[:EXAMPLES]:
        node = cluster.state.nodes.get(worker.node)
        silent = f" (the node is {node.status})" if node is not None and node.status != "ready" else ""
        names.append(f"rank {worker.rank} on {worker.node}{silent}")
    more = f" and {len(live) - EXAMPLES} more" if len(live) > EXAMPLES else ""
    told = "was told to stop it" if job.attempt.stop_ordered else "is yet to be told to stop it"
    return f"waits for the agent's word that {', '.join(names)}{more} has ended; it {told}"


def _environment(cluster: Cluster, job: Job) -> list[WorkerEnvironment]:
    """What the workers of the attempt see, from the commands that its allocation makes."""
    attempt = job.attempt
    assert attempt is not None
    nodes = cluster.state.nodes
    for worker in attempt.workers:
        if worker.node not in nodes or max(worker.devices, default=-1) >= len(nodes[worker.node].inventory.devices):
            return []  # the node has changed since: what it had then is not known any more
    basis = t.Basis(0, "", policy_name(cluster.state.policy), ENGINE_VERSION)
    places = [t.Placement(w.rank, w.node, w.incarnation, w.devices) for w in attempt.workers]
    allocated = t.JobAllocated(
        basis, job.id, attempt.number, places, attempt.master_address, attempt.master_port, attempt.why
    )
    return [
        WorkerEnvironment(start.rank, start.node, device_environment(start) | rendezvous(start))
        for start in start_commands(cluster, allocated)
    ]


def _order(cluster: Cluster, job: Job) -> OrderStep:
    room = cluster.room()
    order = in_order(cluster, cluster.lines.count)
    position = order.index(job.id) if job.id in order else 0
    ahead = order[:position]
    held_back_by = 0
    for other_id in ahead:
        other = cluster.state.jobs[other_id]
        excluded = exclusions(other, cluster.state.time_at)
        found, _ = place_with_port(room, cluster.demand(other), excluded, other_id)
        if not excluded and found is None and may_wait(cluster, other, []):
            held_back_by = other_id
            break
    return OrderStep(policy_name(cluster.state.policy), position + 1, len(order), ahead[:SHOWN_AHEAD], held_back_by)


def _filter(cluster: Cluster, job: Job) -> FilterStep:
    demand = cluster.demand(job)
    room = cluster.room()
    excluded = exclusions(job, cluster.state.time_at)
    single = demand.nodes == 1 or (
        demand.nodes is None and place(cluster.hardware, demand._replace(nodes=1)) is not None
    )
    devices = demand.gpus if single else min(demand.gpus, 1)
    candidates: list[str] = []
    refused: dict[str, list[str]] = {}
    for node in cluster.state.nodes.values():
        reason = _node_reason(node, room.rooms[node.name], demand, excluded, devices)
        (refused.setdefault(reason, []) if reason else candidates).append(node.name)
    checks = [Check(reason, len(names), sorted(names)[:EXAMPLES]) for reason, names in refused.items()]
    checks.sort(key=lambda check: (-check.nodes, check.reason))
    return FilterStep(len(cluster.state.nodes), sorted(candidates), checks)


def _node_reason(node: Node, room: NodeRoom, demand: Demand, excluded: frozenset[str], devices: int) -> str:
    """Why a node cannot hold a worker with `devices` devices; "" = it can."""
    if node.cordoned:
        return "cordoned"
    if node.status != "ready":
        return f"{node.status}: its agent is silent"
    if node.strays:
        return "a worker of an earlier attempt still runs there"
    if demand.node_names and node.name not in demand.node_names:
        return "not one of the nodes asked for"
    wrong = [f"{label} = {value}" for label, value in demand.labels if node.inventory.labels.get(label) != value]
    if wrong:
        return f"has not the label {wrong[0]}"
    if node.name in excluded:
        return "refused to start this job a while ago"
    return _device_reason(room, demand, devices) or _host_reason(room, demand, devices)


def _device_reason(room: NodeRoom, demand: Demand, devices: int) -> str:
    if not devices:
        return ""
    inventory = room.inventory.devices
    of_model = [device for device in inventory if not demand.models or device.model in demand.models]
    if not of_model:
        return f"has no {' or '.join(demand.models) or 'devices'}"
    large = [d for d in of_model if device_claim_mib(d, demand.device_memory_mib) <= d.memory_mib]
    if len(large) < devices:
        return f"has {len(large)} devices with {demand.device_memory_mib} MiB, of {devices} asked for"
    models = {device.model for device in of_model}
    most = max(len(room.fitting(model, demand)) for model in models)
    if most >= devices:
        return ""
    with_compute = sum(room.device_compute[d.index] >= demand.compute for d in large)
    if with_compute >= devices:
        return f"{most} of {devices} devices have the memory free"
    free = "idle" if demand.compute == WHOLE_COMPUTE else f"with {demand.compute} thousandths of compute free"
    return f"{most} of {devices} devices are {free}"


def _host_reason(room: NodeRoom, demand: Demand, devices: int) -> str:
    cpus, memory_mib = demand.host_share(devices, demand.nodes if isinstance(demand.nodes, int) else 1)
    if room.cpus < cpus:
        return f"{room.cpus} CPUs free, {cpus} asked for"
    if room.memory_mib < memory_mib:
        return f"{room.memory_mib} MiB of host memory free, {memory_mib} asked for"
    return ""


def _allocation(cluster: Cluster, job: Job) -> AllocationStep:
    demand = cluster.demand(job)
    room = cluster.room()
    free = _free_devices(room, demand)
    found, _ = place_with_port(room, demand, exclusions(job, cluster.state.time_at), job.id)
    if found is not None:
        workers = [WorkerPlace(rank, share.node, list(share.devices)) for rank, share in enumerate(found.shares)]
        return AllocationStep(
            fits=True, asked_devices=demand.gpus, free_devices=free, workers=workers, why=f"fits now: {found.why}"
        )
    why = _what_is_missing(cluster, job, room, free)
    return AllocationStep(fits=False, asked_devices=demand.gpus, free_devices=free, workers=[], why=why)


def _free_devices(room: Capacity, demand: Demand) -> int:
    """How many devices of nodes that take new work have the room asked of each."""
    models = room.models.keys() & set(demand.models) if demand.models else room.models.keys()
    rooms = [each for each in room.rooms.values() if each.available]
    return sum(len(each.fitting(model, demand)) for each in rooms for model in models)


def _what_is_missing(cluster: Cluster, job: Job, room: Capacity, free: int) -> str:
    demand = cluster.demand(job)
    are_free = "are idle" if demand.exclusive else "have room for it"
    problems = capacity_problems(job.spec, cluster.hardware)
    if problems:
        return f"can never be placed as the cluster is: {problems[0].detail}"
    if place(room, demand) is not None:
        return "waits for a rendezvous port, or for a node that it is not kept from"
    if not demand.gpus:
        return f"waits for a node with {demand.cpus} CPUs and {demand.memory_mib} MiB of host memory free"
    asked = f"waits for {demand.gpus} device{'s' if demand.gpus > 1 else ''}"
    if demand.linked and place(room, demand._replace(linked=False)) is not None:
        return f"{asked} on nodes of one fabric: {free} {are_free}, but not on linked nodes"
    if free < demand.gpus:
        return f"{asked}; {free} {are_free}"
    return f"{asked} together; {free} {are_free}, but not where its other needs are met"
