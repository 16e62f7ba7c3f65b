"""Past states: how long any moment of a long log takes, and what the mirror that answers takes on the disk.

The log is a busy cluster's: 64 nodes of 8 devices, a thousand jobs that wait, five entries a second, so that an hour of
ended jobs, some 3,000, is in the state beside them. Moments are asked for as times, drawn evenly from the whole log.
"""

import asyncio
import random
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.table import Row, percentile
from bench.workload import Paper, mixed, registrations
from muster.core.decide import decide
from muster.events import types as t
from muster.events.log import Entry
from muster.events.memory import MemoryLog
from muster.projections import follower as following
from muster.projections.mirror import CHUNK
from muster.projections.store import Store
from muster.projections.timetravel import resolve_moment, state_at

NODES = 64
WAITING = 1_000
STEP_NS = 200_000_000
ENDING = 20
MOMENTS = 200
MIB = 1 << 20


class BusyLog(MemoryLog):
    """So many entries, made as they are read and kept by nobody."""

    def __init__(self, count: int, nodes: int, waiting: int) -> None:
        super().__init__()
        self.count = count
        self.making_s = 0.0
        self._chunks = busy(nodes, waiting)

    async def tail(self, first: int) -> AsyncIterator[list[Entry]]:
        """All of them, in chunks; then nothing more comes."""
        assert first == 1
        last = 0
        while last < self.count:
            begun = time.perf_counter()
            chunk = next(self._chunks)[: self.count - last]
            self.making_s += time.perf_counter() - begun
            last = chunk[-1].sequence
            yield chunk
        await asyncio.Event().wait()


def busy(nodes: int, waiting: int) -> Iterator[list[Entry]]:
    """A full cluster's log in chunks, for ever: as some jobs end others are submitted and placed."""
    paper = Paper(STEP_NS)
    for registration in registrations(nodes):
        paper.append(registration)
    number, running = 0, deque[int]()
    while True:
        while paper.fold.cluster.lines.count < waiting:
            paper.append(mixed(number))
            number += 1
        allocated = []
        for event in decide(paper.fold.cluster):
            paper.append(event)
            if isinstance(event, t.JobAllocated):
                allocated.append(event.job)
        paper.start(allocated)
        running.extend(allocated)
        paper.end([running.popleft() for _ in range(ENDING)])
        if len(paper.entries) >= CHUNK:
            yield paper.entries.copy()
            paper.entries.clear()


async def measure(sizes: list[int]) -> list[Row]:
    """Logs of these sizes, one after another; in a folder that is removed."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows += await visit(Path(folder) / "mirror.sqlite", size)
    return rows


async def visit(path: Path, count: int, nodes: int = NODES, waiting: int = WAITING) -> list[Row]:
    """A mirror of so many entries, as its follower leaves it, and moments of it."""
    log = BusyLog(count, nodes, waiting)
    store = await Store.open(path)
    following_s, encoding_s = await follow(log, store)
    at_random = random.Random(count)  # noqa: S311 - the same moments each time
    seconds, busy_seconds, state_bytes, jobs = [], [], 0, 0
    for _ in range(MOMENTS):
        time_ns = 1_000_000_000 + at_random.randint(1, count) * STEP_NS
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time_ns // 10**9))}.{time_ns % 10**9:09d}Z"
        begun, busy_begun = time.perf_counter(), time.process_time()
        fold = await state_at(store, log, await resolve_moment(store, log, at, time.time_ns()))
        seconds.append(time.perf_counter() - begun)
        busy_seconds.append(time.process_time() - busy_begun)
        state_bytes, jobs = len(fold.state_bytes()), len(fold.cluster.state.jobs)
    await store.close()
    p50_ms, p99_ms, busy_p50_ms, busy_p99_ms = (
        percentile(measured, share) * 1e3 for measured in (seconds, busy_seconds) for share in (0.5, 0.99)
    )
    return [
        Row(
            f"a past moment of {count:,} entries",
            f"p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms",
            f"{MOMENTS} at random; processor time {busy_p50_ms:.0f} and {busy_p99_ms:.0f} ms; a state of {jobs:,} jobs,"
            f" {state_bytes / MIB:.1f} MiB",
        ),
        Row("its mirror on the disk", *sizes_of(path)),
        Row(
            "snapshots while following",
            f"{100 * encoding_s / following_s:.0f} % of the loop's time",
            f"{count / following_s:,.0f} entries/s folded and mirrored",
        ),
    ]


async def follow(log: BusyLog, store: Store) -> tuple[float, float]:
    """Seconds that following took, without the making of the log, and those of them in which snapshots were encoded."""
    encoding_s = 0.0
    encode = following.snapshot_of

    def timed(fold: following.Fold) -> following.Snapshot:
        nonlocal encoding_s
        begun = time.perf_counter()
        snapshot = encode(fold)
        encoding_s += time.perf_counter() - begun
        return snapshot

    following.snapshot_of = timed  # type: ignore[attr-defined]
    try:
        begun = time.perf_counter()
        task = asyncio.create_task((follower := following.Follower(log, store)).run())
        await follower.wait_for(log.count, 3600)
        task.cancel()
        await asyncio.wait({task})
        return time.perf_counter() - begun - log.making_s, encoding_s
    finally:
        following.snapshot_of = encode  # type: ignore[attr-defined]


def sizes_of(path: Path) -> tuple[str, str]:
    """What the file takes, and what its tables do."""
    connection = sqlite3.connect(path)
    pages = dict(connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
    count = connection.execute("SELECT count(*) FROM snapshots").fetchone()[0]
    connection.close()
    jobs = sum(size for name, size in pages.items() if name.startswith("jobs"))
    kinds = (
        ("entries", pages["entries"]),
        (f"{count:,} snapshots", pages["snapshots"]),
        ("jobs", jobs),
        ("jobs' entries", pages["job_entries"]),
    )
    beside = ", ".join(f"{name} {size / MIB:,.0f}" for name, size in kinds)
    return f"{path.stat().st_size / MIB:,.0f} MiB", beside
