"""Who has been heard, as the leader counts it. Pure: the caller gives the time.

Silence counts only while the broker could be heard: the counted clock moves between two proofs of it (any node's
beat, a renewed lease), by at most `LONGEST_GAP_NS` each. A broker that was away makes nobody silent.
"""

from typing import Final

from muster.core.schedule import SECOND_NS
from muster.core.state import Node, State
from muster.events import types as t

SUSPECT_NS: Final = 10 * SECOND_NS
LONGEST_GAP_NS: Final = 5 * SECOND_NS
SPARE_LIVES: Final = 16

_Life = tuple[str, str]
"""A node, and the incarnation of one life of its agent: what another life beats says nothing of this one."""


class Watch:
    """Hears beats, and tells which nodes have been silent for too long or are back."""

    def __init__(self, suspect_ns: int = SUSPECT_NS) -> None:
        self._suspect_ns: Final = suspect_ns
        self._counted_ns = 0
        self._last_proof_ns: int | None = None
        self._heard: Final[dict[_Life, int]] = {}  # counted time of its last beat
        self._seen: Final[dict[str, tuple[str, int]]] = {}  # node → (incarnation, counted time of its first sight)
        self._beat_ns: Final[dict[_Life, int]] = {}  # server's timestamp of the last beat read

    def proof(self, now_ns: int) -> None:
        """The broker was heard at monotonic time `now_ns`."""
        if self._last_proof_ns is not None:
            self._counted_ns += min(max(now_ns - self._last_proof_ns, 0), LONGEST_GAP_NS)
        self._last_proof_ns = now_ns

    def beat(self, node: str, incarnation: str, now_ns: int) -> None:
        """A node's beat arrived."""
        self.proof(now_ns)
        self._heard[node, incarnation] = self._counted_ns

    def stored_beat(self, node: str, incarnation: str, timestamp_ns: int) -> None:
        """A node's last stored beat was read: a newer one than before counts as heard."""
        life = node, incarnation
        if timestamp_ns > self._beat_ns.get(life, 0):
            self._beat_ns[life] = timestamp_ns
            self._heard[life] = self._counted_ns

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
                self._beat_ns.get((name, state.nodes[name].incarnation), 0),
                self._silence_ns(state.nodes[name]) // 1_000_000,
            )
            for name in self.silent(state)
        ]
        for node in state.nodes.values():
            heard_ns = self._heard.get((node.name, node.incarnation))
            if heard_ns is None or node.status != "suspect":
                continue
            if self._counted_ns - heard_ns < self._suspect_ns:
                found.append(t.NodeRecovered(node.name, node.incarnation))
        if len(self._heard) > 2 * len(state.nodes) + SPARE_LIVES:
            self._forget(state)
        return found

    def _forget(self, state: State) -> None:
        """Lives that are over, and that nothing has been heard of for a while."""
        current = {(node.name, node.incarnation) for node in state.nodes.values()}
        for life, heard_ns in list(self._heard.items()):
            if life not in current and self._counted_ns - heard_ns >= self._suspect_ns:
                del self._heard[life]
                self._beat_ns.pop(life, None)

    def _silence_ns(self, node: Node) -> int:
        """Counted time since the node's last beat; since it was first seen, where it has none in this life."""
        heard_ns = self._heard.get((node.name, node.incarnation))
        if heard_ns is not None:
            return self._counted_ns - heard_ns
        seen = self._seen.get(node.name)
        if seen is None or seen[0] != node.incarnation:
            seen = self._seen[node.name] = (node.incarnation, self._counted_ns)
        return self._counted_ns - seen[1]
