"""How a program of Muster runs: one event loop, signals, logging, and errors that a person can act on."""

import asyncio
import functools
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster.api.telling import say

MOMENT_S: Final = 1.5


class StartError(Exception):
    """The program cannot run; `next_step` says what to try. `is_usage`: what it was asked for can never be;
    `is_unreachable`: the broker or its log does not answer."""

    def __init__(
        self, message: str, next_step: str = "", *, is_usage: bool = False, is_unreachable: bool = False
    ) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.is_usage = is_usage
        self.is_unreachable = is_unreachable


@contextmanager
def waiting(what: str) -> Generator[None, None, None]:
    """Say on stderr what is waited for, if it takes longer than a moment."""
    told = functools.partial(say, f"muster: waiting for {what}", err=True)
    timer = asyncio.get_running_loop().call_later(MOMENT_S, told)
    try:
        yield
    finally:
        timer.cancel()


def make_folder(path: Path) -> None:
    """The data folder, for the owner alone. Raises StartError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StartError(f"{path} cannot be made: {error.strerror}", "give another folder with --data") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartError(f"{path} cannot be written", "give another folder with --data")


def run(main: Coroutine[Any, Any, None], *, verbose: bool) -> None:
    """Run `main`. The first SIGINT or SIGTERM cancels it, and it ends in order; a second one ends it at once."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    asyncio.run(_until_signal(main))


async def _until_signal(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)

    def stop() -> None:
        task.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        return
