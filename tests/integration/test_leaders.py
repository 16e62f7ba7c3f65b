"""Several schedulers: whatever becomes of the one that leads, there is one history."""

import asyncio
from pathlib import Path

from integration.evidence import Expected, prove
from integration.jobs import go, of_job, prepare, trace, work
from integration.processes import Part, lives, until, until_answer
from integration.site import Site

from muster.events import types as t


async def another_leads(site: Site, than: Part) -> Part:
    """The next leader."""

    async def look() -> Part | None:
        leader = await site.leader()
        return leader if leader is not than else None

    return await until_answer(look, f"another than {than.name} leads")


async def term_begins(site: Site, number: int) -> None:
    """Wait until the two schedulers have begun so many terms."""

    def begun() -> bool:
        texts = [site.parts[name].text() for name in ("scheduler-1", "scheduler-2")]
        return sum(text.count("leads from entry") for text in texts) >= number

    await until(begun, f"term {number} begins")


async def submit_some(site: Site, first: int, count: int) -> list[Expected]:
    """Jobs on one device each, with codes of their own."""
    found = []
    for number in range(first, first + count):
        job = await site.submit(work(site.folder, number % 256, 0.05), f"job-{number}", gpus=1)
        found.append(Expected(f"job-{number}", job, number % 256))
    return found


async def test_a_frozen_leader_is_replaced_and_writes_nothing_when_thawed(tmp_path: Path) -> None:
    """What it missed is more than it reads at once when thawed: it first sees jobs that wait, and not yet that another
    leader has placed them."""
    prepare(tmp_path)
    async with Site(tmp_path, schedulers=2) as site:
        expected = await submit_some(site, 0, 10)
        await site.all_ended(10)
        frozen = await site.leader()
        frozen.freeze()
        expected += await submit_some(site, 10, 120)
        leader = await another_leads(site, frozen)
        await until(lambda: len(trace(tmp_path)) >= 100, "jobs run under the new leader")
        frozen.thaw()
        await until(lambda: "leads no more" in frozen.text(), "the thawed one steps down")
        expected += await submit_some(site, 130, 20)
        await site.all_ended(150)
        assert await site.leader() is leader
        proof = await prove(site, expected)
        terms = [event.scheduler for event in proof.of(t.LeaderStarted)]
        assert len(terms) == 2
        assert len(set(terms)) == 2


async def test_two_that_believe_they_lead(tmp_path: Path) -> None:
    """The lease is taken from whoever leads, again and again, while it works and does not know."""
    prepare(tmp_path)
    async with Site(tmp_path, schedulers=2) as site, asyncio.TaskGroup() as group:
        jobs = group.create_task(submit_some(site, 0, 200))
        for term in range(1, 6):
            await term_begins(site, term)
            await site.drop_lease()
        await site.all_ended(200)
        proof = await prove(site, await jobs)
        assert len(proof.of(t.LeaderStarted)) >= 5


async def test_a_leader_killed_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path, schedulers=2) as site:
        for node in ("node-1", "node-2"):
            await site.post(f"/v1/nodes/{node}/cordon")
        jobs = [await site.submit(work(tmp_path, code, 0.05), f"job-{code}", cpus=1) for code in range(100)]
        killed = await site.leader()
        await site.post("/v1/nodes/node-1/uncordon")
        killed.end()
        await site.post("/v1/nodes/node-2/uncordon")
        await another_leads(site, killed)
        killed.start()
        await site.all_ended(100)
        await prove(site, [Expected(f"job-{code}", job, code) for code, job in enumerate(jobs)])


async def test_the_workers_of_an_agent_frozen_past_its_lease_are_dead_before_their_job_runs_elsewhere(
    tmp_path: Path,
) -> None:
    prepare(tmp_path)
    async with Site(tmp_path, lease_s=3) as site:
        moves = await site.submit(work(tmp_path, 5, "wait"), "moves", gpus=8)
        [worker] = (await site.job_in(moves, "RUNNING"))["workers"]
        here = worker["node"]
        stays = await site.submit(
            work(tmp_path, 6, "wait"), "stays", cpus=1, where={"nodes": [here]}, retry={"max_attempts": 1}
        )
        kept = await site.pid_of(stays)
        site.parts[here].freeze()
        await until(lambda: not lives(worker["pid"]), "the lease ends the worker, agent or not")
        assert len(of_job(tmp_path, moves)) == 1
        await until(lambda: len(of_job(tmp_path, moves)) == 2, "the job runs elsewhere")
        first, second = of_job(tmp_path, moves)
        assert (first.node, first.pid) == (here, worker["pid"])
        assert second.node != here
        assert lives(kept)
        site.parts[here].thaw()
        go(tmp_path)
        await site.all_ended(2)
        proof = await prove(site, [Expected("moves", moves, 5), Expected("stays", stays, 6)])
        [lost] = proof.of(t.NodeLost)
        assert [(ref.job, ref.attempt) for ref in lost.ended] == [(moves, 1)]
