"""Somebody edits the stream's files on the broker's disk: an audit of the log finds it. With a mirror beside it, it
names the entry; without one, the range in which it is, up to the last decision. What the server drops by itself where
its own checksums are wrong comes out as missing.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from log_cases import SMALL
from log_maker import RandomCluster, fill
from stream_files import Record, folder_of, read_blocks, rewrite

from muster.events.broker import Broker
from muster.events.connection import Connection
from muster.events.jetstream import JetStreamLog
from muster.events.log import Message
from muster.events.streams import set_up
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror
from muster.projections.store import Store

STREAM = "MUSTER_LOG"
ENTRIES = RandomCluster(seed=7, entries=400).entries
LAST = len(ENTRIES)
HIT = next(entry.sequence for entry in ENTRIES[150:] if b'"JobSubmitted.1"' in entry.payload)


class Made(NamedTuple):
    """A broker's folder with the log in it, and a mirror of the log."""

    broker: Path
    mirror: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The log, with the timestamps that its decisions were made on."""
    folder = tmp_path_factory.mktemp("stream")
    made = Made(folder / "broker", folder / "mirror.db")

    async def make() -> None:
        async with Broker(made.broker) as broker:
            await set_up(broker.urls, broker.credentials, limits=SMALL)
            connection = await Connection.open(broker.urls, broker.credentials["operator"])
            log = await JetStreamLog.open(connection)
            await log.append_batch([Message(entry.subject, entry.payload, f"m-{entry.sequence}") for entry in ENTRIES])
            await connection.close()
        rewrite(folder_of(made.broker, STREAM), _at_their_times)
        async with Broker(made.broker):
            pass  # it makes its index anew
        store = await Store.open(made.mirror)
        await fill(store, ENTRIES)
        await store.close()

    asyncio.run(make())
    return made


def _at_their_times(records: list[Record]) -> list[Record]:
    return [record._replace(timestamp_ns=entry.timestamp_ns) for record, entry in zip(records, ENTRIES, strict=True)]


async def audited(broker_folder: Path, mirror_path: Path | None) -> AuditReport:
    async with Broker(broker_folder) as broker:
        connection = await Connection.open(broker.urls, broker.credentials["operator"])
        log, loop = await JetStreamLog.open(connection), asyncio.get_running_loop()

        def work() -> AuditReport:
            if mirror_path is None:
                return audit(LogSource(log, loop))
            with Mirror(mirror_path) as mirror:
                return audit(LogSource(log, loop, mirror))

        try:
            return await asyncio.to_thread(work)
        finally:
            await connection.close()


def changed(records: list[Record]) -> list[Record]:
    """Another user."""
    hit = records[HIT - 1]
    other = hit._replace(payload=hit.payload.replace(b'"user":"', b'"user":"x'))
    return [*records[: HIT - 1], other, *records[HIT:]]


def dropped(records: list[Record]) -> list[Record]:
    """As if it had never been."""
    return [*records[: HIT - 1], *records[HIT:]]


def closed_up(records: list[Record]) -> list[Record]:
    """Likewise, and all that follows under other numbers."""
    return [*records[: HIT - 1], *(record._replace(sequence=record.sequence - 1) for record in records[HIT:])]


def doubled(records: list[Record]) -> list[Record]:
    """It is there twice."""
    return [*records[:HIT], *(record._replace(sequence=record.sequence + 1) for record in records[HIT - 1 :])]


def reordered(records: list[Record]) -> list[Record]:
    """It stands behind the next one."""
    hit, then = records[HIT - 1 : HIT + 1]
    return [*records[: HIT - 1], then._replace(sequence=HIT), hit._replace(sequence=HIT + 1), *records[HIT + 1 :]]


def tampered(made: Made, folder: Path, change: Callable[[list[Record]], list[Record]]) -> Path:
    copy = folder / "broker"
    shutil.copytree(made.broker, copy)
    rewrite(folder_of(copy, STREAM), change)
    return copy


async def test_the_log_as_it_was_written_is_clean(made: Made) -> None:
    for mirror in (None, made.mirror):
        report = await audited(made.broker, mirror)
        assert (report.findings, report.entries) == ([], LAST)


@pytest.mark.parametrize("change", [changed, dropped, closed_up, doubled, reordered])
async def test_tampering_with_right_checksums_is_found(
    made: Made, tmp_path: Path, change: Callable[[list[Record]], list[Record]]
) -> None:
    sequence = HIT + 1 if change is doubled else HIT
    copy = tampered(made, tmp_path, change)
    beside = (await audited(copy, made.mirror)).findings[0]
    assert beside.sequence == sequence
    alone = (await audited(copy, None)).findings[0]
    if change is dropped:
        assert (beside.kind, beside.found) == ("sequence", f"entry {HIT} is missing from the stream; the mirror has it")
        assert (alone.kind, alone.sequence) == ("sequence", HIT)
    else:
        assert (beside.kind, alone.kind) == ("chain", "chain")
        assert beside.why.startswith(f"entry {sequence} is not the one that the mirror has: ")
        first, last = (int(word) for word in alone.why.split() if word.isdecimal())
        assert first <= sequence <= last < alone.sequence


async def test_an_entry_that_only_the_mirror_has_is_audited_from_there(made: Made, tmp_path: Path) -> None:
    report = await audited(tampered(made, tmp_path, dropped), made.mirror)
    assert (report.findings_count, report.entries) == (1, LAST)


def flipped_byte(path: Path, record: Record) -> None:
    data = bytearray(path.read_bytes())
    data[_place(data, record) + len(record.payload) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path, record: Record) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: _place(data, record)])


def _place(data: bytes | bytearray, record: Record) -> int:
    """Where its payload begins."""
    return data.index(record.headers + record.payload) + len(record.headers)


@pytest.mark.parametrize("damage", [flipped_byte, cut_short])
@pytest.mark.parametrize("index", ["index kept", "index lost"])
async def test_rot_that_the_server_notices_is_found_as_loss(
    made: Made, tmp_path: Path, damage: Callable[[Path, Record], None], index: str
) -> None:
    copy = tmp_path / "broker"
    shutil.copytree(made.broker, copy)
    folder = folder_of(copy, STREAM)
    [records] = read_blocks(folder).values()
    damage(folder / "msgs" / "1.blk", records[HIT - 1])
    if index == "index lost":
        (folder / "msgs" / "index.db").unlink()
    report = await audited(copy, made.mirror)
    first = report.findings[0]
    assert (first.sequence, first.kind) == (HIT, "sequence")
    assert "the mirror has" in first.found
