"""The agent on the project's own log in memory; its outbox and its folders."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, start

from muster.events import codec
from muster.events.agent_link import MemoryAgentLink
from muster.events.asks import MemoryAsks
from muster.events.beats import MemoryTelemetry
from muster.events.log import Ack, DuplicateConflictError, Message
from muster.events.memory import MemoryLog
from muster.events.subjects import subject_of
from muster.events.types import NodeRegistered, WorkerExited, WorkerStarted
from muster.node_agent.agent import Agent, AgentSettings
from muster.node_agent.inventory import Site, simulated
from muster.node_agent.journal import Journal
from muster.node_agent.link import AgentLink, LogAsk
from muster.node_agent.outbox import Outbox


async def test_an_agent_on_the_log_in_memory(tmp_path: Path) -> None:
    log, telemetry, asks = MemoryLog(), MemoryTelemetry(), MemoryAsks()
    link: AgentLink = MemoryAgentLink(log, telemetry, asks, LogAsk)
    settings = AgentSettings(node="node-1", data=tmp_path / "data")
    agent = Agent(settings, link, simulated("1x2xA100-80GB", Site())["node-1"])
    running = asyncio.create_task(agent.run())
    kinds = []
    async with asyncio.timeout(DEADLINE_S):
        async for entries in log.tail(1):
            for entry in entries:
                event = codec.decode(entry.payload)
                kinds.append(type(event))
                if isinstance(event, NodeRegistered):
                    command = start(event.incarnation, "echo hello", indices=[1])
                    await log.append(Message(subject_of(command), codec.encode(command), "c-1"))
            if WorkerExited in kinds:
                break
        assert [kind for kind in kinds if kind in (NodeRegistered, WorkerStarted, WorkerExited)] == [
            NodeRegistered,
            WorkerStarted,
            WorkerExited,
        ]
        assert b"".join([part async for part in asks.ask("node-1", LogAsk(5, 1, 0))]) == b"hello\n"
        assert [beat.node for beat in await telemetry.last()] == ["node-1"]
        await agent.stop(kill_jobs=True)
        await running


class Conflicting(FakeLink):
    """The first message id of each batch was used by somebody else, once."""

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        if not self.sent:
            self.sent.append(messages[0].message_id)
            raise DuplicateConflictError(messages[0].message_id, 7)
        return await super().append_batch(messages, timeout_s)


async def test_a_report_whose_id_is_taken_does_not_hold_up_the_others(tmp_path: Path) -> None:
    link = Conflicting()
    with Journal(tmp_path) as journal:
        outbox = Outbox(journal, link, "id", lambda _: None)
        first = outbox.put(WorkerStarted("node-1", "i", 1, 1, 0, pid=10))
        second = outbox.put(WorkerStarted("node-1", "i", 2, 1, 0, pid=20))
        running = asyncio.create_task(outbox.run())
        async with asyncio.timeout(DEADLINE_S):
            assert await second == 1
            assert await first == 0
            await outbox.flushed()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert journal.unreported() == []
    assert [event.pid for event in link.facts(WorkerStarted)] == [20]


async def test_reports_are_kept_over_a_crash_with_their_ids_and_order(tmp_path: Path) -> None:
    link = FakeLink()
    link.broker_up = False
    with Journal(tmp_path) as journal:
        outbox = Outbox(journal, link, "first", lambda _: None)
        for pid in (10, 20):
            outbox.put(WorkerStarted("node-1", "i", pid, 1, 0, pid=pid))
        running = asyncio.create_task(outbox.run())
        await link.until(lambda: link.sent)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    link.broker_up = True
    with Journal(tmp_path) as journal:
        outbox = Outbox(journal, link, "second", lambda _: None)
        outbox.put(WorkerStarted("node-1", "i", 30, 1, 0, pid=30))
        running = asyncio.create_task(outbox.run())
        async with asyncio.timeout(DEADLINE_S):
            await outbox.flushed()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [event.pid for event in link.facts(WorkerStarted)] == [10, 20, 30]
    assert list(link.ids) == ["first-1", "first-2", "second-1"]


@pytest.mark.parametrize(("keep_s", "keep_count", "kept"), [(1e9, 2, [6, 7]), (-1.0, 9, []), (1e9, 9, [5, 6, 7])])
async def test_folders_of_ended_workers_are_kept_for_a_while(
    new_node: NewNode, link: FakeLink, keep_s: float, keep_count: int, kept: list[int]
) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    for job in (5, 6, 7):
        await link.command(start(life, "echo", job=job))
        await link.fact(WorkerExited, job=job)
    await link.command(start(life, "sleep 1000", job=8))
    await link.fact(WorkerStarted, job=8)
    await node.stop(kill_jobs=False)
    again = new_node(keep_s=keep_s, keep_count=keep_count)
    await again.registered()
    folders = node.agent._settings.data / "workers"
    async with asyncio.timeout(DEADLINE_S):
        while sorted(path.name for path in folders.iterdir()) != [f"{job}.1.0" for job in [*kept, 8]]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_a_worker_compiled_is_deleted_once_it_is_over(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = (await node.registered()).incarnation
    await link.command(start(life, "mkdir -p $TRITON_CACHE_DIR/deep", job=5))
    await link.fact(WorkerExited, job=5)
    await link.command(start(life, "sleep 1000", job=6))
    await link.fact(WorkerStarted, job=6)
    folders = node.agent._settings.data / "workers"
    assert (folders / "5.1.0" / "cache" / "triton" / "deep").is_dir()
    await node.stop(kill_jobs=False)
    await new_node().registered()
    async with asyncio.timeout(DEADLINE_S):
        while (folders / "5.1.0" / "cache").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (folders / "6.1.0" / "cache").is_dir()
