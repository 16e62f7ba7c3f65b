"""Audits that are divided between processes say what one process says, of sound logs and of damaged ones."""

import asyncio
import sqlite3
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_maker import RandomCluster, fill, fold_of, log_of, rows_of

from muster.api import audit_parts
from muster.api.audit_parts import Cores, audit_log, audit_mirror
from muster.api.audit_program import Part
from muster.core.order import ENGINE_VERSION
from muster.events.log import Entry
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror, MirrorRow
from muster.projections.replay import snapshot_of
from muster.projections.store import Store

ENTRIES = RandomCluster(seed=7, entries=600).entries
LAST = len(ENTRIES)
ROWS = rows_of(ENTRIES)
HIT = next(entry.sequence for entry in ENTRIES[250:] if b'"JobSubmitted.1"' in entry.payload)
SNAPSHOTS = tuple(range(20, LAST, 20))
FOUR = Cores(processes=4, least=50)

Change = Callable[[list[MirrorRow]], list[MirrorRow]]


@pytest.fixture
async def mirror(tmp_path: Path) -> Path:
    return await mirror_of(tmp_path / "mirror.db", ENTRIES)


async def mirror_of(path: Path, entries: list[Entry]) -> Path:
    store = await Store.open(path)
    await fill(store, entries, SNAPSHOTS)
    await store.close()
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """The parts that processes were asked for, each time."""
    seen: list[list[tuple[int, int]]] = []
    real = audit_parts._audited

    def spied(parts: list[Part], *more: object) -> object:
        seen.append([(part.start, part.last) for part in parts])
        return real(parts, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_parts, "_audited", spied)
    return seen


def in_one(path: Path, first: int | None = None, last: int | None = None, expect: str = "") -> AuditReport:
    with Mirror(path) as opened:
        return audit(opened, first, last, expect=expect)


def said(report: AuditReport) -> AuditReport:
    """All but how long it took."""
    return msgspec.structs.replace(report, seconds=0.0)


def edit(path: Path, change: Change) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM entries")
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", change(ROWS))
    connection.commit()
    connection.close()


def with_hit(rows: list[MirrorRow], *instead: MirrorRow, shift: int = 0) -> list[MirrorRow]:
    later = [row._replace(sequence=row.sequence + shift) for row in rows[HIT:]]
    return [*rows[: HIT - 1], *instead, *later]


def changed(rows: list[MirrorRow]) -> list[MirrorRow]:
    return with_hit(rows, ROWS[HIT - 1]._replace(payload=ROWS[HIT - 1].payload.replace(b'"user":"', b'"user":"x')))


def dropped(rows: list[MirrorRow]) -> list[MirrorRow]:
    return with_hit(rows)


def closed_up(rows: list[MirrorRow]) -> list[MirrorRow]:
    return with_hit(rows, shift=-1)


def doubled(rows: list[MirrorRow]) -> list[MirrorRow]:
    return with_hit(rows, ROWS[HIT - 1], ROWS[HIT - 1]._replace(sequence=HIT + 1), shift=1)


def other_devices(rows: list[MirrorRow]) -> list[MirrorRow]:
    """An allocation in the middle, of which nobody notices by its own chain what it was."""
    place = next(n for n in range(HIT, LAST) if b'"devices":[0' in rows[n].payload)
    return [
        *rows[:place],
        rows[place]._replace(payload=rows[place].payload.replace(b'"devices":[0', b'"devices":[7', 1)),
        *rows[place + 1 :],
    ]


def without_chains(rows: list[MirrorRow]) -> list[MirrorRow]:
    return [row._replace(chain=b"") for row in rows]


# -- sound logs -------------------------------------------------------------------------------------------------------


async def test_a_sound_mirror_in_parts(mirror: Path, asked: list[list[tuple[int, int]]]) -> None:
    told: list[int] = []
    report = audit_mirror(mirror, progress=told.append, cores=FOUR)
    assert said(report) == said(in_one(mirror))
    assert (report.findings, report.entries) == ([], LAST)
    [parts] = asked
    assert len(parts) == 4
    assert (parts[0][0], parts[-1][1]) == (0, LAST)
    assert all(one[1] == then[0] for one, then in pairwise(parts))
    assert told == sorted(told)
    assert told[-1] == LAST


@pytest.mark.parametrize(("first", "last"), [(1, 300), (210, None), (215, 470)])
async def test_a_range_in_parts(mirror: Path, first: int, last: int | None) -> None:
    report = audit_mirror(mirror, first, last, cores=FOUR)
    assert said(report) == said(in_one(mirror, first, last))
    assert report.findings == []


async def test_parts_of_another_engine_and_refused_entries_add_up(tmp_path: Path) -> None:
    ours, theirs = b'"engine":%d}' % ENGINE_VERSION, b'"engine":99}'
    entries = [
        entry._replace(payload=entry.payload.replace(ours, theirs)) if 150 < entry.sequence < 450 else entry
        for entry in ENTRIES
    ]
    path = await mirror_of(tmp_path / "mirror.db", entries)
    assert said(audit_mirror(path, cores=FOUR)) == said(in_one(path))


async def test_a_short_log_is_no_process_worth(mirror: Path, asked: list[list[tuple[int, int]]]) -> None:
    assert said(audit_mirror(mirror)) == said(in_one(mirror))
    assert not asked


