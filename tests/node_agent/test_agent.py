"""Workers end to end: real processes, their environment, their ends, and what the log is told."""

import json
import os
import signal
from pathlib import Path

import pytest
from agent_world import FakeLink, NewNode, alive, python, start, stop

from muster.events.types import (
    DeviceBinding,
    WorkerExited,
    WorkerRefused,
    WorkerStarted,
)
from muster.node_agent.link import LogAsk


async def output(link: FakeLink, *, follow: bool = True, offset: int = 0, job: int = 5) -> bytes:
    assert link.answer is not None
    return b"".join([chunk async for chunk in link.answer(LogAsk(job, 1, 0, offset, follow))])


async def ready(link: FakeLink) -> None:
    """The program has said that it is."""
    assert link.answer is not None
    async for chunk in link.answer(LogAsk(5, 1, 0, follow=True)):
        assert chunk == b"ready\n"
        break


async def test_a_node_registers_its_inventory_and_beats(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    registered = await node.registered()
    assert [device.uuid for device in registered.inventory.devices] == [f"GPU-sim-node-1-{i}" for i in range(8)]
    assert {(d.model, d.nominal_mib) for d in registered.inventory.devices} == {("A100-80GB", 81_920)}
    assert registered.workers == []
    await link.until(lambda: len(link.beaten) >= 3 and link.samples)
    assert [beat.count for beat in link.beaten[:3]] == [1, 2, 3]
    assert {beat.incarnation for beat in link.beaten} == {registered.incarnation}
    assert len(link.samples[0].devices) == 8


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        (["/bin/sh", "-c", "exit 0"], 0, None),
        ("exit 7", 7, None),
        ("kill -SEGV $$", 139, signal.SIGSEGV),
        ("kill -KILL $$", 137, signal.SIGKILL),
    ],
)
async def test_a_program_ends_with_its_own_code(
    new_node: NewNode, link: FakeLink, command: str | list[str], code: int, number: int | None
) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start(life, command))
    exited = await link.fact(WorkerExited, job=5)
    started = await link.fact(WorkerStarted, job=5)
    assert (exited.exit.reason, exited.exit.exit_code, exited.exit.signal) == ("exited", code, number)
    assert (started.rank, exited.rank, exited.incarnation) == (0, 0, life)
    assert link.facts(object)[2:] == [started, exited]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"command": ["/no/such/program"]}, "/no/such/program: No such file or directory"),
        (
            {"command": ["torchrun-2", "train.py"]},
            "torchrun-2: No such file or directory (jobs get their agent's PATH: --env PATH passes yours on)",
        ),
        ({"command": ["torchrun-2"], "env": {"PATH": "/opt"}}, "torchrun-2: No such file or directory"),
        ({"command": ["/etc"]}, "Permission denied"),
        ({"command": "true", "workdir": "/no/such/folder"}, "/no/such/folder: No such file or directory"),
    ],
)
async def test_a_program_that_cannot_be_executed_says_why(
    new_node: NewNode, link: FakeLink, values: dict[str, str], words: str
) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(start(life, **values))
    exited = await link.fact(WorkerExited, job=5)
    assert exited.exit.reason == "start_failed"
    assert words in exited.exit.detail
    assert link.facts(WorkerStarted) == []


async def test_a_worker_sees_exactly_its_environment(
    new_node: NewNode, link: FakeLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "LANG", "TZ", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "42")
    life = (await new_node().registered()).incarnation
    env = {"LR": "0.1", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "MUSTER_RANK": "9", "CUDA_LAUNCH_BLOCKING": "1"}
    command = start(
        life, ["/usr/bin/env"], indices=[4, 5, 6, 7], world=2, rank=1, env=env, processes=8, first_process=4
    )
    await link.command(command)
    await link.fact(WorkerExited, job=5)
    assert link.answer is not None
    text = b"".join([chunk async for chunk in link.answer(LogAsk(5, 1, 1))]).decode()
    seen = dict(line.split("=", 1) for line in text.splitlines())
    assert len(seen.pop("MUSTER_WORKER")) == 16
    cache = tmp_path / "data" / "workers" / "5.1.1" / "cache"
    assert seen == {
        "PATH": "/usr/bin:/bin",
        "LR": "0.1",
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MUSTER_JOB_ID": "5",
        "MUSTER_ATTEMPT": "1",
        "MUSTER_RANK": "1",
        "MUSTER_WORLD_SIZE": "2",
        "MUSTER_PROCESSES": "8",
        "MUSTER_LOCAL_PROCESSES": "4",
        "MUSTER_FIRST_PROCESS": "4",
        "MUSTER_NODE": "node-1",
        "MUSTER_ALLOCATION": "5.1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "42017",
        "OMP_NUM_THREADS": "8",
        "NCCL_SOCKET_IFNAME": "=lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch_extensions",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
    }


