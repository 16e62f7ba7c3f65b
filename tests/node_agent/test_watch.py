"""What the log is told of devices: an agent whose devices do as a test says."""

import asyncio

from agent_world import DEADLINE_S, FakeLink, NewNode, start

from muster.events.telemetry import DeviceSample
from muster.events.types import (
    Device,
    DeviceBinding,
    DeviceFault,
    DeviceFaulted,
    DeviceRecovered,
    FaultAction,
    FaultCause,
    ForeignUsageChanged,
    ForeignUse,
    Inventory,
    NodeDegraded,
    NodeRegistered,
    NodeRestored,
    WorkerExited,
    WorkerRefused,
    WorkerStarted,
)
from muster.node_agent.devices import Degraded, Look, Work
from muster.node_agent.readings import Worktree

UUIDS = ("GPU-sim-node-1-0", "GPU-sim-node-1-1")


class Devices:
    """`look_is` is what the next looks give; `faults` are told one after the other."""

    def __init__(self) -> None:
        self.order = self.known = [0, 1]
        self.look_is = Look([])
        self.broken: Exception | None = None
        self.faults: asyncio.Queue[DeviceFault] = asyncio.Queue()
        self.work: list[Worktree] = []
        self.looked = asyncio.Queue[None]()
        self.settling: asyncio.Queue[Worktree] = asyncio.Queue()
        self.may_settle = asyncio.Event()
        self.may_settle.set()
        self._undealt = False

    async def inventory(self) -> Inventory:
        self.known = self.order
        devices = [Device(i, UUIDS[n], "A100-80GB", 81_154, 81_920) for i, n in enumerate(self.order)]
        return Inventory(devices, 128, 1 << 20, "127.0.0.1")

    async def look(self, work: Work) -> Look:
        self.work = list(await work())
        self.looked.put_nowait(None)
        if self.broken is not None:
            raise self.broken
        return self.look_is._replace(samples=[DeviceSample(0, UUIDS[0])], changed=self.order != self.known)

    async def next_fault(self, work: Work) -> DeviceFault:
        if self._undealt:
            self.faults.task_done()
        self._undealt = False
        fault = await self.faults.get()
        self._undealt = True
        return fault

    async def settle(self, tree: Worktree) -> None:
        self.settling.put_nowait(tree)
        await self.may_settle.wait()
        await self.faults.join()

    async def close(self) -> None:
        pass

    async def looks(self, count: int = 2) -> None:
        """So many looks have begun from now on, so that all but the last one have been told."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.looked.empty():
                self.looked.get_nowait()
            for _ in range(count):
                await self.looked.get()


def fault(action: FaultAction, cause: FaultCause = "row_remap", *, index: int = 1, xid: int = 0) -> DeviceFault:
    return DeviceFault(index=index, uuid=UUIDS[index], cause=cause, action=action, xid=xid, detail="it is so")


def told(link: FakeLink) -> list[object]:
    """What was told of devices and of the node after its first registration."""
    kinds = (DeviceFaulted, DeviceRecovered, ForeignUsageChanged, NodeDegraded, NodeRestored)
    return [
        (event.fault.action, event.fault.cause)
        if isinstance(event, DeviceFaulted)
        else "recovered"
        if isinstance(event, DeviceRecovered)
        else [use.memory_mib for use in event.foreign]
        if isinstance(event, ForeignUsageChanged)
        else event.cause
        if isinstance(event, NodeDegraded)
        else "restored"
        for event in link.facts(object)
        if isinstance(event, kinds)
    ]


async def test_a_registration_tells_all_and_then_only_differences_are_told(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    devices.look_is = Look([], [fault("drain")], [ForeignUse(0, UUIDS[0], 512)], Degraded("reboot", "device 1: x"))
    registered = await new_node(devices=devices, sample_ms=5).registered()
    assert registered.faults == [fault("drain")]
    assert registered.foreign == [ForeignUse(0, UUIDS[0], 512)]
    assert registered.degraded == "reboot: device 1: x"
    await devices.looks()
    assert told(link) == []
    devices.look_is = Look([])
    await devices.looks()
    assert told(link) == ["recovered", [], "restored"]
    devices.look_is = Look([], [fault("no_gangs")], degraded=Degraded("driver_mismatch", "570 and 575"))
    await devices.looks()
    await link.fact(NodeDegraded)
    assert told(link)[3:] == [("no_gangs", "row_remap"), "driver_mismatch"]
    assert {event.incarnation for event in link.facts(DeviceFaulted)} == {registered.incarnation}
    assert link.facts(DeviceRecovered)[0].detail == "over: it is so"


async def test_a_worse_fault_is_told_over_a_lesser_one_and_a_lesser_one_after_its_end(
    new_node: NewNode, link: FakeLink
) -> None:
    devices = Devices()
    await new_node(devices=devices, sample_ms=5).registered()
    for action in ("drain", "quarantine", "quarantine", "no_gangs"):
        devices.look_is = Look([], [fault(action)])
        await devices.looks()
    await link.until(lambda: len(told(link)) == 4)
    assert told(link) == [("drain", "row_remap"), ("quarantine", "row_remap"), "recovered", ("no_gangs", "row_remap")]


async def test_an_error_is_told_at_once_and_once(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    await new_node(devices=devices, sample_ms=1_000_000).registered()
    await devices.looks(1)
    for happened in (fault("fail_job", "xid", xid=13), fault("reset", "xid", xid=48), fault("note", "xid", xid=154)):
        devices.look_is = Look([], [fault("reset", "xid", xid=48)])
        devices.faults.put_nowait(happened)
    await devices.looks(1)  # which an error asks for
    await link.until(lambda: len(told(link)) == 3)
    assert told(link) == [("fail_job", "xid"), ("reset", "xid"), ("note", "xid")]


async def test_an_error_of_a_device_that_is_not_registered_is_not_told(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    await new_node(devices=devices).registered()
    stranger = DeviceFault(index=0, uuid="GPU-other", cause="xid", action="note", xid=43)
    devices.faults.put_nowait(stranger)
    devices.faults.put_nowait(fault("note", "xid", index=0, xid=43))
    await link.fact(DeviceFaulted)
    assert [event.fault.uuid for event in link.facts(DeviceFaulted)] == [UUIDS[0]]


async def test_other_devices_begin_another_life_at_once_and_workers_stay(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    node = new_node(devices=devices, sample_ms=5)
    first = await node.registered()
    await link.command(start(first.incarnation, "sleep 1000", indices=[0]))
    await link.fact(WorkerStarted, job=5)
    devices.order = [1, 0]
    [second] = await link.until(lambda: link.facts(NodeRegistered)[1:])
    assert [device.uuid for device in second.inventory.devices] == [UUIDS[1], UUIDS[0]]
    assert [(worker.job, worker.exit) for worker in second.workers] == [(5, None)]
    # the device that job 5 holds has another number now, and is still held
    await link.command(start(second.incarnation, "true", job=6, devices=[DeviceBinding(1, UUIDS[0])]))
    refused = await link.fact(WorkerRefused, job=6)
    assert refused.reason == "device 1 is held by a worker that still lives"
    await link.command(start(second.incarnation, "true", job=7, devices=[DeviceBinding(0, UUIDS[1])]))
    await link.fact(WorkerExited, job=7)
    assert [tree.claims_mib for tree in devices.work if tree.job == 5] == [{UUIDS[0]: 81_154}]


async def test_an_exit_is_told_after_the_error_that_caused_it(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    devices.may_settle.clear()
    life = (await new_node(devices=devices).registered()).incarnation
    await link.command(start(life, "exit 3", indices=[0]))
    async with asyncio.timeout(DEADLINE_S):
        tree = await devices.settling.get()
    assert (tree.job, tree.attempt, tree.claims_mib) == (5, 1, {UUIDS[0]: 81_154})
    assert link.facts(WorkerExited) == []
    devices.faults.put_nowait(fault("fail_job", "xid", index=0, xid=31))
    devices.may_settle.set()
    await link.fact(WorkerExited, job=5)
    assert [type(event) for event in link.facts(object)][-2:] == [DeviceFaulted, WorkerExited]


async def test_work_without_devices_waits_for_none(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    devices.may_settle.clear()
    life = (await new_node(devices=devices).registered()).incarnation
    await link.command(start(life, "true", indices=[]))
    await link.fact(WorkerExited, job=5)
    assert devices.settling.empty()


async def test_devices_that_cannot_be_had_end_nothing(new_node: NewNode, link: FakeLink) -> None:
    devices = Devices()
    devices.broken = RuntimeError("a driver's bindings")
    node = new_node(devices=devices, sample_ms=5)
    registered = await node.registered()
    assert [device.uuid for device in registered.inventory.devices] == list(UUIDS)
    await devices.looks()
    assert not node.task.done()
    await link.until(lambda: len(link.beaten) >= 2)
