"""Nodes and their devices as people read them: who holds what, what is wrong, and what the devices are doing."""

from typing import Final, NamedTuple

import msgspec

from muster.api.samples import FRESH_S, LastSamples, PastSamples
from muster.api.times import rfc3339, rfc3339_or_none
from muster.core.cluster import Cluster
from muster.core.health import ailments_of, in_words
from muster.core.state import Condition, Node, State
from muster.events.beats import Sampled
from muster.events.binding import device_claim_mib
from muster.events.telemetry import DeviceSample

_NS: Final = 1_000_000_000
_MS: Final = 1_000_000


class ConditionView(msgspec.Struct, frozen=True):
    """What is wrong with a device, the worst of it; `text` says it in words. `until` is when a device that is suspect
    or on probation takes work again (None = when it has recovered, or somebody vouches for it)."""

    action: str
    cause: str
    xid: int
    detail: str
    text: str
    since: str
    until: str | None


class SampleView(msgspec.Struct, frozen=True):
    """A device as it was sampled `age_ms` before the moment looked at; None is unknown, and so is all of a sample that
    is `stale`: over a minute old then, or of an earlier life of the agent. Memory is all that the device has, and what
    is used of it without what the driver reserves."""

    age_ms: int
    stale: bool
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    sm_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class DeviceView(msgspec.Struct, frozen=True):
    """One device, the jobs that hold it, and how much of its memory and of its compute (thousandths) they hold.
    `memory_mib` is what jobs can have; `foreign_mib` is what processes hold that are nobody's work here. `usable`:
    nothing keeps new work from it, though a condition may keep it to work of one device. `cordoned` says who shut it,
    and why ("" = nobody). `sample` is None where there is none. What is not known of a device is None;
    so is `domain` where it has no NVLink domain."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    nominal_mib: int
    minor: int | None
    pci_bus_id: str | None
    capability: str | None
    numa: int | None
    mig: bool
    domain: str | None
    jobs: list[int]
    memory_held_mib: int
    compute_held_milli: int
    foreign_mib: int
    usable: bool
    cordoned: str
    condition: ConditionView | None
    sample: SampleView | None


class NodeView(msgspec.Struct, frozen=True):
    """One node, its devices, and who runs there. `cordoned` says why it takes no new work, `degraded` what is wrong
    with it as a whole ("" = nothing); `available`: the node as such takes new work. `absent` are devices that it has no
    more and that something is still known of, numbered behind the others; `driver` is its version (None = unknown)."""

    name: str
    status: str
    available: bool
    cordoned: str
    degraded: str
    address: str
    addresses: dict[str, str]
    fabric: str
    labels: dict[str, str]
    cpus: int
    memory_mib: int
    devices: list[DeviceView]
    devices_held: int
    devices_usable: int
    absent: list[str]
    jobs: list[int]
    incarnation: str
    registered: str
    lease_ms: int
    driver: str | None


class NodeAnswer(NodeView, frozen=True):
    """One node: also how its devices are connected, by device, twice (`NV12`, `PIX`, ...; [] = nobody knows).
    `unsampled` as in `NodePage`."""

    sequence: int
    topology: list[list[str]]
    unsampled: str


class NodePage(msgspec.Struct, frozen=True):
    """All nodes by name. `unsampled` says why nothing that was sampled at a past moment is shown ("" = it is, as far as
    there was any)."""

    sequence: int
    nodes: list[NodeView]
    unsampled: str


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


class Look(NamedTuple):
    """What nodes are shown from: the cluster at `now_ns`, and what was sampled by then."""

    cluster: Cluster
    now_ns: int
    samples: LastSamples | PastSamples

    @property
    def unsampled(self) -> str:
        """Why there are no samples ("" = there may be)."""
        return self.samples.why_none if isinstance(self.samples, PastSamples) else ""


def node_page(look: Look) -> NodePage:
    """All nodes, by name."""
    state = look.cluster.state
    held, jobs = holders(state), jobs_on(state)
    nodes = [_node_view(look, state.nodes[name], held, jobs) for name in sorted(state.nodes)]
    return NodePage(state.sequence, nodes, look.unsampled)


def node_answer(look: Look, node: Node) -> NodeAnswer:
    """All about one node."""
    state = look.cluster.state
    view = _node_view(look, node, holders(state), jobs_on(state))
    return NodeAnswer(
        **{name: getattr(view, name) for name in NodeView.__struct_fields__},
        sequence=state.sequence,
        topology=node.inventory.topology,
        unsampled=look.unsampled,
    )


def _node_view(look: Look, node: Node, held: Holders, jobs: dict[str, list[int]]) -> NodeView:
    inventory = node.inventory
    devices = _device_views(look, node, held)
    return NodeView(
        name=node.name,
        status=node.status,
        available=node.available,
        cordoned=node.cordoned,
        degraded=node.degraded,
        address=inventory.address,
        addresses=inventory.addresses,
        fabric=inventory.fabric,
        labels=inventory.labels,
        cpus=inventory.cpus,
        memory_mib=inventory.memory_mib,
        devices=devices,
        devices_held=sum(1 for device in devices if device.jobs),
        devices_usable=sum(1 for device in devices if device.usable),
        absent=node.absent,
        jobs=sorted(jobs.get(node.name, [])),
        incarnation=node.incarnation,
        registered=rfc3339(node.registered_ns),
        lease_ms=node.lease_ms,
        driver=inventory.driver or None,
    )


def _device_views(look: Look, node: Node, held: Holders) -> list[DeviceView]:
    memory_mib, compute_milli = _claimed(look.cluster, node)
    shut = ailments_of(node).shut
    sampled = look.samples.of(node.name)
    samples = {each.uuid: each for each in sampled.sample.devices} if sampled is not None else {}
    return [
        DeviceView(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_mib=device.memory_mib,
            nominal_mib=device.nominal_mib,
            minor=device.minor,
            pci_bus_id=device.pci_bus_id or None,
            capability=device.capability or None,
            numa=device.numa,
            mig=device.mig,
            domain=device.domain or None,
            jobs=sorted(held.get((node.name, device.index), [])),
            memory_held_mib=memory_mib[device.index],
            compute_held_milli=compute_milli[device.index],
            foreign_mib=node.foreign_mib.get(device.uuid, 0),
            usable=device.index not in shut,
            cordoned=node.device_cordons.get(device.uuid, ""),
            condition=_condition_view(look.cluster.state, node.conditions.get(device.uuid)),
            sample=_sample_view(look, node, sampled, samples.get(device.uuid)),
        )
        for device in node.inventory.devices
    ]


def _claimed(cluster: Cluster, node: Node) -> tuple[list[int], list[int]]:
    """MiB and thousandths of compute that the work on a node claims, by device."""
    devices = node.inventory.devices
    memory_mib, compute_milli = [0] * len(devices), [0] * len(devices)
    for share, demand in cluster.claims_on(node.name):
        for index in share.devices:
            if index < len(devices):
                memory_mib[index] += device_claim_mib(devices[index], demand.device_memory_mib)
                compute_milli[index] += demand.compute
    return memory_mib, compute_milli


def _condition_view(state: State, condition: Condition | None) -> ConditionView | None:
    if condition is None:
        return None
    left_ns = condition.until_at - state.time_at
    return ConditionView(
        action=condition.action,
        cause=condition.cause,
        xid=condition.xid,
        detail=condition.detail,
        text=in_words(condition.cause, condition.xid, condition.detail),
        since=rfc3339(condition.since_ns),
        until=rfc3339_or_none(state.timestamp_ns + left_ns) if condition.until_at else None,
    )


def _sample_view(look: Look, node: Node, sampled: Sampled | None, sample: DeviceSample | None) -> SampleView | None:
    if sampled is None or sample is None:
        return None
    age_ns = max(0, look.now_ns - sampled.timestamp_ns)
    if sampled.sample.incarnation != node.incarnation or age_ns > FRESH_S * _NS:
        return SampleView(age_ms=age_ns // _MS, stale=True)
    return SampleView(
        age_ms=age_ns // _MS,
        stale=False,
        memory_total_mib=sample.memory_total_mib,
        memory_used_mib=sample.memory_used_mib,
        sm_percent=sample.sm_percent,
        temperature_c=sample.temperature_c,
        power_w=sample.power_w,
        sm_clock_mhz=sample.sm_clock_mhz,
        memory_clock_mhz=sample.memory_clock_mhz,
        ecc_corrected=sample.ecc_corrected,
        ecc_uncorrected=sample.ecc_uncorrected,
    )
