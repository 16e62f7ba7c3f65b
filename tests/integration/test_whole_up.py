"""`muster up` killed -9 as a whole, and started again on the same data."""

import json
from pathlib import Path
from typing import Any, Self

from integration.evidence import Expected, prove
from integration.jobs import go, of_job, prepare, work
from integration.processes import Part, kill_processes, lives, until
from integration.site import port_range
from integration.user import User

from muster.events.connection import Credential
from muster.events.credentials import READER, read_credentials


class WholeUp(User):
    """`muster up` on a data folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        first = port_range(40)
        words = ["up", "--data", str(self.data), "--port", "0", "--simulate", "2x8xA100-80GB", "--verbose"]
        self.part = Part("up", [*words, "--ports", f"{first}-{first + 39}"], folder / "up")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.part.end()
        await self.close()
        await until(lambda: not kill_processes(self.marker), "the jobs are gone")

    async def start(self) -> None:
        """Start it, and wait until it says that it is up."""
        self.part.start()
        await until(self._announced, "`muster up` is up")

    async def kill(self) -> None:
        """Kill -9; its broker goes with it."""
        self.part.end()
        await self.close()

    def _announced(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.data / "up.json").read_text())
        except FileNotFoundError:
            return {}
        return told if told["pid"] == self.part.pid else {}

    def url(self) -> str:
        return str(self._announced().get("url", ""))

    def reader(self) -> tuple[list[str], Credential]:
        return [self._announced()["broker"]], read_credentials(self.data / "broker" / "reader.json")[READER]


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
