"""What the nodes' devices are doing, as their agents last said: kept in memory, for people alone.

Rules: the last sample of each node is kept, of a bounded number of nodes. One that is too old, or of another life of
its agent, says nothing of now. No sample is an input of decisions.
"""

from typing import Final

from muster.events.beats import Sampled, Samples

FRESH_S: Final = 60.0
NODES_LIMIT: Final = 16_384


class LastSamples:
    """Follows what is sampled."""

    def __init__(self, source: Samples) -> None:
        self._source = source
        self._by_node: dict[str, Sampled] = {}  # in order of their arrival

    async def run(self) -> None:
        """Follow until cancelled."""
        async for sampled in self._source.follow():
            self.take(sampled)

    def take(self, sampled: Sampled) -> None:
        """Keep a node's sample in the place of the one before; beyond the limit, the longest unheard goes."""
        self._by_node.pop(sampled.sample.node, None)
        self._by_node[sampled.sample.node] = sampled
        if len(self._by_node) > NODES_LIMIT:
            del self._by_node[next(iter(self._by_node))]

    def of(self, node: str) -> Sampled | None:
        """A node's last sample."""
        return self._by_node.get(node)
