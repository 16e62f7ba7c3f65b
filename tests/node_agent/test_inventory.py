"""Devices: simulated ones, and NVML's behind a stand-in for its bindings."""
# The bindings' names are NVIDIA's:
# ruff: noqa: N801, N802, N815, N818

import sys
from types import ModuleType, SimpleNamespace

import pytest

from muster.node_agent.inventory import NvmlDevices, Site, has_driver, simulated
from muster.node_agent.readings import Worktree

MIB = 1 << 20


async def test_simulated_nodes_are_numbered_through_all_groups() -> None:
    nodes = simulated("2x8xA100-80GB, 1x4xH800", Site(fabric="ib0"))
    assert list(nodes) == ["node-1", "node-2", "node-3"]
    third = await nodes["node-3"].inventory()
    assert [(d.index, d.uuid, d.model, d.nominal_mib) for d in third.devices] == [
        (i, f"GPU-sim-node-3-{i}", "H800", 81_920) for i in range(4)
    ]
    assert all(device.memory_mib < device.nominal_mib for device in third.devices)
    assert (third.cpus, third.memory_mib, third.fabric) == (128, 1_048_576, "ib0")


async def test_simulated_nodes_share_no_port() -> None:
    inventories = [await node.inventory() for node in simulated("3x1xT4", Site(first_port=100, last_port=198)).values()]
    assert [(i.first_port, i.last_port) for i in inventories] == [(100, 132), (133, 165), (166, 198)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8xA100-80GB", "NODESxDEVICESxMODEL"),
        ("", "NODESxDEVICESxMODEL"),
        ("1x8xA1000", "A1000"),
        ("0x8xT4", "1 to"),
        ("99999x1xT4", "1 to"),
        ("1x999xT4", "at most"),
    ],
)
def test_what_cannot_be_simulated_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulated(text, Site())


async def test_simulated_samples_follow_the_claims() -> None:
    work = [
        Worktree(5, 1, {"GPU-sim-node-1-1": 3_000}, frozenset()),
        Worktree(6, 1, {"GPU-sim-node-1-1": 5_000}, frozenset()),
    ]
    samples = (await simulated("1x2xT4", Site())["node-1"].look(work)).samples
    assert [sample.memory_total_mib for sample in samples] == [16_384, 16_384]
    assert [(sample.index, sample.memory_used_mib, sample.healthy) for sample in samples] == [
        (0, 0, True),
        (1, 8_000, True),
    ]


class Nvml(ModuleType):
    """Three cards in NVML's order; the second one is lost, and bus order is not NVML's order."""

    nvmlMemory_v2 = 2
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_FunctionNotFound(NVMLError):
        pass

    cards = (
        ("NVIDIA A100-SXM4-80GB", "GPU-b", "00000000:41:00.0", 81_920, 766),
        None,
        ("NVIDIA A100-SXM4-80GB", "GPU-a", "00000000:01:00.0", 81_920, 766),
        ("Tesla V100-SXM2-32GB", "GPU-c", "00000000:81:00.0", 32_768, 344),
        ("NVIDIA L40S", "GPU-d", "00000000:A1:00.0", 46_068, 584),
    )

    def nvmlInit(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.10"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        if self.cards[index] is None:
            raise self.NVMLError("GPU is lost")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        for card in self.cards:
            if card is not None and card[1] == uuid != "GPU-b":
                return card
        raise self.NVMLError("GPU is lost")

    def nvmlDeviceGetMemoryInfo(self, card: tuple[str, str, str, int, int], version: int) -> object:
        assert version == 2
        return SimpleNamespace(total=card[3] * MIB, reserved=card[4] * MIB, used=1_000 * MIB)

    def nvmlDeviceGetName(self, card: tuple[str, str, str, int, int]) -> str:
        return card[0]

    def nvmlDeviceGetPciInfo(self, card: tuple[str, str, str, int, int]) -> object:
        return SimpleNamespace(busId=card[2])

    def nvmlDeviceGetUUID(self, card: tuple[str, str, str, int, int]) -> str:
        return card[1]

    def nvmlDeviceGetUtilizationRates(self, card: object) -> object:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetPowerUsage(self, card: object) -> int:
        return 61_500

    def nvmlDeviceGetTemperature(self, card: object, sensor: int) -> int:
        return 33


async def test_nvml_s_devices_are_put_in_pci_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    devices = NvmlDevices(Site())
    inventory = await devices.inventory()
    assert [(d.index, d.uuid, d.model, d.memory_mib, d.nominal_mib) for d in inventory.devices] == [
        (0, "GPU-a", "A100-80GB", 81_154, 81_920),
        (1, "GPU-b", "A100-80GB", 81_154, 81_920),
        (2, "GPU-c", "V100-32GB", 32_424, 32_768),
        (3, "GPU-d", "L40S", 45_484, 49_152),
    ]
    assert inventory.driver == "570.86.10"
    first, second = (await devices.look([])).samples[:2]
    assert (first.memory_used_mib, first.sm_percent, first.power_w, first.healthy) == (1_000, None, 61.5, True)
    assert (second.healthy, second.memory_used_mib) == (False, None)


async def test_a_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(Nvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("library not found")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver("pynvml"))
    assert not has_driver()
    assert (await NvmlDevices(Site()).inventory()).devices == []
    assert (await NvmlDevices(Site()).look([])).samples == []
