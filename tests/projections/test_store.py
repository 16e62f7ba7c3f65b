"""The store: what was appended is there, after a kill too; what does not follow is refused."""

import asyncio
import hashlib
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from cluster_script import Script
from log_maker import RandomCluster, fill, fold_of, rows_of

from muster.core.state import Job
from muster.events.log import Entry
from muster.events.spec import JobSpec
from muster.projections import snapshots
from muster.projections.mirror import Mirror, MirrorRow, Snapshot
from muster.projections.read_models import JobQuery, JobRow, job_row, mentioned_jobs
from muster.projections.replay import cold_start, fold_at, snapshot_of
from muster.projections.schema import StoreError
from muster.projections.snapshots import superfluous
from muster.projections.store import Store

SECOND = 1_000_000_000


def rows(first: int, last: int, step_ns: int = SECOND) -> list[MirrorRow]:
    return [
        MirrorRow(n, n * step_ns, "muster.submission.default", b"{}", hashlib.md5(b"%d" % n).digest())
        for n in range(first, last + 1)
    ]


def job(job_id: int, **fields: object) -> Job:
    return msgspec.structs.replace(
        Job(id=job_id, user="ann", spec=JobSpec(command="true", gpus=1), submitted_ns=job_id * SECOND), **fields
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "muster.db")
    yield opened
    await opened.close()


async def test_what_was_appended_is_read_back_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "a folder, with ?#%" / "muster.db"
    path.parent.mkdir()
    store = await Store.open(path)
    await store.append(rows(1, 5), [job_row(job(1))])
    await store.append(rows(6, 7), [job_row(job(1, phase="COMPLETED", exit_code=0, ended_ns=7))])
    await store.close()
    assert path.stat().st_mode & 0o777 == 0o600

    store = await Store.open(path)
    assert store.position == 7
    assert await store.read(3, 2) == [row.entry for row in rows(3, 4)]
    assert await store.read(6) == [row.entry for row in rows(6, 7)]
    found = await store.job(1)
    assert found == job(1, phase="COMPLETED", exit_code=0, ended_ns=7)
    assert await store.job(2) is None
    await store.close()
    with Mirror(path) as mirror:
        assert [row for chunk in mirror.rows(1, 7) for row in chunk] == rows(1, 7)
        assert mirror.chain(0) == bytes(16)
        assert mirror.chain(4) == rows(4, 4)[0].chain
        assert mirror.chain(8) is None


@pytest.mark.parametrize("wrong", [rows(7, 8), rows(5, 6), rows(1, 1), [*rows(6, 6), *rows(8, 8)]])
async def test_rows_that_do_not_follow_are_refused_and_leave_nothing(store: Store, wrong: list[MirrorRow]) -> None:
    await store.append(rows(1, 5))
    with pytest.raises(StoreError):
        await store.append(wrong, [job_row(job(1))])
    assert store.position == 5
    assert await store.read(1) == [row.entry for row in rows(1, 5)]
    assert await store.job(1) is None
    await store.append(rows(6, 6))
    assert store.position == 6


async def test_a_second_writer_is_noticed(store: Store) -> None:
    await store.append(rows(1, 2))
    other = await Store.open(store.path)
    await other.append(rows(3, 3))
    with pytest.raises(StoreError, match="ends at 3"):
        await store.append(rows(3, 4))
    await other.close()


async def test_a_cancelled_append_is_whole_or_absent(store: Store) -> None:
    for first in range(1, 200, 10):
        task = asyncio.create_task(store.append(rows(store.position + 1, store.position + 10), [job_row(job(1))]))
        for _ in range(first % 30):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert store.position % 10 == 0
    await store.append(rows(store.position + 1, store.position + 10))
    assert await store.read(store.position + 1) == []
    assert len(await store.read(store.position - 9)) == 10


async def test_files_that_are_no_store_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "muster.db"
    path.write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(StoreError, match="move it away"):
        await Store.open(path)
    path.unlink()

    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StoreError, match="another program"):
        await Store.open(path)
    path.unlink()

    await (await Store.open(path)).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StoreError, match="layout 99"):
        await Store.open(path)


