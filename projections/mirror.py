"""The store as a blocking reader: for cold start, past states and the audit, in a worker thread.

Reads go in chunks by key, each its own short read transaction, so that a long replay never holds back the writer's
checkpoints. What is read is checked: entries are contiguous, snapshots decompress.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from muster.events.log import Entry
from muster.projections.schema import HoleError, StoreError, connect

CHUNK: Final = 1000
GENESIS: Final = bytes(16)
"""The chain before the first entry."""

_ENTRIES: Final = "SELECT sequence, timestamp_ns, subject, payload FROM entries"
_ROWS: Final = "SELECT sequence, timestamp_ns, subject, payload, chain FROM entries"
_RANGE: Final = " WHERE sequence BETWEEN ? AND ? ORDER BY sequence"


class MirrorRow(NamedTuple):
    """One entry with the chain after it."""

    sequence: int
    timestamp_ns: int
    subject: str
    payload: bytes
    chain: bytes

    @property
    def entry(self) -> Entry:
        """The row as the log's entry."""
        return Entry(self.sequence, self.timestamp_ns, self.subject, self.payload)


class Snapshot(NamedTuple):
    """A state in canonical bytes, after `sequence`, by one version of the fold."""

    sequence: int
    fold_version: int
    chain: bytes
    timestamp_ns: int
    state: bytes


class Mirror:
    """An open store for reading; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()

    def position(self) -> int:
        """The last entry's sequence (0 = empty)."""
        last: int | None = self._connection.execute("SELECT max(sequence) FROM entries").fetchone()[0]
        return last or self.origin()[0]

    def models_versions(self) -> tuple[int, int]:
        """The versions of the fold and of the accounts that made the rows of the jobs table (0 = none)."""
        fold_version, accounts_version = self._connection.execute(
            "SELECT fold_version, accounts_version FROM models"
        ).fetchone()
        return fold_version, accounts_version

    def origin(self) -> tuple[int, bytes]:
        """The entry before the first one here, and the chain after it: 0, unless this is a window of a log."""
        try:
            sequence, chain = self._connection.execute("SELECT sequence, chain FROM origin").fetchone()
        except sqlite3.OperationalError:  # another process's mirror, of a layout that has no windows
            return 0, GENESIS
        return sequence, chain

    def row(self, sequence: int) -> MirrorRow | None:
        """One entry with its chain, where it is here."""
        found = self._connection.execute(f"{_ROWS} WHERE sequence = ?", (sequence,)).fetchone()
        return MirrorRow(*found) if found else None

    def chain(self, sequence: int) -> bytes | None:
        """The chain after an entry, where it is here."""
        if sequence == 0:
            return GENESIS
        row = self.row(sequence)
        if row is not None:
            return row.chain
        before, chain = self.origin()
        return chain if sequence == before else None

    def entries(self, first: int, last: int) -> Iterator[list[Entry]]:
        """Entries `first` to `last` in chunks. Raises HoleError."""
        for chunk in self._chunks(_ENTRIES, first, last):
            yield list(map(Entry._make, chunk))

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Rows `first` to `last` in chunks. Raises HoleError."""
        for chunk in self._chunks(_ROWS, first, last):
            yield list(map(MirrorRow._make, chunk))

    def _chunks(self, select: str, first: int, last: int) -> Iterator[list[tuple[int, int, str, bytes, bytes]]]:
        while first <= last:
            end = min(first + CHUNK - 1, last)
            chunk = self._connection.execute(select + _RANGE, (first, end)).fetchall()
            if len(chunk) != end - first + 1:
                present = {row[0] for row in chunk}
                missing = next(sequence for sequence in range(first, end + 1) if sequence not in present)
                raise HoleError(f"the mirror has no entry {missing}", missing)
            yield chunk
            first = end + 1

    def snapshots(self, sequence: int, fold_version: int) -> Iterator[Snapshot]:
        """Snapshots of this fold version at or before `sequence`, newest first; damaged ones are passed over."""
        while True:
            row = self._connection.execute(
                "SELECT * FROM snapshots WHERE fold_version = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1",
                (fold_version, sequence),
            ).fetchone()
            if row is None:
                return
            sequence = row[0] - 1
            try:
                state = zlib.decompress(row[4])
            except zlib.error:
                continue
            yield Snapshot(row[0], row[1], row[2], row[3], state)

    def snapshot_places(self, first: int, last: int, fold_version: int) -> list[int]:
        """Where the snapshots of this fold version from `first` to `last` stand, in order."""
        rows = self._connection.execute(
            "SELECT sequence FROM snapshots WHERE fold_version = ? AND sequence BETWEEN ? AND ? ORDER BY sequence",
            (fold_version, first, last),
        )
        return [row[0] for row in rows]

    def snapshot(self, sequence: int) -> Snapshot | None:
        """The snapshot after an entry, where there is one. Raises StoreError for one that cannot be unpacked."""
        row = self._connection.execute("SELECT * FROM snapshots WHERE sequence = ?", (sequence,)).fetchone()
        if row is None:
            return None
        try:
            return Snapshot(row[0], row[1], row[2], row[3], zlib.decompress(row[4]))
        except zlib.error as error:
            raise StoreError(f"the snapshot after entry {sequence} cannot be unpacked: {error}") from error

    def snapshot_before(self, sequence: int, fold_version: int) -> int:
        """Where the last snapshot of this fold version at or before `sequence` stands (0 = nowhere)."""
        found: int | None = self._connection.execute(
            "SELECT max(sequence) FROM snapshots WHERE fold_version = ? AND sequence <= ?", (fold_version, sequence)
        ).fetchone()[0]
        return found or 0

    def sequence_at(self, timestamp_ns: int) -> int:
        """The last entry not after a time (that of `origin` = none), by bisection: timestamps grow along the log. Where
        the server's clock was put back, it is one of the entries after which the time was passed."""
        low, high = self.origin()[0], self.position()
        while low < high:
            middle = (low + high + 1) // 2
            row = self._connection.execute("SELECT timestamp_ns FROM entries WHERE sequence = ?", (middle,)).fetchone()
            if row is None:
                raise HoleError(f"the mirror has no entry {middle}", middle)
            if row[0] <= timestamp_ns:
                low = middle
            else:
                high = middle - 1
        return low


def contiguous(rows: Iterable[MirrorRow]) -> bool:
    """Whether each sequence is the last one plus one."""
    return all(then.sequence == row.sequence + 1 for row, then in pairwise(rows))
