"""The follower: starts from what it has, folds at once, mirrors behind, and refuses what does not belong together."""

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from log_maker import RandomCluster, fill, fold_of, grow, log_of, rows_of

from muster.events.log import Entry, MissingEntryError
from muster.events.memory import MemoryLog
from muster.projections import mirror_writer, replay
from muster.projections.fold import FOLD_VERSION
from muster.projections.follower import Follower, FollowerStoppedError, StoreMismatchError
from muster.projections.mirror import Mirror, MirrorRow
from muster.projections.mirror_writer import Batch, MirrorWriter
from muster.projections.read_models import JobQuery
from muster.projections.replay import fold_at
from muster.projections.schema import StoreError
from muster.projections.store import Store

CLUSTER = RandomCluster(seed=31, entries=1500)
ENTRIES = CLUSTER.entries
DEADLINE_S = 20.0


@asynccontextmanager
async def running(follower: Follower) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(follower.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "muster.db")
    yield opened
    await opened.close()


def state(entries: list[Entry]) -> bytes:
    return fold_of(entries).state_bytes()


async def test_it_follows_a_log_that_grows(store: Store) -> None:
    log = log_of(ENTRIES[:600])
    follower = Follower(log, store)
    async with running(follower):
        await follower.wait_for(600, DEADLINE_S)
        assert follower.fold.state_bytes() == state(ENTRIES[:600])
        waiting = asyncio.create_task(follower.changed(600))
        await grow(log, ENTRIES[600:])
        assert await asyncio.wait_for(waiting, DEADLINE_S) > 600
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
        assert await follower.changed(0) == len(ENTRIES)
    assert follower.fold.state_bytes() == state(ENTRIES)
    assert store.position == len(ENTRIES)
    assert [entry for chunk in await read_all(store) for entry in chunk] == ENTRIES


async def read_all(store: Store) -> list[list[Entry]]:
    def read() -> list[list[Entry]]:
        with Mirror(store.path) as mirror:
            return list(mirror.entries(1, mirror.position()))

    return await asyncio.to_thread(read)


async def test_without_a_store_it_folds_the_log_from_its_start() -> None:
    follower = Follower(log_of(ENTRIES))
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    assert follower.fold.state_bytes() == state(ENTRIES)


async def test_every_job_ever_is_in_the_read_model_as_it_ended(store: Store) -> None:
    follower = Follower(log_of(ENTRIES), store)
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    last: dict[int, str] = {}
    fold = fold_of([])
    for entry in ENTRIES:
        fold.apply(entry)
        last.update({job.id: job.phase for job in fold.cluster.state.jobs.values()})
    assert len(fold.cluster.state.jobs) < len(last), "some have left the state"
    rows = [row for before in range(5000, 0, -1000) for row in await store.jobs(JobQuery(limit=1000, before=before))]
    assert {row.id: row.phase for row in rows} == last
    some = next(job_id for job_id, job in fold.cluster.state.jobs.items() if job.attempts > 1)
    named = [e.sequence for e in ENTRIES if f'"job":{some},'.encode() in e.payload + b"," or e.sequence == some]
    assert [entry.sequence for entry in await store.job_events(some)] == named


async def test_a_new_process_starts_from_the_store_and_reads_only_the_rest(store: Store) -> None:
    log = log_of(ENTRIES[:1000])
    follower = Follower(log, store, snapshot_entries=400)
    async with running(follower):
        await follower.wait_for(1000, DEADLINE_S)
    snapshot = await store.nearest_snapshot(10_000, FOLD_VERSION)
    assert snapshot is not None
    assert snapshot.sequence == 1000, "a clean end leaves a snapshot"

    class RestOnly(MemoryLog):
        async def tail(self, first: int) -> AsyncIterator[list[Entry]]:
            assert first == 1001
            async for chunk in super().tail(first):
                yield chunk

    rest = RestOnly()
    rest.entries.extend(ENTRIES)
    again = Follower(rest, store)
    async with running(again):
        await again.wait_for(len(ENTRIES), DEADLINE_S)
    assert again.fold.state_bytes() == state(ENTRIES)