async def test_a_time_is_the_last_entry_not_after_it(store: Store) -> None:
    assert await store.sequence_at(SECOND) == 0
    await store.append(rows(1, 5))
    assert [await store.sequence_at(t) for t in (SECOND - 1, SECOND, 3 * SECOND + 1, 5 * SECOND, 99 * SECOND)] == [
        0,
        1,
        3,
        5,
        5,
    ]


async def test_a_hole_is_an_error_that_names_it(store: Store) -> None:
    await store.append(rows(1, 5))
    damaged = sqlite3.connect(store.path)
    damaged.execute("DELETE FROM entries WHERE sequence = 3")
    damaged.commit()
    damaged.close()
    with Mirror(store.path) as mirror, pytest.raises(StoreError, match="no entry 3"):
        list(mirror.entries(1, 5))


# -- snapshots --------------------------------------------------------------------------------------------------


async def test_the_nearest_undamaged_snapshot_of_this_version_is_found(store: Store) -> None:
    await store.append(rows(1, 50))
    for sequence, version in ((10, 1), (20, 1), (30, 2), (40, 1)):
        await store.save_snapshot(Snapshot(sequence, version, b"c" * 16, sequence, b"state" * sequence))
    found = await store.nearest_snapshot(39, 1)
    assert found is not None
    assert (found.sequence, found.state) == (20, b"state" * 20)
    assert await store.nearest_snapshot(9, 1) is None
    damaged = sqlite3.connect(store.path)
    damaged.execute("UPDATE snapshots SET state = substr(state, 1, length(state) - 1) WHERE sequence = 40")
    damaged.commit()
    damaged.close()
    found = await store.nearest_snapshot(50, 1)
    assert found is not None
    assert found.sequence == 20


async def test_a_snapshot_ahead_of_the_mirror_is_refused(store: Store) -> None:
    await store.append(rows(1, 5))
    with pytest.raises(StoreError, match="ahead"):
        await store.save_snapshot(Snapshot(6, 1, b"c" * 16, 6, b""))
    with pytest.raises(StoreError, match="ahead"):
        await store.append(rows(6, 7), snapshots=[Snapshot(8, 1, b"c" * 16, 8, b"")])
    assert store.position == 5


async def test_snapshots_are_kept_evenly_within_their_share_of_the_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LEAST_LIMIT_BYTES", 40_000)
    noise = random.Random(1).randbytes(10_000)  # as large compressed as not
    for last in range(100, 1001, 100):
        await store.append(rows(last - 99, last), snapshots=[Snapshot(last, 1, b"c" * 16, last, noise)])
    kept = [snapshot.sequence for snapshot in mirrored_snapshots(store)]
    assert 3 <= len(kept) <= 4, "a snapshot takes ten thousand bytes, and a little more"
    assert kept[0] == 1000, "the newest stays"
    assert max(then - before for before, then in pairwise([0, *reversed(kept)])) <= 400


def mirrored_snapshots(store: Store) -> list[Snapshot]:
    with Mirror(store.path) as mirror:
        return list(mirror.snapshots(10_000, 1))


def test_those_that_stand_closest_go_first_and_of_equals_the_oldest() -> None:
    of_ten = [(sequence, 10) for sequence in (100, 200, 300, 350, 400)]
    assert superfluous(of_ten, 50) == []
    assert superfluous(of_ten, 40) == [350]
    assert superfluous(of_ten, 30) == [350, 100]
    assert superfluous(of_ten, 0) == [350, 100, 300, 200], "the newest stays"


# -- read models ------------------------------------------------------------------------------------------------


