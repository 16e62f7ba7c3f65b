"""Crashes between any two lines: agents, keepers, zygotes and brokers that go away, leases that run out."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, alive, python, start, stop

from muster.events.log import LogFullError, LogUnavailableError
from muster.events.types import ExitStatus, NodeRegistered, StopFailed, WorkerExited, WorkerRefused, WorkerStarted
from muster.node_agent import workers
from muster.node_agent.journal import AgentLockedError
from muster.node_agent.keeper_files import boottime_ns
from muster.node_agent.keepers import Keepers, keeper_gone
from muster.node_agent.lease import Lease
from muster.node_agent.worker_folder import StopOrder, Ticket, WorkerFolder


async def until(condition: Callable[[], object]) -> None:
    """Wait for what only the file system tells."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # a file's change sets no event
            await asyncio.sleep(0.005)


async def until_ended(pid: int) -> None:
    """Return when a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


# -- the agent goes ---------------------------------------------------------------------------------------------


async def test_a_new_agent_adopts_the_workers_of_one_that_crashed(new_node: NewNode, link: FakeLink) -> None:
    first = new_node()
    life = (await first.registered()).incarnation
    await link.command(start(life, "sleep 1000"))
    await link.command(
        start(life, "read line < go; exit 9", job=6, indices=[1], workdir=str(first.agent._settings.data))
    )
    os.mkfifo(first.agent._settings.data / "go")
    pids = [(await link.fact(WorkerStarted, job=job)).pid for job in (5, 6)]
    await first.crash()
    assert all(map(alive, pids))
    (first.agent._settings.data / "go").write_text("go\n")
    await until_ended(pids[1])

    second = new_node()
    registered = await second.registered()
    assert registered.incarnation != life
    listed = {(report.job, report.attempt, report.rank): report for report in registered.workers}
    assert listed[5, 1, 0].pid == pids[0]
    assert listed[5, 1, 0].exit is None
    ended = await link.until(
        lambda: listed[6, 1, 0].exit or next((e.exit for e in link.facts(WorkerExited) if e.job == 6), None)
    )
    assert (ended.reason, ended.exit_code) == ("exited", 9)

    await link.command(stop(registered.incarnation))
    exited = await link.fact(WorkerExited, job=5)
    assert (exited.incarnation, exited.exit.reason) == (registered.incarnation, "stopped")
    await second.crash()
    assert (await new_node().registered()).workers == []


async def test_what_an_adopted_keeper_keeps_is_no_orphan(new_node: NewNode, link: FakeLink) -> None:
    """A worker's first process is a copy of its keeper until it becomes the program: this one goes on looking so."""
    first = new_node()
    life = (await first.registered()).incarnation
    source = "import os, signal; os.chdir('..'); open('looks', 'x'); signal.pause()  # muster.node_agent.keeper"
    await link.command(start(life, python(source)))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    await until((first.agent._settings.data / "workers" / "5.1.0" / "looks").exists)
    await first.crash()
    (report,) = (await new_node().registered()).workers
    assert (report.pid, report.exit) == (pid, None)
    assert alive(pid)


async def test_a_ticket_is_either_claimed_or_revoked(tmp_path: Path) -> None:
    """Twenty races; whoever wins, the worker's program runs exactly when the ticket was not taken back."""
    keepers = Keepers(tmp_path / "keepers.log")
    outcomes = set()
    for number in range(20):
        folder = WorkerFolder(tmp_path / f"{number}.1.0")
        folder.prepare(ticket(number, ["/bin/sh", "-c", "echo ran"], folder))
        begin = asyncio.create_task(keepers.start(folder))
        if number % 2:
            await until(lambda folder=folder: (folder.path / "lock").exists())  # type: ignore[misc]
        revoked = folder.revoke()
        running = await begin
        if folder.claimed() is not None:
            await keeper_gone(folder)
        outcomes.add(revoked)
        assert revoked == (running is None) == (not folder.output.exists())
    keepers.close()
    assert True in outcomes
    assert (tmp_path / "keepers.log").read_text() == ""


async def test_complaints_of_keepers_are_for_the_agent_alone(tmp_path: Path) -> None:
    log = tmp_path / "keepers.log"
    for _ in range(2):
        keepers = Keepers(log)
        keepers.warm()
        keepers.close()
        assert log.stat().st_mode & 0o777 == 0o600
        log.chmod(0o644)


async def test_a_ticket_that_no_keeper_claimed_never_runs(new_node: NewNode, link: FakeLink, tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "data" / "workers" / "5.1.0")
    folder.path.parent.mkdir(parents=True)
    folder.prepare(ticket(5, ["/bin/sh", "-c", "echo ran"], folder))
    node = new_node()
    assert (await node.registered()).workers == []
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster.node_agent.keeper", str(folder.path), stderr=asyncio.subprocess.DEVNULL
    )
    assert await keeper.wait() != 0
    assert not folder.path.exists()


