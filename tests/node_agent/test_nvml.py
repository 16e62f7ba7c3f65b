"""The NVML process: real bindings on the stand-in library, with everything that can go wrong there."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType

import pytest
from agent_world import DEADLINE_S, alive
from nvml_machine import Gpu, Machine, a100x8, mixed

from muster.node_agent import nvml_child
from muster.node_agent.nvml import NvmlProcess
from muster.node_agent.readings import MachineReading, MemoryReading, NvmlTroubleError, ProcessReading, XidEvent

NewProcess = Callable[..., NvmlProcess]


@pytest.fixture
async def start() -> AsyncIterator[NewProcess]:
    """An NvmlProcess on a machine that has been written, with these settings."""
    started: list[NvmlProcess] = []

    def make(machine: Machine, **settings: float) -> NvmlProcess:
        machine.write()
        started.append(NvmlProcess(machine.settings(**settings)))
        return started[-1]

    yield make
    for process in started:
        await process.close()


def troubles(reading: MachineReading) -> list[tuple[str, str | None]]:
    return [(device.pci_bus_id, device.trouble) for device in reading.devices]


async def trouble_of(process: NvmlProcess) -> tuple[str, str]:
    with pytest.raises(NvmlTroubleError) as caught:
        await process.samples()
    return caught.value.kind, str(caught.value)


async def test_everything_that_nvml_tells_of_a_device(tmp_path: Path, start: NewProcess) -> None:
    gpu = Gpu(
        "00000000:41:00.0",
        "GPU-1",
        minor=5,
        memory_mib=(81_920, 766, 12_345),
        numa=1,
        recovery=4,
        remap=(2, 1, 1, 0),
        ecc=(9, 3),
        fabric=(3, 0, "00112233445566778899aabbccddeeff", 7),
        links=("switch", "down", "00000000:42:00.0"),
        sm_percent=45,
        temperature_c=61,
        power_mw=312_500,
        sm_clock_mhz=1_410,
        processes=[(4_711, 900), (4_712, -1)],
    )
    reading = await start(Machine(tmp_path / "m", [gpu], kernel_driver="570.86.15")).inventory()
    (device,) = reading.devices
    assert (reading.driver, reading.kernel_driver) == ("570.86.10", "570.86.15")
    assert (device.nvml_index, device.uuid, device.pci_bus_id, device.trouble) == (0, "GPU-1", "00000000:41:00.0", None)
    assert (device.name, device.minor, device.capability, device.numa, device.mig) == (
        "NVIDIA A100-SXM4-80GB",
        5,
        "8.0",
        1,
        False,
    )
    assert device.memory == MemoryReading(total_mib=81_920, reserved_mib=766, used_mib=12_345)
    assert (device.recovery_action, device.ecc_corrected, device.ecc_uncorrected) == (4, 9, 3)
    assert device.remap is not None
    assert (device.remap.corrected, device.remap.uncorrected, device.remap.pending, device.remap.failed) == (
        2,
        1,
        True,
        False,
    )
    assert (device.fabric_state, device.fabric_status) == (3, 0)
    assert device.domain == "00112233-4455-6677-8899-aabbccddeeff.7"
    assert device.nvlink_to == ["switch", "00000000:42:00.0"]
    assert (device.sm_percent, device.temperature_c, device.power_w) == (45, 61, 312.5)
    assert (device.sm_clock_mhz, device.memory_clock_mhz) == (1_410, 1_593)
    assert device.processes == [ProcessReading(4_711, 900), ProcessReading(4_712, None)]


async def test_what_is_not_supported_is_unknown_and_never_0(tmp_path: Path, start: NewProcess) -> None:
    gpu = Gpu("00000000:41:00.0", "GPU-1", failures=[("nvmlDeviceGetComputeRunningProcesses_v3", 3)])
    gpu.failures.append(("nvmlDeviceGetComputeRunningProcesses_v2", 3))
    gpu.minor = gpu.numa = gpu.mig = gpu.recovery = gpu.sm_percent = gpu.temperature_c = gpu.power_mw = None
    gpu.capability = gpu.memory_mib = gpu.remap = gpu.ecc = gpu.sm_clock_mhz = gpu.memory_clock_mhz = None
    (device,) = (await start(Machine(tmp_path / "m", [gpu])).inventory()).devices
    assert (device.uuid, device.trouble, device.memory_trouble) == ("GPU-1", None, "not_supported")
    unknown = (
        *(device.minor, device.numa, device.mig, device.memory, device.recovery_action, device.remap),
        *(device.ecc_corrected, device.ecc_uncorrected, device.fabric_state, device.sm_percent, device.temperature_c),
        *(device.power_w, device.sm_clock_mhz, device.memory_clock_mhz, device.processes),
    )
    assert unknown == (None,) * 15
    assert (device.capability, device.domain, device.nvlink_to) == ("", "", [])


async def test_an_old_driver_lacks_the_newer_calls(tmp_path: Path, start: NewProcess) -> None:
    """Its older memory call counts the driver's reserve as used, and tells nothing of it."""
    missing = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGpuFabricInfoV")
    gpu = Gpu("00000000:41:00.0", "GPU-1", memory_mib=(40_960, 588, 1_000), processes=[(7, 1_000)])
    gpu.failures = [(function, 13) for function in missing]
    (device,) = (await start(Machine(tmp_path / "m", [gpu])).inventory()).devices
    assert device.memory == MemoryReading(total_mib=40_960, reserved_mib=0, used_mib=1_588)
    assert (device.processes, device.domain) == ([ProcessReading(7, 1_000)], "")


