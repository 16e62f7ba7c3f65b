"""Somebody edits a mirror's file, or an export: an audit of it names the entry."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from log_maker import RandomCluster, fill, rows_of

from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.exports import ExportSource, entry_line, header_line, header_of
from muster.projections.mirror import Mirror, MirrorRow
from muster.projections.replay import fold_at
from muster.projections.store import Store

ENTRIES = RandomCluster(seed=7, entries=400).entries
LAST = len(ENTRIES)
ROWS = rows_of(ENTRIES)
HIT = next(entry.sequence for entry in ENTRIES[150:] if b'"JobSubmitted.1"' in entry.payload)

Change = Callable[[list[MirrorRow]], list[MirrorRow]]


def changed(rows: list[MirrorRow]) -> list[MirrorRow]:
    hit = rows[HIT - 1]
    other = hit._replace(payload=hit.payload.replace(b'"user":"', b'"user":"x'))
    return [*rows[: HIT - 1], other, *rows[HIT:]]


def dropped(rows: list[MirrorRow]) -> list[MirrorRow]:
    return [*rows[: HIT - 1], *rows[HIT:]]


def closed_up(rows: list[MirrorRow]) -> list[MirrorRow]:
    return [*rows[: HIT - 1], *(row._replace(sequence=row.sequence - 1) for row in rows[HIT:])]


def doubled(rows: list[MirrorRow]) -> list[MirrorRow]:
    return [*rows[:HIT], *(row._replace(sequence=row.sequence + 1) for row in rows[HIT - 1 :])]


def reordered(rows: list[MirrorRow]) -> list[MirrorRow]:
    hit, then = rows[HIT - 1 : HIT + 1]
    return [*rows[: HIT - 1], then._replace(sequence=HIT), hit._replace(sequence=HIT + 1), *rows[HIT + 1 :]]


def exchanged(rows: list[MirrorRow]) -> list[MirrorRow]:
    """Two lines of a file change their places."""
    hit, then = rows[HIT - 1 : HIT + 1]
    return [*rows[: HIT - 1], then, hit, *rows[HIT + 1 :]]


def repeated(rows: list[MirrorRow]) -> list[MirrorRow]:
    """A line of a file is there twice."""
    return [*rows[:HIT], *rows[HIT - 1 :]]


FOUND: dict[Change, tuple[int, str]] = {
    changed: (HIT, "chain"),
    dropped: (HIT, "sequence"),
    closed_up: (HIT, "chain"),
    doubled: (HIT + 1, "chain"),
    reordered: (HIT, "chain"),
    exchanged: (HIT, "sequence"),
    repeated: (HIT + 1, "sequence"),
}


@pytest.fixture
async def mirror(tmp_path: Path) -> Path:
    path = tmp_path / "mirror.db"
    store = await Store.open(path)
    await fill(store, ENTRIES, (100,))
    await store.close()
    return path


def first_found(report: AuditReport) -> tuple[int, str]:
    assert not report.ok
    return report.findings[0].sequence, report.findings[0].kind


@pytest.mark.parametrize("change", [changed, dropped, closed_up, doubled, reordered])
async def test_tampering_with_a_mirror_is_found_at_its_entry(mirror: Path, change: Change) -> None:
    connection = sqlite3.connect(mirror)
    connection.execute("DELETE FROM entries")
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", change(ROWS))
    connection.commit()
    connection.close()
    with Mirror(mirror) as opened:
        assert first_found(audit(opened)) == FOUND[change]
        assert first_found(audit(opened, HIT - 20)) == FOUND[change]


def export_of(mirror: Path, path: Path, first: int, change: Change = lambda rows: rows) -> Path:
    with Mirror(mirror) as opened:
        header = header_of(fold_at(opened, first - 1), "muster", LAST)
    kept = [row for row in change(ROWS) if row.sequence >= first]
    path.write_bytes(header_line(header) + b"".join(map(entry_line, kept)))
    return path


@pytest.mark.parametrize("first", [1, HIT - 30])
async def test_an_export_is_audited_by_itself(mirror: Path, tmp_path: Path, first: int) -> None:
    report = audit(ExportSource(export_of(mirror, tmp_path / "log.jsonl", first)))
    assert report.findings == []
    assert (report.first, report.entries, report.chain) == (first, LAST - first + 1, ROWS[-1].chain.hex())
    assert report.passes.redecided > 10


@pytest.mark.parametrize("change", list(FOUND))
@pytest.mark.parametrize("first", [1, HIT - 30])
async def test_tampering_with_an_export_is_found_at_its_entry(
    mirror: Path, tmp_path: Path, change: Change, first: int
) -> None:
    source = ExportSource(export_of(mirror, tmp_path / "log.jsonl", first, change))
    assert first_found(audit(source, first)) == FOUND[change]


async def test_only_the_entry_that_was_changed_is_blamed_for_a_chain(mirror: Path, tmp_path: Path) -> None:
    findings = audit(ExportSource(export_of(mirror, tmp_path / "log.jsonl", 1, changed))).findings
    assert [each.sequence for each in findings if each.kind in ("chain", "sequence")] == [HIT]


async def test_an_export_that_is_cut_short_is_found(mirror: Path, tmp_path: Path) -> None:
    path = export_of(mirror, tmp_path / "log.jsonl", 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:HIT]))
    assert first_found(audit(ExportSource(path))) == (HIT, "sequence")