async def test_a_worker_claimed_but_never_begun_is_lost(new_node: NewNode, tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "data" / "workers" / "5.1.0")
    folder.path.parent.mkdir(parents=True)
    folder.prepare(ticket(5, ["/bin/sh", "-c", "echo ran"], folder))
    (folder.path / "ticket").rename(folder.path / "claimed")
    node = new_node()
    await node.registered()
    exited = await node.link.until(lambda: [e.exit for e in node.link.facts(WorkerExited)] or ended(node.link))
    assert exited[0].reason == "lost"


def ended(link: FakeLink) -> list[object]:
    return [w.exit for registered in link.facts(NodeRegistered) for w in registered.workers if w.exit is not None]


def ticket(job: int, argv: list[str], folder: WorkerFolder) -> Ticket:
    return Ticket(
        job=job,
        attempt=1,
        rank=0,
        argv=argv,
        env={"PATH": "/usr/bin:/bin", "MUSTER_WORKER": f"test-{os.getpid()}-{job}"},
        cwd=str(folder.path / "work"),
        token=f"test-{os.getpid()}-{job}",
        cgroup="",
        lease_path="",
        lease_deadline_ns=0,
        claims_mib={},
        compute=0,
    )


async def test_a_keeper_by_itself_runs_its_ticket_and_records_the_exit(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "5.1.0")
    folder.prepare(ticket(5, ["/bin/sh", "-c", "pwd; exit 11"], folder))
    keeper = await asyncio.create_subprocess_exec(sys.executable, "-m", "muster.node_agent.keeper", str(folder.path))
    assert await keeper.wait() == 0
    assert folder.output.read_text() == f"{folder.path}/work\n"
    assert folder.exit() == ExitStatus("exited", exit_code=11)
    again = await asyncio.create_subprocess_exec(sys.executable, "-m", "muster.node_agent.keeper", str(folder.path))
    assert await again.wait() == 0
    assert folder.output.read_text().count("work") == 1


async def test_an_order_to_stop_that_came_first_keeps_the_program_from_running(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "5.1.0")
    folder.prepare(ticket(5, ["/bin/sh", "-c", "echo ran"], folder))
    folder.order_stop(StopOrder("stopped", 1000))
    keeper = await asyncio.create_subprocess_exec(sys.executable, "-m", "muster.node_agent.keeper", str(folder.path))
    await keeper.wait()
    assert folder.exit() == ExitStatus("stopped")
    assert not folder.output.exists()


async def test_two_agents_on_one_folder_are_refused(new_node: NewNode) -> None:
    await new_node().registered()
    second = new_node()
    with pytest.raises(AgentLockedError):
        await second.task


# -- a keeper or the zygote goes --------------------------------------------------------------------------------

