"""The store: one SQLite file a process, with the mirror of the log, the read models and the snapshots.

Rows of all kinds that follow from an entry are written in the transaction that writes the entry: the last entry is
the position of everything in the file, and a crash leaves it at one position. Every append starts right after the
position, as the file has it, or is refused. Writing and reading have a connection each.
"""

import asyncio
import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import aiosqlite

from muster.core.state import Job
from muster.events.log import Entry
from muster.projections.mirror import Mirror, MirrorRow, Snapshot, contiguous
from muster.projections.read_models import PAGE_LIMIT, JobQuery, JobRow, decode_job, mentioned_jobs
from muster.projections.schema import StoreError, connect, prepare, usable, write_error
from muster.projections.snapshots import limit_bytes, superfluous

UPSERT_JOB: Final = (
    f"INSERT INTO jobs ({', '.join(JobRow._fields)}) VALUES ({', '.join('?' * len(JobRow._fields))})"  # noqa: S608
    f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in JobRow._fields[1:])}"
)
_INSERT_ENTRY: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?)"
_INSERT_MENTION: Final = "INSERT INTO job_entries VALUES (?, ?)"
SAVE_SNAPSHOT: Final = "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)"
ZLIB_LEVEL: Final = 1


class Store:
    """An open store. Made by `Store.open`. It has the entries after `origin` (0, unless it is of a window) up to
    `position`."""

    def __init__(self, path: Path, writer: aiosqlite.Connection, reader: aiosqlite.Connection) -> None:
        self.path = path
        self.origin = 0
        self.position = 0
        self._writer = writer
        self._reader = reader
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open the file, making it where there is none (its folder must exist). Raises StoreError."""
        await asyncio.to_thread(prepare, path)
        async with AsyncExitStack() as stack:
            writer = await aiosqlite.Connection(lambda: connect(path, writable=True), 64)
            stack.push_async_callback(writer.close)
            reader = await aiosqlite.Connection(lambda: connect(path), 64)
            stack.push_async_callback(reader.close)
            store = cls(path, writer, reader)
            with usable(path):
                store.origin, _ = await store._read_origin()
                store.position = await store._read_position()
            stack.pop_all()
        return store

    async def close(self) -> None:
        """Close both connections; what was appended stays."""
        async with self._writing:
            await self._writer.close()
        await self._reader.close()

    async def append(
        self, rows: Sequence[MirrorRow], jobs: Iterable[JobRow] = (), snapshots: Iterable[Snapshot] = ()
    ) -> None:
        """Write entries that follow the position, with the jobs and snapshots that follow from them, in one
        transaction. Raises StoreError when the rows do not follow what the file holds, StoreFullError."""
        if not rows:
            return
        if not contiguous(rows):
            raise StoreError(f"the entries to append after {self.position} are not in sequence")
        mentions = [(job, row.sequence) for row in rows for job in mentioned_jobs(row.entry)]
        async with self._transaction() as writer:
            position = await self._read_position()
            if rows[0].sequence != position + 1:
                raise StoreError(f"entry {rows[0].sequence} does not follow {self.path}, which ends at {position}")
            await writer.executemany(_INSERT_ENTRY, rows)
            await writer.executemany(UPSERT_JOB, jobs)
            await writer.executemany(_INSERT_MENTION, mentions)
            for snapshot in snapshots:
                await self._put_snapshot(snapshot)
        self.position = rows[-1].sequence
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait_for(self, sequence: int, timeout_s: float) -> None:
        """Wait until entry `sequence` is here. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.position < sequence:
                await self._news.wait()

    async def begin_after(self, snapshot: Snapshot, jobs: Iterable[JobRow]) -> None:
        """Make an empty store one of a window, whose first entry follows the snapshot's; `jobs` are those of its state.
        Raises StoreError."""
        if self.position:
            raise StoreError(f"{self.path} has entries up to {self.position} already")
        async with self._transaction() as writer:
            await writer.execute("UPDATE origin SET sequence = ?, chain = ?", (snapshot.sequence, snapshot.chain))
            await writer.executemany(UPSERT_JOB, jobs)
            await self._put_snapshot(snapshot)
        self.origin = self.position = snapshot.sequence

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of a state up to the position. Others go where they take too much. Raises StoreError."""
        async with self._transaction():
            await self._put_snapshot(snapshot)

    async def _put_snapshot(self, snapshot: Snapshot) -> None:
        position = await self._read_position()
        if snapshot.sequence > position:
            raise StoreError(
                f"a snapshot of entry {snapshot.sequence} is ahead of the mirror, which ends at {position}"
            )
        state = await asyncio.to_thread(zlib.compress, snapshot.state, ZLIB_LEVEL)
        await self._writer.execute(SAVE_SNAPSHOT, (*snapshot[:4], state))
        kept = await self._writer.execute_fetchall(
            "SELECT sequence, length(state) FROM snapshots WHERE sequence > (SELECT sequence FROM origin)"
        )
        gone = superfluous(((row[0], row[1]) for row in kept), limit_bytes(await self._file_bytes()))
        await self._writer.executemany("DELETE FROM snapshots WHERE sequence = ?", [(sequence,) for sequence in gone])

    async def _file_bytes(self) -> int:
        rows = await self._writer.execute_fetchall(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        )
        return int(next(iter(rows))[0])

    async def nearest_snapshot(self, sequence: int, fold_version: int) -> Snapshot | None:
        """The newest undamaged snapshot of this fold version at or before `sequence`."""

        def find() -> Snapshot | None:
            with Mirror(self.path) as mirror:
                return next(mirror.snapshots(sequence, fold_version), None)

        return await asyncio.to_thread(find)

    async def read(self, first: int, limit: int = PAGE_LIMIT) -> list[Entry]:
        """Up to `limit` entries from `first` on; fewer only at the end of the mirror."""
        rows = await self._reader.execute_fetchall(
            "SELECT sequence, timestamp_ns, subject, payload FROM entries"
            " WHERE sequence >= ? ORDER BY sequence LIMIT ?",
            (first, limit),
        )
        return list(map(Entry._make, rows))

    async def sequence_at(self, timestamp_ns: int) -> int:
        """The last entry not after a time (`origin` = none)."""

        def find() -> int:
            with Mirror(self.path) as mirror:
                return mirror.sequence_at(timestamp_ns)

        return await asyncio.to_thread(find)

    async def jobs(self, query: JobQuery) -> list[JobRow]:
        """Jobs of all times, newest first."""
        text, parameters = query.sql()
        return list(map(JobRow._make, await self._reader.execute_fetchall(text, parameters)))

    async def select(self, text: str, parameters: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """What a query gives."""
        return [tuple(row) for row in await self._reader.execute_fetchall(text, parameters)]

    async def job(self, job_id: int) -> Job | None:
        """One job as it is at the position, or as it ended."""
        rows = list(await self._reader.execute_fetchall("SELECT job FROM jobs WHERE id = ?", (job_id,)))
        return decode_job(rows[0][0]) if rows else None

    async def job_events(self, job_id: int, after: int = 0, limit: int = PAGE_LIMIT) -> list[Entry]:
        """The entries that concern a job, in order, from the one after `after` on."""
        rows = await self._reader.execute_fetchall(
            "SELECT e.sequence, e.timestamp_ns, e.subject, e.payload FROM job_entries AS j"
            " JOIN entries AS e ON e.sequence = j.sequence WHERE j.job = ? AND j.sequence > ?"
            " ORDER BY j.sequence LIMIT ?",
            (job_id, after, limit),
        )
        return list(map(Entry._make, rows))

    async def _read_position(self) -> int:
        rows = list(await self._writer.execute_fetchall("SELECT max(sequence) FROM entries"))
        return rows[0][0] or (await self._read_origin())[0]

    async def _read_origin(self) -> tuple[int, bytes]:
        rows = list(await self._writer.execute_fetchall("SELECT sequence, chain FROM origin"))
        return rows[0][0], rows[0][1]

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """All or nothing, one at a time; an exception or a cancellation rolls back."""
        async with self._writing:
            try:
                await self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                await self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                await self._writer.rollback()
                raise write_error(self.path, error) from error
            except BaseException:
                await self._writer.rollback()
                self.position = await self._read_position()
                raise