async def test_jobs_are_listed_newest_first_by_conditions_and_pages(store: Store) -> None:
    spec = JobSpec(command="true", gpus=1, name="llama-sft", queue="research")
    await store.append(
        rows(1, 6),
        [
            job_row(job(1)),
            job_row(job(2, user="bob", phase="RUNNING")),
            job_row(job(3, spec=spec)),
            job_row(job(4, spec=spec, user="bob", phase="FAILED", exit_code=3)),
            job_row(job(5, phase="CANCELLED", exit_code=2**70)),
        ],
    )

    async def ids(query: JobQuery) -> list[int]:
        return [row.id for row in await store.jobs(query)]

    assert await ids(JobQuery()) == [5, 4, 3, 2, 1]
    assert await ids(JobQuery(limit=2)) == [5, 4]
    assert await ids(JobQuery(limit=2, before=4)) == [3, 2]
    assert await ids(JobQuery(users=("bob",))) == [4, 2]
    assert await ids(JobQuery(queues=("research",), users=("bob",))) == [4]
    assert await ids(JobQuery(users=("bob", "nobody", "ann"))) == [5, 4, 3, 2, 1]
    assert await ids(JobQuery(ids=(5, 2, 9), queues=("research", "default"))) == [5, 2]
    assert await ids(JobQuery(name="sft")) == [4, 3]
    assert await ids(JobQuery(name="%")) == []
    assert await ids(JobQuery(phases=("FAILED", "RUNNING"))) == [4, 2]
    assert await ids(JobQuery(since_ns=2 * SECOND, until_ns=4 * SECOND)) == [4, 3, 2]
    assert [row.exit_code for row in await store.jobs(JobQuery(limit=2))] == [None, 3]


@pytest.mark.parametrize(
    ("subject", "payload", "jobs"),
    [
        ("muster.submission.default", b'{"type":"JobSubmitted.1"}', {9}),
        ("muster.job.default.job-cancel-requested", b'{"job":4}', {4}),
        ("muster.decision._cluster.node-lost", b'{"ended":[{"job":4,"attempt":1},{"job":5,"attempt":1}]}', {4, 5}),
        ("muster.node.n1.node-registered", b'{"workers":[{"job":7},{"job":8}]}', {7, 8}),
        ("muster.decision.q.stop-ordered", b'{"job":4,"workers":[{"rank":0,"node":"n"}]}', {4}),
        ("muster.admin.node-cordoned", b'{"node":"n1"}', set()),
        ("muster.node.n1.worker-exited", b'{"job":99999999999999999999999}', set()),
        ("muster.node.n1.worker-exited", b"\xff not json", set()),
        ("muster.node.n1.worker-exited", b'{"job":"4","workers":7}', set()),
    ],
)
def test_an_entry_concerns_the_jobs_it_names(subject: str, payload: bytes, jobs: set[int]) -> None:
    assert mentioned_jobs(Entry(9, 0, subject, payload)) == jobs


async def test_a_jobs_events_are_its_own_in_order(store: Store) -> None:
    subjects = ["muster.submission.q", "muster.submission.q", "muster.node.n.worker-exited", "muster.node.n.x"]
    payloads = [b"{}", b"{}", b'{"job":1}', b'{"job":2}']
    written = [
        MirrorRow(n, n, subject, payload, b"c")
        for n, (subject, payload) in enumerate(zip(subjects, payloads, strict=True), 1)
    ]
    await store.append(written)
    assert [entry.sequence for entry in await store.job_events(1)] == [1, 3]
    assert [entry.sequence for entry in await store.job_events(2)] == [2, 4]
    assert [entry.sequence for entry in await store.job_events(1, after=1)] == [3]
    assert [entry.sequence for entry in await store.job_events(1, limit=1)] == [1]
    assert await store.job_events(3) == []


# -- kill -9 ----------------------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from pathlib import Path
from muster.core.state import Job
from muster.events.spec import JobSpec
from muster.projections.mirror import MirrorRow, Snapshot
from muster.projections.read_models import job_row
from muster.projections.store import Store

async def main():
    store = await Store.open(Path(sys.argv[1]))
    while True:
        first = store.position + 1
        new = range(first, first + 100)
        rows = [MirrorRow(n, n, "muster.submission.q", b"x" * 300, n.to_bytes(16)) for n in new]
        jobs = [job_row(Job(id=n, user="u", spec=JobSpec(command="c"), submitted_ns=n)) for n in new]
        await store.append(rows, jobs, [Snapshot(first + 99, 1, b"c" * 16, 0, b"state")])
        print(store.position, flush=True)

