"""Exports: what was written is read back byte for byte, and what was damaged is found and named."""

import base64
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from log_maker import RandomCluster, fill, fold_of, rows_of

from muster.events.log import Entry
from muster.projections.exports import (
    ExportError,
    ExportSource,
    checked_rows,
    entry_line,
    header_line,
    header_of,
    with_chains,
)
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.imports import ImportedLog, ReadOnlyError, open_import
from muster.projections.mirror import Mirror, MirrorRow
from muster.projections.read_models import JobQuery
from muster.projections.replay import fold_at
from muster.projections.schema import HoleError, StoreError
from muster.projections.store import Store

LOG = RandomCluster(5, 400).entries
LAST = len(LOG)
ROWS = rows_of(LOG)
FIRST = 151
Lines = list[bytes]


def export_lines(first: int = 1, rows: Iterable[MirrorRow] = ROWS) -> Lines:
    kept = [row for row in rows if row.sequence >= first]
    return [header_line(header_of(fold_of(LOG[: first - 1]), "muster", LAST)), *map(entry_line, kept)]


def write(path: Path, lines: Lines) -> ExportSource:
    path.write_bytes(b"".join(lines))
    return ExportSource(path)


@pytest.mark.parametrize("first", [1, FIRST])
@pytest.mark.parametrize(("name", "pack"), [("x.jsonl", bytes), ("x.jsonl.gz", gzip.compress), ("x.xz", lzma.compress)])
def test_an_export_gives_back_what_was_written(
    tmp_path: Path, first: int, name: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / name).write_bytes(pack(b"".join(export_lines(first))))
    source = ExportSource(tmp_path / name)
    assert (source.first, source.position()) == (first, LAST)
    assert [row for rows in checked_rows(source) for row in rows] == ROWS[first - 1 :]
    assert [row for rows in source.rows(200, 210) for row in rows] == ROWS[199:210]
    assert source.base().state_bytes() == fold_of(LOG[: first - 1]).state_bytes()


@pytest.mark.parametrize(
    ("payload", "as_json"),
    [
        (b'{"type":"X.1"}', True),
        (b'{ "a" :\t[1, 2.50, 1e400], "a": 2 }', True),
        ('{"é":"\\u00e9 \U0001f600"}'.encode(), True),
        (b"null", True),
        (b"", False),
        (b" {}", False),
        (b"{}\n", False),
        (b'{"a":\n1}', False),
        (b'{"a":1}}', False),
        (b'1,"chain":"00"', False),
        (b'{"a":"\xff"}', False),
        (b"\x00\x01 not json", False),
        (b"[" * 100_000, False),
        (b"[" * 2000 + b"]" * 2000, False),
    ],
)
def test_every_payload_survives_to_the_byte(tmp_path: Path, payload: bytes, as_json: bool) -> None:  # noqa: FBT001
    subject = 'muster.node."quoted".é'
    rows = list(with_chains([Entry(1, 2**63 - 1, subject, payload)], bytes(16)))
    line = entry_line(rows[0])
    source = write(tmp_path / "x.jsonl", [header_line(header_of(Fold.empty(), "muster", 1)), line])
    assert list(checked_rows(source)) == [rows]
    assert line.count(b"\n") == 1
    if as_json:
        assert b'"payload":' + payload in line
        assert json.loads(line)["timestamp_ns"] == 2**63 - 1
    else:
        assert b"payload_base64" in line


def changed(lines: Lines) -> Lines:
    place = next(number for number, line in enumerate(lines) if number > 50 and b'"user":"ada"' in line)
    return [*lines[:place], lines[place].replace(b'"user":"ada"', b'"user":"bob"'), *lines[place + 1 :]]