@pytest.mark.parametrize(
    ("driver", "processes"),
    [("535.54.03", None), ("535.86.10", [ProcessReading(7, 900)]), ("530.30.02", [ProcessReading(7, 900)])],
)
async def test_drivers_that_list_processes_which_are_not_there(
    tmp_path: Path, start: NewProcess, driver: str, processes: list[ProcessReading] | None
) -> None:
    machine = Machine(tmp_path / "m", [Gpu("00000000:41:00.0", "GPU-1", processes=[(7, 900)])], driver=driver)
    (device,) = (await start(machine).inventory()).devices
    assert device.processes == processes


async def test_numa_nodes_without_cpus_are_not_the_nearest(tmp_path: Path, start: NewProcess) -> None:
    """And where NVML does not know, the kernel's word for the PCI device counts; -1 is unknown."""
    machine = Machine(
        tmp_path / "m",
        [Gpu("00000000:01:00.0", "GPU-1", numa=4), Gpu("00000000:02:00.0", "GPU-2"), Gpu("00000000:03:00.0", "GPU-3")],
    )
    machine.gpus[1].numa = machine.gpus[2].numa = None
    sysfs = machine.folder / "sys"
    for path, text in {
        "devices/system/node/node4/cpulist": "\n",
        "bus/pci/devices/0000:01:00.0/numa_node": "0\n",
        "bus/pci/devices/0000:02:00.0/numa_node": "1\n",
        "bus/pci/devices/0000:03:00.0/numa_node": "-1\n",
    }.items():
        (sysfs / path).parent.mkdir(parents=True)
        (sysfs / path).write_text(text)
    assert [device.numa for device in (await start(machine).inventory()).devices] == [0, 1, None]


async def test_paths_are_read_with_the_inventory_only(tmp_path: Path, start: NewProcess) -> None:
    process = start(mixed(tmp_path / "m"))
    unknown = None
    assert (await process.inventory()).paths == [
        [unknown, 40, 40, 40],
        [40, unknown, 40, 40],
        [40, 40, unknown, 30],
        [40, 40, 30, unknown],
    ]
    assert (await process.samples()).paths == []


@pytest.mark.parametrize("what", ["hang", "segfault"])
async def test_a_device_that_takes_the_process_down_is_left_out(tmp_path: Path, start: NewProcess, what: str) -> None:
    machine = mixed(tmp_path / "m")
    process = start(machine, answer_s=1.0)
    await process.inventory()
    machine.gpus[1].failures = [("nvmlDeviceGetTemperature", what)]
    machine.write()
    assert troubles(await process.samples()) == [
        ("00000000:3B:00.0", None),
        ("00000000:1A:00.0", "unreadable"),
        ("00000000:5E:00.0", None),
        ("00000000:5F:00.0", None),
    ]
    before = process.pid
    await process.samples()
    assert process.pid == before, "it is left out, and the process goes on"


