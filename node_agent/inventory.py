"""What devices there are: this machine's, through NVML, or simulated ones. In PCI order; a device's number is its
position. Usable memory is the total less what the driver reserves; the nominal size is what the model's name promises.
"""

import asyncio
import os
import re
import socket
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from muster.events.telemetry import DeviceSample
from muster.events.types import Device, DeviceFault, Inventory
from muster.node_agent.devices import Look, Work
from muster.node_agent.readings import Worktree

MIB: Final = 1 << 20


class Model(NamedTuple):
    """A simulated device: what its name promises, and what a driver reserves of it."""

    nominal_mib: int
    reserved_mib: int


MODELS: Final[dict[str, Model]] = {
    "A100-40GB": Model(40_960, 588),
    "A100-80GB": Model(81_920, 766),
    "A30": Model(24_576, 452),
    "A10": Model(24_576, 512),
    "B200": Model(184_320, 1_024),
    "H100-80GB": Model(81_920, 736),
    "H200": Model(144_384, 841),
    "H800": Model(81_920, 736),
    "L4": Model(24_576, 512),
    "L40S": Model(49_152, 584),
    "T4": Model(16_384, 424),
    "V100-16GB": Model(16_384, 344),
    "V100-32GB": Model(32_768, 344),
}
SIMULATED_CPUS: Final = 128
SIMULATED_MEMORY_MIB: Final = 1 << 20
SIMULATED_NODES_LIMIT: Final = 4096
SIMULATED_DEVICES_LIMIT: Final = 64
_GROUP: Final = re.compile(r"^(\d{1,5})x(\d{1,3})x([A-Za-z0-9-]+)$")


class Site(msgspec.Struct, frozen=True):
    """What no device can tell: where the node stands."""

    address: str = "127.0.0.1"
    fabric: str = ""
    labels: dict[str, str] = {}
    first_port: int = 21000
    last_port: int = 21999


# -- simulated --------------------------------------------------------------------------------------------------


class SimulatedDevices:
    """A node that exists on paper; the workers on it are real processes."""

    def __init__(self, node: str, count: int, model: str, site: Site) -> None:
        self._site = site
        kind = MODELS[model]
        self._devices = [
            Device(
                index=index,
                uuid=f"GPU-sim-{node}-{index}",
                model=model,
                memory_mib=kind.nominal_mib - kind.reserved_mib,
                nominal_mib=kind.nominal_mib,
                pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            )
            for index in range(count)
        ]

    async def inventory(self) -> Inventory:
        """Generous CPUs and memory, whatever the host has."""
        return _inventory(self._devices, SIMULATED_CPUS, SIMULATED_MEMORY_MIB, self._site, "simulated")

    async def look(self, work: Sequence[Worktree]) -> Look:
        """As busy as what is claimed of each; nothing is ever wrong."""
        used_mib: dict[str, int] = {}
        for tree in work:
            for uuid, claim_mib in tree.claims_mib.items():
                used_mib[uuid] = used_mib.get(uuid, 0) + claim_mib
        return Look([self._sample(device, used_mib.get(device.uuid)) for device in self._devices])

    async def next_fault(self, work: Work) -> DeviceFault:  # noqa: ARG002  # nothing happens here
        """There is none: waits for ever."""
        await asyncio.Event().wait()
        raise AssertionError

    async def settle(self, tree: Worktree) -> None:
        """Nothing is held here that a worker's end does not let go."""

    async def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _sample(device: Device, used_mib: int | None) -> DeviceSample:
        busy = used_mib is not None
        return DeviceSample(
            index=device.index,
            uuid=device.uuid,
            memory_total_mib=device.nominal_mib,
            memory_used_mib=used_mib or 0,
            sm_percent=100 if busy else 0,
            temperature_c=60 if busy else 30,
            power_w=300.0 if busy else 50.0,
            healthy=True,
            memory_reserved_mib=device.nominal_mib - device.memory_mib,
        )


def simulated(text: str, site: Site) -> dict[str, SimulatedDevices]:
    """``2x8xA100-80GB`` (nodes x devices x model; groups joined by ``,``) → node-1, node-2, … Raises ValueError.

    On one machine the nodes share its ports, so each gets an equal part of the site's.
    """
    groups: list[tuple[int, str]] = []
    for group in text.split(","):
        match = _GROUP.match(group.strip())
        if match is None:
            raise ValueError(f"{group.strip()!r} is not NODESxDEVICESxMODEL, like 2x8xA100-80GB")
        nodes, devices, model = int(match[1]), int(match[2]), match[3]
        if model not in MODELS:
            raise ValueError(f"{model!r} is not a model that can be simulated: {', '.join(sorted(MODELS))}")
        if nodes < 1 or len(groups) + nodes > SIMULATED_NODES_LIMIT:
            raise ValueError(f"{group.strip()!r}: 1 to {SIMULATED_NODES_LIMIT} nodes can be simulated")
        if devices > SIMULATED_DEVICES_LIMIT:
            raise ValueError(f"{group.strip()!r}: at most {SIMULATED_DEVICES_LIMIT} devices a node")
        groups.extend([(devices, model)] * nodes)
    ports = (site.last_port - site.first_port + 1) // len(groups)
    if ports < 1:
        raise ValueError(f"{len(groups)} nodes on one machine need a port each, and there are fewer")
    return {
        f"node-{number}": SimulatedDevices(
            f"node-{number}",
            devices,
            model,
            msgspec.structs.replace(
                site,
                first_port=site.first_port + (number - 1) * ports,
                last_port=site.first_port + number * ports - 1,
            ),
        )
        for number, (devices, model) in enumerate(groups, 1)
    }


