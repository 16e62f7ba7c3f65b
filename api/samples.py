"""What the nodes' devices are doing, as their agents last said, and did at a past moment: for people alone.

Rules: the last sample of each node is kept in memory, of a bounded number of nodes; those of the past are read from the
telemetry for as long as it has them. One that is too old, or of another life of its agent, says nothing of its moment.
No sample is an input of decisions.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from muster.api.times import rfc3339
from muster.events.beats import Sampled, Samples
from muster.events.log import LogUnavailableError

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

    async def at(self, nodes: Sequence[str], time_ns: int) -> "PastSamples":
        """These nodes' samples at a past moment."""
        try:
            kept = await self._source.at(nodes, time_ns)
        except LogUnavailableError as error:
            return PastSamples({}, f"samples of then cannot be read now: {error}")
        if kept.since_ns is None:
            return PastSamples({}, "no samples are kept")
        gone = kept.since_ns > time_ns
        oldest = f"{rfc3339(kept.since_ns)[:19]}Z"
        return PastSamples(
            kept.by_node, f"samples of then are no longer kept: the oldest are of {oldest}" if gone else ""
        )


class PastSamples:
    """What was sampled by a past moment. `why_none` says why there are none of then ("" = there may be)."""

    def __init__(self, by_node: Mapping[str, Sampled], why_none: str) -> None:
        self.why_none: Final = why_none
        self._by_node = by_node

    def of(self, node: str) -> Sampled | None:
        """A node's last sample by then."""
        return self._by_node.get(node)
