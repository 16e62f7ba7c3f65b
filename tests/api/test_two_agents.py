"""Two programs that are the agent of one node, on one broker and on three."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest
from agent_world import alive, start

from muster.events import codec
from muster.events.broker import Broker, BrokerCluster
from muster.events.connection import Connection
from muster.events.jetstream import JetStreamLog
from muster.events.log import Message
from muster.events.streams import set_up
from muster.events.subjects import subject_of
from muster.events.types import NodeRegistered, WorkerStarted

MUSTER = str(Path(sys.executable).with_name("muster"))
DEADLINE_S = 40
Fact = TypeVar("Fact")
TAKEN = "muster: node-1 was registered by another agent; two agents must not have one name"


@pytest.fixture(params=[1, 3])
async def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker | BrokerCluster]:
    folder = tmp_path / "brokers"
    made = Broker(folder, nodes=["node-1"]) if request.param == 1 else BrokerCluster(folder, nodes=["node-1"])
    async with made as started:
        await set_up(started.urls, started.credentials, replicas=started.replicas)
        yield started


class Site:
    """A log, and agents of node-1 as programs."""

    def __init__(self, brokers: Broker | BrokerCluster, log: JetStreamLog, folder: Path) -> None:
        self._brokers = brokers
        self._folder = folder
        self.log = log
        self.programs: list[asyncio.subprocess.Process] = []
        self.workers: list[int] = []

    async def start(self, name: str) -> asyncio.subprocess.Process:
        common = ["--connect", ",".join(self._brokers.urls), "--credentials", str(self._brokers.credentials_path)]
        words = ["agent", "--node", "node-1", "--simulate", "1xA100-80GB", "--data", str(self._folder / name), *common]
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(MUSTER, *words, stdout=pipe, stderr=pipe)
        self.programs.append(program)
        return program

    async def life(self, number: int) -> NodeRegistered:
        """The registration of that number, from 1 on, waited for."""
        return [event async for event in self._facts(NodeRegistered, number)][-1]

    async def worker(self, incarnation: str) -> int:
        """Have a worker run there; gives its pid."""
        command = start(incarnation, "sleep 1000")
        await self.log.append(Message(subject_of(command), codec.encode(command), f"start-{incarnation}"))
        self.workers += [event.pid async for event in self._facts(WorkerStarted, 1)]
        return self.workers[-1]

    async def _facts(self, kind: type[Fact], count: int) -> AsyncIterator[Fact]:
        async with asyncio.timeout(DEADLINE_S), aclosing(self.log.tail(1)) as chunks:  # type: ignore[type-var]
            async for entries in chunks:
                for event in (codec.decode(entry.payload) for entry in entries):
                    if isinstance(event, kind):
                        yield event
                        count -= 1
                    if count == 0:
                        return


async def words_of(program: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """How the program ends, and what it says to that."""
    async with asyncio.timeout(DEADLINE_S):
        _, told = await program.communicate()
    return program.returncode, told.decode()


@pytest.fixture
async def site(brokers: Broker | BrokerCluster, tmp_path: Path) -> AsyncIterator[Site]:
    operator = await Connection.open(brokers.urls, brokers.credentials["operator"])
    site = Site(brokers, await JetStreamLog.open(operator), tmp_path)
    yield site
    for program in site.programs:
        if program.returncode is None:
            program.send_signal(signal.SIGCONT)
            program.terminate()
        await program.communicate()
    for worker in filter(alive, site.workers):
        os.kill(worker, signal.SIGKILL)
    await operator.close()


async def test_a_second_agent_is_refused_while_the_first_one_runs(site: Site) -> None:
    first = await site.start("first")
    worker = await site.worker((await site.life(1)).incarnation)
    code, told = await words_of(await site.start("second"))
    assert code == 1
    assert "muster: another agent of node-1 runs; two agents must not have one name" in told
    assert first.returncode is None
    assert alive(worker)
    first.kill()
    await first.communicate()
    again = await site.start("first")
    assert [report.pid for report in (await site.life(2)).workers] == [worker]
    assert again.returncode is None


async def test_an_agent_that_was_away_while_another_registered_ends_its_workers(site: Site) -> None:
    first = await site.start("first")
    worker = await site.worker((await site.life(1)).incarnation)
    first.send_signal(signal.SIGSTOP)
    second = await site.start("second")
    assert (await site.life(2)).workers == []
    assert alive(worker)
    first.send_signal(signal.SIGCONT)
    code, told = await words_of(first)
    assert (code, TAKEN in told) == (1, True), told
    assert not alive(worker)
    assert second.returncode is None
    code, told = await words_of(await site.start("first"))
    assert (code, "another agent of node-1 runs" in told) == (1, True), told
