"""Limits of workers: what is written, who gives controllers to whom, and the kernel itself where it has them here."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import FakeLink, NewNode, python, start

from muster.events.types import WorkerExited
from muster.node_agent import cgroups, tree

ALL = frozenset({"cpu", "memory", "pids"})


def test_limits_are_written_as_the_kernel_takes_them(tmp_path: Path) -> None:
    cgroups.apply_limits(str(tmp_path), cgroups.limits_of(ALL, cpus=6, memory_mib=2048, max_processes=500))

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "cpu.max": "600000 100000",
        "memory.max": "2147483648",
        "memory.oom.group": "1",
        "pids.max": "500",
    }


def test_what_is_not_asked_for_or_has_no_controller_is_not_limited() -> None:
    assert cgroups.limits_of(ALL, cpus=0, memory_mib=0, max_processes=0) == {}
    assert cgroups.limits_of(frozenset({"cpu"}), cpus=1, memory_mib=64, max_processes=9) == {"cpu.max": "100000 100000"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\noom_group_kill 1\n", True),
        ("low 0\nhigh 0\nmax 31\noom 0\noom_kill 0\noom_group_kill 0\n", False),
        (None, False),
    ],
)
def test_a_kill_for_memory_is_known_by_its_count(tmp_path: Path, events: str | None, expected: bool) -> None:  # noqa: FBT001
    if events is not None:
        (tmp_path / "memory.events").write_text(events)

    assert cgroups.killed_for_memory(str(tmp_path)) is expected


class Hierarchy:
    """A cgroup as files: what is written into a real one is kept as text here."""

    def __init__(self, path: Path, processes: list[int], *, enabled: str = "") -> None:
        self.base, self.workers = path / "base", path / "base" / "muster"
        self.workers.mkdir(parents=True)
        for folder, subtree in ((self.base, enabled), (self.workers, "")):
            (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
            (folder / "cgroup.subtree_control").write_text(subtree)
            (folder / "cgroup.type").write_text("domain\n")
        (self.base / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))

    def delegate(self) -> frozenset[str]:
        return cgroups.delegate(str(self.base), str(self.workers))

    def given(self) -> tuple[str, str]:
        return tuple((folder / "cgroup.subtree_control").read_text() for folder in (self.base, self.workers))  # type: ignore[return-value]


def test_an_agent_alone_in_its_cgroup_makes_room_for_its_workers(tmp_path: Path) -> None:
    hierarchy = Hierarchy(tmp_path, [os.getpid()])

    hierarchy.delegate()

    assert (hierarchy.base / "agent/cgroup.procs").read_text() == str(os.getpid())
    assert hierarchy.given() == ("+cpu +memory +pids", "+cpu +memory +pids")


def test_an_agent_among_others_leaves_its_cgroup_as_it_is(tmp_path: Path) -> None:
    hierarchy = Hierarchy(tmp_path, [1, os.getpid()])

    hierarchy.delegate()

    assert not (hierarchy.base / "agent").exists()
    assert hierarchy.given()[0] == ""


def test_what_has_been_given_already_is_used(tmp_path: Path) -> None:
    hierarchy = Hierarchy(tmp_path, [1], enabled="cpu memory pids")

    hierarchy.delegate()

    assert hierarchy.given() == ("cpu memory pids", "+cpu +memory +pids")


def test_the_root_of_all_may_hold_processes(tmp_path: Path) -> None:
    hierarchy = Hierarchy(tmp_path, [1])
    (hierarchy.base / "cgroup.type").unlink()

    hierarchy.delegate()

    assert not (hierarchy.base / "agent").exists()
    assert hierarchy.given()[0] == "+cpu +memory +pids"


# -- the kernel's own -------------------------------------------------------------------------------------------------


@pytest.fixture
def real_cgroup() -> Iterator[str]:
    """A cgroup whose children have the controllers."""
    own = tree.own_cgroup()
    base = f"{own}/muster-test-{secrets.token_hex(4)}"
    if own is None or not tree.make_cgroup(base):
        pytest.skip("no cgroup v2 may be made here")
    given = cgroups.delegate(base, base)
    if not given >= {"memory", "cpu"}:
        tree.remove_cgroup(base)
        pytest.skip("cgroup v2 has no memory and cpu controllers here")
    yield base
    tree.remove_cgroup(base)


async def test_a_worker_over_its_memory_is_told_so(
    new_node: NewNode, link: FakeLink, real_cgroup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.node_agent.agent.worker_cgroups", lambda: (real_cgroup, frozenset({"cpu", "memory"})))
    life = (await new_node().registered()).incarnation

    await link.command(start(life, python("held = bytearray(512 << 20)"), memory_mib=64, cpus=1))
    exited = await link.fact(WorkerExited, job=5)

    assert (exited.exit.signal, exited.exit.detail) == (9, "killed: its memory limit was reached")


async def test_where_a_limit_cannot_be_set_nothing_runs(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, controllers = cgroups.worker_cgroups()
    if not folder or "cpu" in controllers:
        pytest.skip("needs cgroup v2 without the cpu controller")
    monkeypatch.setattr("muster.node_agent.agent.worker_cgroups", lambda: (folder, frozenset({"cpu"})))
    life = (await new_node().registered()).incarnation

    await link.command(start(life, "echo it runs"))
    exited = await link.fact(WorkerExited, job=5)

    assert exited.exit.reason == "lost"
    assert exited.exit.detail.startswith(f"{folder}/5.1.0-")
    assert "/cpu.max: " in exited.exit.detail
