"""What is remembered of devices: faults over restarts, whose processes were whose, foreign memory."""

from pathlib import Path

import pytest

from muster.node_agent.blame import Blame
from muster.node_agent.foreign import Steadied, foreign_mib, in_steps
from muster.node_agent.health import Finding
from muster.node_agent.readings import DeviceReading, MemoryReading, ProcessReading, Worktree
from muster.node_agent.standing import Standing

DOUBLE_BIT = Finding("reset", "xid", "Xid 48: double bit ECC error", 48, resettable=True)
REMAP_FAILED = Finding("quarantine", "xid", "Xid 64: row remap failed", 64)
NVLINK = Finding("no_gangs", "xid", "Xid 74: NVLink error", 74)
RESET_FAILED = Finding("quarantine", "xid", "its reset failed: in use", 48, resettable=True)
NOBODY = 1 << 30  # beyond any pid


def test_faults_outlive_an_agent_but_not_a_restart_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    first = Standing(path, "boot-1")
    assert first.add("GPU-a", DOUBLE_BIT)
    assert not first.add("GPU-a", DOUBLE_BIT, again=False)
    assert first.add("GPU-a", NVLINK)
    first.save()
    assert Standing(path, "boot-1").of("GPU-a") == [DOUBLE_BIT, NVLINK]
    assert first.add("GPU-a", DOUBLE_BIT)
    assert [finding.text() for finding in first.of("GPU-a")] == [
        "Xid 74: NVLink error",
        "Xid 48: double bit ECC error (2 times)",
    ]
    assert Standing(path, "boot-2").of("GPU-a") == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_read_or_written_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text("{")
    standing = Standing(path, "boot-1")
    assert standing.of("GPU-a") == []
    path.unlink()
    path.mkdir()
    standing.add("GPU-a", NVLINK)
    standing.save()
    assert standing.of("GPU-a") == [NVLINK]
    path.rmdir()
    standing.save()
    assert Standing(path, "boot-1").of("GPU-a") == [NVLINK]


def test_a_reset_heals_all_but_what_must_be_replaced() -> None:
    standing = Standing(None)
    for finding in (DOUBLE_BIT, REMAP_FAILED, NVLINK, RESET_FAILED):
        assert standing.add("GPU-a", finding)
    standing.add("GPU-b", DOUBLE_BIT)
    standing.heal("GPU-a")
    standing.heal("GPU-b")
    standing.heal("GPU-c")
    assert standing.of("GPU-a") == [REMAP_FAILED]
    assert standing.of("GPU-b") == []


def tree(job: int, pids: set[int], *uuids: str) -> Worktree:
    return Worktree(job, 1, dict.fromkeys(uuids, 1000), frozenset(pids))


def test_an_error_is_its_process_s_job_s() -> None:
    blame = Blame()
    blame.learn([tree(5, {NOBODY + 1}, "GPU-a"), tree(6, {NOBODY + 2}, "GPU-a", "GPU-b")], 0.0)
    assert blame.owner("GPU-a", NOBODY + 1) == (5, 1)
    assert blame.owner("GPU-a", NOBODY + 2) == (6, 1)
    assert blame.owner("GPU-a", 0) == blame.owner("GPU-a", NOBODY) == (0, 0)
    assert blame.owner("GPU-b", 0) == blame.owner("GPU-b", NOBODY) == (6, 1)
    assert blame.owner("GPU-a", 1) is None  # a process that lives and is nobody's here
    assert blame.owner("GPU-c", 0) is None


def test_a_process_that_has_just_died_is_still_known() -> None:
    blame = Blame()
    blame.learn([tree(5, {NOBODY + 1}, "GPU-a"), tree(6, {NOBODY + 2}, "GPU-a")], 0.0)
    blame.learn([tree(6, {NOBODY + 2}, "GPU-a"), tree(7, {NOBODY + 3}, "GPU-a")], 59.0)
    assert blame.owner("GPU-a", NOBODY + 1) == (5, 1)
    assert blame.pids_of((5, 1)) == {NOBODY + 1}
    blame.learn([tree(6, {NOBODY + 2}, "GPU-a"), tree(7, {NOBODY + 3}, "GPU-a")], 61.0)
    assert blame.owner("GPU-a", NOBODY + 1) == (0, 0)
    assert blame.pids() == {NOBODY + 2, NOBODY + 3}