async def test_every_start_and_end_leaves_one_consistent_store(store: Store) -> None:
    """Cancelled at any step, the next process goes on from there."""
    for steps in range(0, 120, 7):
        log = log_of(ENTRIES[: 100 + steps * 10])
        task = asyncio.create_task(Follower(log, store, snapshot_entries=50).run())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    follower = Follower(log_of(ENTRIES), store)
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    assert follower.fold.state_bytes() == state(ENTRIES)
    assert [entry for chunk in await read_all(store) for entry in chunk] == ENTRIES


class SlowDisk:
    """A store whose writes wait for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.written: list[int] = []

    async def append(self, rows: list[MirrorRow], jobs: object, snapshots: object) -> None:
        await self.gate.wait()
        self.written += [row.sequence for row in rows]


async def test_the_fold_waits_for_the_disk_only_where_the_backlog_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_writer, "BACKLOG_ENTRIES", 300)
    disk = SlowDisk()
    writer = MirrorWriter(disk)  # type: ignore[arg-type]
    writing = asyncio.create_task(writer.run())
    rows = rows_of(ENTRIES[:400])
    await writer.add(Batch(rows[:100], [], None))
    await writer.add(Batch(rows[100:200], [], None))
    third = asyncio.create_task(writer.add(Batch(rows[200:300], [], None)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not third.done()
    disk.gate.set()
    await asyncio.wait_for(third, DEADLINE_S)
    await writer.add(Batch(rows[300:], [], None))
    writer.finish()
    await asyncio.wait_for(writing, DEADLINE_S)
    assert disk.written == list(range(1, 401))


async def test_a_store_that_cannot_be_written_ends_the_follower_with_its_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreError("no space left on the disk")

    monkeypatch.setattr(store, "append", full)
    log = log_of(ENTRIES[:100])
    task = asyncio.create_task(Follower(log, store).run())
    with pytest.raises(StoreError, match="no space"):
        await asyncio.wait_for(task, DEADLINE_S)


async def test_entries_are_read_from_wherever_they_are(store: Store) -> None:
    await fill(store, ENTRIES[:500])
    follower = Follower(log_of(ENTRIES[:800]), store)
    async with running(follower):
        await follower.wait_for(800, DEADLINE_S)
        assert await follower.read(1, 10) == ENTRIES[:10]
        assert await follower.read(790, 100) == ENTRIES[789:800]
        assert await follower.read(801) == []
        got: list[Entry] = []
        while len(got) < 800:
            got += await follower.read(len(got) + 1, 77)
        assert got == ENTRIES[:800]
    bare = Follower(log_of(ENTRIES))
    bare._recent.clear()
    async with running(bare):
        await bare.wait_for(len(ENTRIES), DEADLINE_S)
        bare._recent.clear()
        assert await bare.read(5, 3) == ENTRIES[4:7]


FOLLOWER = """
import asyncio, sys
from pathlib import Path
from log_maker import RandomCluster, grow, log_of
from muster.projections.follower import Follower
from muster.projections.store import Store

async def main():
    store = await Store.open(Path(sys.argv[1]))
    log = log_of([])
    entries = RandomCluster(seed=31, entries=1500).entries
    await grow(log, entries[: store.position + 1])
    follower = Follower(log, store, snapshot_entries=100)
    task = asyncio.create_task(follower.run())
    for start in range(store.position + 1, len(entries), 20):
        await grow(log, entries[start : start + 20])
        await follower.wait_for(min(start + 20, len(entries)), 20)
        print(store.position, flush=True)
        await asyncio.sleep(0.01)
    await task

