"""A disk that is full for a while, a file that is damaged, a folder that may not be written: said, and never a crash
that takes running work with it."""

import asyncio
import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from muster.projections import mirror_writer
from muster.projections.mirror import MirrorRow, Snapshot
from muster.projections.mirror_writer import Batch, MirrorWriter
from muster.projections.read_models import JobRow
from muster.projections.replay import cold_start
from muster.projections.schema import StoreError, StoreFullError
from muster.projections.store import Store

DEADLINE_S = 15


def rows(first: int, last: int) -> list[MirrorRow]:
    return [
        MirrorRow(n, n, "muster.admin.node_cordoned", b"{}" + b" " * 200, hashlib.md5(b"%d" % n).digest())
        for n in range(first, last + 1)
    ]


class FullStore(Store):
    """A store whose file cannot grow until `make_room`; `was_full` is set when that was met."""

    was_full: asyncio.Event

    async def fill(self) -> None:
        self.was_full = asyncio.Event()
        [(pages,)] = await self._writer.execute_fetchall("PRAGMA page_count")
        await self._writer.execute(f"PRAGMA max_page_count = {pages}")

    async def make_room(self) -> None:
        await self._writer.execute("PRAGMA max_page_count = 1000000")

    async def append(
        self, rows: Iterable[MirrorRow], jobs: Iterable[JobRow] = (), snapshots: Iterable[Snapshot] = ()
    ) -> None:
        try:
            await super().append(list(rows), jobs, snapshots)
        except StoreFullError:
            self.was_full.set()
            raise


async def test_what_a_full_disk_does_not_take_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_writer, "RETRY_S", 0.01)
    store = await FullStore.open(tmp_path / "mirror.sqlite")
    await store.fill()
    writer = MirrorWriter(store)
    writing = asyncio.create_task(writer.run())
    await writer.add(Batch(rows(1, 400), [], None))
    async with asyncio.timeout(DEADLINE_S):
        await store.was_full.wait()
        await writer.add(Batch(rows(401, 500), [], None))
        await store.make_room()
        writer.finish()
        await writing
    assert await store.read(1, 1000) == [row.entry for row in rows(1, 500)]
    await store.close()


async def test_an_end_does_not_wait_for_room(tmp_path: Path) -> None:
    store = await FullStore.open(tmp_path / "mirror.sqlite")
    await store.fill()
    writer = MirrorWriter(store)
    writing = asyncio.create_task(writer.run())
    await writer.add(Batch(rows(1, 400), [], None))
    async with asyncio.timeout(DEADLINE_S):
        await store.was_full.wait()
        writer.finish()
        with pytest.raises(StoreFullError, match="could not be written: database or disk is full"):
            await writing
    assert await store.read(1, 1000) == []
    await store.close()


@pytest.mark.parametrize("undamaged_pages", [1, 3, 8])
async def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, undamaged_pages: int) -> None:
    path = tmp_path / "mirror.sqlite"
    store = await Store.open(path)
    await store.append(rows(1, 400))
    await store.close()
    content = bytearray(path.read_bytes())
    for start in range(undamaged_pages * 4096, len(content), 4096):
        content[start : start + 16] = b"\xff" * 16
    path.write_bytes(content)

    async def use() -> None:
        damaged = await Store.open(path)
        await damaged.close()
        await asyncio.to_thread(cold_start, path)

    with pytest.raises(
        StoreError, match=r"mirror\.sqlite cannot be used \(database disk image is malformed\); move it away"
    ):
        await use()


async def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match=r"mirror\.sqlite cannot be used: Not a directory"):
        await Store.open(tmp_path / "data" / "mirror.sqlite")