async def test_a_worker_inherits_nothing_that_is_open(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    source = """import os, signal
print(sorted(fd for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')))
print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
print([int(line.split()[1], 16) for line in os.popen('grep -E "Sig(Ign|Blk)" /proc/self/status')])"""
    await link.command(start(life, python(source)))
    await link.fact(WorkerStarted, job=5)
    fds, session, signals = (await output(link)).decode().splitlines()
    assert fds == "['0', '1', '2']"
    assert session == "True True"
    blocked, ignored = json.loads(signals)
    the_c_librarys = 1 << 31 | 1 << 32  # make starts programs with them ignored, and no program can change that
    assert (blocked, ignored & ~the_c_librarys) == (0, 0)


async def test_output_is_followed_to_the_end_from_any_offset(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(start(life, "echo one; echo two >&2; read line < /dev/null; echo three"))
    await link.fact(WorkerStarted, job=5)
    assert await output(link) == b"one\ntwo\nthree\n"
    assert await output(link, offset=8, follow=False) == b"three\n"
    with pytest.raises(LookupError, match=r"6\.1\.0"):
        await output(link, job=6)


async def test_a_data_folder_may_be_named_from_here(
    new_node: NewNode, link: FakeLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    life = (await new_node(data=Path("here")).registered()).incarnation
    await link.command(start(life, "pwd"))
    assert (await link.fact(WorkerExited, job=5)).exit.exit_code == 0
    assert await output(link) == f"{tmp_path}/here/workers/5.1.0/work\n".encode()


FAMILY = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        signal.pause()
    os._exit(0)
os.wait()
print(os.getpid(), flush=True)
signal.pause()
"""


async def family(link: FakeLink) -> list[int]:
    """The pids that the FAMILY program printed: a daemon's, in a session of its own, and the first process's."""
    await link.fact(WorkerStarted, job=5)
    assert link.answer is not None
    text = b""
    async for chunk in link.answer(LogAsk(5, 1, 0, follow=True)):
        text += chunk
        if text.count(b"\n") == 2:
            break
    return [int(line) for line in text.split()]


async def test_a_stop_ends_the_whole_tree_whatever_session_it_is_in(
    new_node: NewNode, link: FakeLink, held_by: dict[str, bool]
) -> None:
    life = (await new_node(**held_by).registered()).incarnation
    await link.command(start(life, python(FAMILY)))
    daemon, first = await family(link)
    await link.command(stop(life, grace_ms=50))
    exited = await link.fact(WorkerExited, job=5)
    assert (exited.exit.reason, exited.exit.exit_code, exited.exit.signal) == ("stopped", 137, signal.SIGKILL)
    assert not alive(daemon)
    assert not alive(first)


async def test_a_frozen_tree_is_stopped_too(new_node: NewNode, link: FakeLink, held_by: dict[str, bool]) -> None:
    life = (await new_node(**held_by).registered()).incarnation
    await link.command(start(life, python(FAMILY)))
    pids = await family(link)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await link.command(stop(life, grace_ms=50))
    assert (await link.fact(WorkerExited, job=5)).exit.reason == "stopped"
    assert not any(alive(pid) for pid in pids)


async def test_a_worker_may_end_itself_within_the_grace(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(start(life, "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.02; done"))
    await link.fact(WorkerStarted, job=5)
    await ready(link)
    await link.command(stop(life, grace_ms=60_000))
    exited = await link.fact(WorkerExited, job=5)
    assert (exited.exit.reason, exited.exit.exit_code) == ("stopped", 3)
    assert (await output(link)).endswith(b"saved\n")


async def test_what_a_program_leaves_behind_ends_with_it(
    new_node: NewNode, link: FakeLink, held_by: dict[str, bool]
) -> None:
    life = (await new_node(**held_by).registered()).incarnation
    await link.command(start(life, "setsid sleep 1000 & echo $!; exit 4"))
    exited = await link.fact(WorkerExited, job=5)
    assert (exited.exit.reason, exited.exit.exit_code) == ("exited", 4)
    assert not alive(int(await output(link)))


async def test_a_device_is_never_given_twice_by_the_agent_either(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(start(life, "sleep 1000", device_memory_mib=40_960, compute=500))
    await link.command(start(life, "sleep 1000", job=6, device_memory_mib=40_960, compute=500))
    await link.fact(WorkerStarted, job=6)
    third = await link.command(start(life, "true", job=7, device_memory_mib=1, compute=1))
    refused = await link.fact(WorkerRefused, job=7)
    assert refused.command == third
    assert refused.reason == "device 0 is held by a worker that still lives"
    wrong = start(life, "true", job=8, devices=[DeviceBinding(3, "GPU-of-another-node")])
    await link.command(wrong)
    assert "GPU-of-another-node" in (await link.fact(WorkerRefused, job=8)).reason


async def test_a_command_for_another_life_is_refused(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    command = await link.command(start("an-earlier-life", "true"))
    await link.command(stop("an-earlier-life", job=9))
    await link.command(start(life, "true", job=6))
    refused = await link.fact(WorkerRefused, job=5)
    assert (refused.command, refused.incarnation) == (command, life)
    await link.fact(WorkerExited, job=6)
    assert link.facts(WorkerExited)[0].job == 6


async def test_a_stop_for_a_worker_that_is_not_here_is_answered(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(stop(life))
    assert (await link.fact(WorkerExited, job=5)).exit.reason == "lost"


async def test_a_stop_behind_its_start_and_a_start_behind_a_slow_stop(new_node: NewNode, link: FakeLink) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(start(life, "trap '' TERM; echo ready; while :; do sleep 0.05; done"))
    await link.fact(WorkerStarted, job=5)
    await ready(link)
    await link.command(stop(life, grace_ms=30_000))
    await link.command(start(life, "sleep 1000", job=6, indices=[1]))
    await link.command(stop(life, job=6, grace_ms=0))
    assert (await link.fact(WorkerExited, job=6)).exit.reason == "stopped"
    assert all(exited.job != 5 for exited in link.facts(WorkerExited))
    await link.command(stop(life, grace_ms=0))
    assert (await link.fact(WorkerExited, job=5)).exit.reason == "stopped"


async def test_stopping_the_agent_stops_and_reports_the_jobs(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start(life, "sleep 1000"))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    await node.stop()
    assert link.facts(WorkerExited)[0].exit.reason == "stopped"
    assert not alive(pid)
