"""This machine's devices: what the inventory is and which faults there are, through the real bindings."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from nvml_machine import SYS, Gpu, Machine, a100x8, mixed, pcie8

from muster.events.telemetry import DeviceSample
from muster.events.types import Device, Inventory
from muster.node_agent.devices import Degraded, Look
from muster.node_agent.host import Host
from muster.node_agent.inventory import Site
from muster.node_agent.nvml_devices import NvmlDevices

NewDevices = Callable[..., NvmlDevices]
CLUSTER = "0123456789abcdef0123456789abcdef"
CLIQUE_5, CLIQUE_6 = (f"01234567-89ab-cdef-0123-456789abcdef.{clique}" for clique in (5, 6))


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[NewDevices]:
    """The devices of a machine that has been written, as an agent on this test's folder has them."""
    started: list[NvmlDevices] = []

    def make(machine: Machine, site: Site | None = None, host: Host | None = None, **settings: float) -> NvmlDevices:
        machine.write()
        started.append(NvmlDevices(site or Site(), tmp_path / "agent", machine.settings(**settings), host))
        return started[-1]

    yield make
    for devices in started:
        await devices.close()


def a100(index: int, bus: str, numa: int) -> Device:
    return Device(
        index=index,
        uuid=f"GPU-a100-{index}",
        model="A100-80GB",
        memory_mib=81_154,
        nominal_mib=81_920,
        pci_bus_id=f"00000000:{bus}:00.0",
        minor=index,
        capability="8.0",
        numa=numa,
    )


def faults(look: Look) -> list[tuple[int, str, str, str]]:
    return [(fault.index, fault.uuid, fault.cause, fault.action) for fault in look.faults]


def uuids(inventory: Inventory) -> list[str]:
    assert [device.index for device in inventory.devices] == list(range(len(inventory.devices)))
    return [device.uuid for device in inventory.devices]


# -- inventories ------------------------------------------------------------------------------------------------


async def test_eight_a100s_on_switches(tmp_path: Path, start: NewDevices) -> None:
    devices = start(a100x8(tmp_path / "m"), Site(address="10.0.0.7", fabric="ib0", labels={"rack": "r7"}))
    inventory = await devices.inventory()
    assert inventory.devices == [
        a100(0, "07", 0),
        a100(1, "0F", 0),
        a100(2, "47", 0),
        a100(3, "4E", 0),
        a100(4, "87", 1),
        a100(5, "90", 1),
        a100(6, "B7", 1),
        a100(7, "BD", 1),
    ]
    assert inventory.topology == [["X" if a == b else "NV12" for b in range(8)] for a in range(8)]
    assert (inventory.driver, inventory.address, inventory.fabric) == ("570.86.10", "10.0.0.7", "ib0")
    assert inventory.labels == {"rack": "r7"}
    assert inventory.devices_in_containers
    look = await devices.look([])
    assert (look.faults, look.foreign, look.degraded, look.changed) == ([], (), None, False)
    assert look.samples[7] == DeviceSample(
        index=7,
        uuid="GPU-a100-7",
        memory_total_mib=81_920,
        memory_used_mib=0,
        sm_percent=0,
        temperature_c=30,
        power_w=50.0,
        healthy=True,
        memory_reserved_mib=766,
        sm_clock_mhz=210,
        memory_clock_mhz=1_593,
        ecc_corrected=0,
        ecc_uncorrected=0,
    )


