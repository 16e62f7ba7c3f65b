"""Output without end: the disk is given back the oldest of it, and readers get the rest."""

import asyncio
import os
from pathlib import Path

import pytest
from agent_world import FakeLink, NewNode, python, start

from muster.events.types import WorkerExited, WorkerStarted
from muster.node_agent import beside
from muster.node_agent.link import LogAsk
from muster.node_agent.output import drop_oldest

MIB = 1 << 20
LINE = b"%07d\n"
"""Eight bytes, so that a mebibyte has 131,072 of them."""
TOLD = b"\n[muster: the output before this line was dropped: it had reached its limit]\n"


def lines(first: int, end: int) -> bytes:
    return b"".join(LINE % number for number in range(first, end))


def used_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_an_output_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(lines(0, 131_072))
    drop_oldest(str(output), 2 * MIB)
    assert output.read_bytes() == lines(0, 131_072)


def test_the_oldest_output_goes_and_the_rest_keeps_its_place(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(lines(0, 524_288))
    with output.open("ab") as worker:
        drop_oldest(str(output), 2 * MIB)
        worker.write(b"and on\n")
    assert used_bytes(output) <= MIB + 8192
    content = output.read_bytes()
    assert len(content) == 4 * MIB + 7
    assert content.endswith(lines(400_000, 524_288) + b"and on\n")
    assert content.lstrip(b"\0").startswith(TOLD)


async def test_a_reader_gets_what_is_left_from_wherever_it_was(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "OUTPUT_LOOK_S", 0.01)
    node = new_node(output_limit_bytes=2 * MIB)
    life = (await node.registered()).incarnation
    data = node.agent._settings.data
    os.mkfifo(data / "go")
    output = data / "workers" / "5.1.0" / "output"
    program = "import os\nfor n in range(8): os.write(1, b'%07d\\n' % n * 131072)\nopen('go').read()\nprint('the end')"
    await link.command(start(life, python(program), workdir=str(data)))
    await link.fact(WorkerStarted)
    async with asyncio.timeout(15):
        while output.stat().st_size != 8 * MIB or used_bytes(output) > 2 * MIB:  # noqa: ASYNC110  # a file's size
            await asyncio.sleep(0.005)
    await asyncio.to_thread((data / "go").write_text, "")
    await link.fact(WorkerExited)
    assert link.answer is not None
    for offset in (0, MIB):
        given = b"".join([chunk async for chunk in link.answer(LogAsk(5, 1, 0, offset, follow=False))])
        assert given.startswith(TOLD)
        assert given.endswith(b"0000007\n" * 131_000 + b"the end\n")
        assert len(given) <= 2 * MIB + 8
    assert [c async for c in link.answer(LogAsk(5, 1, 0, 8 * MIB, follow=False))] == [b"the end\n"]