def test_one_error_told_twice_is_one() -> None:
    blame = Blame()
    assert not blame.is_told("GPU-a", 13, (5, 1), "log", 0.0)
    assert blame.is_told("GPU-a", 13, (5, 1), "log", 0.1)
    assert blame.is_told("GPU-a", 13, (0, 0), "nvml", 0.2)
    assert not blame.is_told("GPU-a", 31, (5, 1), "log", 0.3)
    assert not blame.is_told("GPU-b", 13, (5, 1), "log", 0.3)
    assert not blame.is_told("GPU-a", 13, (5, 1), "log", 10.5)


def test_further_lines_of_a_process_s_error_are_known_by_its_pid() -> None:
    blame = Blame()
    lines = [("GPU-a", 13, 7, 0.0), ("GPU-a", 13, 7, 9.0), ("GPU-a", 13, 8, 9.0), ("GPU-b", 13, 7, 9.0)]
    assert [blame.is_repeated(*line) for line in lines] == [False, True, False, False]
    assert not blame.is_repeated("GPU-a", 13, 7, 10.5)
    assert [blame.is_repeated("GPU-a", 13, 0, at_s) for at_s in (0.0, 0.1)] == [False, False]


def test_the_next_job_s_error_is_another_one() -> None:
    blame = Blame()
    assert not blame.is_told("GPU-a", 13, (5, 1), "log", 0.0)
    assert blame.is_told("GPU-a", 13, (5, 1), "nvml", 0.5)
    assert not blame.is_told("GPU-a", 13, (6, 1), "log", 5.0)
    assert blame.is_told("GPU-a", 13, (6, 1), "nvml", 5.5)
    assert not blame.is_told("GPU-b", 13, (5, 1), "nvml", 0.0)
    assert not blame.is_told("GPU-b", 13, (6, 1), "nvml", 1.0)


def test_a_stranger_s_error_is_not_charged_to_who_is_there() -> None:
    blame = Blame()
    assert not blame.is_told("GPU-a", 13, None, "log", 0.0)
    assert blame.is_told("GPU-a", 13, (5, 1), "nvml", 0.5)


def reading(*processes: tuple[int, int | None], used_mib: int = 9_000) -> DeviceReading:
    listed = [ProcessReading(pid, mib) for pid, mib in processes]
    return DeviceReading(nvml_index=0, memory=MemoryReading(81_920, 766, used_mib), processes=listed)


@pytest.mark.parametrize(
    ("device", "claimed", "held_mib"),
    [
        (reading(), False, 0),
        (reading((10, 400), (11, 600)), False, 1_000),
        (reading((1, 8_000), (10, 400)), True, 400),
        (reading((10, 400), (10, 30)), False, 400),  # once for compute, once for graphics
        (reading((10, None)), False, 9_000),
        (reading((1, None), (10, None)), True, 0),
        (reading((1, None), (10, 300), (11, None)), True, 300),
        (DeviceReading(nvml_index=0, memory=MemoryReading(81_920, 766, 9_000)), False, None),
    ],
)
def test_foreign_memory_is_that_of_processes_that_are_nobody_s_here(
    device: DeviceReading,
    claimed: bool,  # noqa: FBT001
    held_mib: int | None,
) -> None:
    assert foreign_mib(device, frozenset({1, 2}), claimed) == held_mib


def test_it_is_told_in_steps_of_256_mib() -> None:
    assert [in_steps(mib) for mib in (0, 63, 64, 256, 257, 6_000)] == [0, 0, 256, 256, 512, 6_144]


def test_it_is_told_once_two_looks_agree() -> None:
    steadied = Steadied()
    assert steadied.look({"GPU-a": 512}) == {"GPU-a": 512}
    assert steadied.look({"GPU-a": 1_024, "GPU-b": 0}) == {"GPU-a": 512, "GPU-b": 0}
    assert steadied.look({"GPU-a": 0, "GPU-b": 0}) == {"GPU-a": 512, "GPU-b": 0}
    assert steadied.look({"GPU-b": 256}) == {"GPU-a": 512, "GPU-b": 0}
    assert steadied.look({"GPU-a": 0, "GPU-b": 256}) == {"GPU-a": 0, "GPU-b": 256}
