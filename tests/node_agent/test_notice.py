"""The signal before the end: who is told, how long they have, and what cuts that short."""

import asyncio
import fcntl
import os
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, Node, alive, python, start, stop

from muster.events.types import ExitStatus, StopWorker, WorkerExited, WorkerRefused, WorkerStarted
from muster.node_agent.keeper_files import write_file
from muster.node_agent.link import LogAsk
from muster.node_agent.worker_folder import StopOrder, WorkerFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpointing.py"
NEVER_MS = 600_000
"""Longer than any test: what ends had no need of it."""

SAVES = """
import signal, sys
def save(*_):
    open('checkpoint', 'w').write('step 7')
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
print('ready', flush=True)
while True:
    signal.pause()
"""

GOES_ON = """
import signal, sys
signal.signal(signal.SIGUSR2, lambda *_: print('heard', flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
print('ready', flush=True)
while True:
    signal.pause()
"""

SAVES_WHEN_LET = """
import os, signal, sys, time
def save(*_):
    print('heard', flush=True)
    while not os.path.exists('go'):
        time.sleep(0.005)
    open('checkpoint', 'w').write('step 7')
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
print('ready', flush=True)
while True:
    signal.pause()
"""


def notice(life: str, notice_ms: int = NEVER_MS, grace_ms: int = NEVER_MS, name: str = "USR2") -> StopWorker:
    return stop(life, grace_ms, cause="preempted", signal=name, notice_ms=notice_ms)


def folder_of(node: Node) -> WorkerFolder:
    return WorkerFolder(node.agent._settings.data / "workers" / "5.1.0")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what only the file system tells."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # a file's change sets no event
            await asyncio.sleep(0.005)


async def keeper_has_looked(folder: WorkerFolder) -> None:
    """The keeper has done all that was due when this was called: it has come to take another byte."""
    control = os.open(folder.path / "control", os.O_RDWR | os.O_NONBLOCK)
    os.write(control, b"s")
    await until(lambda: fcntl.ioctl(control, termios.FIONREAD, bytes(4)) == bytes(4))
    os.close(control)


async def said(link: FakeLink, words: bytes) -> None:
    """The worker has printed this."""
    assert link.answer is not None
    text = b""
    async for chunk in link.answer(LogAsk(5, 1, 0, follow=True)):
        text += chunk
        if words in text:
            return
    pytest.fail(f"it ended without a word of {words!r}: {text!r}")


async def begin(node: Node, command: str | list[str], **values: Any) -> str:
    """Start the worker; its agent's life, once the worker has said that it is ready."""
    life = (await node.registered()).incarnation
    await node.link.command(start(life, command, **values))
    await node.link.fact(WorkerStarted, job=5)
    await said(node.link, b"ready\n")
    return life


async def end_of(link: FakeLink) -> ExitStatus:
    return (await link.fact(WorkerExited, job=5)).exit


# -- who is told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("list", 0),
        ("{python} {script}", 0),
        ("exec {python} {script}", 0),
        ("{python} {script} && exit 3", 3),
        ("({python} {script}; exit 3) & wait $!", 3),
        ("setsid {python} {script} & wait $!", 0),
        ("timeout 1000 {python} {script}", 0),
    ],
)
async def test_a_checkpoint_is_written_within_the_notice(
    new_node: NewNode, link: FakeLink, held_by: dict[str, bool], tmp_path: Path, form: str, code: int
) -> None:
    """However the program is started: what stands around it neither dies of the signal nor keeps it from it."""
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    node = new_node(**held_by)
    command = python(SAVES) if form == "list" else form.format(python=sys.executable, script=script)
    life = await begin(node, command)
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", code)
    assert (folder_of(node).path / "work" / "checkpoint").read_text() == "step 7"


async def test_a_trap_of_the_shell_hears_it(new_node: NewNode, link: FakeLink) -> None:
    life = await begin(new_node(), "trap 'exit 6' USR2; echo ready; while :; do sleep 0.02; done")
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", 6)


async def test_a_thread_that_waits_for_the_signal_hears_it(new_node: NewNode, link: FakeLink) -> None:
    source = """import os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
waiting = threading.Thread(target=lambda: os._exit(signal.sigwait([signal.SIGUSR2]) - signal.SIGUSR2 + 6))
waiting.start()
print('ready', flush=True)
waiting.join()"""
    life = await begin(new_node(), python(source))
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", 6)


