"""What is written for outside subscribers is true."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from log_cases import Connect

from muster.events import codec
from muster.events import types as t
from muster.events.broker import Broker
from muster.events.jetstream import JetStreamLog
from muster.events.log import Message
from muster.events.telemetry import GpuSampled, Heartbeat

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "events.md").read_text()
EXAMPLE = ROOT / "examples" / "follow_allocations.py"


def test_every_type_is_in_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+\.\d+)` \| `(muster\.[^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(tag for tag, _ in rows) == sorted(codec.KNOWN_TAGS)
    kinds = {str(kind.__struct_config__.tag): kind.__name__ for kind in t.Event.__args__}
    for tag, subject in rows:
        words = [word.lower() for word in re.findall("[A-Z][a-z]+", kinds[tag])]
        if subject.split(".")[1] not in ("submission", "command"):
            assert subject.endswith("." + "-".join(words))


@pytest.mark.parametrize("kind", [Heartbeat, GpuSampled])
def test_telemetry_is_named(kind: type[msgspec.Struct]) -> None:
    assert f"`{kind.__struct_config__.tag}`" in PAGE


def allocation(job: int, attempt: int = 1) -> bytes:
    return codec.encode(
        t.JobAllocated(
            basis=t.Basis(1, "00", "default", 1),
            job=job,
            attempt=attempt,
            placements=[t.Placement(0, "node-1", "life", [4, 5]), t.Placement(1, "node-2", "life", [0, 1])],
            master_address="10.0.0.1",
            master_port=21000,
            why="best-fit",
        )
    )


async def test_the_example_follows_allocations_through_a_restart(broker: Broker, connect: Connect) -> None:
    log = await JetStreamLog.open(await connect("scheduler"))
    subject = "muster.decision.default.job-allocated"
    await log.append(Message(subject, allocation(job=11), "1"))
    await log.append(Message(subject, allocation(job=12), "2"))
    await log.append(Message("muster.decision._cluster.clock-advanced", b'{"type":"ClockAdvanced.1"}', "3"))
    reader = str(broker.folder / "reader.json")
    follower = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), broker.url, reader, "1", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert follower.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await follower.stdout.readline() == b"2 job 12.1 on node-1: [4, 5], node-2: [0, 1]\n"
            await log.append(Message(subject, allocation(job=12, attempt=2), "4"))
            assert await follower.stdout.readline() == b"4 job 12.2 on node-1: [4, 5], node-2: [0, 1]\n"
            await broker.kill9()
            await broker.start()
            await log.append(Message(subject, allocation(job=13), "5"))
            assert await follower.stdout.readline() == b"5 job 13.1 on node-1: [4, 5], node-2: [0, 1]\n"
    finally:
        follower.kill()
        await follower.wait()


def test_the_example_without_arguments_says_what_it_needs() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "python follow_allocations.py nats://HOST:PORT CREDENTIALS [SEQUENCE]" in done.stderr
    assert "Traceback" not in done.stderr


async def test_the_example_says_in_a_line_that_no_broker_answers(tmp_path: Path) -> None:
    (tmp_path / "reader.json").write_text('{"reader": {"user": "reader", "password": "x", "api": "MUSTER.API"}}')
    words = (str(EXAMPLE), "nats://127.0.0.1:9", str(tmp_path / "reader.json"))
    follower = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=subprocess.PIPE)
    assert follower.stderr is not None
    try:
        async with asyncio.timeout(30):
            line = (await follower.stderr.readline()).decode()
    finally:
        follower.kill()
        await follower.wait()
    assert line.startswith("nats://127.0.0.1:9: ")
    assert line.endswith("; trying again\n")


def test_the_example_is_about_twenty_lines_of_plain_nats() -> None:
    code = EXAMPLE.read_text()
    assert "muster." not in re.sub(r'"muster\.[^"]*"', "", code)
    lines = [
        line for line in code.splitlines() if line.strip() and not line.strip().startswith(('"""', "import", "from"))
    ]
    assert len(lines) <= 20
