"""Where an audit gets its entries from: a mirror, the log itself (with a mirror beside it or without), or an export."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from muster.events.log import Entry, Log, LogError, MissingEntryError
from muster.projections.exports import ExportSource
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK, Mirror, MirrorRow
from muster.projections.replay import nearest_fold
from muster.projections.schema import HoleError


class Source(Protocol):
    """Entries in sequence; rows of a log without a mirror have no chain (b"")."""

    def position(self) -> int:
        """The last entry's sequence."""
        ...

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Entries in chunks, in sequence. Raises HoleError."""
        ...


class LogSource:
    """The log itself as a source, for a thread beside the event loop `loop` that the log lives on. With a mirror of the
    same log beside it, each row has the mirror's chain, and what the log does not give any more is taken from the
    mirror and noted in `lost`."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop, mirror: Mirror | None = None) -> None:
        self.mirror: Final = mirror
        self.mirrored: Final = mirror.position() if mirror is not None else 0
        self.lost: Final[set[int]] = set()
        self._log = log
        self._loop = loop

    def position(self) -> int:
        """The last entry's sequence, as the leader has it."""
        return asyncio.run_coroutine_threadsafe(self._log.last_sequence(), self._loop).result()

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Entries in chunks. Raises HoleError at an entry that cannot be read, LogError."""
        while first <= last:
            rows = self._chunk(first, min(CHUNK, last - first + 1))
            yield rows
            first = rows[-1].sequence + 1

    def is_as(self, mirror: Mirror, first: int, last: int, ended: Callable[[], bool]) -> bool:
        """Whether the log gives the very entries that a mirror has; False as well once `ended` says so."""
        try:
            for entries in mirror.entries(first, last):
                given: list[Entry] = []
                while len(given) < len(entries) and not ended():
                    more = self._read(entries[len(given)].sequence, len(entries) - len(given))
                    if not more:
                        return False
                    given += more
                if given != entries:
                    return False
        except (HoleError, LogError):
            return False
        return True

    def _chunk(self, first: int, count: int) -> list[MirrorRow]:
        try:
            entries = self._read(first, count)
        except MissingEntryError as error:
            if error.sequence > first:
                entries = self._read(first, error.sequence - first)
            else:
                return [self._from_mirror(error)]
        if not entries:
            raise LogError(f"the log gave no entry {first}")
        chains = self._chains(first, entries[-1].sequence)
        return [MirrorRow(*entry, chains.get(entry.sequence, b"")) for entry in entries]

    def _read(self, first: int, count: int) -> list[Entry]:
        return asyncio.run_coroutine_threadsafe(self._log.read(first, count), self._loop).result()

    def _from_mirror(self, missing: MissingEntryError) -> MirrorRow:
        row = self.mirror.row(missing.sequence) if self.mirror is not None else None
        if row is None:
            raise HoleError(str(missing), missing.sequence) from missing
        self.lost.add(row.sequence)
        return row

    def _chains(self, first: int, last: int) -> dict[int, bytes]:
        """The mirror's chains, as far as it has them."""
        chains: dict[int, bytes] = {}
        if self.mirror is not None:
            try:
                for rows in self.mirror.rows(first, min(last, self.mirrored)):
                    chains.update((row.sequence, row.chain) for row in rows)
            except HoleError:
                pass
        return chains


def first_of(source: Source) -> int:
    """The sequence of the first entry that a source has."""
    if isinstance(source, ExportSource):
        return source.first
    mirror = mirror_of(source)
    return mirror.origin()[0] + 1 if mirror is not None else 1


def mirror_of(source: Source) -> Mirror | None:
    """The mirror that a source is, or that is beside it."""
    found = source.mirror if isinstance(source, LogSource) else source
    return found if isinstance(found, Mirror) else None


def fold_before(source: Source, sequence: int) -> Fold:
    """The newest state that a source has at or before `sequence`: a snapshot, what an export begins with, or the state
    before the first entry. Raises StoreError."""
    if isinstance(source, ExportSource):
        return source.base()
    mirror = mirror_of(source)
    start = max(sequence, first_of(source) - 1)
    return nearest_fold(mirror, start) if mirror is not None and start > 0 else Fold.empty()
