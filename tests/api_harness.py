"""The API over a log in memory, with a real fold, a real store and a scheduler that passes when told."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from muster.api.clients import Clients
from muster.api.http import HttpServer
from muster.api.samples import LastSamples
from muster.api.service import OutputError, Service
from muster.api.submitting import Submitter
from muster.core.decide import decide
from muster.events import types as t
from muster.events.beats import MemoryTelemetry, Sampled
from muster.events.codec import encode
from muster.events.log import Message
from muster.events.memory import MemoryLog
from muster.events.subjects import CLUSTER_QUEUE, subject_of
from muster.events.telemetry import DeviceSample, GpuSampled
from muster.node_agent.link import LogAsk
from muster.projections.follower import Follower
from muster.projections.store import Store
from muster.projections.timetravel import TimeTravel

T = TypeVar("T")
DEADLINE_S = 20


class FakeOutputs:
    """Outputs by (job, attempt, rank); what is not there is an agent that does not answer."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int, int], bytes] = {}

    async def ask(self, node: str, question: LogAsk) -> AsyncGenerator[bytes, None]:
        key = (question.job, question.attempt, question.rank)
        if key not in self.texts:
            raise OutputError(f"{node} does not answer")
        yield self.texts[key][question.offset :]


class LogClock:
    """The log's clock, which goes `behind_s` for what is to have happened a while ago."""

    def __init__(self) -> None:
        self.behind_s = 0

    def __call__(self) -> int:
        return time.time_ns() - self.behind_s * 1_000_000_000


class Harness:
    """A cluster as the API sees it."""

    def __init__(
        self, log: MemoryLog, store: Store, follower: Follower, service: Service, url: str, clock: LogClock
    ) -> None:
        self.log = log
        self.clock = clock
        self.store = store
        self.follower = follower
        self.service = service
        self.url = url
        self.outputs = service.outputs
        self._count = 0

    async def append(self, event: t.Event, queue: str = CLUSTER_QUEUE) -> int:
        self._count += 1
        message = Message(subject_of(event, queue), encode(event), f"harness-{self._count}")
        ack = await self.log.append(message)
        await self.follower.wait_for(ack.sequence, DEADLINE_S)
        return ack.sequence

    async def add_node(self, name: str, devices: int = 8, fabric: str = "") -> int:
        inventory = t.Inventory(
            devices=[t.Device(i, f"GPU-{name}-{i}", "A100-80GB", 81_000, 81_920) for i in range(devices)],
            cpus=128,
            memory_mib=1 << 20,
            address="127.0.0.1",
            fabric=fabric,
        )
        return await self.append(t.NodeRegistered(name, f"{name}-life", inventory, [], 120_000))

    async def sample(self, node: str, *devices: DeviceSample, age_s: float = 0, incarnation: str = "") -> None:
        """What a node's agent sampled so long ago."""
        life = incarnation or self.follower.fold.cluster.state.nodes[node].incarnation
        taken_ns = time.time_ns() - round(age_s * 1e9)
        self.service.samples.take(Sampled(GpuSampled(node, life, list(devices)), taken_ns))

    async def decide(self) -> list[t.Event]:
        """One pass of the scheduler."""
        await self.follower.wait_for(len(self.log.entries), DEADLINE_S)
        events = decide(self.follower.fold.cluster)
        for event in events:
            await self.append(event, "default")
        return events

    async def start(self, job: int, pid: int = 4242) -> None:
        for worker in self._workers(job):
            await self.append(t.WorkerStarted(worker.node, worker.incarnation, job, 1, worker.rank, pid))

    async def end(self, job: int, exit_code: int = 0) -> None:
        status = t.ExitStatus("exited", exit_code)
        for worker in self._workers(job):
            await self.append(t.WorkerExited(worker.node, worker.incarnation, job, 1, worker.rank, status))

    def _workers(self, job: int) -> list[Any]:
        attempt = self.follower.fold.cluster.state.jobs[job].attempt
        assert attempt is not None
        return list(attempt.workers)


@asynccontextmanager
async def serving(folder: Path, limit_bytes: int = 0, clients: Clients | None = None) -> AsyncGenerator[Harness, None]:
    """The API on a free port, over an empty log."""
    clock = LogClock()
    log = MemoryLog(clock=clock, limit_bytes=limit_bytes)
    store = await Store.open(folder / "mirror.sqlite")
    follower = Follower(log, store)
    await follower.start()
    submitter = Submitter(log)
    samples = LastSamples(MemoryTelemetry())
    service = Service(log, follower, store, TimeTravel(store, log), FakeOutputs(), submitter, samples)
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(submitter.run())]
    server = HttpServer(service, port=0, clients=clients)
    await server.start()
    try:
        yield Harness(log, store, follower, service, server.url, clock)
    finally:
        await server.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


@asynccontextmanager
async def session_of(harness: Harness) -> AsyncGenerator[aiohttp.ClientSession, None]:
    """An HTTP client of the harness."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(harness.url, timeout=timeout) as session:
        yield session


class Background:
    """A harness that runs in a thread of its own, for clients that block."""

    def __init__(self, loop: asyncio.AbstractEventLoop, harness: Harness) -> None:
        self._loop = loop
        self.harness = harness

    def do(self, work: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Run `work` beside the server and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(self.harness), self._loop).result(DEADLINE_S)


@contextmanager
def background(folder: Path) -> Iterator[Background]:
    """The API in a thread."""
    ready = threading.Event()
    found: list[Background] = []
    done: list[asyncio.Event] = []

    async def main() -> None:
        async with serving(folder) as harness:
            done.append(asyncio.Event())
            found.append(Background(asyncio.get_running_loop(), harness))
            ready.set()
            await done[0].wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(DEADLINE_S)
    try:
        yield found[0]
    finally:
        found[0]._loop.call_soon_threadsafe(done[0].set)
        thread.join(DEADLINE_S)