asyncio.run(main())
"""


async def test_a_follower_killed_at_any_moment_goes_on_from_its_store(tmp_path: Path) -> None:
    path = tmp_path / "muster.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for lines in (3, 17, 11):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FOLLOWER, str(path), stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        mirrored = [int(await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)) for _ in range(lines)][-1]
        process.kill()
        await process.communicate()
        store = await Store.open(path)
        assert store.position >= mirrored
        with Mirror(path) as mirror:
            assert fold_at(mirror, store.position).state_bytes() == state(ENTRIES[: store.position])
        await store.close()
    store = await Store.open(path)
    assert 0 < store.position < len(ENTRIES)
    follower = Follower(log_of(ENTRIES), store)
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    assert follower.fold.state_bytes() == state(ENTRIES)
    await store.close()


# -- what does not belong together ------------------------------------------------------------------------------


async def test_a_store_ahead_of_the_log_is_refused(store: Store) -> None:
    await fill(store, ENTRIES[:500])
    with pytest.raises(StoreMismatchError, match="ends at entry 500, the log at 400"):
        await Follower(log_of(ENTRIES[:400]), store).run()
    assert store.position == 500


async def test_a_store_of_another_log_is_refused(store: Store) -> None:
    await fill(store, RandomCluster(seed=32, entries=300).entries[:300])
    with pytest.raises(StoreMismatchError, match="another log: entry 300"):
        await Follower(log_of(ENTRIES), store).run()
    assert store.position == 300


async def test_a_damaged_mirror_is_refused(store: Store) -> None:
    await fill(store, ENTRIES[:500])
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE entries SET payload = x'00' WHERE sequence = 250")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        await Follower(log_of(ENTRIES), store).run()


async def test_a_damaged_snapshot_is_passed_over(store: Store) -> None:
    await fill(store, ENTRIES[:500], (100, 400))
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE snapshots SET chain = zeroblob(16) WHERE sequence = 400")
    connection.commit()
    connection.close()
    follower = Follower(log_of(ENTRIES), store)
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    assert follower.fold.state_bytes() == state(ENTRIES)


async def test_another_folds_read_models_are_made_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SPACING_ENTRIES", 1000)
    monkeypatch.setattr(replay, "spacing_entries", lambda _: 1000)
    follower = Follower(log_of(ENTRIES), store)
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    before = await store.jobs(JobQuery(limit=1000))
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE models SET fold_version = 999")
    connection.execute("UPDATE jobs SET phase = 'REJECTED', reason = 'by another version'")
    connection.execute("UPDATE snapshots SET fold_version = 999, state = x'00'")
    connection.commit()
    connection.close()
    again = Follower(log_of(ENTRIES), store)
    async with running(again):
        await again.wait_for(len(ENTRIES), DEADLINE_S)
    assert await store.jobs(JobQuery(limit=1000)) == before
    assert again.fold.state_bytes() == state(ENTRIES)
    on_the_way = await store.nearest_snapshot(1499, FOLD_VERSION)
    assert on_the_way is not None, "past moments are as near as before"
    assert (on_the_way.sequence, on_the_way.state) == (1000, state(ENTRIES[:1000]))


# -- missing entries --------------------------------------------------------------------------------------------


class HoledLog(MemoryLog):
    """Entry 700 is lost, for the leader too."""

    async def tail(self, first: int) -> AsyncIterator[list[Entry]]:
        async for chunk in super().tail(first):
            sound = [entry for entry in chunk if entry.sequence < 700 or first > 700]
            if sound:
                yield sound
            if len(sound) < len(chunk):
                raise MissingEntryError(700)


def holed() -> HoledLog:
    log = HoledLog()
    log.entries.extend(ENTRIES)
    return log


async def test_a_missing_entry_stops_it_with_its_number_and_wakes_who_waits(store: Store) -> None:
    follower = Follower(holed(), store)
    task = asyncio.create_task(follower.run())
    with pytest.raises(FollowerStoppedError):
        await follower.wait_for(701, DEADLINE_S)
    with pytest.raises(MissingEntryError, match="entry 700"):
        await task
    assert follower.position == store.position == 699


async def test_a_missing_entry_is_taken_from_another_mirror_of_the_same_log(store: Store, tmp_path: Path) -> None:
    others = []
    for name, entries in (("wrong", RandomCluster(33, 800).entries), ("right", ENTRIES)):
        other = await Store.open(tmp_path / name)
        await fill(other, entries)
        await other.close()
        others.append(other.path)
    follower = Follower(holed(), store, other_mirrors=[tmp_path / "absent", *others])
    async with running(follower):
        await follower.wait_for(len(ENTRIES), DEADLINE_S)
    assert follower.fold.state_bytes() == state(ENTRIES)


async def test_waiting_has_a_limit_and_ends_with_the_follower() -> None:
    follower = Follower(log_of(ENTRIES[:10]))
    async with running(follower) as task:
        await follower.wait_for(10, DEADLINE_S)
        with pytest.raises(TimeoutError):
            await follower.wait_for(11, 0.01)
        waiting = asyncio.create_task(follower.changed(10))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(FollowerStoppedError):
            await asyncio.wait_for(waiting, DEADLINE_S)
