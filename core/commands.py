"""Commands, derived purely from decisions and the state they were made on: one per worker."""

from typing import Final, TypeAlias

from muster.core.cluster import START_WINDOW_NS, Cluster
from muster.events import types as t
from muster.events.spec import JobSpec

GRACE_MS: Final = 10_000
"""How long a worker may take to end after TERM, where its job does not say."""
GRACE_MOST_MS: Final = 600_000
NOTICE_MOST_MS: Final = 3_600_000
"""More than that no job may keep others waiting for."""
NOTICE_MS: Final = 60_000
"""How long a worker may take to end after its job's own signal, where that does not say."""


def start_commands(cluster: Cluster, allocation: t.JobAllocated) -> list[t.StartWorker]:
    """The binds of an allocation."""
    job = cluster.state.jobs[allocation.job]
    spec = job.spec
    demand = cluster.demand(job)
    world = len(allocation.placements)
    retriable = "node_fail" in spec.retry.on and job.tries + 1 < spec.retry.max_attempts
    start_by_ns = cluster.state.time_at + START_WINDOW_NS
    processes = [max(1, len(place.devices)) for place in allocation.placements]
    commands = []
    for place in allocation.placements:
        node = cluster.state.nodes[place.node]
        devices = node.inventory.devices
        cpus, memory_mib = demand.host_share(len(place.devices), world)
        commands.append(
            t.StartWorker(
                job=job.id,
                attempt=allocation.attempt,
                rank=place.rank,
                world=world,
                node=place.node,
                incarnation=place.incarnation,
                name=spec.name,
                user=job.user,
                command=spec.command,
                devices=[t.DeviceBinding(index, devices[index].uuid) for index in place.devices],
                device_memory_mib=demand.device_memory_mib,
                compute=demand.compute,
                cpus=cpus,
                memory_mib=memory_mib,
                master_address=allocation.master_address,
                master_port=allocation.master_port,
                start_by_ns=start_by_ns,
                leased=retriable and node.lease_ms > 0,
                env=spec.env,
                workdir=spec.workdir,
                framework=spec.framework,
                processes=sum(processes),
                first_process=sum(processes[: place.rank]),
                endpoints=allocation.endpoints,
                image=spec.image or "",
            )
        )
    return commands


Stop: TypeAlias = t.StopOrdered | t.JobPreempted | t.JobTimedOut


def stop_terms(spec: JobSpec | None, cause: t.StopCause) -> tuple[int, str, int]:
    """How long workers have from TERM on (ms), the signal that they are told by before ("" = none), and how long they
    have from that on (ms)."""
    grace_ms, signal, notice_ms = GRACE_MS, "", 0
    if spec is not None and isinstance(spec.preemption.grace, int):
        grace_ms = min(spec.preemption.grace * 1000, GRACE_MOST_MS)
    if spec is not None and spec.preemption.signal and cause in ("preempted", "timed_out"):
        signal, _, notice = spec.preemption.signal.partition("@")
        notice_ms = min(int(notice) * 1000, NOTICE_MOST_MS) if notice else NOTICE_MS
    return grace_ms, signal, notice_ms


def stop_commands(spec: JobSpec | None, order: Stop, cause: t.StopCause) -> list[t.StopWorker]:
    """The stops of a decision. A job that is stopped for no fault of its own is told by its signal first."""
    grace_ms, signal, notice_ms = stop_terms(spec, cause)
    return [
        t.StopWorker(order.job, order.attempt, ref.rank, ref.node, ref.incarnation, cause, grace_ms, signal, notice_ms)
        for ref in order.workers
    ]
