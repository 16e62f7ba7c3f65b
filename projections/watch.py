"""Who has been heard, as the leader counts it. Pure: the caller gives the time.

Silence counts only while the broker could be heard: the counted clock moves between two proofs of it (any node's
beat, a renewed lease), by at most `LONGEST_GAP_NS` each. A broker that was away makes nobody silent.
"""

from typing import Final

from muster.core.cluster import SECOND_NS
from muster.core.state import Node, State
from muster.events import types as t

SUSPECT_NS: Final = 10 * SECOND_NS
LONGEST_GAP_NS: Final = 5 * SECOND_NS


class Watch:
    """Hears beats, and tells which nodes have been silent for too long or are back."""

    def __init__(self, suspect_ns: int = SUSPECT_NS) -> None:
        self._suspect_ns: Final = suspect_ns
        self._counted_ns = 0
        self._last_proof_ns: int | None = None
        self._heard: Final[dict[str, tuple[str, int]]] = {}  # node → (incarnation, counted time of its last beat)
        self._beat_ns: Final[dict[str, int]] = {}  # node → server's timestamp of the last beat read

    def proof(self, now_ns: int) -> None:
        """The broker was heard at monotonic time `now_ns`."""
        if self._last_proof_ns is not None:
            self._counted_ns += min(max(now_ns - self._last_proof_ns, 0), LONGEST_GAP_NS)
        self._last_proof_ns = now_ns

    def beat(self, node: str, incarnation: str, now_ns: int) -> None:
        """A node's beat arrived."""
        self.proof(now_ns)
        self._heard[node] = (incarnation, self._counted_ns)

    def stored_beat(self, node: str, incarnation: str, timestamp_ns: int) -> None:
        """A node's last stored beat was read: a newer one than before counts as heard."""
        if timestamp_ns > self._beat_ns.get(node, 0):
            self._beat_ns[node] = timestamp_ns
            self._heard[node] = (incarnation, self._counted_ns)

    def silent(self, state: State) -> list[str]:
        """Nodes to be suspected now, if their last stored beat does not say otherwise."""
        return [
            node.name
            for node in state.nodes.values()
            if self._silence_ns(node) >= self._suspect_ns and (node.status == "ready" or self._untimed(node))
        ]

    @staticmethod
    def _untimed(node: Node) -> bool:
        return node.status == "suspect" and node.lease_ms > 0 and node.lost_at == 0

    def observations(self, state: State) -> list[t.Observation]:
        """What is new: silent nodes, and suspect ones that beat again in the same life."""
        found: list[t.Observation] = [
            t.NodeSuspected(
                name,
                state.nodes[name].incarnation,
                self._beat_ns.get(name, 0),
                self._silence_ns(state.nodes[name]) // 1_000_000,
            )
            for name in self.silent(state)
        ]
        for node in state.nodes.values():
            heard = self._heard.get(node.name)
            if heard is None or node.status != "suspect" or heard[0] != node.incarnation:
                continue
            if self._counted_ns - heard[1] < self._suspect_ns:
                found.append(t.NodeRecovered(node.name, node.incarnation))
        return found

    def _silence_ns(self, node: Node) -> int:
        """Counted time since the node's last beat; since it was first seen, where it has none in this life."""
        heard = self._heard.get(node.name)
        if heard is None or (heard[0] != node.incarnation and node.status == "ready"):
            heard = self._heard[node.name] = (node.incarnation, self._counted_ns)
        return self._counted_ns - heard[1]
