"""Nodes and their devices as people read them: who holds what."""

import msgspec

from muster.api.times import rfc3339
from muster.core.cluster import Cluster
from muster.core.node_room import NodeRoom
from muster.core.state import Node, State
from muster.events.binding import WHOLE_COMPUTE


class DeviceView(msgspec.Struct, frozen=True):
    """One device, the jobs that hold it, and how much of its memory and of its compute (thousandths) they hold."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    jobs: list[int]
    memory_held_mib: int
    compute_held_milli: int


class NodeView(msgspec.Struct, frozen=True):
    """One node, its devices, and who runs there. `cordoned` says why it takes no new work ("" = it does)."""

    name: str
    status: str
    cordoned: str
    address: str
    fabric: str
    labels: dict[str, str]
    cpus: int
    memory_mib: int
    devices: list[DeviceView]
    devices_held: int
    jobs: list[int]
    incarnation: str
    registered: str
    lease_ms: int
    driver: str


class NodePage(msgspec.Struct, frozen=True):
    """All nodes by name."""

    sequence: int
    nodes: list[NodeView]


Holders = dict[tuple[str, int], list[int]]


def holders(state: State) -> Holders:
    """Who holds what: (node, device number) → ids of the jobs with a worker there that is not gone."""
    held: Holders = {}
    for job in state.jobs.values():
        for worker in job.attempt.workers if job.attempt is not None else ():
            if worker.phase != "gone":
                for device in worker.devices:
                    held.setdefault((worker.node, device), []).append(job.id)
    return held


def jobs_on(state: State) -> dict[str, list[int]]:
    """Node → ids of the jobs with a worker there that is not gone."""
    found: dict[str, list[int]] = {}
    for job in state.jobs.values():
        for worker in job.attempt.workers if job.attempt is not None else ():
            if worker.phase != "gone":
                found.setdefault(worker.node, []).append(job.id)
    return found


def node_view(node: Node, held: Holders, jobs: dict[str, list[int]], room: NodeRoom) -> NodeView:
    """One node; `held` and `jobs` come from `holders` and `jobs_on`; `room` is what is left of it."""
    devices = [
        DeviceView(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_mib=device.memory_mib,
            jobs=sorted(held.get((node.name, number), [])),
            memory_held_mib=device.memory_mib - room.device_memory_mib[number],
            compute_held_milli=WHOLE_COMPUTE - room.device_compute[number],
        )
        for number, device in enumerate(node.inventory.devices)
    ]
    return NodeView(
        name=node.name,
        status=node.status,
        cordoned=node.cordoned,
        address=node.inventory.address,
        fabric=node.inventory.fabric,
        labels=node.inventory.labels,
        cpus=node.inventory.cpus,
        memory_mib=node.inventory.memory_mib,
        devices=devices,
        devices_held=sum(1 for device in devices if device.jobs),
        jobs=sorted(jobs.get(node.name, [])),
        incarnation=node.incarnation,
        registered=rfc3339(node.registered_ns),
        lease_ms=node.lease_ms,
        driver=node.inventory.driver,
    )


def node_page(cluster: Cluster) -> NodePage:
    """All nodes, by name."""
    state = cluster.state
    held, jobs = holders(state), jobs_on(state)
    return NodePage(
        sequence=state.sequence,
        nodes=[node_view(state.nodes[name], held, jobs, cluster.room_now(name)) for name in sorted(state.nodes)],
    )