async def test_devices_on_pcie_switches_of_two_sockets(tmp_path: Path, start: NewDevices) -> None:
    inventory = await start(pcie8(tmp_path / "m")).inventory()
    assert {(d.model, d.memory_mib, d.nominal_mib, d.capability) for d in inventory.devices} == {
        ("L40S", 45_484, 49_152, "8.9")
    }
    assert [device.numa for device in inventory.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert inventory.topology == [
        ["X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"],
        ["PIX", "X", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"],
        ["NODE", "NODE", "X", "PIX", "SYS", "SYS", "SYS", "SYS"],
        ["NODE", "NODE", "PIX", "X", "SYS", "SYS", "SYS", "SYS"],
        ["SYS", "SYS", "SYS", "SYS", "X", "PIX", "NODE", "NODE"],
        ["SYS", "SYS", "SYS", "SYS", "PIX", "X", "NODE", "NODE"],
        ["SYS", "SYS", "SYS", "SYS", "NODE", "NODE", "X", "PIX"],
        ["SYS", "SYS", "SYS", "SYS", "NODE", "NODE", "PIX", "X"],
    ]


async def test_mixed_models_in_pci_order_whatever_nvml_s_order_and_the_minors(
    tmp_path: Path, start: NewDevices
) -> None:
    inventory = await start(mixed(tmp_path / "m")).inventory()
    assert [(d.index, d.uuid, d.model, d.memory_mib, d.nominal_mib, d.minor) for d in inventory.devices] == [
        (0, "GPU-a100", "A100-40GB", 40_372, 40_960, 1),
        (1, "GPU-t4", "T4", 14_936, 16_384, 0),
        (2, "GPU-v100-0", "V100-32GB", 32_424, 32_768, 2),
        (3, "GPU-v100-1", "V100-32GB", 32_424, 32_768, 3),
    ]
    assert inventory.topology == [
        ["X", "NODE", "NODE", "NODE"],
        ["NODE", "X", "NODE", "NODE"],
        ["NODE", "NODE", "X", "NV2"],
        ["NODE", "NODE", "NV2", "X"],
    ]


async def test_a_model_that_nobody_has_heard_of(tmp_path: Path, start: NewDevices) -> None:
    gpu = Gpu("00000000:01:00.0", "GPU-1", "NVIDIA Zeus Z9 (Rev. B)", memory_mib=(100_001, 1, 0))
    (device,) = (await start(Machine(tmp_path / "m", [gpu])).inventory()).devices
    assert (device.model, device.memory_mib, device.nominal_mib) == ("Zeus-Z9-Rev.-B", 100_000, 100_352)


async def test_without_a_driver_there_are_no_devices(tmp_path: Path, start: NewDevices) -> None:
    devices = start(Machine(tmp_path / "m", init=9))
    assert not await devices.found()
    assert (await devices.inventory()).devices == []
    assert await devices.look([]) == Look([])


async def test_a_driver_without_devices(tmp_path: Path, start: NewDevices) -> None:
    devices = start(Machine(tmp_path / "m"))
    assert await devices.found()
    assert (await devices.inventory()).devices == []
    assert await devices.look([]) == Look([], [])


async def test_links_that_are_not_known(tmp_path: Path, start: NewDevices) -> None:
    machine = pcie8(tmp_path / "m")
    machine.path = lambda _one, _two: None
    assert (await start(machine).inventory()).topology == []


@pytest.mark.parametrize(
    ("fabrics", "labels", "domains", "label"),
    [
        ([(3, 0, CLUSTER, 5)] * 2, {}, [CLIQUE_5] * 2, CLIQUE_5),
        ([(3, 0, CLUSTER, 5)] * 2, {"nvlink": "mine"}, [CLIQUE_5] * 2, "mine"),
        (
            [(3, 0, CLUSTER, 5), (3, 0, CLUSTER, 6)],
            {},
            [CLIQUE_5, CLIQUE_6],
            None,
        ),
        ([(2, 0, CLUSTER, 5)] * 2, {}, ["", ""], None),  # in progress
        ([(3, 1, CLUSTER, 5)] * 2, {}, ["", ""], None),  # failed
        ([(3, 0, "0" * 32, 0)] * 2, {}, ["", ""], None),  # leads nowhere else
        ([None, None], {}, ["", ""], None),
    ],
)  # fmt: skip
async def test_devices_that_agree_on_an_nvlink_domain_give_it_to_their_node(
    tmp_path: Path, start: NewDevices, fabrics: list[Any], labels: dict[str, str], domains: list[str], label: str | None
) -> None:
    machine = a100x8(tmp_path / "m")
    machine.gpus = machine.gpus[:2]
    for gpu, fabric in zip(machine.gpus, fabrics, strict=True):
        gpu.fabric = fabric
    inventory = await start(machine, Site(labels=labels)).inventory()
    assert [device.domain for device in inventory.devices] == domains
    assert inventory.labels.get("nvlink") == label
    linked = "NV12" if domains[0] == domains[1] else "PIX"
    assert inventory.topology == [["X", linked], [linked, "X"]]


@pytest.mark.parametrize("memory_mib", [None, (119_000, 0, 2_000)])
async def test_a_part_whose_memory_is_the_host_s(
    tmp_path: Path, start: NewDevices, memory_mib: tuple[int, int, int] | None
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 125000000 kB\nMemFree: 1 kB\nMemAvailable: 100000000 kB\n")
    gpu = Gpu("0000000F:01:00.0", "GPU-gb10", "NVIDIA GB10", memory_mib=memory_mib, capability="12.1")
    devices = start(Machine(tmp_path / "m", [gpu]), host=Host(proc=tmp_path, sysfs=tmp_path / "none"))
    inventory = await devices.inventory()
    (device,) = inventory.devices
    assert (device.model, device.unified, device.memory_mib, device.nominal_mib) == ("GB10", True, 122_070, 131_072)
    assert (inventory.memory_mib, inventory.topology) == (122_070, [["X"]])
    look = await devices.look([])
    assert (look.faults, look.changed) == ([], False)
    assert (look.samples[0].memory_total_mib, look.samples[0].memory_used_mib) == (122_070, 24_414)


# -- what is wrong with one device ------------------------------------------------------------------------------


async def test_a_lost_device_keeps_its_place(tmp_path: Path, start: NewDevices) -> None:
    machine = mixed(tmp_path / "m")
    devices = start(machine, skip_s=0.0)
    before = await devices.inventory()
    machine.gpus[0].lose()
    machine.write()
    look = await devices.look([])
    assert faults(look) == [(1, "GPU-t4", "lost", "quarantine")]
    assert (look.degraded, look.changed) == (None, False)
    assert look.samples[1] == DeviceSample(1, "GPU-t4", healthy=False)
    assert [sample.healthy for sample in look.samples] == [True, False, True, True]

    again = start(machine)
    assert await again.inventory() == before, "after a restart of the agent too"
    assert faults(await again.look([])) == [(1, "GPU-t4", "lost", "quarantine")]

    card = machine.gpus.pop(0)
    after = start(machine, skip_s=0.0)
    assert await after.inventory() == before, "even where NVML does not count it any more"
    assert faults(await after.look([])) == [(1, "GPU-t4", "lost", "quarantine")]

    card.failures = []
    machine.gpus.append(card)
    machine.write()
    look = await after.look([])
    assert (faults(look), look.changed) == ([], False)


@pytest.mark.parametrize("what", ["hang", "segfault", 999])
async def test_a_device_that_cannot_be_read(tmp_path: Path, start: NewDevices, what: str | int) -> None:
    machine = mixed(tmp_path / "m")
    devices = start(machine, answer_s=1.0, skip_s=0.0)
    before = await devices.inventory()
    machine.gpus[2].failures = [("nvmlDeviceGetUUID", what)]
    machine.write()
    assert faults(await devices.look([])) == [(2, "GPU-v100-0", "unreadable", "quarantine")]
    assert await devices.inventory() == before
    machine.gpus[2].failures = []
    machine.write()
    look = await devices.look([])
    assert (look.faults, look.changed) == ([], False)


async def test_a_device_without_a_handle_is_the_one_that_is_missing(
    tmp_path: Path, start: NewDevices, caplog: pytest.LogCaptureFixture
) -> None:
    machine = mixed(tmp_path / "m")
    await start(machine).inventory()
    machine.gpus[3].failures = [("nvmlDeviceGetHandleByIndex_v2", "segfault")]
    devices = start(machine)
    assert uuids(await devices.inventory()) == ["GPU-a100", "GPU-t4", "GPU-v100-0", "GPU-v100-1"]
    assert f"NVML's device 3 ({machine.gpus[3].bus}) is unreadable" in caplog.messages
    assert faults(await devices.look([])) == [(3, "GPU-v100-1", "unreadable", "quarantine")]


NO_SUPPORT = "its memory cannot be read: NVML does not support that for it"
NO_SIZE = "its memory cannot be read: NVML gives an error, or a size that cannot be"


@pytest.mark.parametrize(("nothing", "words"), [(None, NO_SUPPORT), ((0, 0, 0), NO_SIZE), ((0, 424, 0), NO_SIZE)])
async def test_a_device_without_memory_information_takes_no_work_until_there_is_some(
    tmp_path: Path, start: NewDevices, nothing: tuple[int, int, int] | None, words: str
) -> None:
    machine = mixed(tmp_path / "m")
    machine.gpus[0].memory_mib = nothing
    devices = start(machine)
    inventory = await devices.inventory()
    assert [(d.model, d.memory_mib) for d in inventory.devices][:2] == [("A100-40GB", 40_372), ("T4", 0)]
    look = await devices.look([])
    assert faults(look) == [(1, "GPU-t4", "memory_unknown", "drain")]
    assert look.faults[0].detail == words
    assert (look.samples[1].memory_total_mib, look.samples[1].memory_used_mib, look.changed) == (None, None, False)
    machine.gpus[0].memory_mib = (15_360, 424, 0)
    machine.write()
    assert (await devices.look([])).changed
    assert [device.memory_mib for device in (await devices.inventory()).devices] == [40_372, 14_936, 32_424, 32_424]
    look = await devices.look([])
    assert (look.faults, look.changed) == ([], False)


async def test_memory_that_cannot_be_read_for_a_moment_changes_no_inventory(tmp_path: Path, start: NewDevices) -> None:
    machine = mixed(tmp_path / "m")
    devices = start(machine)
    await devices.inventory()
    machine.gpus[0].failures = [("nvmlDeviceGetMemoryInfo", 999), ("nvmlDeviceGetMemoryInfo_v2", 999)]
    machine.write()
    look = await devices.look([])
    assert (faults(look), look.changed) == ([(1, "GPU-t4", "memory_unknown", "drain")], False)
    assert (await start(machine).inventory()).devices[1].memory_mib == 14_936, "not even a new one"


async def test_a_device_in_mig_mode_takes_no_work(tmp_path: Path, start: NewDevices) -> None:
    machine = a100x8(tmp_path / "m")
    devices = start(machine)
    await devices.inventory()
    machine.gpus[4].mig = 1
    machine.gpus[4].sm_percent = 7  # NVML may say anything: it is not the device's
    machine.write()
    look = await devices.look([])
    assert (faults(look), look.changed) == ([(4, "GPU-a100-4", "mig", "drain")], True)
    assert look.samples[4].sm_percent is None
    assert [device.mig for device in (await devices.inventory()).devices] == [False] * 4 + [True] + [False] * 3


async def test_an_old_driver_s_memory_is_all_usable_as_far_as_it_tells(tmp_path: Path, start: NewDevices) -> None:
    gpu = Gpu("00000000:01:00.0", "GPU-1", memory_mib=(81_920, 766, 5_000), sm_percent=None)
    gpu.failures = [("nvmlDeviceGetMemoryInfo_v2", 13)]
    devices = start(Machine(tmp_path / "m", [gpu]))
    (device,) = (await devices.inventory()).devices
    (sample,) = (await devices.look([])).samples
    assert (device.memory_mib, sample.memory_used_mib, sample.sm_percent) == (81_920, 5_766, None)


# -- other devices ----------------------------------------------------------------------------------------------


async def test_nvml_s_order_after_a_reset_changes_nothing(tmp_path: Path, start: NewDevices) -> None:
    machine = mixed(tmp_path / "m")
    devices = start(machine)
    before = await devices.inventory()
    machine.gpus.reverse()
    machine.write()
    await devices.close()
    look = await devices.look([])
    assert (look.faults, look.changed) == ([], False)
    assert [sample.uuid for sample in look.samples] == ["GPU-a100", "GPU-t4", "GPU-v100-0", "GPU-v100-1"]
    assert await devices.inventory() == before


async def test_a_device_that_was_replaced(tmp_path: Path, start: NewDevices, caplog: pytest.LogCaptureFixture) -> None:
    machine = mixed(tmp_path / "m")
    devices = start(machine)
    await devices.inventory()
    machine.gpus[0].uuid = "GPU-new"
    machine.write()
    await devices.close()
    assert (await devices.look([])).changed
    assert caplog.messages[-1] == f"GPU-new at {machine.gpus[0].bus} is new"
    assert uuids(await devices.inventory()) == ["GPU-a100", "GPU-new", "GPU-v100-0", "GPU-v100-1"]
    assert not (await devices.look([])).changed


async def test_a_device_in_another_slot_is_the_same_device(
    tmp_path: Path, start: NewDevices, caplog: pytest.LogCaptureFixture
) -> None:
    machine = mixed(tmp_path / "m")
    devices = start(machine)
    was = machine.gpus[0].bus
    await devices.inventory()
    machine.gpus[0].bus = "00000000:AF:00.0"
    machine.write()
    await devices.close()
    assert (await devices.look([])).changed
    assert caplog.messages[-1] == f"GPU-t4 at 00000000:AF:00.0 was at {was} before"
    assert uuids(await devices.inventory()) == ["GPU-a100", "GPU-v100-0", "GPU-v100-1", "GPU-t4"]


async def test_a_device_more_keeps_the_links_that_were_known(tmp_path: Path, start: NewDevices) -> None:
    """The V100 that is lost now keeps its links to the other one; nobody knows those to the new device."""
    machine = mixed(tmp_path / "m")
    await start(machine).inventory()
    machine.gpus[3].lose()
    machine.gpus.append(Gpu("00000000:AF:00.0", "GPU-new"))
    machine.path = lambda _one, _two: SYS
    assert (await start(machine).inventory()).topology == [
        ["X", "SYS", "SYS", "NODE", "SYS"],
        ["SYS", "X", "SYS", "NODE", "SYS"],
        ["SYS", "SYS", "X", "NV2", "SYS"],
        ["NODE", "NODE", "NV2", "X", ""],
        ["SYS", "SYS", "SYS", "", "X"],
    ]


async def test_what_was_kept_and_cannot_be_read_is_forgotten(tmp_path: Path, start: NewDevices) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "devices.json").write_text('{"devices": [{"index": "zero"')
    assert len((await start(mixed(tmp_path / "m")).inventory()).devices) == 4


# -- what is wrong with the node --------------------------------------------------------------------------------


async def test_a_driver_mismatch_degrades_the_node_and_keeps_its_devices(tmp_path: Path, start: NewDevices) -> None:
    machine = a100x8(tmp_path / "m")
    before = await start(machine).inventory()
    machine.driver, machine.init = "575.57.08", 18
    devices = start(machine, retry_s=0.0, retry_most_s=0.0)
    assert await devices.found()
    assert await devices.inventory() == before
    look = await devices.look([])
    mismatch = "NVML is of version 12.575.57.08, the loaded driver of version 570.86.10"
    assert look.degraded == Degraded("driver_mismatch", mismatch)
    assert (look.faults, look.changed) == ((), False)
    assert look.samples == [DeviceSample(index, f"GPU-a100-{index}") for index in range(8)]
    machine.init, machine.kernel_driver = 0, "575.57.08"
    machine.write()
    look = await devices.look([])
    assert (look.degraded, look.faults, look.changed) == (None, [], False)
    assert (await devices.inventory()).driver == "575.57.08"


async def test_a_driver_mismatch_from_the_beginning(tmp_path: Path, start: NewDevices) -> None:
    devices = start(Machine(tmp_path / "m", init=18))
    assert await devices.found()
    assert (await devices.inventory()).devices == []
    look = await devices.look([])
    assert look.degraded is not None
    assert look.degraded.cause == "driver_mismatch"


async def test_a_driver_that_was_taken_away(tmp_path: Path, start: NewDevices) -> None:
    machine = mixed(tmp_path / "m")
    before = await start(machine).inventory()
    machine.init = 9
    devices = start(machine)
    assert await devices.found()
    assert await devices.inventory() == before
    assert (await devices.look([])).degraded == Degraded("nvml_failed", "no driver: Driver Not Loaded")


async def test_nvml_that_hangs_as_a_whole(tmp_path: Path, start: NewDevices) -> None:
    machine = mixed(tmp_path / "m")
    await start(machine).inventory()
    machine.failures = [("nvmlInitWithFlags", "hang")]
    devices = start(machine, start_s=1.0)
    assert len((await devices.inventory()).devices) == 4
    assert (await devices.look([])).degraded == Degraded("nvml_hung", "NVML does not answer in time")
