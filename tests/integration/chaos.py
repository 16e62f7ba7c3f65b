"""Two hundred short jobs, and parts of the cluster killed meanwhile. A round follows from its seed: which jobs, which
parts are killed, after how much progress. (How the machine interleaves the processes is not part of the seed.)
"""

import asyncio
import random
from pathlib import Path
from typing import Any, Final, NamedTuple

from integration.evidence import Expected, prove
from integration.jobs import prepare, trace, work
from integration.processes import until
from integration.site import Site

JOBS: Final = 200
CLIENTS: Final = 4
FAULTS: Final = ("broker", "scheduler-1", "server", "node-1", "node-2")
LONGEST_PAUSE_S: Final = 0.3


class Fault(NamedTuple):
    """Kill `victim` a moment after so many lines of the trace and acknowledged submissions."""

    progress: int
    pause_s: float
    victim: str


def job_of(rng: random.Random, folder: Path, number: int) -> tuple[int, dict[str, Any]]:
    """A job's own exit code, and its specification: one device, several, a gang over two nodes, or none."""
    code = rng.choice([0, 0, 0, rng.randrange(1, 256)])
    shape = rng.choice(
        [
            {"gpus": 1},
            {"gpus": 1},
            {"gpus": rng.randrange(2, 6)},
            {"gpus": 2 * rng.randrange(1, 4), "nodes": 2},
            {"cpus": 1},
        ]
    )
    command = work(folder, code, round(rng.uniform(0.02, 0.08), 3))
    return code, {"command": command, "name": f"job-{number}", **shape}


def faults_of(rng: random.Random) -> list[Fault]:
    """Each part is killed twice, in any order, at any moment of the round."""
    victims = list(FAULTS) * 2
    rng.shuffle(victims)
    moments = sorted(rng.randrange(5, 2 * JOBS) for _ in victims)
    return [
        Fault(progress, round(rng.uniform(0, LONGEST_PAUSE_S), 3), victim)
        for progress, victim in zip(moments, victims, strict=True)
    ]


async def play(folder: Path, seed: int, brokers: int = 1) -> None:
    """One round, with everything proved at its end."""
    rng = random.Random(seed)
    prepare(folder)
    jobs = [job_of(rng, folder, number) for number in range(JOBS)]
    faults = faults_of(rng)
    accepted: list[Expected] = []
    async with Site(folder, brokers=brokers) as site:

        async def submit(first: int) -> None:
            for number in range(first, JOBS, CLIENTS):
                code, spec = jobs[number]
                key = f"job-{number}"
                accepted.append(Expected(key, await site.submit(key=key, **spec), code))

        async def reached(progress: int) -> None:
            await until(lambda: len(trace(folder)) + len(accepted) >= progress, f"{progress} steps are done")

        async def harm() -> None:
            for fault in faults:
                await reached(fault.progress)
                await asyncio.sleep(fault.pause_s)
                if fault.victim == "broker":
                    broker = rng.choice(site.brokers)
                    await broker.kill9()
                    await broker.start()
                else:
                    site.restart(fault.victim)

        async with asyncio.TaskGroup() as group:
            group.create_task(harm())
            for client in range(CLIENTS):
                group.create_task(submit(client))
        await site.all_ended(JOBS)
        await prove(site, accepted)
