"""Jobs that put something else in the place of their worker's files, or delete the whole folder.

A job runs as the agent's user and can do so; the agent must live on, and no device may be given back while a process
of its worker runs.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, alive, start, stop

from muster.events.types import WorkerExited, WorkerStarted
from muster.node_agent import beside, keepers, workers
from muster.node_agent.link import LogAsk
from muster.node_agent.worker_folder import WorkerFolder


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what only the file system tells."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # a file's change sets no event
            await asyncio.sleep(0.005)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def below(pid: int) -> list[int]:
    """The children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("make", ["mkfifo", "mkdir", "ln -s /dev/zero"])
async def test_an_output_that_is_no_file_any_more_is_refused(new_node: NewNode, link: FakeLink, make: str) -> None:
    life = (await new_node().registered()).incarnation
    await link.command(start(life, f"cd .. && rm output && {make} output"))
    await link.fact(WorkerExited)
    assert link.answer is not None
    with pytest.raises(LookupError, match=r"the output of 5\.1\.0 cannot be read"):
        [chunk async for chunk in link.answer(LogAsk(5, 1, 0, 0, follow=False))]


@pytest.mark.parametrize(
    "spoil",
    ["mkfifo ../stop ../stop.new", "mkdir ../stop", "rm ../lock && mkfifo ../lock", "echo not an order > ../stop"],
)
async def test_a_worker_that_spoils_its_orders_is_stopped(
    new_node: NewNode, link: FakeLink, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "KEEPER_MS", 100)
    node = new_node()
    life = (await node.registered()).incarnation
    ready = node.agent._settings.data / "ready"
    await link.command(start(life, f"{spoil}; mkfifo {ready}; exec sleep 1000"))
    pid = (await link.fact(WorkerStarted)).pid
    await until(ready.exists)
    await link.command(stop(life, grace_ms=100))
    await link.fact(WorkerExited)
    assert not alive(pid)


async def test_a_worker_that_deletes_its_folder_is_stopped(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "KEEPER_MS", 100)
    node = new_node()
    life = (await node.registered()).incarnation
    folder = node.agent._settings.data / "workers" / "5.1.0"
    await link.command(start(life, f"rm -r {folder}; exec sleep 1000", workdir="/"))
    pid = (await link.fact(WorkerStarted)).pid
    await until(lambda: not folder.exists())
    await link.command(stop(life, grace_ms=100))
    assert (await link.fact(WorkerExited)).exit.reason == "lost"
    assert not alive(pid)


@pytest.mark.parametrize(
    "spoil",
    [
        "rm -r {folder}",
        "rm -r {folder} && touch {folder}",
        "rm -r {folder} && ln -s 5.1.0 {folder}",
        "mv {folder} {folder}/../../elsewhere",
        "rm {folder}/claimed",
        "sed -i s/:5,/:-5,/ {folder}/claimed",
        "touch {folder}/acknowledged",
        "ln -s acknowledged {folder}/acknowledged",
    ],
)
async def test_what_a_new_agent_knows_nothing_of_is_dead_before_it_registers(
    new_node: NewNode, link: FakeLink, spoil: str
) -> None:
    first = new_node()
    life = (await first.registered()).incarnation
    data = first.agent._settings.data
    folder = data / "workers" / "5.1.0"
    ready = data / "ready"
    program = f"env -i sleep 1000 & {spoil.format(folder=folder)}; mkfifo {ready}; exec sleep 1000"
    await link.command(start(life, program, workdir=str(data)))
    pid = (await link.fact(WorkerStarted)).pid
    await until(ready.exists)
    other = below(pid)
    await first.crash()
    assert alive(pid)
    registered = await new_node().registered()
    assert registered.workers == []
    assert not alive(pid)
    assert not any(map(alive, other))


@pytest.mark.parametrize(
    "spoil", ["rm ../lock", "rm ../lock && touch ../lock", "rm -r ../../5.1.0 && touch ../../5.1.0"]
)
async def test_a_keeper_that_cannot_be_found_by_its_folder_is_followed_to_its_end(
    new_node: NewNode, link: FakeLink, spoil: str
) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    ready = node.agent._settings.data / "ready"
    folder = node.agent._settings.data / "workers" / "5.1.0"
    await link.command(start(life, f"{spoil.replace('../..', str(folder.parent))}; mkfifo {ready}; exec sleep 1000"))
    pid = (await link.fact(WorkerStarted)).pid
    keeper = parent(pid)
    await until(ready.exists)

    gone = asyncio.create_task(keepers.keeper_gone(WorkerFolder(folder), keeper))

    assert await asyncio.wait({gone}, timeout=0.05) == (set(), {gone})
    os.kill(keeper, signal.SIGKILL)
    await gone


@pytest.mark.parametrize("file", ["claimed", "started", "exit", "stop"])
async def test_a_file_that_cannot_be_taken_apart_keeps_no_new_agent_away(
    new_node: NewNode, link: FakeLink, file: str
) -> None:
    first = new_node()
    life = (await first.registered()).incarnation
    ready = first.agent._settings.data / "ready"
    deep = "import sys; open(sys.argv[1], 'w').write('{\"x\":' + '[' * 200_000)"
    await link.command(
        start(life, f'{sys.executable} -c "$DEEP" ../{file}; mkfifo {ready}; exec sleep 1000', env={"DEEP": deep})
    )
    pid = (await link.fact(WorkerStarted)).pid
    await until(ready.exists)
    await first.crash()

    registered = await new_node().registered()

    assert alive(pid) == bool(registered.workers)
    if registered.workers:
        await link.command(stop(registered.incarnation, grace_ms=100))
        await link.fact(WorkerExited)
        assert not alive(pid)


async def test_cleaning_goes_on_whatever_jobs_leave(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "CLEAN_EVERY_S", 0.01)
    node = new_node(keep_count=0)
    life = (await node.registered()).incarnation
    folders = node.agent._settings.data / "workers"
    await link.command(start(life, "ln -s acknowledged ../acknowledged", job=5))
    await link.fact(WorkerExited, job=5)
    await link.command(start(life, "mkdir -p a/b; chmod 0 a ../work", job=6))
    await link.fact(WorkerExited, job=6)
    await link.command(start(life, f"mv {folders} {folders}.away; sleep 0.1; mv {folders}.away {folders}", job=7))
    await link.fact(WorkerExited, job=7)

    await until(lambda: list(folders.iterdir()) == [])


async def test_an_exit_that_cannot_be_written_ends_the_worker_as_lost(new_node: NewNode, link: FakeLink) -> None:
    first = new_node()
    life = (await first.registered()).incarnation
    await link.command(start(life, "mkdir ../exit; exit 3"))
    assert (await link.fact(WorkerExited)).exit.reason == "lost"
    await first.crash()
    assert (await new_node().registered()).workers == []
