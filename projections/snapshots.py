"""Which states of the past are kept whole: how far apart snapshots are taken, and which of them may go.

A past moment costs the nearest snapshot before it and a replay of at most one spacing. Snapshots are therefore spaced
evenly over the whole log, however old, and only where they would take more than a share of the file that they are in
does the spacing grow, everywhere alike (docs/decisions/020-snapshots-are-spaced-evenly.md).
"""

from collections.abc import Iterable
from typing import Final

SPACING_ENTRIES: Final = 5_000
STATE_BYTES_PER_ENTRY: Final = 2048
"""A snapshot waits until as many entries came in as its size divided by this: writing a large state takes a while."""
SHARE_OF_FILE: Final = 5
LEAST_LIMIT_BYTES: Final = 64 << 20
"""Snapshots take at most a fifth of the file, or 64 MiB where that is more."""


def spacing_entries(state_bytes: int, least: int = SPACING_ENTRIES) -> int:
    """How many entries after a snapshot of so many bytes, before compression, the next one is due."""
    return max(least, state_bytes // STATE_BYTES_PER_ENTRY)


def limit_bytes(file_bytes: int) -> int:
    """How much of a file of so many bytes all its snapshots may take, compressed."""
    return max(LEAST_LIMIT_BYTES, file_bytes // SHARE_OF_FILE)


def superfluous(sizes: Iterable[tuple[int, int]], limit: int) -> list[int]:
    """Which snapshots go so that the others take at most `limit` bytes, of those given as (sequence, bytes): again and
    again the one whose neighbours stand closest together, of equals the oldest. The newest stays whatever it takes."""
    kept = sorted(sizes)
    total = sum(size for _, size in kept)
    dropped: list[int] = []
    while total > limit and len(kept) > 1:
        before = (0, *(sequence for sequence, _ in kept))
        place = min(range(len(kept) - 1), key=lambda place: kept[place + 1][0] - before[place])
        sequence, size = kept.pop(place)
        dropped.append(sequence)
        total -= size
    return dropped
