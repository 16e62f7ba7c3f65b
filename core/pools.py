"""Nodes with devices of one model, on shelves, so that a placement looks only at those that may do."""

from bisect import bisect_left, insort
from typing import Final, TypeVar

from muster.events.binding import WHOLE_COMPUTE

Entry = tuple[int, str]
"""A node on a shelf: what is left of it, and its name."""

Height = tuple[int, int]
"""Which shelf: idle devices, and the step of the emptiest device in use (0 = no device in use has anything left)."""

STEP: Final = 100


def step_of(compute: int) -> int:
    """The step of so much compute left, in thousandths."""
    return compute // STEP + 1 if compute else 0


class Pool:
    """The available nodes that have devices of one model: all of them (`fabric` "*"), those of one fabric, or those of
    one fabric with one value of a topology label (`domain`, as ``label=value``)."""

    __slots__ = ("domain", "fabric", "idle_devices", "model", "shelves", "sizes")

    def __init__(self, model: str, fabric: str, domain: str = "") -> None:
        self.model = model
        self.fabric = fabric
        self.domain = domain
        self.shelves: Final[dict[Height, list[Entry]]] = {}  # none is empty
        self.sizes: Final[dict[int, int]] = {}  # devices of the model → how many nodes have so many
        self.idle_devices = 0

    @property
    def size(self) -> int:
        """The most devices of the model on a node, in use or not."""
        return max(self.sizes, default=0)

    def put(self, height: Height, entry: Entry, devices: int) -> None:
        """Put a node with so many devices, in use or not, on its shelf."""
        self.sizes[devices] = self.sizes.get(devices, 0) + 1
        shelf = self.shelves.get(height)
        if shelf is None:
            self.shelves[height] = [entry]
        else:
            insort(shelf, entry)
        self.idle_devices += height[0]

    def take(self, height: Height, entry: Entry, devices: int) -> None:
        """Take a node from its shelf."""
        self.sizes[devices] -= 1
        if not self.sizes[devices]:
            del self.sizes[devices]
        shelf = self.shelves[height]
        del shelf[bisect_left(shelf, entry)]
        if not shelf:
            del self.shelves[height]
        self.idle_devices -= height[0]

    def heights(self, devices: int, compute: int) -> list[Height]:
        """The shelves whose nodes may have room for so many devices with so much compute each, lowest first."""
        if compute == WHOLE_COMPUTE:
            return sorted(height for height in self.shelves if height[0] >= devices)
        step = step_of(compute)
        return sorted(height for height in self.shelves if height[0] >= devices or height[1] >= step)

    def count(self, devices: int) -> int:
        """How many nodes have so many idle devices."""
        return sum(len(shelf) for height, shelf in self.shelves.items() if height[0] >= devices)


_Key = TypeVar("_Key", str, tuple[str, str], tuple[str, str, str])


def pool_under(pools: dict[_Key, Pool], key: _Key, pool: Pool) -> Pool:
    """The pool of a key, put there if the key is new; the keys stay in order."""
    if key not in pools:
        pools[key] = pool
        in_order = sorted(pools.items(), key=lambda item: item[0])
        pools.clear()
        pools.update(in_order)
    return pools[key]
