"""How well the devices of a node are connected, and which of those that would do a worker gets.

Each pair has a score by how it is linked, a set the sum over its pairs. Of the sets of the asked size the one with the
greatest sum is taken; of equals the one that leaves the rest best connected, so that no pair or quad is broken without
need; of these the first in the order of the candidates. Where all pairs are linked alike, or nothing is known, there is
nothing to choose and no `Links`.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Final

from muster.events.types import Link

PATHS: Final = {"SYS": 2, "NODE": 4, "PHB": 5, "PXB": 8, "PIX": 10}
PER_NVLINK: Final = 20
EXACT_SETS: Final = 2000
"""With more sets than this only those are compared that grow from each candidate by the best next one."""

KEPT_CHOICES: Final = 4096


def pair_score(link: Link) -> int:
    """How well two devices are connected; 0 = unknown."""
    if link.startswith("NV"):
        return PATHS["PIX"] + PER_NVLINK * int(link[2:])
    return PATHS.get(link, 0)


class Links:
    """The links of a node whose devices are not all linked alike."""

    def __init__(self, topology: tuple[tuple[Link, ...], ...]) -> None:
        self._topology: Final = topology
        self._scores: Final = [[pair_score(link) for link in row] for row in topology]
        self._known: Final[dict[tuple[tuple[int, ...], int, tuple[int, ...]], list[int]]] = {}

    def choose(self, candidates: Sequence[int], size: int, beside: Sequence[int] = ()) -> list[int]:
        """The best `size` of the candidates, or all where there are no more, for a worker that has the devices
        `beside` too."""
        if not 0 < size < len(candidates):
            return list(candidates[:size])
        key = (tuple(candidates), size, tuple(beside))
        chosen = self._known.get(key)
        if chosen is None:
            if len(self._known) >= KEPT_CHOICES:
                self._known.clear()
            chosen = self._known[key] = self._best(*key)
        return chosen

    def _best(self, candidates: tuple[int, ...], size: int, beside: tuple[int, ...]) -> list[int]:
        scores = [[self._scores[one][other] for other in candidates] for one in candidates]
        to_beside = [sum(self._scores[one][other] for other in beside) for one in candidates]
        to_all = [sum(row) for row in scores]

        def cost(chosen: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            within = sum(scores[one][other] for one, other in combinations(chosen, 2))
            taken_away = sum(to_all[one] for one in chosen) - within
            return -within - sum(to_beside[one] for one in chosen), taken_away, chosen

        sets: Iterable[tuple[int, ...]]
        if comb(len(candidates), size) <= EXACT_SETS:
            sets = combinations(range(len(candidates)), size)
        else:
            sets = [_grown(scores, to_beside, to_all, first, size) for first in range(len(candidates))]
        return [candidates[position] for position in min(sets, key=cost)]

    def words(self, devices: Sequence[int]) -> str:
        """How the devices are linked among each other, the best link first."""
        links = {self._topology[one][other] or "unknown" for one, other in combinations(devices, 2)}
        return "/".join(sorted(links, key=lambda link: (-pair_score(link), link)))


def _grown(scores: list[list[int]], to_beside: list[int], to_all: list[int], first: int, size: int) -> tuple[int, ...]:
    """A set that begins with one position and takes the best next one each time."""
    chosen = [first]
    others = [position for position in range(len(scores)) if position != first]
    gains = [to_beside[position] + scores[first][position] for position in range(len(scores))]
    while len(chosen) < size:
        best = min(others, key=lambda position: (-gains[position], to_all[position] - 2 * gains[position], position))
        others.remove(best)
        chosen.append(best)
        gains = [gain + score for gain, score in zip(gains, scores[best], strict=True)]
    return tuple(sorted(chosen))


def links_of(topology: list[list[Link]], devices: int) -> Links | None:
    """The links of so many devices; None where all are linked alike or it is not known how."""
    if len(topology) != devices or any(len(row) != devices for row in topology):
        return None
    return _links_of(tuple(map(tuple, topology)))


@lru_cache(maxsize=256)
def _links_of(topology: tuple[tuple[Link, ...], ...]) -> Links | None:
    """Nodes that are built alike share their links, and what was found out about them."""
    if len({pair_score(topology[one][other]) for one, other in combinations(range(len(topology)), 2)}) <= 1:
        return None
    return Links(topology)
