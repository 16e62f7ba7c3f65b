"""Keys that are typed while something is shown live. Standard library only."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIT = b"q"

Pause = Callable[[float], bool]
"""Waits for so many seconds, and says whether the wait was ended for good."""


@contextmanager
def until_quit() -> Iterator[Pause]:
    """Pauses that `q` ends; plain ones where nobody types here. The terminal takes keys one by one, unseen, and is as
    it was afterwards."""
    if not _is_typed_here():
        yield _sleep
        return
    terminal = sys.stdin.fileno()
    before, on_term = termios.tcgetattr(terminal), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    tty.setcbreak(terminal)
    try:
        yield lambda duration_s: _quits(terminal, duration_s)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, on_term)


def _is_typed_here() -> bool:
    """Whether keys come from a terminal, in whose foreground this is: one in the background would be stopped."""
    return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


def _sleep(duration_s: float) -> bool:
    time.sleep(duration_s)
    return False


def _quits(terminal: int, duration_s: float) -> bool:
    end = time.monotonic() + duration_s
    while (left_s := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            typed = os.read(terminal, 1024)
            if not typed or QUIT in typed.lower():
                return True
    return False
