"""`muster up` killed -9 as a whole, and started again on the same data."""

from pathlib import Path

from integration.evidence import Expected, prove
from integration.jobs import go, of_job, prepare, work
from integration.processes import lives, until
from integration.whole_up import WholeUp


async def test_jobs_go_on_and_their_exits_are_recorded(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with WholeUp(tmp_path) as up:
        outlives = await up.submit(work(tmp_path, 77, "wait"), "outlives", cpus=1)
        ends = await up.submit(work(tmp_path, 78, "wait"), "ends", cpus=1, env={"GO": "early"})
        expected = [Expected("outlives", outlives, 77), Expected("ends", ends, 78)]
        pids = {job: await up.pid_of(job) for job in (outlives, ends)}
        for code in range(60):
            job = await up.submit(work(tmp_path, code, 0.1), f"job-{code}", gpus=2)
            expected.append(Expected(f"job-{code}", job, code))
            if code in (20, 40):
                await up.kill()
                await up.start()
        await up.kill()
        assert all(lives(pid) for pid in pids.values())
        go(tmp_path, "early")
        await until(lambda: of_job(tmp_path, ends, "end"), "a job ends while nobody looks")
        await up.start()
        assert await up.pid_of(outlives) == pids[outlives]
        assert (await up.job_in(ends, "FAILED"))["exit_code"] == 78
        go(tmp_path)
        await up.all_ended(len(expected))
        proof = await prove(up, expected)
        assert proof.jobs[outlives].attempts == proof.jobs[ends].attempts == 1
        assert "clean" in await up.muster("audit", "--mirror")