async def test_a_frozen_worker_hears_it_too(new_node: NewNode, link: FakeLink) -> None:
    life = await begin(new_node(), python(SAVES))
    os.kill((await link.fact(WorkerStarted, job=5)).pid, signal.SIGSTOP)
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", 0)


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("USR2", "none of its processes had a handler for USR2: TERM at once"),
        ("KILL", "none of its processes had a handler for KILL: TERM at once"),
        ("NOSUCH", "there is no signal NOSUCH here: TERM at once"),
    ],
)
async def test_a_signal_that_nobody_can_hear_is_said_and_gives_no_notice(
    new_node: NewNode, link: FakeLink, name: str, detail: str
) -> None:
    life = await begin(new_node(), "echo ready; exec sleep 1000")
    await link.command(notice(life, name=name))
    assert await end_of(link) == ExitStatus("stopped", 128 + signal.SIGTERM, signal.SIGTERM, detail)


# -- how long they have -----------------------------------------------------------------------------------------


async def test_past_the_notice_comes_term(new_node: NewNode, link: FakeLink) -> None:
    life = await begin(new_node(), python(GOES_ON))
    await link.command(notice(life, notice_ms=50))
    assert await end_of(link) == ExitStatus("stopped", 4)
    await said(link, b"ready\nheard\n")


async def test_who_ignores_the_signal_has_the_notice_and_then_term(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = await begin(node, "trap '' USR2; trap 'exit 4' TERM; echo ready; while :; do sleep 0.02; done")
    await link.command(notice(life, notice_ms=50))
    assert await end_of(link) == ExitStatus("stopped", 4)


async def test_past_the_grace_the_tree_is_killed(new_node: NewNode, link: FakeLink, held_by: dict[str, bool]) -> None:
    source = GOES_ON.replace("lambda *_: sys.exit(4)", "signal.SIG_IGN")
    life = await begin(new_node(**held_by), python(source))
    pid = (await link.fact(WorkerStarted, job=5)).pid
    await link.command(notice(life, notice_ms=50, grace_ms=50))
    assert await end_of(link) == ExitStatus("stopped", 128 + signal.SIGKILL, signal.SIGKILL)
    assert not alive(pid)


async def test_what_a_saved_program_leaves_behind_does_not_use_up_the_notice(new_node: NewNode, link: FakeLink) -> None:
    source = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)" + SAVES
    life = await begin(new_node(), python(source))
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", 0)
    assert link.answer is not None
    text = b"".join([chunk async for chunk in link.answer(LogAsk(5, 1, 0))])
    assert not alive(int(text.split()[0]))


async def test_a_child_that_still_saves_has_the_notice_when_the_first_process_has_ended(
    new_node: NewNode, link: FakeLink
) -> None:
    source = f"import os\nif os.fork() == 0:\n    exec({SAVES_WHEN_LET!r})\n{SAVES.replace('ready', 'parent')}"
    node = new_node()
    life = await begin(node, python(source))
    await said(link, b"parent\n")
    first = (await link.fact(WorkerStarted, job=5)).pid
    await link.command(notice(life))
    await said(link, b"heard\n")
    await until(lambda: not Path(f"/proc/{first}").exists())
    await keeper_has_looked(folder_of(node))
    work = folder_of(node).path / "work"
    (work / "checkpoint").unlink()
    (work / "go").touch()
    assert await end_of(link) == ExitStatus("stopped", 0)
    assert (work / "checkpoint").read_text() == "step 7"


# -- what cuts it short -----------------------------------------------------------------------------------------


async def test_a_more_urgent_stop_ends_the_notice(new_node: NewNode, link: FakeLink) -> None:
    life = await begin(new_node(), python(GOES_ON))
    await link.command(notice(life))
    await said(link, b"heard\n")
    await link.command(stop(life, grace_ms=NEVER_MS))
    assert await end_of(link) == ExitStatus("stopped", 4)


async def test_a_shorter_notice_holds(new_node: NewNode, link: FakeLink) -> None:
    life = await begin(new_node(), python(GOES_ON))
    await link.command(notice(life))
    await said(link, b"heard\n")
    await link.command(notice(life, notice_ms=50))
    assert await end_of(link) == ExitStatus("stopped", 4)
    assert link.answer is not None
    assert b"".join([chunk async for chunk in link.answer(LogAsk(5, 1, 0))]) == b"ready\nheard\n"


async def test_a_later_notice_does_not_hold_up_a_stop(new_node: NewNode, link: FakeLink) -> None:
    life = await begin(new_node(), "trap '' TERM; trap 'echo heard' USR2; echo ready; while :; do sleep 0.02; done")
    await link.command(stop(life, grace_ms=300))
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", 128 + signal.SIGKILL, signal.SIGKILL)
    assert link.answer is not None
    assert b"".join([chunk async for chunk in link.answer(LogAsk(5, 1, 0))]) == b"ready\n"


