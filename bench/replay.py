"""How quickly the log becomes state: the fold, and replays from SQLite and from JetStream, beside a bare decode."""

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.table import Row
from bench.workload import history
from muster.events import codec
from muster.events.broker import Broker
from muster.events.connection import Connection
from muster.events.jetstream import JetStreamLog
from muster.events.log import BATCH_LIMIT, Entry, Message
from muster.events.memory import MemoryLog
from muster.events.streams import set_up
from muster.projections.fold import Fold, next_chain
from muster.projections.follower import Follower
from muster.projections.mirror import Mirror, MirrorRow
from muster.projections.replay import cold_start, collector_at_rest
from muster.projections.store import Store


def best_of(action: Callable[[], object], times: int = 3) -> float:
    """Seconds of the quickest of a few runs."""
    seconds = []
    for _ in range(times):
        gc.collect()
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


async def measure(entries_wanted: int, cold_entries: int) -> list[Row]:
    """Fold, SQLite and JetStream on the same entries; a cold start on many."""
    entries = history(entries_wanted)
    gc.freeze()
    bare_s = best_of(lambda: [None for entry in entries if codec.decode_known(entry.payload) is None])
    fold_s = best_of(lambda: _fold(entries))
    rows = [
        Row("bare msgspec decode", f"{len(entries) / bare_s:,.0f} entries/s", "1"),
        _beside("fold (chain, decode, state)", len(entries), fold_s, bare_s),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mirror.sqlite"
        await fill_store(path, entries)
        sqlite_s = best_of(lambda: _fold_mirror(path, len(entries)), 2)
        rows.append(_beside("replay from SQLite (read, fold)", len(entries), sqlite_s, bare_s))
        jetstream_s = await _jetstream_replay(Path(folder) / "broker", entries)
        rows.append(_beside("replay from JetStream (read, fold)", len(entries), jetstream_s, bare_s))
    rows.append(await _cold_start(cold_entries))
    return rows


def _beside(what: str, count: int, seconds: float, bare_s: float) -> Row:
    return Row(what, f"{count / seconds:,.0f} entries/s", f"{bare_s / seconds:.2f} of the bare decode")


def _fold(entries: list[Entry]) -> None:
    """As a cold start does it: without cycle collection, since a state that is built holds no garbage."""
    with collector_at_rest():
        Fold.empty().apply_all(entries)


def _fold_mirror(path: Path, last: int) -> None:
    with Mirror(path) as mirror, collector_at_rest():
        fold = Fold.empty()
        for chunk in mirror.entries(1, last):
            fold.apply_all(chunk)


async def fill_store(path: Path, entries: list[Entry]) -> None:
    """A store with these entries and nothing else."""
    store = await Store.open(path)
    chain = bytes(16)
    for start in range(0, len(entries), 1000):
        rows = []
        for entry in entries[start : start + 1000]:
            chain = next_chain(chain, entry)
            rows.append(MirrorRow(*entry, chain))
        await store.append(rows, [])
    await store.close()


async def _jetstream_replay(folder: Path, entries: list[Entry]) -> float:
    async with Broker(folder) as broker:
        await set_up(broker.urls, broker.credentials)
        connection = await Connection.open(broker.urls, broker.credentials["operator"], "bench")
        log = await JetStreamLog.open(connection)
        for start in range(0, len(entries), BATCH_LIMIT):
            part = entries[start : start + BATCH_LIMIT]
            await log.append_batch([Message(entry.subject, entry.payload, f"b-{entry.sequence}") for entry in part])
        begun = time.perf_counter()
        fold = Fold.empty()
        async for chunk in log.tail(1):
            fold.apply_all(chunk)
            if fold.cluster.state.sequence == len(entries):
                break
        seconds = time.perf_counter() - begun
        await connection.close()
        return seconds


async def _cold_start(count: int) -> Row:
    """A process starts on a mirror of many entries, as its own follower left it (with snapshots)."""
    log = MemoryLog()
    log.entries.extend(history(count))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mirror.sqlite"
        store = await Store.open(path)
        following = asyncio.create_task((follower := Follower(log, store)).run())
        await follower.wait_for(count, 600)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.close()
        seconds = best_of(lambda: cold_start(path), 2)
        size_mib = path.stat().st_size / (1 << 20)
    return Row(
        f"cold start with {count:,} entries",
        f"{seconds:.2f} s",
        f"mirror of {size_mib:,.0f} MiB, from its last snapshot",
    )