FAMILY = """
import os, signal
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


async def test_what_a_killed_keeper_kept_is_killed_and_reported_lost(
    new_node: NewNode, link: FakeLink, held_by: dict[str, bool]
) -> None:
    node = new_node(**held_by)
    life = (await node.registered()).incarnation
    await link.command(start(life, python(FAMILY)))
    await link.fact(WorkerStarted, job=5)
    output = node.agent._settings.data / "workers" / "5.1.0" / "output"
    await until(lambda: output.read_text().count("\n") == 2)
    pids = [int(line) for line in output.read_text().split()]
    keeper = WorkerFolder(output.parent).keeper_pid()
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    exited = await link.fact(WorkerExited, job=5)
    assert exited.exit.reason == "lost"
    assert not any(map(alive, pids))
    assert link.facts(StopFailed) == []


async def test_a_frozen_keeper_cannot_keep_a_worker_from_being_stopped(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "KEEPER_MS", 100)
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start(life, "setsid sleep 1000 & sleep 1000"))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    keeper = WorkerFolder(node.agent._settings.data / "workers" / "5.1.0").keeper_pid()
    assert keeper is not None
    os.kill(keeper, signal.SIGSTOP)
    await link.command(stop(life, grace_ms=0))
    assert (await link.fact(WorkerExited, job=5)).exit.reason == "lost"
    assert not alive(pid)
    assert not alive(keeper)


async def test_a_killed_zygote_is_replaced_and_its_keepers_go_on(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start(life, "sleep 1000"))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    zygote = node.agent._keepers._process
    assert zygote is not None
    zygote.kill()
    await until_ended(zygote.pid)
    await link.command(start(life, "exit 3", job=6, indices=[1]))
    assert (await link.fact(WorkerExited, job=6)).exit.exit_code == 3
    assert link.facts(WorkerRefused) == []
    assert alive(pid)
    await link.command(stop(life))
    assert (await link.fact(WorkerExited, job=5)).exit.reason == "stopped"


async def test_what_a_zygote_that_went_without_a_word_has_started_is_known_all_the_same(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    begin = node.agent._keepers.start

    async def begin_silently(folder: WorkerFolder) -> None:
        await begin(folder)

    monkeypatch.setattr(node.agent._keepers, "start", begin_silently)
    await link.command(start(life, "sleep 1000"))
    pid = (await link.fact(WorkerStarted, job=5)).pid

    [held] = await node.agent._work()

    assert pid in held.pids


# -- the lease --------------------------------------------------------------------------------------------------


async def test_past_the_lease_the_leased_end_and_the_node_registers_anew(new_node: NewNode, link: FakeLink) -> None:
    node = new_node(lease_ms=400)
    life = (await node.registered()).incarnation
    await link.command(start(life, "sleep 1000"))
    await link.command(start(life, "sleep 1000", job=6, indices=[1], leased=False))
    pids = [(await link.fact(WorkerStarted, job=job)).pid for job in (5, 6)]
    link.beats_heard = False
    exited = await link.fact(WorkerExited, job=5)
    assert (exited.exit.reason, exited.incarnation) == ("lease_expired", life)
    second = await link.until(lambda: link.facts(NodeRegistered)[1:])
    assert second[0].incarnation != life
    assert [report.job for report in second[0].workers if report.exit is None] == [6]
    assert not alive(pids[0])
    assert alive(pids[1])
    link.beats_heard = True
    await link.command(start(second[0].incarnation, "exit 0", job=7))
    assert (await link.fact(WorkerExited, job=7)).exit.exit_code == 0


AGENT = """
import asyncio, sys
from pathlib import Path
from agent_world import FakeLink, Node, start
from muster.events.types import NodeRegistered, WorkerExited, WorkerStarted
async def main():
    link = FakeLink()
    node = Node(Path(sys.argv[1]), link, lease_ms=1000)
    await link.command(start((await node.registered()).incarnation, "sleep 1000"))
    print((await link.fact(WorkerStarted, job=5)).pid, flush=True)
    await link.until(lambda: link.facts(NodeRegistered)[1:])
    listed = [w.exit for w in link.facts(NodeRegistered)[1].workers]
    told = [e.exit for e in link.facts(WorkerExited) if e.incarnation == link.facts(NodeRegistered)[0].incarnation]
    print({status and status.reason for status in told + listed}, flush=True)
    await node.stop()
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_frozen_or_killed_agent_cannot_keep_its_workers_past_the_lease(tmp_path: Path, how: int) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        AGENT,
        str(tmp_path / "data"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert agent.stdout is not None
    worker = int(await asyncio.wait_for(agent.stdout.readline(), DEADLINE_S))
    assert alive(worker)
    agent.send_signal(how)
    folder = WorkerFolder(tmp_path / "data" / "workers" / "5.1.0")
    await asyncio.wait_for(keeper_gone(folder), DEADLINE_S)
    assert not alive(worker)
    status = folder.exit()
    assert status is not None
    assert (status.reason, status.signal) == ("lease_expired", signal.SIGKILL)
    if how == signal.SIGSTOP:
        agent.send_signal(signal.SIGCONT)
        news = await asyncio.wait_for(agent.stdout.readline(), DEADLINE_S)
        assert news == b"{'lease_expired'}\n"
    await agent.wait()


def test_a_lease_counts_from_the_sending_and_another_boot_has_none(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease", 120_000)
    assert lease.deadline_ns == 0
    assert not lease.over()
    sent_ns = boottime_ns()
    lease.renew(sent_ns)
    lease.renew(sent_ns - 1)
    assert lease.deadline_ns == sent_ns + 120_000_000_000
    lease.close()
    again = Lease(tmp_path / "lease", 120_000)
    assert again.deadline_ns == sent_ns + 120_000_000_000
    again.close()
    text = (tmp_path / "lease").read_text()
    (tmp_path / "lease").write_text("0" * 36 + text[36:])
    other_boot = Lease(tmp_path / "lease", 120_000)
    assert other_boot.deadline_ns == 0
    other_boot.close()


# -- the log goes -----------------------------------------------------------------------------------------------


async def test_reports_wait_for_a_log_that_is_full_or_away(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    link.failures = [LogFullError("full"), LogUnavailableError("away")]
    await link.command(start(life, "exit 5"))
    assert (await link.fact(WorkerExited, job=5)).exit.exit_code == 5
    assert len([event for event in link.facts(WorkerStarted) if event.job == 5]) == 1
    repeated = link.sent[1:]
    assert repeated[0] == repeated[1] == repeated[2]


async def test_what_could_not_be_reported_is_sent_by_the_next_agent(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start(life, "exit 5"))
    await link.fact(WorkerStarted, job=5)
    link.broker_up = False
    await link.command(start(life, "exit 6", job=6, indices=[1]))
    await link.until(lambda: len(link.sent) > len(link.ids))
    folder = WorkerFolder(node.agent._settings.data / "workers" / "6.1.0")
    await until(lambda: folder.exit() is not None)
    await node.crash()
    link.broker_up = True
    registered = await new_node().registered()
    told = [report.exit for report in registered.workers if report.job == 6]
    told += [event.exit for event in link.facts(WorkerExited) if event.job == 6]
    assert {(status.reason, status.exit_code) for status in told if status is not None} == {("exited", 6)}
    assert link.facts(WorkerStarted)[-1].job == 6
