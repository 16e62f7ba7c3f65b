"""The follower: a process's live fold of the log, and the mirror behind it.

It starts from the store (the newest usable snapshot and the rest of the mirror), then reads the log's tail and folds
each chunk at once, on the event loop, which gets its turn between chunks. Every entry is the last one plus one: a
missing one is read from the leader (by the log), then from other processes' mirrors of the same log; where nobody has
it, the follower stops with an error that names it. A mirror of another log is refused, never mixed.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Final

from muster.events.log import Entry, Log, LogError, MissingEntryError
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK, Mirror, MirrorRow, Snapshot
from muster.projections.mirror_writer import Batch, MirrorWriter
from muster.projections.read_models import job_row
from muster.projections.replay import ChangedJobs, cold_start, snapshot_of
from muster.projections.schema import StoreError
from muster.projections.snapshots import SPACING_ENTRIES, spacing_entries
from muster.projections.store import Store

RECENT_ENTRIES: Final = 4096


class FollowerStoppedError(Exception):
    """The follower has ended, and what is waited for will not come. Its cause is what ended it."""


class StoreMismatchError(StoreError):
    """The store mirrors another log than the one at hand."""


class Follower:
    """Follows `log` from `store`'s position, or from the first entry where there is no store. `fold` is the live
    state; it is another object after `start`."""

    def __init__(
        self,
        log: Log,
        store: Store | None = None,
        *,
        other_mirrors: Sequence[Path] = (),
        snapshot_entries: int = SPACING_ENTRIES,
    ) -> None:
        self.fold = Fold.empty()
        self._log = log
        self._store = store
        self._other_mirrors = other_mirrors
        self._snapshot_entries = snapshot_entries
        self._next_snapshot = snapshot_entries
        self._recent: deque[Entry] = deque(maxlen=RECENT_ENTRIES)
        self._news = asyncio.Event()
        self._started = False
        self._stopped = False
        self._failure: BaseException | None = None

    @property
    def position(self) -> int:
        """The sequence of the last entry folded."""
        return self.fold.cluster.state.sequence

    async def start(self) -> None:
        """Fold what the store has, after checking that it mirrors this log. Raises StoreMismatchError, StoreError,
        LogError."""
        if self._store is not None:
            await self._check_store(self._store)
            cancelled = threading.Event()
            try:
                self.fold = await asyncio.to_thread(cold_start, self._store.path, cancelled)
            finally:
                cancelled.set()
        self._next_snapshot = self.position + self._snapshot_entries
        self._started = True
        self._tell()

    async def run(self) -> None:
        """Follow until cancelled. Raises what ended it. A clean end leaves a snapshot at the position."""
        try:
            if not self._started:
                await self.start()
            if self._store is None:
                await self._follow(None)
            else:
                await self._follow_and_mirror(self._store)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._stopped = True
            self._tell()

    async def changed(self, after_sequence: int) -> int:
        """Wait until an entry after `after_sequence` is folded; gives the position. Raises FollowerStoppedError."""
        while not self._started or self.position <= after_sequence:
            if self._stopped:
                raise FollowerStoppedError(f"the follower ended at entry {self.position}") from self._failure
            await self._news.wait()
        return self.position

    async def wait_for(self, sequence: int, timeout_s: float) -> None:
        """Wait until entry `sequence` is folded. Raises TimeoutError, FollowerStoppedError."""
        async with asyncio.timeout(timeout_s):
            await self.changed(sequence - 1)

    async def read(self, first: int, limit: int = CHUNK) -> list[Entry]:
        """Up to `limit` folded entries from `first` on: from memory, from the store or from the log, whichever has
        them soonest. Fewer than `limit` do not mean the end."""
        if first > self.position or limit < 1:
            return []
        if self._recent and first >= self._recent[0].sequence:
            start = first - self._recent[0].sequence
            return [self._recent[place] for place in range(start, min(start + limit, len(self._recent)))]
        if self._store is not None and first <= self._store.position:
            return await self._store.read(first, limit)
        entries = await self._log.read(first, min(limit, CHUNK))
        return [entry for entry in entries if entry.sequence <= self.position]

    # -- the store --------------------------------------------------------------------------------------------------

    async def _check_store(self, store: Store) -> None:
        """The store's last entry, or where the log has lost that its first one, is the log's own, byte for byte."""
        if store.position == 0:
            return
        last = await self._log.last_sequence()
        if last < store.position:
            raise StoreMismatchError(
                f"{store.path} is ahead of the log: it ends at entry {store.position}, the log at {last}."
                " The log was replaced or has lost entries; move the store away only if the log is right"
            )
        for sequence in (store.position, 1):
            try:
                theirs = await self._log.read(sequence, 1)
            except MissingEntryError:
                continue
            if not theirs:
                raise LogError(f"entry {sequence} was not given by the log, which ends at entry {last}")
            if await store.read(sequence, 1) != theirs:
                raise StoreMismatchError(
                    f"{store.path} is the mirror of another log: entry {sequence} differs. Move it away and it is made"
                    " again, or connect to the log that it mirrors"
                )
            return

    async def _follow_and_mirror(self, store: Store) -> None:
        writer = MirrorWriter(store)
        writing = asyncio.create_task(writer.run())
        following = asyncio.create_task(self._follow(writer))
        try:
            done, _ = await asyncio.wait({writing, following}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except asyncio.CancelledError:
            await self._end(following, writer, writing)
            writing.result()
            if self.position > 0:
                await store.save_snapshot(snapshot_of(self.fold))
            raise
        except BaseException:
            await self._end(following, writer, writing)
            raise

    @staticmethod
    async def _end(following: asyncio.Task[None], writer: MirrorWriter, writing: asyncio.Task[None]) -> None:
        following.cancel()
        await asyncio.wait({following})
        writer.finish()
        await asyncio.wait({writing})

    # -- the tail ---------------------------------------------------------------------------------------------------

    async def _follow(self, writer: MirrorWriter | None) -> None:
        while True:
            try:
                await self._read_tail(writer)
            except MissingEntryError as error:
                await self._take([await self._entry_elsewhere(error)], writer)

    async def _read_tail(self, writer: MirrorWriter | None) -> None:
        async with AsyncExitStack() as stack:
            tail = self._log.tail(self.position + 1)
            if isinstance(tail, AsyncGenerator):
                await stack.enter_async_context(aclosing(tail))
            async for entries in tail:
                for start in range(0, len(entries), CHUNK):
                    await self._take(entries[start : start + CHUNK], writer)
        raise LogError(f"the log's tail ended after entry {self.position}")

    async def _take(self, entries: list[Entry], writer: MirrorWriter | None) -> None:
        fold = self.fold
        state = fold.cluster.state
        changed = ChangedJobs()
        rows: list[MirrorRow] = []
        for entry in entries:
            fold.apply(entry)
            rows.append(MirrorRow(*entry, state.chain))
            if fold.touched:
                changed.note(fold)
        self._recent.extend(entries)
        self._tell()
        if writer is not None:
            jobs = [job_row(job) for job in changed.jobs.values()]
            await writer.add(Batch(rows, jobs, self._due_snapshot()))
        await asyncio.sleep(0)

    def _due_snapshot(self) -> Snapshot | None:
        if self.position < self._next_snapshot:
            return None
        snapshot = snapshot_of(self.fold)
        self._next_snapshot = self.position + spacing_entries(len(snapshot.state), self._snapshot_entries)
        return snapshot

    async def _entry_elsewhere(self, missing: MissingEntryError) -> Entry:
        """The next entry from another process's mirror, if it mirrors this very log up to here."""
        state = self.fold.cluster.state

        def find(path: Path) -> Entry | None:
            with Mirror(path) as mirror:
                row = mirror.row(missing.sequence)
                return row.entry if row and mirror.chain(state.sequence) == state.chain else None

        if missing.sequence == state.sequence + 1:
            for path in self._other_mirrors:
                try:
                    entry = await asyncio.to_thread(find, path)
                except StoreError:
                    continue
                if entry is not None:
                    return entry
        raise missing

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
