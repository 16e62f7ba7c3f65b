"""The devices that a node is known to have, kept over restarts: a missing one stays in the inventory, at its place.

A device is its uuid. The newest word wins: one that turns up at another bus id has moved, and one that another has
replaced at its bus id is gone.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from muster.events.types import Device, Link
from muster.node_agent.topology import SELF, is_unknown

logger = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True):
    """The devices in PCI order, how they are connected, and the driver's version when they were last seen."""

    devices: list[Device] = []
    topology: list[list[Link]] = []
    driver: str = ""


class Seen(NamedTuple):
    """Devices that can be read now, and their links to each other in the same order."""

    devices: Sequence[Device]
    links: Sequence[Sequence[Link]]


def merged(known: Known, seen: Seen, driver: str) -> Known:
    """What is known once these devices have been seen."""
    by_uuid = {device.uuid: device for device in seen.devices}
    taken = {device.pci_bus_id for device in by_uuid.values()}
    missing = [d for d in known.devices if d.uuid not in by_uuid and d.pci_bus_id not in taken]
    devices = sorted([*by_uuid.values(), *missing], key=lambda device: (device.pci_bus_id, device.uuid))
    links = _by_pair(known.devices, known.topology) | _by_pair(seen.devices, seen.links)
    uuids = [device.uuid for device in devices]
    topology = [[SELF if one == two else links.get((one, two), "") for two in uuids] for one in uuids]
    return Known(
        [msgspec.structs.replace(device, index=index) for index, device in enumerate(devices)],
        [] if is_unknown(topology) and len(devices) > 1 else topology,
        driver,
    )


def _by_pair(devices: Sequence[Device], links: Sequence[Sequence[Link]]) -> dict[tuple[str, str], Link]:
    return {
        (one.uuid, two.uuid): link
        for one, row in zip(devices, links, strict=False)
        for two, link in zip(devices, row, strict=False)
        if link
    }


def read_known(path: Path) -> Known:
    """What was kept; nothing where there is nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except FileNotFoundError:
        return Known()
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s, the devices that were here, cannot be read: %s", path, error)
        return Known()


def write_known(path: Path, known: Known) -> None:
    """Keep it, all or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
