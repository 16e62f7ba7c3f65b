"""Removing what outlives its client: a container whose client was killed runs on under its engine.

Standard library only, like the keeper.
"""

import os
import select
import signal
import time

TRY_S = 20.0
ANSWER_BYTES = 65_536
_GONE = b"no such container"


def removed(argv: list[str], env: dict[str, str], within_s: float = TRY_S) -> bool:
    """Run a command that removes a container; whether there is none of that name any more. Blocks."""
    answer, written = os.pipe2(os.O_CLOEXEC)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, nothing, 0), (os.POSIX_SPAWN_DUP2, nothing, 1)]
        pid = os.posix_spawn(argv[0], argv, env, file_actions=[*actions, (os.POSIX_SPAWN_DUP2, written, 2)])
    except OSError:
        os.close(answer)
        return False
    finally:
        os.close(written)
        os.close(nothing)
    said, code = _wait(pid, answer, within_s)
    os.close(answer)
    return code == 0 or _GONE in said.lower()


def removed_at_last(argv: list[str], env: dict[str, str], within_s: float) -> bool:
    """The same, tried again for so long."""
    pause_s, give_up_at = 0.1, time.monotonic() + within_s
    while not removed(argv, env):
        if time.monotonic() + pause_s > give_up_at:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 5.0)
    return True


def _wait(pid: int, answer: int, within_s: float) -> tuple[bytes, int | None]:
    """What it said on stderr and its exit code; None where it did not end in time and was killed."""
    ended = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        if not poller.poll(within_s * 1000):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return b"", None
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.set_blocking(answer, False)
        try:
            return os.read(answer, ANSWER_BYTES), code
        except BlockingIOError:
            return b"", code
    finally:
        os.close(ended)
