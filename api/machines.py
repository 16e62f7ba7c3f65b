"""Which nodes a program is the agent of, from its options: this machine's, or simulated ones."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.api.process import StartError
from muster.events.binding import VisibleDevices
from muster.events.types import Inventory
from muster.node_agent.checked import CheckedDevices, CheckSettings
from muster.node_agent.devices import DeviceSource
from muster.node_agent.inventory import SIMULATED_DEVICES_LIMIT, SimulatedDevices, Site, node_name, simulated
from muster.node_agent.kernel_log import KERNEL_LOG
from muster.node_agent.models import MODELS
from muster.node_agent.nvml_devices import NvmlDevices
from muster.node_agent.resets import NVIDIA_SMI, ResetSettings

DEFAULT_SIMULATION: Final = "2x8xA100-80GB"
LOWEST_PORT: Final = 1024
HIGHEST_PORT: Final = 65535
LONGEST_LABEL: Final = 128
LONGEST_COUNT: Final = 6


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """How real devices are looked after. See `CheckSettings`."""

    sample_s: float = 5.0
    kernel_log: Path = KERNEL_LOG
    nvidia_smi: str = NVIDIA_SMI
    reset_devices: bool = True
    forget_faults: bool = False

    def checks(self, folder: Path) -> CheckSettings:
        """What stands against devices is kept in the agent's folder."""
        return CheckSettings(
            kept=folder / "faults.json",
            forget=self.forget_faults,
            kernel_log=self.kernel_log,
            resets=ResetSettings(allowed=self.reset_devices, program=self.nvidia_smi),
        )


def site(ports: str, address: str = "127.0.0.1", fabric: str = "", labels: Sequence[str] = ()) -> Site:
    """Where a node stands; `ports` is FIRST-LAST, a label NAME=VALUE. Raises StartError."""
    first, _, last = ports.partition("-")
    if not (first.isdecimal() and last.isdecimal() and LOWEST_PORT <= int(first) <= int(last) <= HIGHEST_PORT):
        raise StartError(f"{ports!r} is no range of ports", "write FIRST-LAST, such as 21000-21999", is_usage=True)
    named = {}
    for label in labels:
        name, equals, value = label.partition("=")
        if not (name and equals) or max(len(name), len(value)) > LONGEST_LABEL:
            raise StartError(f"{label!r} is no label", "write NAME=VALUE, such as rack=r7", is_usage=True)
        named[name] = value
    return Site(address=address, fabric=fabric, labels=named, first_port=int(first), last_port=int(last))


async def all_nodes(
    simulate: str | None, ports: str, agents: Path, health: HealthOptions | None = None
) -> dict[str, DeviceSource]:
    """The nodes of `muster up`: this machine if it has a driver, otherwise simulated ones on one fabric. `agents` is
    where each agent has its data folder. Raises StartError."""
    if simulate is None:
        name = node_name()
        own = NvmlDevices(site(ports), agents / name)
        if await own.found():
            return {name: _checked(own, agents / name, health)}
        await own.close()
    try:
        return dict(simulated(simulate or DEFAULT_SIMULATION, site(ports, fabric="simulated")))
    except ValueError as error:
        raise StartError(str(error), is_usage=True) from error


def one_node(
    node: str, simulate: str | None, where: Site, folder: Path, health: HealthOptions | None = None
) -> DeviceSource:
    """The devices of one node: this machine's, or `8xA100-80GB`. `folder` is its agent's. Raises StartError."""
    if simulate is None:
        return _checked(NvmlDevices(where, folder), folder, health)
    count, _, model = simulate.partition("x")
    problem = ""
    if not (count.isdecimal() and model):
        problem = "is not DEVICESxMODEL, like 8xA100-80GB"
    elif len(count) > LONGEST_COUNT or int(count) > SIMULATED_DEVICES_LIMIT:
        problem = f"is more than can be simulated: at most {SIMULATED_DEVICES_LIMIT} devices a node"
    elif model not in MODELS:
        problem = f"names no model that can be simulated: {', '.join(sorted(MODELS))}"
    if problem:
        raise StartError(f"{simulate!r} {problem}", is_usage=True)
    return SimulatedDevices(node, int(count), model, where)


def _checked(devices: NvmlDevices, folder: Path, health: HealthOptions | None) -> DeviceSource:
    return CheckedDevices(devices, (health or HealthOptions()).checks(folder))


def is_simulated(source: DeviceSource) -> bool:
    """Whether nothing of these devices exists."""
    return isinstance(source, SimulatedDevices)


def visible_by(source: DeviceSource, wanted: VisibleDevices | None) -> VisibleDevices:
    """How jobs are told their devices: CUDA's own numbers are not NVML's, so that real ones go by their uuids."""
    return wanted or ("index" if is_simulated(source) else "uuid")


def equipment(inventory: Inventory) -> str:
    """What a node has, in words: `4 x A100-80GB, 1 x T4`."""
    models = Counter(device.model for device in inventory.devices)
    return ", ".join(f"{count} x {model}" for model, count in models.items()) or "no devices"
