"""The service as people meet it: `muster up` with its broker (`sync_interval: always`), asked over HTTP.

Submissions: 64 clients, each on one kept-alive connection, one request after another. Latency: on an idle cluster, one
job after another; from before the request is sent to the server's timestamp of WorkerStarted in the log.
"""

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

from bench.table import Row, percentile
from muster.projections.moments import parse_time_ns

CLIENTS: Final = 64
SUBMISSIONS: Final = 12_000
LATENCY_JOBS: Final = 300
UP_S: Final = 60


class Client:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of one request."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        lower = answer.lower()
        start = lower.index(b"content-length:") + 15
        length = int(lower[start : lower.index(b"\r\n", start)])
        return int(answer[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


@asynccontextmanager
async def up(simulate: str, config: str = "") -> AsyncGenerator[int, None]:
    """`muster up` as a process of its own; gives the API's port."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["up", "--data", str(Path(folder) / "data"), "--simulate", simulate, "--port", "0"]
        if config:
            path = Path(folder) / "cluster.toml"
            path.write_text(config)
            words += ["--config", str(path)]
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "muster"), *words, stdout=asyncio.subprocess.PIPE
        )
        try:
            yield await asyncio.wait_for(_port(process), UP_S)
        finally:
            process.send_signal(signal.SIGINT)
            await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    """The API's port, from what `muster up` prints once it is ready."""
    assert process.stdout is not None
    async for line in process.stdout:
        words = line.split()
        if words[:1] == [b"api"]:
            return int(words[1].rpartition(b":")[2])
    raise RuntimeError("muster up did not start")


async def measure() -> list[Row]:
    """Submissions per second, and the latency from submission to a running worker."""
    async with up("2x8xA100-80GB") as port:
        latency = await _latency(port)
    async with up("2x8xA100-80GB") as port:
        return [await _submissions(port), latency]


BESIDE_TRAINING: Final = """
[policy]
preemption = { min_runtime = 0, max_per_job = 1000 }

[[queue]]
name = "inference"
guarantee = "80%"
priority = "P0"

[[queue]]
name = "training"
"""
BURSTS: Final = 25
BURST: Final = 12


async def bursts() -> list[Row]:
    """Bursts of inference jobs, for whose room training jobs are stopped, against the same on an idle cluster."""
    async with up("2x8xA100-80GB", BESIDE_TRAINING) as port:
        idle = await _bursts(port)
    async with up("2x8xA100-80GB", BESIDE_TRAINING) as port:
        client = Client(port)
        await client.open()
        for _ in range(32):
            await client.ask("POST", "/v1/jobs", _job(1, ["sleep", "3600"], "training"))
        client.close()
        busy = await _bursts(port)
    beside = f"{BURSTS} bursts of {BURST} one-device jobs at once, 16 devices, all held by training"
    idle_p50_ms, idle_p99_ms = percentile(idle, 0.5), percentile(idle, 0.99)
    return [
        Row(
            "inference burst, submit to start, idle", f"p50 {idle_p50_ms:.0f} ms, p99 {idle_p99_ms:.0f} ms", beside[:36]
        ),
        Row(
            "inference burst, submit to start, beside training",
            f"p50 {percentile(busy, 0.5):.0f} ms, p99 {percentile(busy, 0.99):.0f} ms",
            beside,
        ),
    ]


async def _bursts(port: int) -> list[float]:
    """Milliseconds from before a job's request to its worker's start, over all bursts."""
    milliseconds: list[float] = []

    async def one() -> None:
        client = Client(port)
        await client.open()
        begun_ns = time.time_ns()
        _, answer = await client.ask("POST", "/v1/jobs", _job(1, ["sleep", "0.3"], "inference"))
        _, answer = await client.ask("GET", f"/v1/jobs/{json.loads(answer)['id']}/wait?timeout=30")
        started_ns = parse_time_ns(json.loads(answer)["started"])
        if started_ns is None:
            raise RuntimeError(f"an inference job has not started: {answer.decode()}")
        milliseconds.append((started_ns - begun_ns) / 1e6)
        client.close()

    for _ in range(BURSTS):
        async with asyncio.TaskGroup() as jobs:
            for _ in range(BURST):
                jobs.create_task(one())
        await _training_is_back(port)
    return milliseconds


async def _training_is_back(port: int) -> None:
    """Wait until the devices that inference had are held again by what waits for them, if anything does."""
    client = Client(port)
    await client.open()
    while True:
        _, answer = await client.ask("GET", "/v1/queue?limit=100")
        view = json.loads(answer)
        states = [job["state"] for job in view["running"]]
        if not view["pending_count"] or (len(states) == 16 and set(states) == {"RUNNING"}):  # noqa: PLR2004
            break
        await asyncio.sleep(0.02)
    client.close()


async def _submissions(port: int) -> Row:
    """Jobs that wait (the first one holds the queue), so that only submitting is measured."""
    first = Client(port)
    await first.open()
    for gpus in (1, 16):
        await first.ask("POST", "/v1/jobs", _job(gpus, ["sleep", "600"]))
    body = _job(1, ["true"])
    seconds: list[float] = []

    async def one_client(count: int) -> None:
        client = Client(port)
        await client.open()
        for _ in range(count):
            begun = time.perf_counter()
            status, answer = await client.ask("POST", "/v1/jobs", body)
            if status != HTTPStatus.CREATED:
                raise RuntimeError(f"a submission was answered {status}: {answer.decode()}")
            seconds.append(time.perf_counter() - begun)
        client.close()

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(one_client(SUBMISSIONS // CLIENTS))
    elapsed = time.perf_counter() - begun
    first.close()
    p50_ms, p99_ms = percentile(seconds, 0.5) * 1e3, percentile(seconds, 0.99) * 1e3
    beside = f"{CLIENTS} clients; an answer p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms"
    return Row("submissions over HTTP", f"{len(seconds) / elapsed:,.0f} /s", beside)


async def _latency(port: int) -> Row:
    client = Client(port)
    await client.open()
    milliseconds = []
    for _ in range(LATENCY_JOBS):
        begun_ns = time.time_ns()
        _, answer = await client.ask("POST", "/v1/jobs", _job(1, ["true"]))
        job_id = json.loads(answer)["id"]
        _, answer = await client.ask("GET", f"/v1/jobs/{job_id}/wait?timeout=30")
        started_ns = parse_time_ns(json.loads(answer)["started"])
        if started_ns is None:
            raise RuntimeError(f"job {job_id} has not started: {answer.decode()}")
        milliseconds.append((started_ns - begun_ns) / 1e6)
    client.close()
    value = f"p50 {percentile(milliseconds, 0.5):.1f} ms, p99 {percentile(milliseconds, 0.99):.1f} ms"
    return Row("submit to running, idle cluster", value, f"{LATENCY_JOBS} jobs, one after another")


def _job(gpus: int, command: list[str], queue: str = "default") -> bytes:
    return json.dumps({"command": command, "gpus": gpus, "name": "bench", "queue": queue}).encode()