async def test_a_log_without_snapshots_is_one_part(tmp_path: Path, asked: list[list[tuple[int, int]]]) -> None:
    store = await Store.open(tmp_path / "mirror.db")
    await fill(store, ENTRIES)
    await store.close()
    assert said(audit_mirror(store.path, cores=FOUR)) == said(in_one(store.path))
    assert asked == [[(0, LAST)]]


async def test_no_part_begins_within_a_pass(tmp_path: Path, asked: list[list[tuple[int, int]]]) -> None:
    store = await Store.open(tmp_path / "mirror.db")
    await fill(store, ENTRIES, range(1, LAST))
    await store.close()
    report = audit_mirror(store.path, cores=Cores(6, 20))
    assert said(report) == said(in_one(store.path))
    assert report.passes.basis_out_of_range == 0
    assert len(asked[0]) == 6


# -- damaged ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [changed, dropped, closed_up, doubled, other_devices, without_chains])
async def test_what_is_found_is_what_one_process_finds(mirror: Path, change: Change) -> None:
    edit(mirror, change)
    report = audit_mirror(mirror, cores=FOUR)
    assert said(report) == said(in_one(mirror))
    assert not report.ok or change is without_chains


async def test_a_chain_kept_elsewhere_is_compared_in_its_part(mirror: Path) -> None:
    good = f"{HIT}:{ROWS[HIT - 1].chain.hex()}"
    assert audit_mirror(mirror, expect=good, cores=FOUR).ok
    for bad in (f"{HIT}:{'ab' * 16}", f"{LAST + 5}:{'ab' * 16}"):
        report = audit_mirror(mirror, expect=bad, cores=FOUR)
        assert said(report) == said(in_one(mirror, expect=bad))
        assert [finding.kind for finding in report.findings] == ["expect"]


async def test_a_forged_snapshot_is_told_of_and_nothing_is_built_on_it(
    mirror: Path, asked: list[list[tuple[int, int]]]
) -> None:
    audit_mirror(mirror, cores=FOUR)
    forged_at = asked[0][2][0]
    forged = fold_of(ENTRIES[:forged_at])
    forged.cluster.state.past_use.clear()
    for job in forged.cluster.state.jobs.values():
        job.user = "eve"
    store = await Store.open(mirror)
    await store.save_snapshot(snapshot_of(forged))
    await store.close()
    report = audit_mirror(mirror, cores=FOUR)
    assert said(report) == said(in_one(mirror))
    [finding] = report.findings
    assert (finding.sequence, finding.kind) == (forged_at, "snapshot")
    assert f"another state in the snapshot after entry {forged_at}: other jobs" in finding.found


async def test_a_snapshot_that_has_rotted_is_told_of(mirror: Path, asked: list[list[tuple[int, int]]]) -> None:
    audit_mirror(mirror, cores=FOUR)
    place = asked[0][1][0]
    connection = sqlite3.connect(mirror)
    connection.execute("UPDATE snapshots SET state = x'00ff' WHERE sequence = ?", (place,))
    connection.commit()
    connection.close()
    report = audit_mirror(mirror, cores=FOUR)
    assert [(finding.sequence, finding.kind) for finding in report.findings] == [(place, "snapshot")]


# -- the log itself ---------------------------------------------------------------------------------------------------


async def of_log(entries: list[Entry], path: Path) -> tuple[AuditReport, AuditReport]:
    """In parts, and in one."""
    log, loop = log_of(entries), asyncio.get_running_loop()

    def work() -> tuple[AuditReport, AuditReport]:
        with Mirror(path) as opened:
            return audit_log(LogSource(log, loop, opened), path, cores=FOUR), audit(LogSource(log, loop, opened))

    return await asyncio.to_thread(work)


async def test_a_log_that_is_as_its_mirror_is_audited_in_parts(
    mirror: Path, asked: list[list[tuple[int, int]]]
) -> None:
    report, one = await of_log(ENTRIES, mirror)
    assert said(report) == said(one)
    assert report.findings == []
    assert len(asked[0]) == 4


@pytest.mark.parametrize("of", ["changed", "short", "long"])
async def test_a_log_that_is_not_as_its_mirror_is_audited_itself(mirror: Path, of: str) -> None:
    hit = ENTRIES[HIT - 1]
    other = hit._replace(payload=hit.payload.replace(b'"user":"', b'"user":"x'))
    entries = {
        "changed": [*ENTRIES[: HIT - 1], other, *ENTRIES[HIT:]],
        "short": ENTRIES[:-3],
        "long": [*ENTRIES, ENTRIES[-1]._replace(sequence=LAST + 1)],
    }[of]
    report, one = await of_log(entries, mirror)
    assert said(report) == said(one)
    assert report.entries == one.entries >= LAST - 3


def test_who_does_not_wait_any_more_ends_the_processes(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LeftError(Exception):
        pass

    def leave(_reached: int) -> None:
        raise LeftError

    made: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def spied(*what: Any, **more: Any) -> Any:
        made.append(popen(*what, **more))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", spied)
    with pytest.raises(LeftError):
        audit_mirror(mirror, progress=leave, cores=FOUR)
    assert [process.returncode for process in made] == [-9] * 4
