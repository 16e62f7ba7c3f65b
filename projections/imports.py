"""Imports: an export's entries in a store of their own, and the read-only log that this store then is.

Nothing is believed: every line must follow from the one before by its sequence and its chain.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from muster.events.log import Ack, Entry, LogError, LogUsage, Message
from muster.projections.exports import ExportSource, checked_rows
from muster.projections.fold import Fold
from muster.projections.mirror import MirrorRow, Snapshot
from muster.projections.read_models import JobRow, job_row
from muster.projections.replay import ChangedJobs, rebuild_models, snapshot_of
from muster.projections.snapshots import SPACING_ENTRIES, spacing_entries
from muster.projections.store import Store

Progress = Callable[[int], None]
"""Told how many more entries have been read."""


class ReadOnlyError(LogError):
    """An import cannot be written to."""


class _Step(NamedTuple):
    rows: list[MirrorRow]
    jobs: list[JobRow]
    snapshots: list[Snapshot]


async def open_import(source: ExportSource, path: Path, progress: Progress = lambda _: None) -> Store:
    """An export's entries in a new store at `path`, checked while they are read. Raises ExportError or HoleError, which
    name the first entry that does not follow, StoreError."""
    fold = await asyncio.to_thread(source.base)
    store = await Store.open(path)
    try:
        await asyncio.to_thread(rebuild_models, path)  # of nothing yet: its rows are this version's
        if source.first > 1:
            await store.begin_after(snapshot_of(fold), [job_row(job) for job in fold.cluster.state.jobs.values()])
        await _fill(store, source, fold, progress)
    except BaseException:
        await store.close()
        raise
    return store


async def _fill(store: Store, source: ExportSource, fold: Fold, progress: Progress) -> None:
    chunks, due = checked_rows(source), source.first - 1 + SPACING_ENTRIES

    def step() -> _Step | None:
        nonlocal due
        rows = next(chunks, None)
        if rows is None:
            return None
        changed = ChangedJobs()
        for row in rows:
            fold.apply(row.entry)
            changed.note(fold)
        snapshots = []
        if rows[-1].sequence >= due:
            snapshots.append(snapshot_of(fold))
            due = rows[-1].sequence + spacing_entries(len(snapshots[0].state))
        return _Step(rows, [job_row(job) for job in changed.jobs.values()], snapshots)

    while (found := await asyncio.to_thread(step)) is not None:
        await store.append(*found)
        progress(len(found.rows))


class ImportedLog:
    """See `muster.events.log.Log`: the log that an import is. It ends with the import, and is never written to."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.prefix = prefix
        self._store = store

    async def append(self, message: Message, timeout_s: float = 30.0) -> Ack:  # noqa: ARG002 - the log's interface
        """Raises ReadOnlyError."""
        _refuse()

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:  # noqa: ARG002
        """Raises ReadOnlyError."""
        _refuse()

    async def append_fenced(self, messages: Sequence[Message], fence: int, timeout_s: float = 30.0) -> int:  # noqa: ARG002
        """Raises ReadOnlyError."""
        _refuse()

    async def read(self, first: int, limit: int = 1000) -> list[Entry]:
        """See `Log.read`."""
        return await self._store.read(first, limit)

    async def tail(self, first: int) -> AsyncIterator[list[Entry]]:
        """See `Log.tail`."""
        while entries := await self._store.read(first):
            yield entries
            first = entries[-1].sequence + 1
        await asyncio.Event().wait()

    async def last_sequence(self) -> int:
        """See `Log.last_sequence`."""
        return self._store.position

    async def last_fenced_sequence(self) -> int:
        """Nobody decides here."""
        return 0

    async def sequence_at(self, timestamp_ns: int) -> int:
        """See `Log.sequence_at`."""
        return await self._store.sequence_at(timestamp_ns)

    async def usage(self) -> LogUsage:
        """See `Log.usage`."""
        return LogUsage(0, 0)

    async def close(self) -> None:
        """The store is its owner's."""


def _refuse() -> NoReturn:
    raise ReadOnlyError("an import cannot be written to")