@pytest.mark.parametrize(
    ("orders", "together"),
    [
        ([StopOrder("stopped", 30, "USR2", 120), StopOrder("stopped", 10)], StopOrder("stopped", 10)),
        ([StopOrder("stopped", 10), StopOrder("stopped", 30, "USR2", 120)], StopOrder("stopped", 10)),
        ([StopOrder("stopped", 30, "USR2", 120), StopOrder("stopped", 500)], StopOrder("stopped", 150)),
        (
            [StopOrder("stopped", 30, "USR2", 120), StopOrder("stopped", 100, "USR1", 60)],
            StopOrder("stopped", 90, "USR1", 60),
        ),
        ([StopOrder("stopped", 10), StopOrder("lease_expired", 0)], StopOrder("stopped", 0)),
        ([StopOrder("stopped", 10, "", 120), StopOrder("stopped", 20)], StopOrder("stopped", 10)),
    ],
)
def test_an_order_that_nobody_has_read_is_in_the_next_one(
    tmp_path: Path, orders: list[StopOrder], together: StopOrder
) -> None:
    folder = WorkerFolder(tmp_path)
    for order in orders:
        folder.order_stop(order)
    assert folder.stop_order() == together


# -- the agent goes ---------------------------------------------------------------------------------------------


async def test_a_notice_goes_on_under_a_new_agent(new_node: NewNode, link: FakeLink) -> None:
    """Which is told to stop the worker once more: that begins no second notice."""
    first = new_node()
    life = await begin(first, python(SAVES_WHEN_LET))
    await link.command(notice(life))
    await said(link, b"heard\n")
    await first.crash()

    second = new_node()
    registered = await second.registered()
    assert [report.exit for report in registered.workers] == [None]
    await link.command(notice(registered.incarnation))
    await link.command(start("another-life", "true", job=6))
    await link.fact(WorkerRefused, job=6)
    work = folder_of(second).path / "work"
    (work / "go").touch()
    exited = await link.fact(WorkerExited, job=5)
    assert (exited.incarnation, exited.exit) == (registered.incarnation, ExitStatus("stopped", 0))
    assert (work / "checkpoint").read_text() == "step 7"
    assert folder_of(second).output.read_text() == "ready\nheard\n"


async def test_a_new_agent_wakes_a_keeper_that_has_not_seen_its_order(new_node: NewNode, link: FakeLink) -> None:
    first = new_node()
    await begin(first, python(SAVES), leased=False)
    order = '{"reason": "stopped", "grace_ms": 600000, "signal": "USR2", "notice_ms": 600000}'
    write_file(str(folder_of(first).path / "stop"), order)
    await first.crash()
    registered = await new_node().registered()
    told = [report.exit for report in registered.workers if report.exit is not None]  # it may have ended before that
    assert (told[0] if told else await end_of(link)) == ExitStatus("stopped", 0)


async def test_an_agent_that_ends_its_jobs_does_not_wait_for_a_notice(new_node: NewNode, link: FakeLink) -> None:
    node = new_node()
    life = await begin(node, python(GOES_ON))
    await link.command(notice(life))
    await said(link, b"heard\n")
    await node.stop()
    assert link.facts(WorkerExited)[0].exit == ExitStatus("stopped", 4)


# -- the example ------------------------------------------------------------------------------------------------


async def test_the_example_goes_on_from_its_checkpoint(new_node: NewNode, link: FakeLink, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    progress.write_text("7\n")
    count = [sys.executable, str(EXAMPLE), str(progress), "--step-ms", "1", "--steps"]
    life = (await new_node().registered()).incarnation
    await link.command(start(life, [*count, "1000000"]))
    await link.fact(WorkerStarted, job=5)
    await said(link, b"starting from step 7 of 1000000\n")
    await link.command(notice(life))
    assert await end_of(link) == ExitStatus("stopped", 0)
    saved = int(progress.read_text())
    await said(link, f"saved at step {saved}\n".encode())
    await link.command(start(life, [*count, str(saved + 3)], attempt=2))
    assert (await link.fact(WorkerExited, job=5, attempt=2)).exit == ExitStatus("exited", 0)
    assert link.answer is not None
    text = b"".join([chunk async for chunk in link.answer(LogAsk(5, 2, 0))]).decode()
    assert text == f"starting from step {saved} of {saved + 3}\ndone at step {saved + 3}\n"
