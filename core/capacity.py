"""Free room: what is left of each node after the live claims, indexed so that a placement looks at few nodes.

Nodes with devices of one model form a pool; so do those of one model and fabric, and of these those with one value of
a topology label. A pool keeps its nodes on shelves by their idle devices and by how much is left of the emptiest one in
use, each shelf by what is left of the whole node, least first. Everything here is computed from inventories and live
claims and can be rebuilt at any time; nothing of it is stored.
"""

from bisect import bisect_left, insort
from collections import Counter
from typing import Final, NamedTuple

from muster.core.fragmentation import Fragmentation
from muster.core.pools import Entry, Height, Pool, pool_under, step_of
from muster.core.resources import Demand
from muster.core.scheme import BY_MIX, Scheme
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
    is in `shared` while something is claimed of it and compute is left."""

    __slots__ = (
        "available",
        "cpus",
        "device_compute",
        "device_memory_mib",
        "idle",
        "inventory",
        "memory_mib",
        "most_of_a_model",
        "shared",
    )

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
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
        if demand.exclusive or not self.shared:
            return idle
        devices = self.inventory.devices
        shared = [i for i in self.shared if devices[i].model == model and self.fits_device(i, demand)]
        shared.sort(key=lambda index: (self.device_compute[index], self.device_memory_mib[index], index))
        return shared + idle

    def holds(self, share: Share, demand: Demand) -> bool:
        """Whether exactly this share is free."""
        return self.fits_host(share.cpus, share.memory_mib) and all(
            self.fits_device(index, demand) for index in share.devices
        )

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
        room = NodeRoom(self.inventory)
        room.available = self.available
        room.cpus = min(self.cpus, other.cpus)
        room.memory_mib = min(self.memory_mib, other.memory_mib)
        room.device_memory_mib = list(map(min, self.device_memory_mib, other.device_memory_mib))
        room.device_compute = list(map(min, self.device_compute, other.device_compute))
        for device in self.inventory.devices:
            left = room.device_compute[device.index]
            if left < WHOLE_COMPUTE:
                room.idle[device.model].remove(device.index)
                if left > 0:
                    room.shared.add(device.index)
        return room


class _Place(NamedTuple):
    """Where an available node stands in the indexes."""

    entry: Entry
    cpus: int
    heights: tuple[Height, ...]  # by model, in the order of the room's `idle`


class Capacity:
    """The free room of all nodes."""

    def __init__(self) -> None:
        self.rooms: Final[dict[str, NodeRoom]] = {}
        self.pools: Final[dict[tuple[str, str], Pool]] = {}  # by model and fabric, in that order
        self.models: Final[dict[str, Pool]] = {}  # by model, over all fabrics, in order
        self.domains: Final[dict[str, dict[tuple[str, str, str], Pool]]] = {}  # label → by model, fabric and value
        self.largest = 0  # most devices of one model on a node
        self.by_cpus: Final[list[tuple[int, str]]] = []
        self.by_left: Final[list[Entry]] = []
        self.ports: Final[dict[str, set[int]]] = {}
        self.fragmentation: Fragmentation | None = None  # where a rule that judges by the mix is in force
        self._scheme = Scheme()
        self._pools_of: Final[dict[str, list[tuple[int, list[Pool]]]]] = {}  # node → by model, its devices and pools
        self._places: Final[dict[str, _Place]] = {}

    @property
    def scheme(self) -> Scheme:
        """How `place` chooses."""
        return self._scheme

    @scheme.setter
    def scheme(self, scheme: Scheme) -> None:
        old, self._scheme = self._scheme, scheme
        if scheme == old:
            return
        if (scheme.topology, scheme.cpus_per_device) != (old.topology, old.cpus_per_device):
            self._index_anew()
        judges = scheme.rule in BY_MIX and scheme.mix
        self.fragmentation = Fragmentation(scheme, self._places) if judges else None

    def set_node(self, name: str, inventory: Inventory) -> NodeRoom:
        """Put a node, with nothing claimed and not available, in place of what was known under its name."""
        self.set_available(name, available=False)
        old = self.rooms.get(name)
        room = self.rooms[name] = NodeRoom(inventory)
        if old is None or old.most_of_a_model < self.largest:
            self.largest = max(self.largest, room.most_of_a_model)
        else:
            self.largest = max(room.most_of_a_model for room in self.rooms.values())
        self._assign(name, room)
        return room

    def _assign(self, name: str, room: NodeRoom) -> None:
        """Find the pools that a node is in, or make them."""
        fabric, labels = room.inventory.fabric, room.inventory.labels
        found = self._pools_of[name] = []
        for model, devices in Counter(device.model for device in room.inventory.devices).items():
            pools = [
                pool_under(self.models, model, Pool(model, "*")),
                pool_under(self.pools, (model, fabric), Pool(model, fabric)),
            ]
            for label in self._scheme.topology:
                value = labels.get(label)
                if value is not None:
                    domains = self.domains.setdefault(label, {})
                    pools.append(pool_under(domains, (model, fabric, value), Pool(model, fabric, f"{label}={value}")))
            found.append((devices, pools))

    def _index_anew(self) -> None:
        available = [name for name, room in self.rooms.items() if room.available]
        for name in available:
            self._unshelve(name)
        self.domains.clear()
        for name, room in self.rooms.items():
            self._assign(name, room)
        for name in available:
            self._shelve(name, self.rooms[name])

    def set_available(self, name: str, *, available: bool) -> None:
        """Let a node take new work, or not."""
        room = self.rooms.get(name)
        if room is None or room.available == available:
            return
        room.available = available
        if available:
            self._shelve(name, room)
        else:
            self._unshelve(name)

    def take(self, share: Share, demand: Demand) -> None:
        """Claim a worker's share of a node, whether or not it takes new work."""
        room = self.rooms[share.node]
        if room.available:
            self._unshelve(share.node)
            room.claim(share, demand)
            self._shelve(share.node, room)
        else:
            room.claim(share, demand)

    def give(self, share: Share, demand: Demand) -> None:
        """Put a worker's share back: the exact inverse of `take`."""
        room = self.rooms[share.node]
        if room.available:
            self._unshelve(share.node)
            room.unclaim(share, demand)
            self._shelve(share.node, room)
        else:
            room.unclaim(share, demand)

    def refill(
        self, name: str, claims: list[tuple[Share, Demand]], later: list[tuple[Share, Demand]] | None = None
    ) -> None:
        """Compute a node's room anew: its inventory less these claims. Where what will be claimed `later` is another
        thing (work that leaves, room that is reserved), only what is free now and stays free is room."""
        inventory = self.rooms[name].inventory
        room = NodeRoom(inventory)
        for share, demand in claims:
            room.claim(share, demand)
        if later is not None:
            then = NodeRoom(inventory)
            for share, demand in later:
                then.claim(share, demand)
            room = room.lesser(then)
        self.put_room(name, room)

    def put_room(self, name: str, room: NodeRoom) -> NodeRoom:
        """Put a view of a node in place of the one at hand, which is given back."""
        old = self.rooms[name]
        if old.available:
            self._unshelve(name)
            self._shelve(name, room)
            room.available = True
        self.rooms[name] = room
        return old

    def _shelve(self, name: str, room: NodeRoom) -> None:
        left = sum(room.device_compute) * self._scheme.cpus_per_device + room.cpus * WHOLE_COMPUTE
        entry = (left, name)
        heights = tuple([(len(idle), step_of(room.sharing(model))) for model, idle in room.idle.items()])
        for (devices, pools), height in zip(self._pools_of[name], heights, strict=True):
            for pool in pools:
                pool.put(height, entry, devices)
        insort(self.by_cpus, (room.cpus, name))
        insort(self.by_left, entry)
        self._places[name] = _Place(entry, room.cpus, heights)
        if self.fragmentation is not None:
            self.fragmentation.stale.add(name)

    def _unshelve(self, name: str) -> None:
        entry, cpus, heights = self._places.pop(name)
        for (devices, pools), height in zip(self._pools_of[name], heights, strict=True):
            for pool in pools:
                pool.take(height, entry, devices)
        del self.by_cpus[bisect_left(self.by_cpus, (cpus, name))]
        del self.by_left[bisect_left(self.by_left, entry)]
        if self.fragmentation is not None:
            self.fragmentation.stale.add(name)

    def free_port(self, node: str, job: int) -> int:
        """A rendezvous port of the node's range that no live attempt holds at its address (0 = none is left). The
        job's number says where the search begins, so that a port rests before it is used again."""
        inventory = self.rooms[node].inventory
        used = self.ports.get(inventory.address)
        size = inventory.last_port - inventory.first_port + 1
        for step in range(size):
            port = inventory.first_port + (job + step) % size
            if not used or port not in used:
                return port
        return 0

    def take_port(self, address: str, port: int) -> None:
        """Hold a port for an attempt."""
        held = self.ports.get(address)
        if held is None:
            held = self.ports[address] = set()
        held.add(port)

    def give_port(self, address: str, port: int) -> None:
        """Let a port go."""
        held = self.ports.get(address)
        if held is not None:
            held.discard(port)
