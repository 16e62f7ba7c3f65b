"""Free room: what is left of each node after the live claims, indexed so that a placement looks at few nodes.

Nodes with devices of one model form a pool; so do those of one model and fabric, and of these those with one value of
a topology label. A pool keeps its nodes on shelves by their idle devices and by how much is left of the emptiest one in
use, each shelf by what is left of the whole node, least first. Everything here is computed from inventories and live
claims and can be rebuilt at any time; nothing of it is stored.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from muster.core.fragmentation import Fragmentation
from muster.core.health import SOUND, Ailments
from muster.core.node_room import NodeRoom, Share
from muster.core.pools import Entry, Height, Pool, pool_under, step_of
from muster.core.resources import Demand
from muster.core.scheme import BY_MIX, Scheme
from muster.events.binding import WHOLE_COMPUTE
from muster.events.types import Endpoint, Inventory


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

    def set_node(self, name: str, inventory: Inventory, ailments: Ailments = SOUND) -> NodeRoom:
        """Put a node, with nothing claimed and not available, in place of what was known under its name."""
        self.set_available(name, available=False)
        old = self.rooms.get(name)
        room = self.rooms[name] = NodeRoom(inventory, ailments)
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

    def take_all(self, claims: Iterable[tuple[Share, Demand]]) -> None:
        """As `take`, each node's shares at once."""
        for name, of_node in _by_node(claims).items():
            room = self.rooms[name]
            if room.available:
                self._unshelve(name)
            for share, demand in of_node:
                room.claim(share, demand)
            if room.available:
                self._shelve(name, room)

    def give_all(self, claims: Iterable[tuple[Share, Demand]]) -> None:
        """The exact inverse of `take_all`."""
        for name, of_node in _by_node(claims).items():
            room = self.rooms[name]
            if room.available:
                self._unshelve(name)
            for share, demand in of_node:
                room.unclaim(share, demand)
            if room.available:
                self._shelve(name, room)

    def refill(
        self, name: str, claims: list[tuple[Share, Demand]], later: list[tuple[Share, Demand]] | None = None
    ) -> None:
        """Compute a node's room anew: its inventory less these claims. Where what will be claimed `later` is another
        thing (work that leaves, room that is reserved), only what is free now and stays free is room."""
        room = self.rooms[name].emptied()
        for share, demand in claims:
            room.claim(share, demand)
        if later is not None:
            then = room.emptied()
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

    def free_endpoints(self, nodes: Sequence[str], job: int) -> list[Endpoint]:
        """A port at each node's address, of its range, that neither a live attempt nor one before it in the list holds
        there; as many, from the first node on, as there are. The job's number says where the search begins, so that a
        port rests before it is used again."""
        found: list[Endpoint] = []
        for node in nodes:
            inventory = self.rooms[node].inventory
            used = self.ports.get(inventory.address)
            size = inventory.last_port - inventory.first_port + 1
            for step in range(size):
                endpoint = Endpoint(inventory.address, inventory.first_port + (job + step) % size)
                if (not used or endpoint.port not in used) and endpoint not in found:
                    found.append(endpoint)
                    break
            else:
                break
        return found

    def take_ports(self, endpoints: Iterable[Endpoint]) -> None:
        """Hold ports for an attempt."""
        for endpoint in endpoints:
            held = self.ports.get(endpoint.address)
            if held is None:
                held = self.ports[endpoint.address] = set()
            held.add(endpoint.port)

    def give_ports(self, endpoints: Iterable[Endpoint]) -> None:
        """Let ports go."""
        for endpoint in endpoints:
            held = self.ports.get(endpoint.address)
            if held is not None:
                held.discard(endpoint.port)


def _by_node(claims: Iterable[tuple[Share, Demand]]) -> dict[str, list[tuple[Share, Demand]]]:
    found: dict[str, list[tuple[Share, Demand]]] = {}
    for claim in claims:
        found.setdefault(claim[0].node, []).append(claim)
    return found
