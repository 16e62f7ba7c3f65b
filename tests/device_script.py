"""What agents and operators say of devices, on paper."""

from typing import Any

from cluster_script import Script

from muster.core.state import Condition, Node
from muster.events import types as t


def node_of(script: Script, name: str = "node-1") -> Node:
    return script.cluster.state.nodes[name]


def uuid_of(script: Script, number: int, name: str = "node-1") -> str:
    return node_of(script, name).inventory.devices[number].uuid


def a_fault(script: Script, number: int, action: t.FaultAction, name: str = "node-1", **more: Any) -> t.DeviceFault:
    more.setdefault("cause", "xid")
    return t.DeviceFault(number, uuid_of(script, number, name), action=action, **more)


def fault(script: Script, number: int, action: t.FaultAction, name: str = "node-1", **more: Any) -> None:
    """A node's agent reports a fault of a device."""
    event = t.DeviceFaulted(name, node_of(script, name).incarnation, a_fault(script, number, action, name, **more))
    script.append(event)


def recovery(script: Script, number: int, name: str = "node-1", detail: str = "") -> None:
    life = node_of(script, name).incarnation
    script.append(t.DeviceRecovered(name, life, number, uuid_of(script, number, name), detail))


def foreign(script: Script, mib: dict[int, int], name: str = "node-1") -> None:
    uses = [t.ForeignUse(number, uuid_of(script, number, name), held) for number, held in mib.items()]
    script.append(t.ForeignUsageChanged(name, node_of(script, name).incarnation, uses))


def cordon(script: Script, number: int, name: str = "node-1", reason: str = "") -> None:
    script.append(t.DeviceCordoned(name, uuid_of(script, number, name), "root", reason))


def uncordon(script: Script, number: int, name: str = "node-1") -> None:
    script.append(t.DeviceUncordoned(name, uuid_of(script, number, name), "root"))


def condition(script: Script, number: int, name: str = "node-1") -> Condition | None:
    return node_of(script, name).conditions.get(uuid_of(script, number, name))


def action(script: Script, number: int, name: str = "node-1") -> str:
    found = condition(script, number, name)
    return found.action if found is not None else ""


def refusals(script: Script) -> list[str]:
    return [refusal.reason for refusal in script.cluster.state.refusals]


def anew(script: Script, name: str, order: list[int], **more: Any) -> str:
    """A node's agent begins a new life that finds the devices of the last one in this order, and knows its workers."""
    node = node_of(script, name)
    devices = [
        t.Device(place, old.uuid, old.model, old.memory_mib, old.nominal_mib)
        for place, old in enumerate(node.inventory.devices[number] for number in order)
    ]
    inventory = t.Inventory(
        devices, node.inventory.cpus, node.inventory.memory_mib, node.inventory.address, node.inventory.fabric
    )
    return anew_with(script, name, inventory, **more)


def anew_with(
    script: Script, name: str, inventory: t.Inventory, *, workers: list[t.WorkerReport] | None = None, **more: Any
) -> str:
    """It begins one with this inventory, and knows all workers or these."""
    jobs = script.cluster.state.jobs
    if workers is None:
        workers = [t.WorkerReport(job, jobs[job].attempts, rank, 77) for job, rank in script.cluster.workers_on[name]]
    script.lives[name] = script.lives.get(name, 0) + 1
    life = f"{name}-life-{script.lives[name]}"
    script.append(t.NodeRegistered(name, life, inventory, workers, node_of(script, name).lease_ms, **more))
    return life
