"""A broker that is away: for less than the lease it harms nobody, for longer only those that may run elsewhere."""

import signal
from pathlib import Path

from integration.evidence import Expected, prove
from integration.jobs import go, of_job, prepare, work
from integration.processes import lives, until, until_answer
from integration.site import NODES, Site

from muster.events import types as t


def unheard(site: Site) -> list[int]:
    """How many beats each agent has sent in vain."""
    return [site.parts[node].text().count("a beat was not acknowledged") for node in NODES]


async def node_is(site: Site, node: str, status: str) -> None:
    """Wait until a node has a status."""

    async def look() -> bool:
        return bool((await site.get(f"/v1/nodes/{node}"))["status"] == status)

    await until_answer(look, f"{node} is {status}")


async def test_a_broker_is_away_for_less_than_the_lease_and_for_longer(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path, lease_s=8) as site:
        [broker] = site.brokers
        moves = await site.submit(work(tmp_path, nap="wait"), "moves", gpus=1, where={"nodes": ["node-1"]})
        stays = await site.submit(
            work(tmp_path, 7, "wait"), "stays", gpus=1, where={"nodes": ["node-1"]}, retry={"max_attempts": 1}
        )
        never = await site.submit(work(tmp_path, nap="wait"), "never", gpus=1, retry={"on": []})
        pids = {job: await site.pid_of(job) for job in (moves, stays, never)}

        before = unheard(site)
        await broker.kill9()
        await until(lambda: all(now > then for now, then in zip(unheard(site), before, strict=True)), "agents notice")
        await broker.start()
        quick = [await site.submit(work(tmp_path), node, gpus=1, where={"nodes": [node]}) for node in NODES]
        for job in quick:
            await site.job_in(job, "COMPLETED")
        assert {job: await site.pid_of(job) for job in pids} == pids
        assert all(lives(pid) for pid in pids.values())

        await broker.kill9()
        await until(lambda: not lives(pids[moves]), "the lease ends what may run elsewhere")
        assert lives(pids[stays])
        assert lives(pids[never])
        await broker.start()
        await until(lambda: len(of_job(tmp_path, moves)) == 2, "what was stopped runs again")
        assert await site.pid_of(moves) != pids[moves]
        assert await site.pid_of(stays) == pids[stays]
        assert await site.pid_of(never) == pids[never]

        go(tmp_path)
        await site.all_ended(5)
        proof = await prove(
            site,
            [
                Expected("moves", moves, 0),
                Expected("stays", stays, 7),
                Expected("never", never, 0),
                *(Expected(node, job, 0) for node, job in zip(NODES, quick, strict=True)),
            ],
        )
        assert {event.job for event in proof.of(t.JobRequeued)} == {moves}
        assert [event.cause for event in proof.of(t.JobRequeued) if event.counted] == ["node_fail"]


async def test_an_agent_silent_for_less_than_its_lease_is_suspect_and_keeps_its_work(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path) as site:
        job = await site.submit(work(tmp_path, 3, "wait"), "job", gpus=1, where={"nodes": ["node-1"]})
        pid = await site.pid_of(job)
        site.parts["node-1"].freeze()
        await node_is(site, "node-1", "suspect")
        beside = await site.submit(work(tmp_path), "beside", gpus=1)
        assert (await site.job_in(beside, "COMPLETED"))["nodes"] == ["node-2"]
        waits = await site.submit(work(tmp_path), "waits", gpus=1, where={"nodes": ["node-1"]})
        assert (await site.job(waits))["state"] == "PENDING"
        assert await site.pid_of(job) == pid
        assert lives(pid)
        site.parts["node-1"].thaw()
        await node_is(site, "node-1", "ready")
        go(tmp_path)
        await site.all_ended(3)
        expected = [Expected("job", job, 3), Expected("beside", beside, 0), Expected("waits", waits, 0)]
        proof = await prove(site, expected)
        assert {each.attempts for each in proof.jobs.values()} == {1}
        assert not proof.of(t.NodeLost)


async def test_a_broker_that_hangs_is_left_and_found_again(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path) as site:
        [broker] = site.brokers
        job = await site.submit(work(tmp_path, 4, "wait"), "job", gpus=1)
        pid = await site.pid_of(job)
        before = unheard(site)
        broker.signal(signal.SIGSTOP)
        await until(lambda: all(now > then for now, then in zip(unheard(site), before, strict=True)), "agents notice")
        go(tmp_path)
        await until(lambda: of_job(tmp_path, job, "end"), "the job ends meanwhile")
        broker.signal(signal.SIGCONT)
        later = await site.submit(work(tmp_path, 5), "later", gpus=16)
        await site.all_ended(2)
        proof = await prove(site, [Expected("job", job, 4), Expected("later", later, 5)])
        assert [event.pid for event in proof.of(t.WorkerStarted) if event.job == job] == [pid]