DAMAGE: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "changed": (changed, "was changed: its chain is"),
    "a time": (lambda lines: [*lines[:60], lines[60].replace(b'"timestamp_ns":', b'"timestamp_ns":9'), *lines[61:]],
               "entry 210 in x.jsonl was changed"),
    "dropped": (lambda lines: lines[:60] + lines[61:], "entry 210 is missing: line 61 of x.jsonl has entry 211"),
    "doubled": (lambda lines: lines[:61] + lines[60:], "line 62 of x.jsonl has entry 210 again, where entry 211"),
    "reordered": (lambda lines: [*lines[:60], lines[61], lines[60], *lines[62:]], "entry 210 is missing: line 61"),
    "the end dropped": (lambda lines: lines[:-1], f"ends before entry {LAST}"),
    "cut": (lambda lines: [*lines[:-1], lines[-1][:40]], f"where entry {LAST} is due, is no entry"),
    "longer": (lambda lines: [*lines, lines[-1]], f"stands behind its last entry, {LAST}"),
    "not JSON": (lambda lines: [*lines[:60], b"\xff\n", *lines[61:]], "line 61 of x.jsonl, where entry 210 is due"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_refused_with_the_entry_named(tmp_path: Path, damage: str) -> None:
    change, words = DAMAGE[damage]
    source = write(tmp_path / "x.jsonl", change(export_lines(FIRST)))
    with pytest.raises(StoreError) as raised:
        await open_import(source, tmp_path / "import.sqlite")
    assert words in str(raised.value)


def test_an_audit_sees_the_damaged_rows(tmp_path: Path) -> None:
    """What is changed is given as it stands; what is not the next entry ends the rows, after those before it."""
    source = write(tmp_path / "x.jsonl", changed(export_lines()))
    assert sum(map(len, source.rows(1, LAST))) == LAST
    source = write(tmp_path / "x.jsonl", DAMAGE["dropped"][0](export_lines()))
    seen: list[MirrorRow] = []
    chunks = source.rows(1, LAST)
    seen += next(chunks)
    with pytest.raises(HoleError) as raised:
        next(chunks)
    assert (len(seen), raised.value.sequence) == (59, 60)


def test_a_packed_file_that_ends_too_soon_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.xz"
    path.write_bytes(lzma.compress(b"".join(export_lines()))[:-200])
    with pytest.raises(HoleError, match=r"x\.jsonl\.xz cannot be read on"):
        list(ExportSource(path).rows(1, LAST))


def test_what_unpacks_to_far_too_much_is_refused_before_it_is_all_there(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(600 << 20), 1)
    header = msgspec.structs.replace(
        header_of(fold_of(LOG[:150]), "muster", LAST), state=base64.b64encode(bomb).decode()
    )
    with pytest.raises(ExportError, match="the state in its first line cannot be read"):
        write(tmp_path / "state.jsonl", [header_line(header)]).base()
    long = export_lines()
    long[60] = long[60].replace(b'{"', b"{" + b" " * (9 << 20) + b'"', 1)
    with pytest.raises(HoleError, match=r"line 61 .* where entry 60 is due, is no entry: it has over 8388608 bytes"):
        list(write(tmp_path / "line.jsonl", long).rows(1, LAST))


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"\x00" * 100, b'{"sequence":1}\n'])
def test_what_is_no_export_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="is no export"):
        ExportSource(path)
    with pytest.raises(ExportError, match="cannot be read"):
        ExportSource(tmp_path / "nothing.jsonl")


def test_another_fold_version_opens_a_whole_log_and_no_window(tmp_path: Path) -> None:
    def older(lines: Lines) -> Lines:
        now, then = b'"fold_version":%d' % FOLD_VERSION, b'"fold_version":%d' % (FOLD_VERSION - 1)
        return [lines[0].replace(now, then), *lines[1:]]

    assert write(tmp_path / "whole.jsonl", older(export_lines())).base().state_bytes() == Fold.empty().state_bytes()
    with pytest.raises(ExportError, match=r"begins at entry 151 with a state of fold version .* export the whole log"):
        write(tmp_path / "window.jsonl", older(export_lines(FIRST))).base()


def test_a_state_that_is_not_the_one_before_is_refused(tmp_path: Path) -> None:
    lines = export_lines(FIRST)
    other = header_line(msgspec.structs.replace(header_of(fold_of(LOG[:150]), "muster", LAST), chain="0" * 32))
    with pytest.raises(ExportError, match="not that before its first entry"):
        write(tmp_path / "x.jsonl", [other, *lines[1:]]).base()
    broken = msgspec.structs.replace(header_of(fold_of(LOG[:150]), "muster", LAST), state="AAAA")
    with pytest.raises(ExportError, match="cannot be read"):
        write(tmp_path / "x.jsonl", [header_line(broken), *lines[1:]]).base()


@pytest.mark.parametrize("first", [1, FIRST])
async def test_an_import_has_every_state_and_job_of_the_log(tmp_path: Path, first: int) -> None:
    original = await Store.open(tmp_path / "original.sqlite")
    await fill(original, LOG)
    jobs = await original.jobs(JobQuery(limit=1000))
    await original.close()
    read: list[int] = []
    store = await open_import(write(tmp_path / "x.jsonl", export_lines(first)), tmp_path / "import.sqlite", read.append)
    try:
        assert (store.origin, store.position, sum(read)) == (first - 1, LAST, LAST - first + 1)
        with Mirror(store.path) as mirror:
            for sequence in (first, first + 37, LAST):
                assert fold_at(mirror, sequence).state_bytes() == fold_of(LOG[:sequence]).state_bytes()
        known = {row.id for row in await store.jobs(JobQuery(limit=1000))}
        assert known >= {row.id for row in jobs if row.id >= first}
        assert [row for row in jobs if row.id in known] == await store.jobs(JobQuery(limit=1000))
        log = ImportedLog(store, "muster")
        assert await log.read(first, 5) == LOG[first - 1 : first + 4]
        assert await log.last_sequence() == LAST
        with pytest.raises(ReadOnlyError):
            await log.append_fenced([], 0)
    finally:
        await store.close()
