"""Placements per second: through `decide` alone, and through the log (appended, acknowledged, folded)."""

import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bench.table import Row, percentile
from bench.workload import NODES, PENDING, Paper, messages, mixed, registrations, submission
from muster.core.decide import decide
from muster.events import types as t
from muster.events.beats import MemoryTelemetry
from muster.events.broker import Broker
from muster.events.connection import Connection
from muster.events.jetstream import JetStreamLog
from muster.events.lease import MemoryLeases
from muster.events.log import BATCH_LIMIT, Log
from muster.events.streams import set_up
from muster.projections.follower import Follower
from muster.projections.scheduler import Scheduler


def decide_alone(*, gangs: bool) -> Row:
    """Passes over 10,000 waiting jobs until nothing fits; only the time inside `decide` counts."""
    paper = Paper()
    for registration in registrations():
        paper.append(registration)
    for number in range(PENDING):
        paper.append(mixed(number) if gangs else submission())
    placed, passes = 0, []
    while True:
        begun = time.perf_counter()
        events = decide(paper.fold.cluster)
        passes.append(time.perf_counter() - begun)
        if not events:
            break
        placed += sum(isinstance(event, t.JobAllocated) for event in events)
        for event in events:
            paper.append(event)
    what = "mixed gangs" if gangs else "one-device jobs"
    rest_ms = passes.pop() * 1e3
    value = f"{placed / sum(passes):,.0f} placements/s"
    p99_ms = percentile(passes, 0.99) * 1e3
    beside = f"{placed:,} placed; a pass p99 {p99_ms:.1f} ms, one with nothing to do {rest_ms:.2f} ms"
    return Row(f"decide alone, {what}", value, beside)


async def through_the_log() -> list[Row]:
    """The scheduler itself on a broker (`sync_interval: always`): from its first decision to its last one folded."""
    with tempfile.TemporaryDirectory() as folder:
        async with Broker(Path(folder)) as broker:
            await set_up(broker.urls, broker.credentials)
            connection = await Connection.open(broker.urls, broker.credentials["operator"], "bench")
            log = await JetStreamLog.open(connection)
            rows = [await _drain(log)]
            await connection.close()
            return rows


async def _drain(log: Log) -> Row:
    facts = [*registrations(), *(submission() for _ in range(PENDING))]
    prepared = messages(facts, "fact")
    for start in range(0, len(prepared), BATCH_LIMIT):
        await log.append_batch(prepared[start : start + BATCH_LIMIT])
    follower = Follower(log)
    scheduler = Scheduler("bench", log, follower, MemoryLeases().of("bench"), MemoryTelemetry())
    following = asyncio.create_task(follower.run())
    await follower.wait_for(len(prepared), 60)
    scheduling = asyncio.create_task(scheduler.run())
    await scheduler.leading.wait()
    begun = time.perf_counter()
    placed = NODES * 8
    last = len(prepared) + 1 + 2 * placed
    await follower.wait_for(last, 120)
    seconds = time.perf_counter() - begun
    for task in (scheduling, following):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    beside = f"{2 * placed / seconds:,.0f} entries/s appended, acknowledged and folded"
    return Row("placement through the log, one-device jobs", f"{placed / seconds:,.0f} placements/s", beside)
