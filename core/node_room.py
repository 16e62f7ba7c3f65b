"""What one node has left, and what one worker takes of it."""

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from muster.core.health import SOUND, Ailments
from muster.core.links import Links, links_of
from muster.core.resources import Demand
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.types import Inventory


class Share(NamedTuple):
    """What one worker takes of one node."""

    node: str
    devices: tuple[int, ...]
    cpus: int
    memory_mib: int


class NodeRoom:
    """What one node has left. `idle` holds, by model, the devices on which nothing is claimed, in order; a device
    is in `shared` while something is claimed of it and compute is left. A device that takes no work is one whose
    compute is all taken, whatever else is claimed of it."""

    __slots__ = (
        "ailments",
        "available",
        "cpus",
        "device_compute",
        "device_memory_mib",
        "idle",
        "inventory",
        "links",
        "memory_mib",
        "most_of_a_model",
        "shared",
    )

    def __init__(self, inventory: Inventory, ailments: Ailments = SOUND) -> None:
        self._fill(inventory, ailments, links_of(inventory.topology, len(inventory.devices)))

    def _fill(self, inventory: Inventory, ailments: Ailments, links: Links | None) -> None:
        self.inventory = inventory
        self.ailments = ailments
        self.links = links
        self.available = False
        self.cpus = inventory.cpus
        self.memory_mib = inventory.memory_mib
        self.device_memory_mib = [device.memory_mib for device in inventory.devices]
        self.device_compute = [WHOLE_COMPUTE] * len(inventory.devices)
        self.idle: dict[str, list[int]] = {}
        for device in inventory.devices:
            self.idle.setdefault(device.model, []).append(device.index)
        self.shared: set[int] = set()
        self.most_of_a_model = max((len(devices) for devices in self.idle.values()), default=0)
        for index, held_mib in ailments.foreign_mib:
            self.device_memory_mib[index] -= held_mib
        for index in ailments.shut:
            self.device_compute[index] = 0
            self.idle[inventory.devices[index].model].remove(index)

    def emptied(self) -> "NodeRoom":
        """The same node with nothing claimed, and not available."""
        room = NodeRoom.__new__(NodeRoom)
        room._fill(self.inventory, self.ailments, self.links)  # noqa: SLF001  its own kind
        return room

    def choose(self, fitting: list[int], count: int, beside: Sequence[int] = ()) -> list[int]:
        """So many of the devices that fit, for a worker that has those `beside` too: as they come, but of the idle ones
        the best connected."""
        if self.links is None:
            return fitting[:count]
        whole = [index for index in fitting if self.device_compute[index] == WHOLE_COMPUTE]
        in_use = [index for index in fitting[:count] if self.device_compute[index] != WHOLE_COMPUTE]
        return in_use + self.links.choose(whole, count - len(in_use), (*beside, *in_use))

    def fits_device(self, index: int, demand: Demand) -> bool:
        """Whether a device has the memory and the compute left that the demand asks of each device."""
        claim_mib = device_claim_mib(self.inventory.devices[index], demand.device_memory_mib)
        return self.device_compute[index] >= demand.compute and self.device_memory_mib[index] >= claim_mib

    def fits_host(self, cpus: int, memory_mib: int) -> bool:
        """Whether CPUs and host memory are left."""
        return self.cpus >= cpus and self.memory_mib >= memory_mib

    def fitting(self, model: str, demand: Demand) -> list[int]:
        """The devices of a model that the demand fits on: for shares, those in use first, fullest first."""
        idle = [index for index in self.idle.get(model, ()) if self.fits_device(index, demand)]
        if not (demand.exclusive or not self.shared):
            devices = self.inventory.devices
            shared = [i for i in self.shared if devices[i].model == model and self.fits_device(i, demand)]
            shared.sort(key=lambda index: (self.device_compute[index], self.device_memory_mib[index], index))
            idle = shared + idle
        if self.ailments.single and demand.gpus > 1:
            return [index for index in idle if index not in self.ailments.single]
        return idle

    def holds(self, share: Share, demand: Demand) -> bool:
        """Whether exactly this share is free."""
        if demand.gpus > 1 and not self.ailments.single.isdisjoint(share.devices):
            return False
        return self.fits_host(share.cpus, share.memory_mib) and all(
            self.fits_device(index, demand) for index in share.devices
        )

    def is_overbooked(self, share: Share) -> bool:
        """Whether more is claimed than there is, of what a share is part of."""
        return min(self.cpus, self.memory_mib, *(self.device_memory_mib[index] for index in share.devices)) < 0

    def sharing(self, model: str) -> int:
        """The most compute left on a device of a model that is in use and has memory left, in thousandths."""
        if not self.shared:
            return 0
        devices, memory_mib = self.inventory.devices, self.device_memory_mib
        left = (self.device_compute[i] for i in self.shared if memory_mib[i] > 0 and devices[i].model == model)
        return max(left, default=0)

    def claim(self, share: Share, demand: Demand) -> None:
        """Take a worker's share out. Devices that the node no longer has are passed over."""
        self.cpus -= share.cpus
        self.memory_mib -= share.memory_mib
        devices = self.inventory.devices
        for index in share.devices:
            if index >= len(devices):
                continue
            device = devices[index]
            self.device_memory_mib[index] -= device_claim_mib(device, demand.device_memory_mib)
            before = self.device_compute[index]
            after = self.device_compute[index] = before - demand.compute
            if before == WHOLE_COMPUTE:
                self.idle[device.model].remove(index)
            if 0 < after < WHOLE_COMPUTE:
                self.shared.add(index)
            else:
                self.shared.discard(index)

    def unclaim(self, share: Share, demand: Demand) -> None:
        """Put a worker's share back: the exact inverse of `claim`."""
        self.cpus += share.cpus
        self.memory_mib += share.memory_mib
        devices = self.inventory.devices
        for index in share.devices:
            if index >= len(devices):
                continue
            device = devices[index]
            self.device_memory_mib[index] += device_claim_mib(device, demand.device_memory_mib)
            after = self.device_compute[index] = self.device_compute[index] + demand.compute
            if after == WHOLE_COMPUTE:
                insort(self.idle[device.model], index)
            if 0 < after < WHOLE_COMPUTE:
                self.shared.add(index)
            else:
                self.shared.discard(index)

    def lesser(self, other: "NodeRoom") -> "NodeRoom":
        """What is left in both of two views of the same node: what is free now and stays free later, say."""
        room = self.emptied()
        room.available = self.available
        room.cpus = min(self.cpus, other.cpus)
        room.memory_mib = min(self.memory_mib, other.memory_mib)
        room.device_memory_mib = list(map(min, self.device_memory_mib, other.device_memory_mib))
        room.device_compute = list(map(min, self.device_compute, other.device_compute))
        for device in self.inventory.devices:
            left = room.device_compute[device.index]
            if left < WHOLE_COMPUTE and device.index not in self.ailments.shut:
                room.idle[device.model].remove(device.index)
                if left > 0:
                    room.shared.add(device.index)
        return room
