"""A log that runs full: no new work is accepted, and what runs is still recorded."""

import secrets
from pathlib import Path

import pytest
from integration.evidence import Expected, prove
from integration.jobs import go, prepare, work
from integration.processes import lives
from integration.site import Site

from muster.api.client import RefusedError

LIMIT_BYTES = 1_000_000
FILL_BYTES = 20_000


async def fill(site: Site, fillers: list[Expected]) -> None:
    """Submit jobs that wait, until one is refused."""
    while True:
        key, text = f"filler-{len(fillers)}", secrets.token_hex(FILL_BYTES // 2)
        job = await site.submit(work(site.folder), key, gpus=16, nodes=2, env={"FILL": text})
        fillers.append(Expected(key, job, None))


async def test_submissions_are_refused_and_running_work_is_recorded(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path, log_max_bytes=LIMIT_BYTES) as site:
        runs = await site.submit(work(tmp_path, 9, "wait"), "runs", gpus=10)
        shown = await site.job_in(runs, "RUNNING")
        fillers: list[Expected] = []
        with pytest.raises(RefusedError) as refused:
            await fill(site, fillers)
        assert refused.value.status == 507
        assert refused.value.problem["next_step"]
        assert LIMIT_BYTES * 0.8 < len(fillers) * FILL_BYTES < LIMIT_BYTES
        assert all(lives(worker["pid"]) for worker in shown["workers"])
        for filler in fillers:
            await site.post(f"/v1/jobs/{filler.job}/cancel")
        go(tmp_path)
        assert (await site.job_in(runs, "FAILED"))["exit_code"] == 9
        with pytest.raises(RefusedError):
            await site.submit(work(tmp_path), "one more", gpus=1)
        await site.all_ended(1 + len(fillers))
        for filler in fillers:
            assert (await site.job(filler.job))["state"] == "CANCELLED"
        await prove(site, [Expected("runs", runs, 9), *fillers])
