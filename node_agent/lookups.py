"""Calls that may take long or never return, like those to a directory service or a file server that is gone. Each has a
thread of its own that nobody waits for in the end: not even the process's."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

Answer = TypeVar("Answer")

ANSWER_S: Final = 10.0
HANGING_LIMIT: Final = 4
"""So many that do not return, and no further ones are made."""


class Lookups:
    """Calls that are given up after `within_s`."""

    def __init__(self, within_s: float = ANSWER_S) -> None:
        self._within_s = within_s
        self._hanging: list[threading.Thread] = []

    async def ask(self, call: Callable[[], Answer]) -> Answer:
        """What the call returns or raises; TimeoutError where it does neither in time, or too many others hang."""
        self._hanging = [other for other in self._hanging if other.is_alive()]
        if len(self._hanging) >= HANGING_LIMIT:
            raise TimeoutError
        answer: Future[Answer] = Future()
        answer.set_running_or_notify_cancel()  # who gives up does not cancel it
        thread = threading.Thread(target=_make, args=(call, answer), daemon=True)
        thread.start()
        self._hanging.append(thread)
        async with asyncio.timeout(self._within_s):
            return await asyncio.wrap_future(answer)


def _make(call: Callable[[], Answer], answer: "Future[Answer]") -> None:
    try:
        answer.set_result(call())
    except Exception as error:  # noqa: BLE001  # whatever it is, who asked has it
        answer.set_exception(error)