# -- NVML -------------------------------------------------------------------------------------------------------


class NvmlDevices:
    """This machine's devices. Without a driver there are none; a device that cannot be read is left out of the
    inventory, and is sampled as not healthy."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._known: list[Device] = []

    async def inventory(self) -> Inventory:
        """The devices in PCI order, this host's CPUs and memory, and the driver's version."""
        return await asyncio.to_thread(self._inventory)

    def _inventory(self) -> Inventory:
        nvml = _nvml()
        self._known = _nvml_devices(nvml) if nvml is not None else []
        driver = _text(nvml.nvmlSystemGetDriverVersion()) if nvml is not None else ""
        return _inventory(self._known, len(os.sched_getaffinity(0)), _host_memory_mib(), self._site, driver)

    async def look(self, work: Sequence[Worktree]) -> Look:  # noqa: ARG002  # real devices know better
        """What NVML says of each known device; what it does not know is None."""
        return Look(await asyncio.to_thread(self._samples))

    def _samples(self) -> list[DeviceSample]:
        nvml = _nvml()
        return [_nvml_sample(nvml, device) for device in self._known] if nvml is not None else []

    async def next_fault(self, work: Work) -> DeviceFault:  # noqa: ARG002  # nothing happens here
        """Not told yet: waits for ever."""
        await asyncio.Event().wait()
        raise AssertionError

    async def settle(self, tree: Worktree) -> None:
        """Nothing is waited for yet."""

    async def close(self) -> None:
        """Nothing is let go yet."""


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver that answers."""
    return _nvml() is not None


def node_name() -> str:
    """This host's name as a node's name."""
    return re.sub(r"[^a-z0-9_-]", "-", socket.gethostname().lower())[:63].lstrip("-_") or "node-1"


def _nvml() -> Any | None:
    """The bindings, ready to use; None without a driver. `nvmlInit` counts its calls and is cheap the second time."""
    import pynvml  # noqa: PLC0415  # a machine without a GPU need not load it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _nvml_devices(nvml: Any) -> list[Device]:
    found = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            total_mib, usable_mib, _ = _memory_mib(nvml, handle)
            model = _model(_text(nvml.nvmlDeviceGetName(handle)), total_mib)
            bus = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            continue
        found.append(Device(0, uuid, model, usable_mib, _nominal_mib(model, total_mib), bus))
    found.sort(key=lambda device: device.pci_bus_id)
    return [msgspec.structs.replace(device, index=index) for index, device in enumerate(found)]


def _memory_mib(nvml: Any, handle: Any) -> tuple[int, int, int]:
    """Total, usable (total less the driver's reserve) and used. Drivers before R510 do not tell what they reserve."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError_FunctionNotFound:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total // MIB, memory.total // MIB, memory.used // MIB
    return memory.total // MIB, (memory.total - memory.reserved) // MIB, memory.used // MIB


def _model(name: str, total_mib: int) -> str:
    """NVML's name as users write it: ``NVIDIA A100-SXM4-80GB`` → ``A100-80GB``; names without a size keep it out
    unless the model is sold in several."""
    short = re.sub(r"^(NVIDIA|Tesla)\s+|^NVIDIA\s+Tesla\s+", "", name).strip()
    short = re.sub(r"[- ](SXM\d?|PCIE|PCIe|NVL|HBM3|HBM3e)\b", "", short).replace(" ", "-")
    if short in MODELS:
        return short
    sizes = [model for model in MODELS if model.rpartition("-")[0] == short]
    near = [model for model in sizes if abs(MODELS[model].nominal_mib - total_mib) * 10 < total_mib]
    return near[0] if near else short


def _nominal_mib(model: str, total_mib: int) -> int:
    if model in MODELS:
        return MODELS[model].nominal_mib
    promised = re.search(r"(\d+)GB", model)
    return int(promised[1]) * 1024 if promised else -(-total_mib // 1024) * 1024


def _nvml_sample(nvml: Any, device: Device) -> DeviceSample:
    def ask(question: Any) -> Any:
        try:
            return question()
        except nvml.NVMLError:
            return None

    handle = ask(lambda: nvml.nvmlDeviceGetHandleByUUID(device.uuid))
    if handle is None:
        return DeviceSample(device.index, device.uuid, healthy=False)
    memory = ask(lambda: _memory_mib(nvml, handle)) or (None, None, None)
    rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return DeviceSample(
        index=device.index,
        uuid=device.uuid,
        memory_total_mib=memory[1],
        memory_used_mib=memory[2],
        sm_percent=rates.gpu if rates else None,
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        power_w=power_mw / 1000 if power_mw is not None else None,
        healthy=True,
    )


def _host_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB


def _inventory(devices: list[Device], cpus: int, memory_mib: int, site: Site, driver: str) -> Inventory:
    return Inventory(
        devices=devices,
        cpus=cpus,
        memory_mib=memory_mib,
        address=site.address,
        fabric=site.fabric,
        labels=dict(site.labels),
        first_port=site.first_port,
        last_port=site.last_port,
        driver=driver,
    )
