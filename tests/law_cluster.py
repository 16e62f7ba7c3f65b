"""A random cluster that lives: the steps that Hypothesis draws, done to a log on paper, with the laws checked."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
from cluster_script import Script
from law_checks import check_capacity, check_pass, check_rest, check_same_as_fresh, copy_of, names_of
from law_world import (
    holding_of,
)

from muster.core.policy_check import tree_problems
from muster.core.state import Node, State
from muster.events import types as t
from muster.events.policy import Policy, QueueSpec
from muster.events.spec import JobSpec

FAULTS: list[t.FaultAction] = ["no_gangs", "quarantine", "fail_job", "drain", "suspect", "reset", "count"]
LASTING: list[t.FaultAction] = ["no_gangs", "drain", "reset", "quarantine"]
REST = 40  # a cluster of a few jobs is at rest after fewer passes than this


class NodeShape(NamedTuple):
    devices: int
    model: str = "A"
    fabric: str = "f"
    cpus: int = 16
    memory_mib: int = 65_536


class Setup(NamedTuple):
    nodes: list[NodeShape]
    queues: list[QueueSpec]
    policy: Policy

    def __repr__(self) -> str:
        return f"Setup({self.nodes}, [{', '.join(map(said, self.queues))}], {said(self.policy)})"


def said(struct: msgspec.Struct) -> str:
    """A struct by what differs from its defaults."""
    parts = []
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.required or value != default:
            parts.append(f"{field.name}={said(value) if isinstance(value, msgspec.Struct) else repr(value)}")
    return f"{type(struct).__name__}({', '.join(parts)})"


class Submit(NamedTuple):
    user: str
    spec: JobSpec

    def __repr__(self) -> str:
        return f"Submit({self.user!r}, {said(self.spec)})"


class Do(NamedTuple):
    """Something that happens: to the so-manieth (of those it can happen to), or for so many seconds."""

    what: str
    number: int = 0


class Configure(NamedTuple):
    queue: QueueSpec

    def __repr__(self) -> str:
        return f"Configure({said(self.queue)})"


class Govern(NamedTuple):
    policy: Policy

    def __repr__(self) -> str:
        return f"Govern({said(self.policy)})"


Step = Submit | Do | Configure | Govern


class LivingCluster:
    """The cluster, with the laws."""

    def __init__(self, setup: Setup) -> None:
        self.script = Script()
        for number, shape in enumerate(setup.nodes, start=1):
            more = shape._asdict()
            self.script.node(f"node-{number}", more.pop("devices"), **more)
        for queue in setup.queues:
            self.script.append(t.QueueConfigured(queue, "root"))
        self.script.append(t.PolicyChanged(setup.policy, "root"))
        assert not self.state.refusals, self.state.refusals
        self.reserved: dict[int, list[t.Placement]] = {}  # rooms, as they were decided
        self.inventories = {name: node.inventory for name, node in self.state.nodes.items()}

    @property
    def state(self) -> State:
        return self.script.cluster.state

    def do(self, step: Step) -> None:
        match step:
            case Submit(user, spec):
                self.script.submit(spec, user)
            case Configure(queue):
                if not tree_problems({**self.state.queues, queue.name: queue}, self.state.policy):
                    self.script.append(t.QueueConfigured(queue, "root"))
            case Govern(policy):
                self.script.append(t.PolicyChanged(policy, "root"))
            case Do(what, number):
                ACTIONS[what](self, number)
        check_capacity(self.state)
        check_same_as_fresh(self.script)

    # -- what happens ---------------------------------------------------------------------------------------------

    def _nth(self, number: int, *phases: str) -> int | None:
        found = [job.id for job in self.state.jobs.values() if job.phase in phases and (holding_of(job) or not phases)]
        return found[number % len(found)] if found else None

    def start(self, number: int) -> None:
        if (job := self._nth(number, "STARTING")) is not None:
            self.script.start(job)

    def finish(self, number: int) -> None:
        if (job := self._nth(number, "RUNNING")) is not None:
            self.script.exit(job, 0)

    def fail(self, number: int) -> None:
        if (job := self._nth(number, "RUNNING", "STARTING")) is not None:
            self.script.exit(job, 1, 0)

    def refuse(self, number: int) -> None:
        if (job := self._nth(number, "STARTING")) is not None:
            attempt = self.script.job(job).attempt
            assert attempt is not None
            worker = next((worker for worker in attempt.workers if worker.phase == "placed"), None)
            if worker is not None:
                life, place = worker.incarnation, worker.rank
                self.script.append(t.WorkerRefused(worker.node, life, 1, job, attempt.number, place, "full"))

    def stopped(self, number: int) -> None:
        if (job := self._nth(number, "STOPPING")) is not None:
            self.script.exit(job, None, reason="stopped")

    def all_stopped(self, _: int = 0) -> None:
        for job in list(self.state.jobs.values()):
            if job.phase == "STOPPING" and holding_of(job):
                self.script.exit(job.id, None, reason="stopped")

    def all_started(self, _: int = 0) -> None:
        for job in list(self.state.jobs.values()):
            if job.phase == "STARTING":
                self.script.start(job.id)

    def cancel(self, number: int) -> None:
        found = [job.id for job in self.state.jobs.values() if job.phase in ("PENDING", "STARTING", "RUNNING")]
        if found:
            self.script.append(t.JobCancelRequested(found[number % len(found)], "root"))

    def advance(self, seconds: int) -> None:
        while seconds > 0:
            self.script.advance(min(seconds, 60))
            seconds -= 60

    def _node(self, number: int) -> str:
        names = list(self.state.nodes)
        return names[number % len(names)]

    def cordon(self, number: int) -> None:
        self.script.append(t.NodeCordoned(self._node(number), "root"))

    def uncordon(self, number: int) -> None:
        for name in [name for name, node in self.state.nodes.items() if node.cordoned][number % 2 :]:
            self.script.append(t.NodeUncordoned(name, "root"))

    def suspect(self, number: int) -> None:
        node = self.state.nodes[self._node(number)]
        if node.status == "ready":
            self.script.append(t.NodeSuspected(node.name, node.incarnation, 0, 10_000))

    def back(self, number: int) -> None:
        """A node's agent begins a new life that knows all its workers, or (odd) none of them."""
        node = self.state.nodes[self._node(number // 2)]
        known = [
            t.WorkerReport(job.id, job.attempts, worker.rank, 4000)
            for job in self.state.jobs.values()
            if job.attempt is not None and holding_of(job)
            for worker in job.attempt.workers
            if worker.node == node.name and worker.phase != "gone" and not number % 2
        ]
        self.script.lives[node.name] += 1
        life = f"{node.name}-life-{self.script.lives[node.name]}"
        self.script.append(t.NodeRegistered(node.name, life, node.inventory, known, node.lease_ms))

    # -- devices --------------------------------------------------------------------------------------------------

    def _device(self, number: int) -> tuple[Node, t.Device]:
        found = [(node, device) for node in self.state.nodes.values() for device in node.inventory.devices]
        return found[number % len(found)]

    def fault(self, number: int) -> None:
        """Something is wrong with a device: of its jobs, of itself, or not much."""
        node, device = self._device(number // len(FAULTS))
        action, job = FAULTS[number % len(FAULTS)], 0
        holders = [
            other.id
            for other in self.state.jobs.values()
            for piece in holding_of(other)
            if piece.node == node.name and device.index in piece.devices
        ]
        if action == "fail_job" and holders:
            job = holders[number % len(holders)]
        attempt = self.state.jobs[job].attempts if job else 0
        failure: Literal["failed", "device_fault"] = "failed" if number % 2 else "device_fault"
        fault = t.DeviceFault(device.index, device.uuid, "xid", action, 13, failure, job, attempt)
        self.script.append(t.DeviceFaulted(node.name, node.incarnation, fault))

    def recover(self, number: int) -> None:
        """All devices of a node have recovered, as its agent sees it."""
        node = self.state.nodes[self._node(number)]
        for device in node.inventory.devices:
            self.script.append(t.DeviceRecovered(node.name, node.incarnation, device.index, device.uuid))

    def foreign(self, number: int) -> None:
        """Foreign processes hold something of a device, or nothing any more."""
        node, device = self._device(number)
        uses = [t.ForeignUse(device.index, device.uuid, 50_000)] if number % 3 else []
        self.script.append(t.ForeignUsageChanged(node.name, node.incarnation, uses))

    def shut(self, number: int) -> None:
        node, device = self._device(number)
        self.script.append(t.DeviceCordoned(node.name, device.uuid, "root"))

    def vouch(self, _: int) -> None:
        """Operators vouch for every device."""
        for node in list(self.state.nodes.values()):
            for uuid in sorted({*node.conditions, *node.device_cordons, *node.device_errors}):
                self.script.append(t.DeviceUncordoned(node.name, uuid, "root"))

    def degrade(self, number: int) -> None:
        node = self.state.nodes[self._node(number // 2)]
        if node.degraded:
            self.script.append(t.NodeRestored(node.name, node.incarnation))
        elif number % 2:
            self.script.append(t.NodeDegraded(node.name, node.incarnation, "nvml_hung", ""))

    def turn(self, number: int) -> None:
        """A node's agent begins a new life that finds the devices in another order, or (odd) one of them gone; it lists
        some of what was wrong, and foreign memory."""
        node = self.state.nodes[self._node(number // 2)]
        whole = self.inventories[node.name]
        devices = whole.devices[number % len(whole.devices) :] + whole.devices[: number % len(whole.devices)]
        found = devices[1:] if number % 2 and len(devices) > 1 else devices
        renamed = [msgspec.structs.replace(device, index=place) for place, device in enumerate(found)]
        reports = [
            t.WorkerReport(job, self.state.jobs[job].attempts, rank, 4000)
            for job, rank in self.script.cluster.workers_on[node.name]
        ]
        faults = [
            t.DeviceFault(device.index, device.uuid, "xid", action)
            for device in renamed[::2]
            for action in LASTING
            if device.uuid in node.conditions and node.conditions[device.uuid].action == action
        ]
        self.script.lives[node.name] += 1
        life = f"{node.name}-life-{self.script.lives[node.name]}"
        inventory = msgspec.structs.replace(whole, devices=renamed)
        uses = [t.ForeignUse(device.index, device.uuid, 30_000) for device in renamed[: number % 3]]
        event = t.NodeRegistered(node.name, life, inventory, reports, node.lease_ms, faults=faults, foreign=uses)
        self.script.append(event)

    # -- passes ---------------------------------------------------------------------------------------------------

    def one_pass(self, _: int = 0) -> list[t.Event]:
        """One pass, held against the laws."""
        events = check_same_as_fresh(self.script)
        check_pass(copy_of(self.state), events)
        refused = self.state.refused_count
        for event in events:
            self.script.append(event)
            check_capacity(self.state)
        if not any(isinstance(event, t.NodeLost) for event in events):  # what ends with a node need not be stopped
            assert self.state.refused_count == refused, self.state.refusals[-1]
        return events

    def settle(self, _: int = 0) -> list[t.Event]:
        """Passes reach rest."""
        everything: list[t.Event] = []
        for _ in range(REST):
            events = self.one_pass()
            if not events:
                check_rest(self.script)
                return everything
            everything += events
        raise AssertionError(f"no rest after {REST} passes: {names_of(everything)[-20:]}")

    def quiet(self, _: int = 0) -> None:
        """Nothing new comes in; whoever is told to stop stops, whoever was placed starts: no pair evicts in turn."""
        evictions: set[tuple[int, int]] = set()
        for _ in range(REST):
            events = self.settle()
            for event in events:
                if isinstance(event, t.JobPreempted):
                    turn = (event.beneficiary, event.job)
                    assert turn not in evictions, f"jobs {turn} evict each other in turn"
                    evictions.add((event.job, event.beneficiary))
            before = self.state.sequence
            self.all_stopped()
            self.all_started()
            if self.state.sequence == before:
                assert not self.state.rooms or self.unusable(), f"rooms {list(self.state.rooms)} stay"
                return
        raise AssertionError(f"no rest after {REST} rounds")

    def unusable(self) -> bool:
        """Whether every room that is kept waits for what is not there: a node with strays, or a worker that is lost."""
        return any(node.strays or node.status != "ready" for node in self.state.nodes.values())


ACTIONS: dict[str, Callable[[LivingCluster, int], object]] = {
    "start": LivingCluster.start,
    "all started": LivingCluster.all_started,
    "finish": LivingCluster.finish,
    "fail": LivingCluster.fail,
    "refuse": LivingCluster.refuse,
    "stopped": LivingCluster.stopped,
    "all stopped": LivingCluster.all_stopped,
    "cancel": LivingCluster.cancel,
    "advance": LivingCluster.advance,
    "cordon": LivingCluster.cordon,
    "uncordon": LivingCluster.uncordon,
    "suspect": LivingCluster.suspect,
    "back": LivingCluster.back,
    "fault": LivingCluster.fault,
    "recover": LivingCluster.recover,
    "foreign": LivingCluster.foreign,
    "shut": LivingCluster.shut,
    "vouch": LivingCluster.vouch,
    "degrade": LivingCluster.degrade,
    "turn": LivingCluster.turn,
    "pass": LivingCluster.one_pass,
    "settle": LivingCluster.settle,
    "quiet": LivingCluster.quiet,
}
