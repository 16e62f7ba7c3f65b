"""The state at any past moment: which entry a moment is, and the fold up to it.

A moment is written as a sequence (`1042`), as an RFC 3339 time (the last entry not after it), or as a span before
now (`-10m`). Past states come from the nearest snapshot and the mirror in a worker thread, and from the log for what
the mirror has not got yet.
"""

import asyncio
import re
import threading
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Final

from muster.events.log import Log
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK, Mirror
from muster.projections.replay import fold_at
from muster.projections.store import Store

CACHED_STATES: Final = 8
CACHED_JOBS: Final = 40_000
"""In all cached states together, about 4 KiB each; the last one asked for is kept whatever it has."""

_SECOND_NS: Final = 1_000_000_000
_SEQUENCE: Final = re.compile(r"[0-9]{1,18}")
_SPAN: Final = re.compile(r"-([0-9]{1,9})(s|m|h|d)")
_SPAN_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MomentError(ValueError):
    """What was asked for is no moment of this log; the message says why."""


def parse_time_ns(text: str) -> int | None:
    """An RFC 3339 time as ns since 1970, to the nanosecond; None for what is not written as one. Raises MomentError
    for one that no calendar has."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError as error:
        raise MomentError(f"{text!r} is no time: {error}") from None
    return (moment - _EPOCH) // timedelta(seconds=1) * _SECOND_NS + int((fraction or "").ljust(9, "0"))


async def resolve_moment(store: Store, log: Log, at: str, now_ns: int) -> int:
    """The sequence that `at` names, `now_ns` being the present. Raises MomentError for what is no moment, lies before
    the first entry or in the future, LogError."""
    if _SEQUENCE.fullmatch(at):
        return await _check_sequence(store, log, int(at))
    span = _SPAN.fullmatch(at)
    time_ns = now_ns - int(span[1]) * _SPAN_S[span[2]] * _SECOND_NS if span else parse_time_ns(at)
    if time_ns is None:
        raise MomentError(
            f"{at[:64]!r} is no moment: write a sequence such as 1042, a time such as 2030-01-31T14:05:00Z,"
            " or a span before now such as -10m"
        )
    if time_ns > now_ns:
        raise MomentError(f"{at} is in the future")
    sequence = await _sequence_at(store, log, time_ns)
    if sequence == 0:
        raise MomentError(f"{at} is before the first entry of the log")
    return sequence


async def _check_sequence(store: Store, log: Log, sequence: int) -> int:
    if sequence == 0:
        raise MomentError("0 is before the first entry of the log, which is 1")
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

    def replay() -> Fold:
        with Mirror(store.path) as mirror:
            return fold_at(mirror, mirrored, cancelled)

    try:
        fold = await asyncio.to_thread(replay)
    finally:
        cancelled.set()
    state = fold.cluster.state
    while state.sequence < sequence:
        entries = await log.read(state.sequence + 1, min(CHUNK, sequence - state.sequence))
        if not entries:
            raise MomentError(f"entry {sequence} is in the future: the log ends at entry {state.sequence}")
        fold.apply_all(entries)
        await asyncio.sleep(0)
    return fold


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
