"""The distributed form on one machine: three brokers, and server, scheduler and agent as programs of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.events.broker import BrokerCluster

MUSTER = str(Path(sys.executable).with_name("muster"))
DEADLINE_S = 40


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(tmp_path / "brokers", nodes=["node-1"]) as cluster:
        yield cluster


class Parts:
    """The programs beside the brokers, and a client."""

    def __init__(self, cluster: BrokerCluster, data: Path) -> None:
        self._common = ["--connect", ",".join(cluster.urls), "--credentials", str(cluster.credentials_path)]
        self._data = data
        self._programs: list[subprocess.Popen[str]] = []
        self.url = ""

    def start(self, name: str, *words: str) -> str:
        """Start a part; gives the line it prints once it works."""
        command = [MUSTER, *words, "--data", str(self._data / name), *self._common]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._programs.append(program)
        assert program.stdout is not None
        return program.stdout.readline().strip()

    def call(self, *words: str, code: int = 0) -> str:
        environment = os.environ | {"MUSTER_SERVER": self.url}
        done = subprocess.run(
            [MUSTER, *words], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> list[int]:
        """End all; gives their exit codes."""
        for program in self._programs:
            program.send_signal(signal.SIGTERM)
        for program in self._programs:
            program.communicate(timeout=DEADLINE_S)
        return [program.returncode for program in self._programs]


@pytest.fixture
async def parts(brokers: BrokerCluster, tmp_path: Path) -> AsyncIterator[Parts]:
    parts = Parts(brokers, tmp_path)
    try:
        parts.url = parts.start("server", "server", "--port", "0", "--create-streams", "3").split()[-1]
        parts.start("scheduler", "scheduler")
        ports = f"{31_000 + os.getpid() % 1000 * 10}-{31_009 + os.getpid() % 1000 * 10}"
        parts.start("agent", "agent", "--node", "node-1", "--simulate", "8xA100-80GB", "--ports", ports)
        deadline_s = time.monotonic() + DEADLINE_S
        while "ready" not in parts.call("nodes"):
            assert time.monotonic() < deadline_s
        yield parts
    finally:
        codes = parts.stop()
    assert codes == [0, 0, 0]


async def test_a_job_runs(parts: Parts) -> None:
    assert parts.call("run", "--gpus", "1", "--", "sh", "-c", "echo one; exit 3", code=3) == "one\n"
    parts.call("audit")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_one_broker_less_changes_nothing(parts: Parts, brokers: BrokerCluster, lost: int) -> None:
    await brokers.brokers[lost].kill9()
    assert parts.call("run", "--gpus", "1", "--", "sh", "-c", "echo one") == "one\n"
    await brokers.brokers[lost].start()
    assert parts.call("run", "--gpus", "1", "--", "sh", "-c", "echo two; exit 9", code=9) == "two\n"
    jobs = json.loads(parts.call("jobs", "--json"))["jobs"]
    assert [job["exit_code"] for job in jobs] == [9, 0]
    parts.call("audit")
