"""A part's data folder: one process at a time, and a scheduler's name that outlives it."""

from pathlib import Path

import pytest

from muster.api.parts import lasting_name, locked
from muster.api.process import StartError
from muster.events.lease import MemoryLeases


def test_one_process_a_part_and_data_folder(tmp_path: Path) -> None:
    with locked(tmp_path, "scheduler"):
        with pytest.raises(StartError, match="another `muster scheduler` runs on"), locked(tmp_path, "scheduler"):
            pass
        with locked(tmp_path, "server"):
            pass
    with locked(tmp_path, "scheduler"):
        pass


def test_a_scheduler_has_one_name_a_data_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert lasting_name(tmp_path / "a") == lasting_name(tmp_path / "a") != lasting_name(tmp_path / "b")


async def test_who_comes_back_under_its_name_need_not_wait_for_its_own_lease(tmp_path: Path) -> None:
    leases = MemoryLeases(ttl_s=3600)
    killed = leases.of(lasting_name(tmp_path))
    assert await killed.try_acquire()

    assert await leases.of(lasting_name(tmp_path)).try_acquire()
    assert not await leases.of("another").try_acquire()
