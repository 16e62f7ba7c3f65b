"""An agent that dies at any moment: what the log says of a worker is what happened to it."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from agent_world import FakeLink, NewNode, Node, start

from muster.events.types import NodeRegistered, StartWorker, WorkerExited, WorkerRefused, WorkerStarted
from muster.node_agent.worker_folder import WorkerFolder

LIVES = 6
STARTS = 3


def outcomes(link: FakeLink) -> dict[int, str]:
    """Job → how it ended, folded from the log as a scheduler would."""
    known: dict[int, str] = {}
    for fact in link.facts(object):
        match fact:
            case NodeRegistered(workers=workers):
                listed = {worker.job for worker in workers}
                for job in set(known) - listed:
                    if known[job] in ("placed", "running"):
                        known[job] = "never was"
                for worker in workers:
                    known[worker.job] = worker.exit.reason if worker.exit else "running"
            case WorkerStarted(job=job):
                known[job] = "running"
            case WorkerRefused(job=job):
                known[job] = "never was"
            case WorkerExited(job=job, exit=status):
                assert known.get(job, "running") != "never was", f"job {job} ended though it never was"
                known[job] = status.reason
            case StartWorker(job=job):
                known.setdefault(job, "placed")
            case _:
                pass
    return known


async def die_soon(chance: random.Random, node: Node) -> None:
    for _ in range(chance.randrange(60)):
        await asyncio.sleep(0)
    await asyncio.sleep(chance.choice((0.0, 0.15)) * chance.random())
    zygote = node.agent._keepers._process
    if zygote is not None and chance.random() < 0.3:
        zygote.kill()
    await node.crash()


@pytest.mark.parametrize("seed", range(5))
async def test_what_the_log_says_is_what_happened(new_node: NewNode, link: FakeLink, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ran = tmp_path / "ran"
    ran.touch()
    job = 0
    for _ in range(LIVES):
        node = new_node()
        life = (await node.registered()).incarnation
        for index in range(STARTS):
            job += 1
            command = start(
                life, f"echo $MUSTER_JOB_ID >> {ran}", job=job, indices=[index], device_memory_mib=1, compute=1
            )
            await link.command(command)
        await die_soon(chance, node)
    await new_node().registered()
    await link.until(lambda: not {"placed", "running"} & set(outcomes(link).values()))
    times = Counter(int(line) for line in ran.read_text().split())
    assert times == {job: 1 for job, outcome in outcomes(link).items() if outcome == "exited"}
    folders = [WorkerFolder(path) for path in (tmp_path / "data" / "workers").iterdir()]
    assert all(folder.claimed() is None or folder.keeper_pid() is None for folder in folders)
