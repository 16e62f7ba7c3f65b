"""Free room: what is left of each node after the live claims, indexed so that a placement looks at few nodes.

Nodes with devices of one model form a pool, and so do those of one model and fabric. A pool keeps its nodes on
shelves by their number of idle devices, each shelf in order of node name. Everything here is computed from
inventories and live claims and can be rebuilt at any time; nothing of it is stored.
"""

from bisect import bisect_left, insort
from typing import Final, NamedTuple, TypeVar

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


class Pool:
    """The available nodes that have devices of one model: those of one fabric, or all (`fabric` "*")."""

    __slots__ = ("fabric", "idle_devices", "model", "shelves")

    def __init__(self, fabric: str, model: str) -> None:
        self.fabric = fabric
        self.model = model
        self.shelves: list[list[str]] = [[]]
        self.idle_devices = 0

    def put(self, name: str, idle: int) -> None:
        """Put a node on its shelf."""
        while idle >= len(self.shelves):
            self.shelves.append([])
        insort(self.shelves[idle], name)
        self.idle_devices += idle

    def take(self, name: str, idle: int) -> None:
        """Take a node from its shelf."""
        shelf = self.shelves[idle]
        del shelf[bisect_left(shelf, name)]
        self.idle_devices -= idle


class Capacity:
    """The free room of all nodes."""

    def __init__(self) -> None:
        self.rooms: Final[dict[str, NodeRoom]] = {}
        self.pools: Final[dict[tuple[str, str], Pool]] = {}  # by model and fabric, in that order
        self.models: Final[dict[str, Pool]] = {}  # by model, over all fabrics, in order
        self.largest = 0  # most devices of one model on a node
        self.by_cpus: Final[list[tuple[int, str]]] = []
        self.ports: Final[dict[str, set[int]]] = {}

    def set_node(self, name: str, inventory: Inventory) -> NodeRoom:
        """Put a node, with nothing claimed and not available, in place of what was known under its name."""
        self.set_available(name, available=False)
        old = self.rooms.get(name)
        room = self.rooms[name] = NodeRoom(inventory)
        if old is None or old.most_of_a_model < self.largest:
            self.largest = max(self.largest, room.most_of_a_model)
        else:
            self.largest = max(room.most_of_a_model for room in self.rooms.values())
        for model in room.idle:
            _add(self.models, model, Pool("*", model))
            _add(self.pools, (model, inventory.fabric), Pool(inventory.fabric, model))
        return room

    def set_available(self, name: str, *, available: bool) -> None:
        """Let a node take new work, or not."""
        room = self.rooms.get(name)
        if room is None or room.available == available:
            return
        if available:
            room.available = True
            self._shelve(name, room)
        else:
            self._unshelve(name, room)
            room.available = False

    def take(self, share: Share, demand: Demand) -> None:
        """Claim a worker's share of a node."""
        room = self.rooms[share.node]
        if room.available:
            self._unshelve(share.node, room)
            room.claim(share, demand)
            self._shelve(share.node, room)
        else:
            room.claim(share, demand)

    def give(self, share: Share, demand: Demand) -> None:
        """Put a worker's share back: the exact inverse of `take`."""
        room = self.rooms[share.node]
        if room.available:
            self._unshelve(share.node, room)
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
            self._unshelve(name, old)
            self._shelve(name, room)
            room.available = True
        self.rooms[name] = room
        return old

    def _shelve(self, name: str, room: NodeRoom) -> None:
        fabric = room.inventory.fabric
        for model, idle in room.idle.items():
            self.models[model].put(name, len(idle))
            self.pools[model, fabric].put(name, len(idle))
        insort(self.by_cpus, (room.cpus, name))

    def _unshelve(self, name: str, room: NodeRoom) -> None:
        fabric = room.inventory.fabric
        for model, idle in room.idle.items():
            self.models[model].take(name, len(idle))
            self.pools[model, fabric].take(name, len(idle))
        del self.by_cpus[bisect_left(self.by_cpus, (room.cpus, name))]

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


_Key = TypeVar("_Key", str, tuple[str, str])


def _add(pools: dict[_Key, Pool], key: _Key, pool: Pool) -> None:
    """Add a pool under a new key, keeping the keys in order."""
    if key not in pools:
        pools[key] = pool
        in_order = sorted(pools.items(), key=lambda item: item[0])
        pools.clear()
        pools.update(in_order)
