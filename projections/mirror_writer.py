"""Writes the mirror behind the fold: entries wait in a backlog and go to the store in transactions of about a
thousand, or whatever has come in within 50 ms. The fold waits for the disk only where the backlog is full. What a
full disk does not take is tried again until it does."""

import asyncio
import contextlib
import logging
from collections import deque
from typing import Final, NamedTuple

from muster.projections.mirror import MirrorRow, Snapshot
from muster.projections.read_models import JobRow
from muster.projections.schema import StoreFullError
from muster.projections.store import Store

TRANSACTION_ENTRIES: Final = 1000
GATHER_S: Final = 0.05
BACKLOG_ENTRIES: Final = 50_000
RETRY_S: Final = 2.0

_logger: Final = logging.getLogger(__name__)


class Batch(NamedTuple):
    """What one chunk of entries adds to the store; `jobs` are as they were after the last of the rows."""

    rows: list[MirrorRow]
    jobs: list[JobRow]
    snapshot: Snapshot | None


class MirrorWriter:
    """The backlog and the task that empties it. `run` ends after `finish` when all is written, or with the store's
    error."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._backlog: deque[Batch] = deque()
        self._waiting_entries = 0
        self._news = asyncio.Event()
        self._full = asyncio.Event()
        self._room = asyncio.Event()
        self._finishing = False
        self._ending = asyncio.Event()

    async def add(self, batch: Batch) -> None:
        """Hand over what follows the last batch; waits while the backlog is full."""
        self._backlog.append(batch)
        self._waiting_entries += len(batch.rows)
        self._news.set()
        if self._waiting_entries >= TRANSACTION_ENTRIES:
            self._full.set()
        while self._waiting_entries >= BACKLOG_ENTRIES:
            self._room.clear()
            await self._room.wait()

    def finish(self) -> None:
        """No more batches will come."""
        self._finishing = True
        self._ending.set()
        self._news.set()
        self._full.set()

    async def run(self) -> None:
        """Write until finished."""
        while True:
            await self._news.wait()
            if not self._finishing:
                await self._gather()
            if not self._backlog:
                return
            await self._write()

    async def _gather(self) -> None:
        try:
            async with asyncio.timeout(GATHER_S):
                await self._full.wait()
        except TimeoutError:
            pass

    async def _append(self, rows: list[MirrorRow], jobs: list[JobRow], snapshots: list[Snapshot]) -> None:
        """A full disk ends nothing: the fold goes on in memory, and what it has is written once there is room."""
        while True:
            try:
                await self._store.append(rows, jobs, snapshots)
            except StoreFullError as error:
                if self._finishing:
                    raise
                _logger.warning("entries up to %d wait to be written: %s", rows[-1].sequence, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._ending.wait()
            else:
                return

    async def _write(self) -> None:
        rows: list[MirrorRow] = []
        jobs: dict[int, JobRow] = {}
        snapshots: list[Snapshot] = []
        while self._backlog and len(rows) < TRANSACTION_ENTRIES:
            batch = self._backlog.popleft()
            rows.extend(batch.rows)
            jobs.update((row.id, row) for row in batch.jobs)
            if batch.snapshot is not None:
                snapshots.append(batch.snapshot)
        await self._append(rows, list(jobs.values()), snapshots)
        self._waiting_entries -= len(rows)
        self._room.set()
        if not self._finishing:
            if not self._backlog:
                self._news.clear()
            if self._waiting_entries < TRANSACTION_ENTRIES:
                self._full.clear()
