"""Real devices, judged: readings set by hand, a kernel's log that is a file, a program that resets or does not."""

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.events.telemetry import DeviceSample
from muster.events.types import Device, DeviceFault, ForeignUse, Inventory
from muster.node_agent.checked import CheckedDevices, CheckSettings
from muster.node_agent.devices import Degraded, Look
from muster.node_agent.readings import (
    DeviceReading,
    MachineReading,
    MemoryReading,
    ProcessReading,
    RemapReading,
    Worktree,
    XidEvent,
)
from muster.node_agent.resets import ResetSettings

DEADLINE_S = 15.0
BUSES = ["00000000:44:00.0", "00000000:47:00.0"]
UUIDS = ["GPU-a", "GPU-b"]
NOBODY = 1 << 30  # beyond any pid
OWN = NOBODY + 99
TOGETHER = "it can only be reset together with the devices linked to it, by hand once they are idle"


class Raw:
    """Two devices as NVML shows them: what is in `shown` differs from a healthy one."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = [{}, {}]
        self.faults: list[DeviceFault] = []
        self.trouble: Degraded | None = None
        self.reading: MachineReading | None = None
        self.own_pids = frozenset({OWN})
        self.xids: asyncio.Queue[XidEvent] = asyncio.Queue()
        self.looks: asyncio.Queue[None] = asyncio.Queue()
        self.open = False

    async def inventory(self) -> Inventory:
        self._read()
        devices = [Device(i, UUIDS[i], "A100-80GB", 81_154, 81_920, BUSES[i]) for i in range(2)]
        return Inventory(devices, 8, 1024, "127.0.0.1")

    async def look(self, work: Sequence[Worktree]) -> Look:
        self.looks.put_nowait(None)
        self._read()
        samples = [DeviceSample(i, UUIDS[i], healthy=True) for i in range(2)]
        return Look(samples, list(self.faults), degraded=self.trouble)

    async def next_xid(self) -> XidEvent:
        event = await self.xids.get()
        self.xids.task_done()
        return event

    async def close(self) -> None:
        self.open = False

    def _read(self) -> None:
        self.open = True
        defaults = {"memory": MemoryReading(81_920, 766, 0), "processes": [], "recovery_action": 0}
        devices = [
            DeviceReading(nvml_index=i, uuid=UUIDS[i], pci_bus_id=BUSES[i], **{**defaults, **self.shown[i]})
            for i in range(2)
        ]
        self.reading = None if self.trouble else MachineReading(devices=devices)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "kernel.log"
        self.log.touch()
        self.raw = Raw()
        self.program = folder / "nvidia-smi"
        self.calls = folder / "calls"
        self.work: list[Worktree] = []
        self.works = 0  # how often it was asked what runs

    def program_says(self, *lines: str) -> None:
        self.program.write_text("\n".join(["#!/bin/sh", f'echo "$@" >> {self.calls}', *lines]))
        self.program.chmod(0o700)

    def devices(self, **values: Any) -> CheckedDevices:
        settings = {
            "kept": self.folder / "faults.json",
            "kernel_log": self.log,
            "resets": ResetSettings(program=str(self.program)),
            "host_pids": True,
        }
        return CheckedDevices(self.raw, CheckSettings(**{**settings, **values}))

    def says(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(f"NVRM: {line}\n")

    async def what_runs(self) -> list[Worktree]:
        self.works += 1
        return self.work

    async def fault(self, devices: CheckedDevices) -> DeviceFault:
        async with asyncio.timeout(DEADLINE_S):
            return await devices.next_fault(self.what_runs)

    async def look(self, devices: CheckedDevices) -> Look:
        async with asyncio.timeout(DEADLINE_S):
            return await devices.look(self.what_runs)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def runs(job: int, pids: set[int], *uuids: str) -> Worktree:
    return Worktree(job, 1, dict.fromkeys(uuids, 1_000), frozenset(pids))


def in_short(faults: Sequence[DeviceFault]) -> list[tuple[int, str, str, int]]:
    return [(fault.index, fault.cause, fault.action, fault.xid) for fault in faults]


async def test_what_a_reading_shows_is_a_fault_until_it_does_not(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.raw.shown[1] = {"remap": RemapReading(0, 1, pending=True, failed=False)}
    world.work = [runs(5, {NOBODY + 1}, "GPU-b")]
    look = await world.look(devices)
    assert in_short(look.faults) == [(1, "row_remap", "drain", 0)]
    assert [sample.healthy for sample in look.samples] == [True, False]
    world.raw.shown[1] = {}
    assert (await world.look(devices)).faults == []
    await devices.close()


async def test_a_machine_that_must_be_restarted_takes_no_work(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.raw.shown[0] = {"recovery_action": 2}
    look = await world.look(devices)
    assert in_short(look.faults) == [(0, "recovery_action", "quarantine", 0)]
    assert look.degraded == Degraded("reboot", "device 0: the driver wants a restart of the machine")
    await devices.close()


async def test_what_nvml_cannot_tell_stays_as_it_was(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.raw.shown[0] = {
        "remap": RemapReading(0, 1, pending=False, failed=True),
        "processes": [ProcessReading(1, 600)],
    }
    before = await world.look(devices)
    world.raw.trouble = Degraded("nvml_hung", "no answer within 8 s")
    after = await world.look(devices)
    assert after.faults == before.faults != []
    assert after.foreign == before.foreign == [ForeignUse(0, "GPU-a", 768)]
    assert after.degraded == world.raw.trouble
    await devices.close()


async def test_lost_by_its_xid_and_by_nvml_is_one_fault(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.says("Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    asked = asyncio.create_task(world.fault(devices))
    assert in_short([await asked]) == [(0, "xid", "quarantine", 79)]
    world.raw.faults = [DeviceFault(index=0, uuid="GPU-a", cause="lost", action="quarantine", detail="it is lost")]
    look = await world.look(devices)
    assert in_short(look.faults) == [(0, "xid", "quarantine", 79)]
    words = "Xid 79: GPU has fallen off the bus."
    assert look.faults[0].detail == f"{words}; it is lost"
    assert look.degraded == Degraded("reboot", f"device 0: {words}")
    await devices.close()


# -- whose error ------------------------------------------------------------------------------------------------


async def test_both_sources_tell_of_one_error_and_the_log_says_whose(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, {NOBODY + 1}, "GPU-a"), runs(6, {NOBODY + 2}, "GPU-a")]
    first = asyncio.create_task(world.fault(devices))
    await asyncio.sleep(0)
    world.raw.xids.put_nowait(XidEvent(BUSES[0], 13))
    world.says(f"Xid (PCI:0000:44:00): 13, pid={NOBODY + 2}, name=python, Graphics Exception")
    fault = await first
    assert (fault.action, fault.failure, fault.job, fault.attempt) == ("fail_job", "failed", 6, 1)
    assert fault.detail == "Xid 13: graphics engine exception (name=python, Graphics Exception)"
    world.raw.xids.put_nowait(XidEvent(BUSES[1], 4711))  # comes after whatever is still held of the first one
    assert in_short([await world.fault(devices)]) == [(1, "xid", "suspect", 4711)]
    await devices.close()


async def test_nvml_alone_is_believed_where_the_log_cannot_be_read(world: World) -> None:
    devices = world.devices(kernel_log=world.folder / "none")
    await devices.inventory()
    world.work = [runs(5, {NOBODY + 1}, "GPU-a"), runs(6, {NOBODY + 2}, "GPU-b"), runs(7, {NOBODY + 3}, "GPU-b")]
    for bus, owner in ((BUSES[0], (5, 1)), (BUSES[1], (0, 0))):
        world.raw.xids.put_nowait(XidEvent(bus, 94))
        fault = await world.fault(devices)
        assert (fault.action, fault.failure, fault.job, fault.attempt) == ("fail_job", "device_fault", *owner)
    await devices.close()


async def test_a_foreign_process_s_error_fails_nobody(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, {NOBODY + 1}, "GPU-a")]
    world.says(f"Xid (PCI:0000:44:00): 31, pid={os.getpid()}, name=stranger, MMU Fault")
    fault = await world.fault(devices)
    assert (fault.action, fault.job, fault.xid) == ("note", 0, 31)
    await devices.close()


async def test_pids_of_another_namespace_say_nothing(world: World) -> None:
    devices = world.devices(host_pids=False)
    await devices.inventory()
    world.work = [runs(5, {NOBODY + 1}, "GPU-a")]
    world.raw.shown[0] = {"processes": [ProcessReading(1, 900)]}
    look = await world.look(devices)
    assert (look.foreign, look.samples[0].foreign_mib) == ([], None)
    world.says("Xid (PCI:0000:44:00): 31, pid=1, name=init, MMU Fault")
    assert (await world.fault(devices)).job == 5
    await devices.close()


async def test_a_device_that_is_not_known_is_nobody_s(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.says("Xid (PCI:0000:99:00): 79, gone")
    world.says("Xid (PCI:0000:47:00): 43, pid=1")
    assert in_short([await world.fault(devices)]) == [(1, "xid", "note", 43)]
    await devices.close()


@pytest.mark.parametrize("log", ["kernel.log", "none"])
async def test_a_storm_of_equal_errors_without_a_pid_costs_few_looks_at_proc(world: World, log: str) -> None:
    devices = world.devices(kernel_log=world.folder / log)
    await devices.inventory()
    tree = runs(5, {NOBODY + 1}, "GPU-a")
    world.work = [tree]
    faults: list[DeviceFault] = []

    async def hear() -> None:
        while True:
            faults.append(await devices.next_fault(world.what_runs))

    hearing = asyncio.create_task(hear())
    await asyncio.sleep(0)
    for _ in range(2_000):
        world.raw.xids.put_nowait(XidEvent(BUSES[0], 13))
        world.says("Xid (PCI:0000:44:00): 13, Graphics Exception")
    async with asyncio.timeout(DEADLINE_S):
        await world.raw.xids.join()
        await devices.settle(tree)
    assert [(fault.job, fault.xid) for fault in faults] == [(5, 13)]
    assert world.works <= 3
    hearing.cancel()
    await devices.close()


async def test_errors_of_many_processes_heard_at_once_have_one_look_at_proc(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, set(range(NOBODY, NOBODY + 50)), "GPU-a"), runs(6, {NOBODY + 50}, "GPU-a")]
    asked = asyncio.create_task(world.fault(devices))
    await asyncio.sleep(0)
    for pid in range(NOBODY, NOBODY + 51):
        world.says(f"Xid (PCI:0000:44:00): 31, pid={pid}, MMU Fault")
    assert [(await asked).job, (await world.fault(devices)).job] == [5, 6]
    assert world.works <= 2
    await devices.close()


async def test_an_end_does_not_wait_for_errors_told_after_it(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    tree = runs(5, {NOBODY + 1}, "GPU-a")
    settling: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
    unheard_of = itertools.count(3_000)

    async def hear() -> None:
        for number in unheard_of:  # each error has another one told while it is dealt with
            world.raw.xids.put_nowait(XidEvent(BUSES[0], number))
            await devices.next_fault(world.what_runs)
            if number == 3_000:
                settling.put_nowait(asyncio.create_task(devices.settle(tree)))

    hearing = asyncio.create_task(hear())
    async with asyncio.timeout(DEADLINE_S):
        await (await settling.get())
    assert next(unheard_of) < 3_030
    hearing.cancel()
    await devices.close()


# -- settling ---------------------------------------------------------------------------------------------------


async def test_a_worker_s_end_waits_for_the_errors_before_it_and_until_its_processes_are_off(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    tree = runs(5, {NOBODY + 1}, "GPU-a")
    world.work = [tree]
    await world.look(devices)
    world.raw.shown[0] = {"processes": [ProcessReading(NOBODY + 1, 500)]}
    dealt: list[int] = []

    async def hear() -> None:
        while True:
            dealt.append((await devices.next_fault(world.what_runs)).xid)

    hearing = asyncio.create_task(hear())
    await asyncio.sleep(0)
    world.says(f"Xid (PCI:0000:44:00): 31, pid={NOBODY + 1}, MMU Fault")
    settled = asyncio.create_task(devices.settle(runs(5, set(), "GPU-a")))
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(4):
            await world.raw.looks.get()
    assert not settled.done()
    world.raw.shown[0] = {"processes": [ProcessReading(os.getpid(), 500)]}
    async with asyncio.timeout(DEADLINE_S):
        await settled
    assert dealt == [31]
    hearing.cancel()
    await devices.close()


# -- foreign memory ---------------------------------------------------------------------------------------------


async def test_foreign_memory_is_what_others_hold(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, {10}, "GPU-a")]
    ours, strange = ProcessReading(10, 4_000), ProcessReading(os.getpid(), 6_000)
    world.raw.shown = [{"processes": [ours, strange, ProcessReading(OWN, 9)]}, {"processes": None}]
    look = await world.look(devices)
    assert look.foreign == [ForeignUse(0, "GPU-a", 6_144)]
    assert [sample.foreign_mib for sample in look.samples] == [6_000, None]
    world.raw.shown[0] = {"processes": [ours]}
    assert (await world.look(devices)).foreign == [ForeignUse(0, "GPU-a", 6_144)]
    look = await world.look(devices)
    assert (look.foreign, look.samples[0].foreign_mib) == ([], 0)
    await devices.close()


async def test_own_processes_that_come_and_go_are_not_foreign(world: World) -> None:
    """A job that runs one short program after the other: NVML lists one that began after the look at /proc."""
    devices = world.devices()
    await devices.inventory()
    foreign = []
    for pid in range(NOBODY, NOBODY + 4):
        world.work = [runs(5, {pid}, "GPU-a")]
        world.raw.shown[0] = {"processes": [ProcessReading(pid + 1, 512)]}
        look = await world.look(devices)
        foreign.append((list(look.foreign), look.samples[0].foreign_mib))
    assert foreign == [([], 0)] * 4
    await devices.close()


async def test_a_process_that_began_after_the_look_at_proc_is_found_by_a_second_one(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    looks = iter([[runs(5, {10}, "GPU-a")], [runs(5, {10, os.getpid()}, "GPU-a")]])

    async def what_runs() -> list[Worktree]:
        return next(looks)

    world.raw.shown[0] = {"processes": [ProcessReading(10, 4_000), ProcessReading(os.getpid(), 512)]}
    look = await devices.look(what_runs)
    assert (look.foreign, look.samples[0].foreign_mib) == ([], 0)
    await devices.close()


async def test_what_nobody_runs_any_more_is_foreign_once_two_looks_have_it(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.raw.shown[0] = {"processes": [ProcessReading(NOBODY, 900)]}
    held_mib = [(await world.look(devices)).samples[0].foreign_mib for _ in range(3)]
    assert held_mib == [0, 900, 900]
    await devices.close()


@pytest.fixture
def zombie() -> Iterator[int]:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


async def test_a_zombie_of_a_job_is_not_foreign(world: World, zombie: int) -> None:
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, {10}, "GPU-a")]
    world.raw.shown[0] = {"processes": [ProcessReading(zombie, 512)]}
    look = await world.look(devices)
    assert (look.foreign, look.samples[0].foreign_mib) == ([], 0)
    world.says(f"Xid (PCI:0000:44:00): 31, pid={zombie}, MMU Fault")
    assert (await world.fault(devices)).job == 5
    await devices.close()


# -- resets and restarts ----------------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root resets devices")


@as_root
async def test_an_idle_device_is_reset_after_its_fault_was_told(world: World) -> None:
    world.program_says("exit 0")
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, {NOBODY + 1}, "GPU-a")]
    world.says("Xid (PCI:0000:44:00): 48, DBE")
    assert in_short([await world.fault(devices)]) == [(0, "xid", "reset", 48)]
    assert in_short((await world.look(devices)).faults) == [(0, "xid", "reset", 48)]
    world.work = []
    world.raw.shown[0] = {"processes": [ProcessReading(os.getpid(), 5)]}
    assert in_short((await world.look(devices)).faults) == [(0, "xid", "reset", 48)]
    assert not world.calls.exists()
    world.raw.shown[0] = {"processes": [ProcessReading(OWN, 5)]}
    assert (await world.look(devices)).faults == []
    assert world.calls.read_text() == "--gpu-reset -i 00000000:44:00.0\n"
    await devices.close()
    assert not world.raw.open


@as_root
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["echo 'Resetting ...'", "echo 'GPU 00000000:44:00.0: In use by another client'", "exit 3"],
         "its reset failed: GPU 00000000:44:00.0: In use by another client"),
        (["echo 'Devices on NVLink must be reset together'", "exit 1"],
         f"{TOGETHER}: Devices on NVLink must be reset together"),
        (["exit 0"], "a reset did not help"),
    ],
)  # fmt: skip
async def test_a_device_that_no_reset_heals_is_left_to_the_operator(world: World, lines: list[str], words: str) -> None:
    world.program_says(*lines)
    devices = world.devices()
    await devices.inventory()
    world.raw.shown[0] = {"recovery_action": 4}
    assert in_short((await world.look(devices)).faults) == [(0, "recovery_action", "drain", 0)]
    want = "the driver wants a reset once the work has ended"
    for _ in range(2):
        look = await world.look(devices)
        assert in_short(look.faults) == [(0, "recovery_action", "quarantine", 0)]
        assert look.faults[0].detail == f"{words}; {want}"
    assert len(world.calls.read_text().splitlines()) == 1
    world.raw.shown[0] = {"recovery_action": 0}  # somebody has done it by hand
    assert (await world.look(devices)).faults == []
    await devices.close()


@as_root
async def test_without_leave_nothing_is_reset(world: World) -> None:
    world.program_says("exit 0")
    devices = world.devices(resets=ResetSettings(allowed=False, program=str(world.program)))
    await devices.inventory()
    world.raw.shown[0] = {"recovery_action": 1}
    for _ in range(3):
        assert in_short((await world.look(devices)).faults) == [(0, "recovery_action", "reset", 0)]
    assert not world.calls.exists()
    await devices.close()


async def test_what_an_xid_said_outlives_the_agent_unless_somebody_vouches(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.says("Xid (PCI:0000:47:00): 74, NVLink")
    await world.fault(devices)
    await devices.close()
    for values, faults in (({}, [(1, "xid", "no_gangs", 74)]), ({"forget": True}, []), ({}, [])):
        again = world.devices(**values)
        await again.inventory()
        assert in_short((await world.look(again)).faults) == faults
        await again.close()


async def test_uncorrected_errors_of_an_old_device_last_though_they_grow_once(world: World) -> None:
    devices = world.devices()
    await devices.inventory()
    world.work = [runs(5, {NOBODY + 1}, "GPU-a")]
    for count, faults in ((3, []), (4, [(0, "ecc", "reset", 0)]), (4, [(0, "ecc", "reset", 0)])):
        world.raw.shown[0] = {"ecc_uncorrected": count}
        assert in_short((await world.look(devices)).faults) == faults
    await devices.close()