asyncio.run(main())
"""


async def test_a_writer_killed_at_any_moment_leaves_one_position(tmp_path: Path) -> None:
    path = tmp_path / "muster.db"
    for appends in (1, 4, 9):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        acknowledged = [int(await asyncio.wait_for(process.stdout.readline(), 20)) for _ in range(appends)][-1]
        process.send_signal(signal.SIGKILL)
        await process.communicate()

        store = await Store.open(path)
        assert store.position >= acknowledged
        assert store.position % 100 == 0
        [newest] = await store.jobs(JobQuery(limit=1))
        assert newest.id == store.position
        assert [entry.sequence for entry in await store.job_events(store.position)] == [store.position]
        snapshot = await store.nearest_snapshot(store.position, 1)
        assert snapshot is not None
        assert snapshot.sequence == store.position
        await store.close()
        with Mirror(path) as mirror:
            assert sum(map(len, mirror.rows(1, mirror.position()))) == mirror.position()


# -- other layouts ----------------------------------------------------------------------------------------------


async def test_an_older_layout_keeps_its_entries_and_makes_the_jobs_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    script.node("node-1")
    job_id = script.submit(JobSpec(command="true", gpus=2))
    script.settle()
    script.start(job_id)
    script.advance(30)
    script.exit(job_id)
    path = tmp_path / "mirror.sqlite"
    store = await Store.open(path)
    await fill(store, script.entries)
    before = await store.jobs(JobQuery())
    await store.close()
    with sqlite3.connect(path) as older:  # as the first layout had it
        older.execute("DROP TABLE origin")
        older.execute("DROP TABLE models")
        older.execute("DROP TABLE jobs")
        older.execute("CREATE TABLE models (one INTEGER PRIMARY KEY CHECK (one = 1), fold_version INTEGER NOT NULL)")
        older.execute("INSERT INTO models VALUES (1, 7)")
        older.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, user TEXT NOT NULL, job BLOB NOT NULL)")
        older.execute("CREATE INDEX jobs_by_user ON jobs (user, id)")
        older.execute("PRAGMA user_version = 1")
    older.close()

    store = await Store.open(path)
    assert "has layout 1: its tables of jobs are made anew" in caplog.text
    assert (store.origin, store.position) == (0, len(script.entries))
    assert cold_start(path).state_bytes() == script.fold.state_bytes()
    assert await store.jobs(JobQuery()) == before
    [row] = before
    assert (row.device_ms // 1000, row.ran_ms // 1000, row.attempts) == (60, 30, 1)
    await store.close()


async def test_rows_are_made_anew_from_the_log_when_the_accounts_rules_change(tmp_path: Path) -> None:
    log = RandomCluster(11, 1500)
    store = await Store.open(tmp_path / "mirror.sqlite")
    await fill(store, log.entries)
    cold_start(store.path)
    wanted = [row async for row in _all_jobs(store)]
    assert sum(row.device_ms for row in wanted) > 0
    with sqlite3.connect(store.path) as other:
        other.execute("UPDATE jobs SET device_ms = 7, lost_ms = 7, waited_ms = 7")
        other.execute("UPDATE models SET accounts_version = accounts_version - 1")
    other.close()
    cold_start(store.path)
    assert [row async for row in _all_jobs(store)] == wanted
    await store.close()


async def _all_jobs(store: Store) -> AsyncIterator[JobRow]:
    before = 0
    while page := await store.jobs(JobQuery(before=before)):
        for row in page:
            yield row
        before = page[-1].id


async def test_a_window_begins_after_a_snapshot(tmp_path: Path) -> None:
    log = RandomCluster(3, 900)
    middle = fold_of(log.entries[:400])
    store = await Store.open(tmp_path / "window.sqlite")
    await store.begin_after(snapshot_of(middle), [job_row(each) for each in middle.cluster.state.jobs.values()])
    await store.append(rows_of(log.entries)[400:])
    with pytest.raises(StoreError, match="has entries"):
        await store.begin_after(snapshot_of(middle), [])
    await store.close()
    store = await Store.open(tmp_path / "window.sqlite")
    assert (store.origin, store.position) == (400, len(log.entries))
    with Mirror(store.path) as mirror:
        for sequence in (400, 401, 650, 900, len(log.entries)):
            assert fold_at(mirror, sequence).state_bytes() == fold_of(log.entries[:sequence]).state_bytes()
        assert mirror.sequence_at(0) == 400
    await store.close()
