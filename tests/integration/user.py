"""A cluster as a careful user has it: submits with a key and sends again, reads however often something is away.

Also what only a test does: reads the whole log, audits it, finds the processes of jobs.
"""

import asyncio
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from integration.processes import DEADLINE_S, LOOK_S, MUSTER, processes_in, processes_with, until_answer

from muster.api.client import Client, RefusedError, UnreachableError
from muster.events.connection import Connection, Credential
from muster.events.jetstream import JetStreamLog
from muster.events.log import Entry
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource

Json = dict[str, Any]
AWAY = 503


class User(ABC):
    """The user of one cluster, whose jobs write their trace to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection: Connection | None = None

    @abstractmethod
    def url(self) -> str:
        """Where the API listens now; "" while it does not."""

    @abstractmethod
    def reader(self) -> tuple[list[str], Credential]:
        """Where the brokers are, and who may read there."""

    async def close(self) -> None:
        """Let go of the log."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    @property
    def marker(self) -> str:
        """What stands in the environment of this cluster's jobs, and of no other process."""
        return f"TRACE={self.folder}"

    def processes(self) -> list[int]:
        """The processes of its jobs."""
        return processes_with(self.marker)

    def keepers(self) -> list[int]:
        """The keepers of its workers: they work in its folder."""
        return processes_in(self.folder)

    # -- over HTTP --------------------------------------------------------------------------------------------------

    async def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> Json:
        """Read, however often the API or the broker is away."""
        return await self._persist(lambda client: client.get(path, parameters))

    async def submit(self, command: list[str] | str, key: str, **spec: Any) -> int:
        """Submit a job; gives its id. Raises RefusedError."""
        body = {"command": command, **spec, "env": {"TRACE": str(self.folder), **spec.get("env", {})}}
        headers = {"Idempotency-Key": key}
        accepted = await self._persist(lambda client: client.post("/v1/jobs", body, headers=headers))
        return int(accepted["id"])

    async def post(self, path: str) -> Json:
        """Ask for something that may be asked for twice."""
        return await self._persist(lambda client: client.post(path))

    async def _persist(self, call: Callable[[Client], Json]) -> Json:
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                url = self.url()
                if url:
                    return await asyncio.to_thread(call, Client(url, "ada"))
            except UnreachableError:
                pass
            except RefusedError as error:
                if error.status != AWAY:
                    raise
            assert time.monotonic() < end_s, "the API does not answer"
            await asyncio.sleep(LOOK_S)

    async def job(self, job: int) -> Json:
        """A job as the API shows it."""
        return await self.get(f"/v1/jobs/{job}")

    async def job_in(self, job: int, *states: str) -> Json:
        """The job, once it is in one of `states`."""

        async def look() -> Json | None:
            shown = await self.job(job)
            return shown if shown["state"] in states else None

        return await until_answer(look, f"job {job} is {' or '.join(states)}")

    async def pid_of(self, job: int) -> int:
        """The process of a job's only worker, once the job runs."""
        [worker] = (await self.job_in(job, "RUNNING"))["workers"]
        return int(worker["pid"])

    async def all_ended(self, count: int) -> None:
        """Wait until so many jobs have ended."""

        async def look() -> bool:
            ended: dict[str, int] = (await self.get("/v1/state"))["jobs_ended"]
            return sum(ended.values()) >= count

        await until_answer(look, f"{count} jobs have ended")

    # -- at a terminal ----------------------------------------------------------------------------------------------

    async def muster(self, *words: str) -> str:
        """What a command prints. It must succeed."""
        environment = os.environ | {"MUSTER_SERVER": self.url()}
        done = await asyncio.to_thread(
            subprocess.run, [MUSTER, *words], env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # -- behind the scenes ------------------------------------------------------------------------------------------

    async def connection(self) -> Connection:
        """A connection that may read."""
        if self._connection is None:
            urls, credential = self.reader()
            self._connection = await Connection.open(urls, credential, "integration test")
        return self._connection

    async def entries(self) -> list[Entry]:
        """The whole log."""
        log = await JetStreamLog.open(await self.connection())
        return await log.read(1, 1_000_000)

    async def audit(self) -> AuditReport:
        """The log audited."""
        log = await JetStreamLog.open(await self.connection())
        return await asyncio.to_thread(audit, LogSource(log, asyncio.get_running_loop()))
