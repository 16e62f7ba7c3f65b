"""The state at any past moment: which entry a moment is, and the fold up to it.

Past states come from the nearest snapshot and the mirror in a worker thread, and from the log for what the mirror has
not got yet.
"""

import asyncio
import contextlib
import threading
from collections import OrderedDict
from typing import Final

from muster.events.log import Log
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.mirror import CHUNK, Mirror, Snapshot
from muster.projections.moments import BeforeLogError, MomentError, dated, parse_moment, second_text
from muster.projections.replay import collector_at_rest, fold_at, snapshot_of
from muster.projections.schema import StoreError
from muster.projections.snapshots import SPACING_ENTRIES, spacing_entries
from muster.projections.store import Store

CACHED_STATES: Final = 8
CACHED_JOBS: Final = 40_000
"""In all cached states together, about 4 KiB each; the last one asked for is kept whatever it has."""


async def resolve_moment(store: Store, log: Log, at: str, now_ns: int) -> int:
    """The sequence that `at` names, `now_ns` being the present: of a time, that of the last entry not after it. Raises
    MomentError for what is no moment, lies before the first entry (of a time: BeforeLogError) or in the future,
    LogError."""
    named = parse_moment(at, now_ns)
    if named.sequence is not None:
        return await _check_sequence(store, log, named.sequence)
    sequence = await _sequence_at(store, log, named.time_ns)
    if sequence <= store.origin:
        which = dated(at, named.time_ns)
        raise BeforeLogError(f"{which} is before the first entry of the log{await _beginning(store, log)}")
    return sequence


async def resolve_beginning(store: Store, log: Log, at: str, now_ns: int) -> int:
    """The first entry of a range that begins at a moment: the sequence that it names, or the first one at or after that
    time, which is yet to come where nothing has happened since. Raises MomentError for what is no moment, lies in the
    future, or is a sequence before the first one; LogError."""
    named = parse_moment(at, now_ns)
    if named.sequence is not None:
        return await _check_sequence(store, log, named.sequence)
    return max(await _sequence_at(store, log, named.first_ns - 1), store.origin) + 1


async def _beginning(store: Store, log: Log) -> str:
    """Which the first entry is, where it is not 1, and of when."""
    first = store.origin + 1
    entries = await store.read(first, 1) or await log.read(first, 1)
    which = f" here, {first}" if store.origin else ""
    return f"{which}, which is of {second_text(entries[0].timestamp_ns)}" if entries else which


async def _check_sequence(store: Store, log: Log, sequence: int) -> int:
    if sequence <= store.origin:
        raise MomentError(f"{sequence} is before the first entry of the log, which is {store.origin + 1}")
    if sequence > store.position:
        last = await log.last_sequence()
        if sequence > last:
            raise MomentError(f"entry {sequence} is in the future: the log ends at entry {last}")
    return sequence


async def _sequence_at(store: Store, log: Log, time_ns: int) -> int:
    """The mirror knows, unless the moment is after its last entry: then the log does."""
    if time_ns < 0:
        return 0
    newest = await store.read(store.position, 1)
    if newest and newest[0].timestamp_ns > time_ns:
        return await store.sequence_at(time_ns)
    return await log.sequence_at(time_ns)


async def state_at(store: Store, log: Log, sequence: int) -> Fold:
    """The fold after entry `sequence`, its own copy. Raises MomentError past the log's end, StoreError, LogError."""
    mirrored = min(sequence, store.position)
    cancelled = threading.Event()

    def replay() -> tuple[Fold, Snapshot | None]:
        with Mirror(store.path) as mirror, collector_at_rest(for_good=False):
            fold = fold_at(mirror, mirrored, cancelled)
            return fold, _missing_snapshot(mirror, fold)

    try:
        fold, snapshot = await asyncio.to_thread(replay)
    finally:
        cancelled.set()
    if snapshot is not None:
        with contextlib.suppress(StoreError):  # a full disk, or a file for reading only, makes the next time slow too
            await store.save_snapshot(snapshot)
    state = fold.cluster.state
    while state.sequence < sequence:
        entries = await log.read(state.sequence + 1, min(CHUNK, sequence - state.sequence))
        if not entries:
            raise MomentError(f"entry {sequence} is in the future: the log ends at entry {state.sequence}")
        fold.apply_all(entries)
        await asyncio.sleep(0)
    return fold


def _missing_snapshot(mirror: Mirror, fold: Fold) -> Snapshot | None:
    """The state as a snapshot where none is near: an earlier program took fewer, or thinned them with age."""
    sequence = fold.cluster.state.sequence
    distance = sequence - mirror.snapshot_before(sequence, FOLD_VERSION)
    if distance <= 2 * SPACING_ENTRIES:
        return None
    snapshot = snapshot_of(fold)
    return snapshot if distance > 2 * spacing_entries(len(snapshot.state)) else None


class TimeTravel:
    """Past states of one log, the last few kept. One replay runs at a time: it takes a whole core."""

    def __init__(
        self, store: Store, log: Log, *, cached_states: int = CACHED_STATES, cached_jobs: int = CACHED_JOBS
    ) -> None:
        self._store = store
        self._log = log
        self._cached_states = cached_states
        self._cached_jobs = cached_jobs
        self._cache: OrderedDict[int, Fold] = OrderedDict()
        self._replaying = asyncio.Lock()

    async def resolve(self, at: str, now_ns: int) -> int:
        """As `resolve_moment`."""
        return await resolve_moment(self._store, self._log, at, now_ns)

    async def resolve_beginning(self, at: str, now_ns: int) -> int:
        """As the function `resolve_beginning`."""
        return await resolve_beginning(self._store, self._log, at, now_ns)

    async def state_at(self, sequence: int) -> Fold:
        """As the function `state_at`, but shared between callers, who must not change it."""
        async with self._replaying:
            fold = self._cache.get(sequence)
            if fold is None:
                fold = self._cache[sequence] = await state_at(self._store, self._log, sequence)
                while len(self._cache) > self._cached_states or (
                    len(self._cache) > 1 and self._jobs() > self._cached_jobs
                ):
                    self._cache.popitem(last=False)
            self._cache.move_to_end(sequence)
            return fold

    def _jobs(self) -> int:
        return sum(len(fold.cluster.state.jobs) for fold in self._cache.values())
