"""When what users took has faded to nothing worth keeping: found without looking at all of them."""

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final

from muster.core.schedule import SECOND_NS
from muster.core.state import PastUse

LEAST_USE_MS: Final = 60_000
"""Less than so many milliseconds of a whole device are forgotten, once nothing is held beside."""


def fades_at(use: PastUse, half_life_s: int) -> int:
    """The logical time from which on `order.faded` gives less than the least, as long as nothing is held."""
    half_ns = max(1, half_life_s * SECOND_NS)
    halvings, left = 0, use.device_ms
    if left < LEAST_USE_MS:
        return use.settled_at
    while left >> 1 >= LEAST_USE_MS:
        left >>= 1
        halvings += 1
    rest_ns = -(-2 * half_ns * (left - LEAST_USE_MS + 1) // left)
    return use.settled_at + halvings * half_ns + min(rest_ns, half_ns)


class Fading:
    """The uses of which nothing is held, by when they have faded. Of one noted anew the earlier time stays: it is
    looked at then, and again later."""

    def __init__(self, past_use: Mapping[str, PastUse], half_life_s: int) -> None:
        self.half_life_s: Final = half_life_s
        self._due: Final[list[tuple[int, str]]] = []
        self._at: Final[dict[str, int]] = {}
        for name, use in past_use.items():
            self.note(name, use)

    def note(self, name: str, use: PastUse) -> None:
        """A use has changed."""
        if not use.held:
            at, known = fades_at(use, self.half_life_s), self._at.get(name)
            if known is None or at < known:
                self._at[name] = at
                heappush(self._due, (at, name))

    def take_faded(self, past_use: Mapping[str, PastUse], time_at: int) -> list[str]:
        """Those that have faded by now; they are not kept any more."""
        gone: list[str] = []
        while self._due and self._due[0][0] <= time_at:
            at, name = heappop(self._due)
            if self._at.get(name) != at:
                continue
            del self._at[name]
            use = past_use.get(name)
            if use is None or use.held:
                continue
            if fades_at(use, self.half_life_s) <= time_at:
                gone.append(name)
            else:
                self.note(name, use)
        return gone
