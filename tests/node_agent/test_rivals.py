"""Two agents of one name: the log says which of them is the node's, and the other ends with all of its workers."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, Node, alive, python, start

from muster.events import codec
from muster.events.log import Message
from muster.events.subjects import subject_of
from muster.events.telemetry import Heartbeat
from muster.events.types import Inventory, NodeRegistered, WorkerExited, WorkerStarted
from muster.node_agent.journal import Journal
from muster.node_agent.link import LogAsk
from muster.node_agent.rivals import NameTakenError
from muster.node_agent.worker_folder import WorkerFolder

FAMILY = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
signal.pause()
"""


async def over(node: Node) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await node.task


def of_another(incarnation: str = "another") -> NodeRegistered:
    return NodeRegistered(
        node="node-1", incarnation=incarnation, inventory=Inventory([], 1, 1, ""), workers=[], lease_ms=0
    )


async def test_a_second_agent_is_refused_while_the_first_one_beats(
    new_node: NewNode, link: FakeLink, tmp_path: Path
) -> None:
    first = new_node()
    life = (await first.registered()).incarnation
    second = new_node(data=tmp_path / "second", beat_ms=4_000)
    with pytest.raises(NameTakenError, match="another agent of node-1 runs; two agents must not have one name"):
        await over(second)
    await link.command(start(life, "exit 4"))
    assert (await link.fact(WorkerExited, job=5)).exit.exit_code == 4
    assert len(link.facts(NodeRegistered)) == 1


async def test_when_another_registers_the_first_ends_at_once_with_whole_trees(
    new_node: NewNode, link: FakeLink, held_by: dict[str, bool], tmp_path: Path
) -> None:
    first = new_node(**held_by, stop_grace_ms=600_000)
    life = (await first.registered()).incarnation
    await link.command(start(life, python(FAMILY)))
    await link.command(start(life, "sleep 1000", job=6, indices=[1], leased=False))
    pids = [(await link.fact(WorkerStarted, job=job)).pid for job in (5, 6)]
    output = b""
    assert link.answer is not None
    async for chunk in link.answer(LogAsk(5, 1, 0, follow=True)):
        output += chunk
        if output.endswith(b"\n"):
            break
    link.beats_heard = False
    second = new_node(data=tmp_path / "second", **held_by)
    registered = await second.registered()
    assert registered.workers == []
    with pytest.raises(NameTakenError, match="node-1 was registered by another agent; two agents must not have one"):
        await over(first)
    assert not any(map(alive, [*pids, int(output)]))
    assert link.facts(WorkerExited) == []
    link.beats_heard = True
    await link.command(start(registered.incarnation, "exit 9", job=7))
    assert (await link.fact(WorkerExited, job=7)).exit.exit_code == 9


async def test_an_agent_that_comes_back_to_a_node_taken_meanwhile_ends_what_it_had(
    new_node: NewNode, link: FakeLink, tmp_path: Path
) -> None:
    first = new_node()
    await link.command(start((await first.registered()).incarnation, "sleep 1000"))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    await first.crash()
    second = new_node(data=tmp_path / "second")
    await second.registered()
    again = new_node(beat_ms=4_000)
    with pytest.raises(NameTakenError):
        await over(again)
    assert not alive(pid)
    assert len(link.facts(NodeRegistered)) == 2


async def test_an_agent_past_its_lease_takes_no_node_back(new_node: NewNode, link: FakeLink) -> None:
    node = new_node(lease_ms=300)
    life = (await node.registered()).incarnation
    await link.command(start(life, "sleep 1000", leased=False))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    link.registrations_heard = False
    await node.stop(kill_jobs=False)
    node = new_node(lease_ms=300)
    await node.registered()
    await link.put(of_another())
    link.beats_heard = False
    with pytest.raises(NameTakenError):
        await over(node)
    assert not alive(pid)
    assert [event.incarnation for event in link.facts(NodeRegistered)][-1] == "another"


async def test_a_registration_that_could_not_be_sent_takes_no_node_back(
    new_node: NewNode, link: FakeLink, tmp_path: Path
) -> None:
    unsent = of_another("unsent")
    with Journal(tmp_path / "data") as journal:
        await journal.begin_life("unsent")
        await journal.keep([Message(subject_of(unsent), codec.encode(unsent), "unsent-1")])
    await link.put(of_another())
    node = new_node(beat_ms=4_000)
    await link.until(lambda: link.listened)
    await link.beat(Heartbeat("node-1", "another", 7))
    with pytest.raises(NameTakenError):
        await over(node)
    assert [event.incarnation for event in link.facts(NodeRegistered)] == ["another"]


async def test_a_restart_listens_for_nobody(new_node: NewNode, link: FakeLink) -> None:
    for _ in range(3):
        node = new_node()
        await node.registered()
        await node.crash()
    assert link.listened == 0


async def test_a_node_that_moved_is_taken_over_once_the_old_agent_is_silent(
    new_node: NewNode, link: FakeLink, tmp_path: Path
) -> None:
    old = new_node()
    await old.registered()
    await old.stop()
    assert (await new_node(data=tmp_path / "new").registered()).workers == []
    assert link.listened == 1


async def test_a_command_for_the_agent_before_is_no_sign_of_another(
    new_node: NewNode, link: FakeLink, tmp_path: Path
) -> None:
    """The scheduler may have decided it before it saw the new registration."""
    await link.put(of_another("before"))
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start("before", "exit 3"))
    await link.command(start(life, "exit 4", job=6))
    assert (await link.fact(WorkerExited, job=6)).exit.exit_code == 4
    assert not WorkerFolder(tmp_path / "data" / "workers" / "5.1.0").path.exists()


async def test_a_journal_knows_its_own_lives(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.sqlite") as old:
        old.execute("CREATE TABLE life (only INTEGER PRIMARY KEY CHECK (only = 1), incarnation TEXT, taken INTEGER)")
        old.execute("INSERT INTO life VALUES (1, 'oldest', 0)")
    old.close()
    with Journal(tmp_path) as journal:
        assert journal.is_own("oldest")
        for number in range(3):
            await journal.begin_life(f"life-{number}")
        assert journal.is_own("life-0")
    with Journal(tmp_path) as journal:
        assert [journal.is_own(f"life-{number}") for number in range(4)] == [True, True, True, False]
        assert journal.is_own("oldest")