async def test_slow_devices_are_not_left_out(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    machine.failures = [("nvmlDeviceGetTemperature", "slow")]
    reading = await start(machine, answer_s=1.0).inventory()  # 0.3 s each, 1.2 s together
    assert [device.trouble for device in reading.devices] == [None] * 4


async def test_a_machine_of_which_everything_is_slow_is_in_trouble_as_a_whole(
    tmp_path: Path, start: NewProcess
) -> None:
    machine = mixed(tmp_path / "m")
    process = start(machine, start_s=2.0, retry_s=0.0, retry_most_s=0.0)
    await process.samples()
    machine.failures = [("nvmlDeviceGetTemperature", "slow"), ("nvmlDeviceGetClockInfo", "slow")]
    machine.write()  # 0.9 s each, 3.6 s together
    assert await trouble_of(process) == ("nvml_hung", "NVML does not answer in time")
    machine.failures = []
    machine.write()
    assert troubles(await process.samples()) == [(gpu.bus, None) for gpu in machine.gpus]


async def test_nobody_waits_for_all_devices_that_hang(tmp_path: Path, start: NewProcess) -> None:
    machine = a100x8(tmp_path / "m")
    process = start(machine, answer_s=0.5, start_s=1.2, retry_s=0.0, retry_most_s=0.0)
    await process.samples()
    for gpu in machine.gpus[:6]:
        gpu.failures = [("nvmlDeviceGetTemperature", "hang")]
    machine.write()
    assert await trouble_of(process) == ("nvml_hung", "NVML does not answer in time")
    reading = None
    while reading is None:
        with contextlib.suppress(NvmlTroubleError):
            reading = await process.samples()
    assert [device.trouble for device in reading.devices] == ["unreadable"] * 6 + [None] * 2


async def test_a_device_without_a_handle_is_left_out_by_its_number(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    machine.gpus[1].failures = [("nvmlDeviceGetHandleByIndex_v2", "segfault")]
    assert troubles(await start(machine).inventory()) == [
        ("00000000:3B:00.0", None),
        ("", "unreadable"),
        ("00000000:5E:00.0", None),
        ("00000000:5F:00.0", None),
    ]


async def test_a_device_that_was_left_out_is_tried_again(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    machine.gpus[0].failures = [("*", "segfault")]
    process = start(machine, skip_s=0.0)
    assert (await process.inventory()).devices[0].trouble == "unreadable"
    machine.gpus[0].failures = []
    machine.write()
    assert (await process.samples()).devices[0].uuid == "GPU-t4"


async def test_a_lost_device_is_known_by_what_was_read_before(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    process = start(machine)
    await process.inventory()
    machine.gpus[3].lose()
    machine.write()
    lost = (await process.samples()).devices[3]
    assert (lost.uuid, lost.pci_bus_id, lost.trouble) == ("GPU-v100-1", "00000000:5F:00.0", "lost")
    nameless = (await process.inventory()).devices[3]
    assert (nameless.uuid, nameless.pci_bus_id, nameless.trouble) == ("", "", "lost")


# -- NVML as a whole --------------------------------------------------------------------------------------------


async def test_without_a_driver(tmp_path: Path, start: NewProcess) -> None:
    assert await trouble_of(start(Machine(tmp_path / "m", init=9))) == ("absent", "Driver Not Loaded")


async def test_a_driver_that_was_exchanged_under_a_running_machine(tmp_path: Path, start: NewProcess) -> None:
    machine = Machine(tmp_path / "m", driver="575.57.08", kernel_driver="570.86.10", init=18)
    kind, detail = await trouble_of(start(machine))
    assert kind == "driver_mismatch"
    assert "575.57.08" in detail
    assert "570.86.10" in detail


async def test_a_hang_outside_of_any_device(tmp_path: Path, start: NewProcess) -> None:
    machine = Machine(tmp_path / "m", failures=[("nvmlInitWithFlags", "hang")])
    assert (await trouble_of(start(machine, start_s=1.0)))[0] == "nvml_hung"


async def test_a_crash_outside_of_any_device_is_tried_again_later(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    machine.failures = [("nvmlDeviceGetCount_v2", "segfault")]
    process = start(machine, retry_s=3_600.0)
    kind, detail = await trouble_of(process)
    assert (kind, "SIGSEGV" in detail) == ("nvml_failed", True)
    machine.failures = []
    machine.write()
    assert (await trouble_of(process))[0] == "nvml_failed", "not before its time"
    process.try_again()
    assert len((await process.samples()).devices) == 4


async def test_a_process_that_was_killed_is_started_again(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    process = start(machine)
    before = await process.inventory()
    killed = process.pid
    os.kill(killed, signal.SIGKILL)
    assert [device.uuid for device in (await process.samples()).devices] == [device.uuid for device in before.devices]
    assert process.pid != killed
    machine.xid(machine.gpus[0], 31)
    async with asyncio.timeout(DEADLINE_S):
        assert await process.next_xid() == XidEvent("00000000:3B:00.0", 31)


async def test_no_second_process_beside_one_that_cannot_be_killed(
    tmp_path: Path, start: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = mixed(tmp_path / "m")
    process = start(machine, answer_s=1.0, kill_s=0.1, retry_s=0.0, retry_most_s=0.0)
    await process.inventory()
    stuck = process.pid
    machine.gpus[0].failures = [("*", "hang")]
    machine.write()
    with monkeypatch.context() as patched:
        patched.setattr("muster.node_agent.nvml._Child.kill", lambda _child: None)
        assert await trouble_of(process) == ("nvml_hung", f"process {stuck} hangs and cannot be killed")
        assert await trouble_of(process) == ("nvml_hung", f"process {stuck} hangs and cannot be killed")
    assert process.pid == 0
    os.kill(stuck, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        while alive(stuck):  # noqa: ASYNC110  # nothing tells of another's child
            await asyncio.sleep(0.01)
    machine.gpus[0].failures = []
    machine.write()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                assert len((await process.samples()).devices) == 4
            except NvmlTroubleError:  # its end has not been heard of yet
                await asyncio.sleep(0.01)
            else:
                break


async def test_a_question_that_is_given_up_leaves_no_answer_behind(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    process = start(machine)
    await process.inventory()
    machine.gpus[0].failures = [("*", "hang")]
    machine.write()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await process.samples()
    machine.gpus[0].failures = []
    machine.write()
    assert troubles(await process.samples())[0] == ("00000000:3B:00.0", None)


async def test_close_lets_go_of_the_devices(tmp_path: Path, start: NewProcess) -> None:
    process = start(mixed(tmp_path / "m"))
    await process.inventory()
    pid = process.pid
    assert alive(pid)
    await process.close()
    assert (process.pid, alive(pid)) == (0, False)


async def test_the_process_dies_with_its_parent(tmp_path: Path) -> None:
    machine = mixed(tmp_path / "m")
    machine.write()
    program = """
import asyncio
from muster.node_agent.nvml import NvmlProcess, NvmlSettings

async def main():
    process = NvmlProcess(NvmlSettings())
    await process.inventory()
    print(process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    words = (sys.executable, "-c", program)
    parent = await asyncio.create_subprocess_exec(*words, env=machine.env, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    await parent.communicate()
    async with asyncio.timeout(DEADLINE_S):
        while alive(pid):  # noqa: ASYNC110  # nothing tells of another's child
            await asyncio.sleep(0.01)


# -- Xids -------------------------------------------------------------------------------------------------------


async def test_xids_are_told_as_they_happen_and_in_order(tmp_path: Path, start: NewProcess) -> None:
    machine = a100x8(tmp_path / "m")
    process = start(machine)
    machine.xid(machine.gpus[1], 13)  # nobody listened yet
    await process.inventory()
    for gpu, xid in ((3, 79), (0, 31), (3, 45)):
        machine.xid(machine.gpus[gpu], xid)
    async with asyncio.timeout(DEADLINE_S):
        assert [await process.next_xid() for _ in range(3)] == [
            XidEvent("00000000:4E:00.0", 79),
            XidEvent("00000000:07:00.0", 31),
            XidEvent("00000000:4E:00.0", 45),
        ]


async def test_an_error_of_waiting_for_events_is_nobody_s_fault(tmp_path: Path, start: NewProcess) -> None:
    machine = mixed(tmp_path / "m")
    machine.failures = [("nvmlEventSetWait_v2", 999)]
    process = start(machine)
    assert all(trouble is None for _, trouble in troubles(await process.inventory()))
    machine.failures = []
    machine.write()
    found = None
    async with asyncio.timeout(DEADLINE_S):
        while found is None:
            machine.xid(machine.gpus[2], 63)  # until it has registered again
            try:
                found = await asyncio.wait_for(process.next_xid(), 0.1)
            except TimeoutError:
                continue
    assert found == XidEvent("00000000:5E:00.0", 63)


# -- the bindings -----------------------------------------------------------------------------------------------


def test_other_bindings_of_the_same_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("pynvml")
    old.__file__ = "/usr/lib/python3/dist-packages/pynvml/__init__.py"
    monkeypatch.setitem(sys.modules, "pynvml", old)
    with pytest.raises(nvml_child.TroubleError, match=r"pynvml/__init__\.py is not NVIDIA's: install nvidia-ml-py"):
        nvml_child.load("")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\nGCC: 12.2.0\n",
            "470.256.02",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57  Release Build  (root@host)\n",
            "575.57",
        ),
        ("", ""),
    ],
)
def test_the_version_of_the_loaded_driver(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "version").write_text(text)
    assert nvml_child.kernel_driver_version(tmp_path / "version") == version
    assert nvml_child.kernel_driver_version(tmp_path / "none") == ""
