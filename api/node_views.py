"""Nodes and their devices as people read them: who holds what."""

import msgspec

from muster.api.times import rfc3339
from muster.core.state import Node, State


class DeviceView(msgspec.Struct, frozen=True):
    """One device and the jobs that hold it."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    jobs: list[int]


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


def node_view(node: Node, held: Holders, jobs: dict[str, list[int]]) -> NodeView:
    """One node; `held` and `jobs` come from `holders` and `jobs_on`."""
    devices = [
        DeviceView(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_mib=device.memory_mib,
            jobs=sorted(held.get((node.name, number), [])),
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


def node_page(state: State) -> NodePage:
    """All nodes, by name."""
    held, jobs = holders(state), jobs_on(state)
    return NodePage(
        sequence=state.sequence,
        nodes=[node_view(state.nodes[name], held, jobs) for name in sorted(state.nodes)],
    )
