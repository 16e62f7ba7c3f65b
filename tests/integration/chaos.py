"""Two hundred short jobs, some of them cancelled, and every part of the cluster killed twice meanwhile; in a round with
a short lease the broker is also away, and agents are frozen, for longer than that.

A round follows from its seed: which jobs, which parts are killed and when, in steps of progress. (How the machine
interleaves the processes is not part of the seed.)
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from integration.evidence import Expected, prove
from integration.jobs import prepare, trace, work
from integration.processes import until
from integration.site import Site

JOBS: Final = 200
CLIENTS: Final = 4
ENDLESS: Final = 12
"""How many of the jobs end by being cancelled alone."""
PARTS: Final = ("broker", "server", "node-1", "node-2")
LONGEST_PAUSE_S: Final = 0.3
LONGEST_LIFE_S: Final = 4.0
OUTAGES: Final = ("outage", "outage", "freeze node-1", "freeze node-2")
SHORT_LEASE_S: Final = 4.0
SHORT_NAPS_S: Final = (0.08,)
LONG_NAPS_S: Final = (0.1, 0.1, 0.1, 8.0)
PATIENT: Final = {"max_attempts": 20}


class Fault(NamedTuple):
    """Kill `victim` a moment after so many lines of the trace and acknowledged submissions."""

    progress: int
    pause_s: float
    victim: str


class Task(NamedTuple):
    """A job to submit: its own exit code; or, where it is endless, None and how long after that it is cancelled."""

    number: int
    code: int | None
    cancel_after_s: float
    spec: dict[str, Any]

    @property
    def key(self) -> str:
        """Its Idempotency-Key."""
        return f"job-{self.number}"


def tasks_of(rng: random.Random, folder: Path, naps_s: Sequence[float], retry: dict[str, int]) -> list[Task]:
    """Jobs of one device, of several, of none, and gangs over two nodes."""
    endless = set(rng.sample(range(JOBS), ENDLESS))
    tasks = []
    for number in range(JOBS):
        code = None if number in endless else rng.choice([0, 0, 0, rng.randrange(1, 256)])
        shapes = (
            {"gpus": 1},
            {"gpus": 1},
            {"gpus": rng.randrange(2, 6)},
            {"gpus": 2 * rng.randrange(1, 4), "nodes": 2},
            {"cpus": 1},
        )
        nap = "wait" if code is None else round(rng.uniform(0.02, rng.choice(naps_s)), 3)
        spec = {"command": work(folder, code or 0, nap), "retry": retry, **rng.choice(shapes)}
        tasks.append(Task(number, code, round(rng.uniform(0, LONGEST_LIFE_S), 3), spec))
    return tasks


def faults_of(rng: random.Random, schedulers: int, others: Sequence[str]) -> list[Fault]:
    """Each part is killed twice, in any order, at any moment of the round; and the other faults."""
    victims = [*PARTS, *(f"scheduler-{number}" for number in range(1, schedulers + 1))] * 2 + list(others)
    rng.shuffle(victims)
    moments = sorted(rng.randrange(5, 2 * JOBS) for _ in victims)
    pauses = (round(rng.uniform(0, LONGEST_PAUSE_S), 3) for _ in victims)
    return [Fault(*fault) for fault in zip(moments, pauses, victims, strict=True)]


async def harm(site: Site, victim: str, rng: random.Random) -> None:
    """One fault, from its beginning to its end."""
    if victim == "broker":
        broker = rng.choice(site.brokers)
        await broker.kill9()
        await broker.start()
    elif victim == "outage":
        await asyncio.gather(*(broker.kill9() for broker in site.brokers))
        await asyncio.sleep(SHORT_LEASE_S + 1)
        await asyncio.gather(*(broker.start() for broker in site.brokers))
    elif victim.startswith("freeze "):
        part = site.parts[victim.removeprefix("freeze ")]
        part.freeze()
        await asyncio.sleep(SHORT_LEASE_S + 1)
        part.thaw()
    else:
        site.restart(victim)


async def play(folder: Path, seed: int, *, brokers: int = 1, schedulers: int = 1, outages: bool = False) -> None:
    """One round, with everything proved at its end."""
    print(f"seed {seed}, {brokers} brokers, {schedulers} schedulers, outages: {outages}")  # noqa: T201  # if it fails
    rng = random.Random(seed)
    prepare(folder)
    tasks = tasks_of(rng, folder, LONG_NAPS_S, PATIENT) if outages else tasks_of(rng, folder, SHORT_NAPS_S, {})
    faults = faults_of(rng, schedulers, OUTAGES if outages else ())
    lease_s = SHORT_LEASE_S if outages else 120.0
    site = Site(folder, brokers=brokers, schedulers=schedulers, lease_s=lease_s)
    accepted: list[Expected] = []
    async with site, asyncio.TaskGroup() as group:

        async def cancel(job: int, after_s: float) -> None:
            await asyncio.sleep(after_s)
            await site.post(f"/v1/jobs/{job}/cancel")

        async def submit(mine: list[Task]) -> None:
            for task in mine:
                job = await site.submit(key=task.key, **task.spec)
                accepted.append(Expected(task.key, job, task.code))
                if task.code is None:
                    group.create_task(cancel(job, task.cancel_after_s))

        async def reached(progress: int) -> None:
            await until(lambda: len(trace(folder)) + len(accepted) >= progress, f"{progress} steps are done")

        for client in range(CLIENTS):
            group.create_task(submit(tasks[client::CLIENTS]))
        for fault in faults:
            await reached(fault.progress)
            await asyncio.sleep(fault.pause_s)
            await harm(site, fault.victim, rng)
        await site.all_ended(JOBS)
        await prove(site, accepted)
