"""What an inventory is made of, and the devices of simulated nodes. In PCI order; a device's number is its position.

Usable memory is the total less what the driver reserves; the nominal size is what the model's name promises.
"""

import asyncio
import re
import socket
from typing import Final

import msgspec

from muster.events.telemetry import DeviceSample
from muster.events.types import Device, DeviceFault, Inventory, Link
from muster.node_agent.devices import Look, Work
from muster.node_agent.host import Host, addresses
from muster.node_agent.models import MODELS
from muster.node_agent.readings import Worktree
from muster.node_agent.topology import simulated_links

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

    def labelled(self, name: str, value: str) -> "Site":
        """The same with one label more."""
        return msgspec.structs.replace(self, labels=self.labels | {name: value})


def inventory_of(devices: list[Device], host: Host, site: Site, driver: str, topology: list[list[Link]]) -> Inventory:
    """These devices on this machine."""
    return Inventory(
        devices=devices,
        cpus=host.cpus(),
        memory_mib=host.memory_mib(),
        address=site.address,
        fabric=site.fabric,
        labels=dict(site.labels),
        first_port=site.first_port,
        last_port=site.last_port,
        driver=driver,
        addresses=addresses(site.address),
        topology=topology,
        devices_in_containers=True,
    )


def node_name() -> str:
    """This host's name as a node's name."""
    return re.sub(r"[^a-z0-9_-]", "-", socket.gethostname().lower())[:63].lstrip("-_") or "node-1"


# -- simulated --------------------------------------------------------------------------------------------------


class SimulatedDevices:
    """A node that exists on paper; the workers on it are real processes."""

    def __init__(self, node: str, count: int, model: str, site: Site) -> None:
        self._site = site
        kind = MODELS[model]
        self._topology = simulated_links(model, count)
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
        site = self._site
        return Inventory(
            devices=self._devices,
            cpus=SIMULATED_CPUS,
            memory_mib=SIMULATED_MEMORY_MIB,
            address=site.address,
            fabric=site.fabric,
            labels=dict(site.labels),
            first_port=site.first_port,
            last_port=site.last_port,
            driver="simulated",
            addresses=addresses(site.address),
            topology=self._topology,
        )

    async def look(self, work: Work) -> Look:
        """As busy as what is claimed of each; nothing is ever wrong."""
        used_mib: dict[str, int] = {}
        for tree in await work():
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


def node_kinds(text: str) -> list[tuple[int, str]]:
    """``2x8xA100-80GB`` (nodes x devices x model; groups joined by ``,``) → devices and model, node by node. Raises
    ValueError."""
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
    return groups


def simulated(text: str, site: Site) -> dict[str, SimulatedDevices]:
    """The nodes of `node_kinds` → node-1, node-2, … Raises ValueError.

    On one machine the nodes share its ports, so each gets an equal part of the site's.
    """
    groups = node_kinds(text)
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
