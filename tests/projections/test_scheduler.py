"""Terms and passes on a log in memory: one decider, whatever happens between any two of its steps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from cluster_script import inventory, spec

from muster.core.state import Job
from muster.events import codec
from muster.events import types as t
from muster.events.beats import Beat, MemoryTelemetry
from muster.events.lease import MemoryLeases
from muster.events.log import AppendRefusedError, LogUnavailableError, Message
from muster.events.memory import MemoryLog
from muster.events.subjects import subject_of
from muster.events.telemetry import Heartbeat
from muster.projections.follower import Follower
from muster.projections.scheduler import Scheduler

DEADLINE_S = 10.0


class Site:
    """A log with people and agents that write to it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.telemetry = MemoryTelemetry()
        self.leases = MemoryLeases()
        self.count = 0

    async def append(self, event: t.Event) -> int:
        self.count += 1
        message = Message(subject_of(event, "default"), codec.encode(event), f"test-{self.count}")
        return (await self.log.append(message)).sequence

    async def node(self, name: str = "node-1") -> None:
        await self.append(t.NodeRegistered(name, f"{name}-life", inventory(8), [], 120_000))

    async def submit(self, gpus: int = 1) -> int:
        return await self.append(t.JobSubmitted("ada", spec(gpus)))

    @asynccontextmanager
    async def scheduler(self, name: str) -> AsyncIterator[tuple[Scheduler, Follower]]:
        follower = Follower(self.log)
        scheduler = Scheduler(name, self.log, follower, self.leases.of(name), self.telemetry)
        tasks = [asyncio.create_task(follower.run()), asyncio.create_task(scheduler.run())]
        try:
            yield scheduler, follower
        finally:
            for task in reversed(tasks):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def job_in(follower: Follower, job_id: int, phase: str) -> Job:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            position = follower.position
            job = follower.fold.cluster.state.jobs.get(job_id)
            if job is not None and job.phase == phase:
                return job
            await follower.changed(position)


async def events_of(log: MemoryLog) -> list[t.Event]:
    return [codec.decode(entry.payload) for entry in await log.read(1, 10_000)]


async def test_a_submission_leads_to_a_bind() -> None:
    site = Site()
    await site.node()
    async with site.scheduler("s1") as (scheduler, follower):
        await asyncio.wait_for(scheduler.leading.wait(), DEADLINE_S)
        job = await site.submit(2)
        await job_in(follower, job, "STARTING")

    names = [type(event).__name__ for event in await events_of(site.log)]
    assert names == ["NodeRegistered", "LeaderStarted", "JobSubmitted", "JobAllocated", "StartWorker"]


async def test_a_decision_names_its_basis() -> None:
    site = Site()
    await site.node()
    async with site.scheduler("s1") as (scheduler, follower):
        await asyncio.wait_for(scheduler.leading.wait(), DEADLINE_S)
        job = await site.submit(2)
        await job_in(follower, job, "STARTING")

    allocated = next(event for event in await events_of(site.log) if isinstance(event, t.JobAllocated))
    basis = allocated.basis
    assert (basis.sequence, basis.policy, len(basis.chain)) == (job, "priority/easy/best-fit", 32)


async def test_of_two_candidates_one_leads() -> None:
    site = Site()
    await site.node()
    async with AsyncExitStack() as first_life, site.scheduler("s2") as (second, follower):
        first, _ = await first_life.enter_async_context(site.scheduler("s1"))
        done, waiting = await asyncio.wait(
            [asyncio.create_task(each.leading.wait(), name=each.name) for each in (first, second)],
            timeout=DEADLINE_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [task.get_name() for task in done] == ["s2"]
        job = await site.submit()
        await job_in(follower, job, "STARTING")
        for task in waiting:
            task.cancel()

    leaders = [event.scheduler for event in await events_of(site.log) if isinstance(event, t.LeaderStarted)]
    assert leaders == ["s2"]


async def test_the_next_leader_goes_on_where_the_last_one_ended() -> None:
    site = Site()
    await site.node()
    async with site.scheduler("s1") as (_, follower):
        first = await site.submit()
        await job_in(follower, first, "STARTING")
    async with site.scheduler("s2") as (_, follower):
        second = await site.submit()
        await job_in(follower, second, "STARTING")

    events = await events_of(site.log)
    assert [event.scheduler for event in events if isinstance(event, t.LeaderStarted)] == ["s1", "s2"]
    assert [event.job for event in events if isinstance(event, t.JobAllocated)] == [first, second]


async def test_a_stale_leader_is_refused_by_the_fence() -> None:
    site = Site()
    await site.node()
    async with site.scheduler("s1") as (scheduler, follower):
        await asyncio.wait_for(scheduler.leading.wait(), DEADLINE_S)
        stale = follower.fold.cluster.state.fence
        job = await site.submit()
        await job_in(follower, job, "STARTING")

        with pytest.raises(AppendRefusedError):
            await site.log.append_fenced([Message("muster.decision._cluster.x", b"{}", "late")], stale)


async def test_a_foreign_decision_ends_the_term_and_the_next_one_goes_on() -> None:
    site = Site()
    await site.node()
    async with site.scheduler("s1") as (scheduler, follower):
        await asyncio.wait_for(scheduler.leading.wait(), DEADLINE_S)
        fence = await site.log.last_fenced_sequence()
        rival = t.LeaderStarted("rival", 1, "fifo/best-fit")
        await site.log.append_fenced([Message(subject_of(rival), codec.encode(rival), "rival-1")], fence)
        job = await site.submit()
        await job_in(follower, job, "STARTING")

    allocations = [event for event in await events_of(site.log) if isinstance(event, t.JobAllocated)]
    assert [event.job for event in allocations] == [job]


class DeafAtFirst(MemoryTelemetry):
    """Telemetry that cannot be listened to the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0
        self.heard = asyncio.Event()

    async def arriving(self) -> AsyncIterator[Beat]:
        self.tries += 1
        if self.tries == 1:
            raise LogUnavailableError("not now")
        async for beat in super().arriving():
            self.heard.set()
            yield beat


async def test_a_scheduler_that_cannot_listen_to_beats_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.projections.scheduler.LOOK_S", 0.01)
    site = Site()
    site.telemetry = telemetry = DeafAtFirst()
    await site.node()
    async with site.scheduler("s1"), asyncio.timeout(DEADLINE_S):
        for count in range(10_000):
            await telemetry.beat(Heartbeat("node-1", "node-1-life", count))
            await asyncio.sleep(0.005)
            if telemetry.heard.is_set():
                break

    assert telemetry.heard.is_set()
    assert telemetry.tries == 2


async def test_whoever_meets_an_unknown_event_follows_and_never_leads() -> None:
    site = Site()
    await site.node()
    await site.log.append(Message("muster.admin.later", b'{"type":"FromTheFuture.7"}', "future"))
    async with site.scheduler("s1") as (scheduler, follower):
        job = await site.submit()
        await job_in(follower, job, "PENDING")
        await asyncio.sleep(0)

        assert not scheduler.leading.is_set()
    subjects = [entry.subject for entry in await site.log.read(1)]
    assert not any(subject.startswith("muster.decision.") for subject in subjects)
