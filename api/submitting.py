"""The one writer of submissions: what has come in together is appended together (group commit).

Rules: a request's answer waits for the log's acknowledgement and for nothing else. One append is in flight; what
arrives meanwhile is the next one. A message id stands at most once in an append. Every waiter is answered, with its
acknowledgement or its error, whatever happens to the writer. At 90 % of the log's limit nothing more is accepted, so
that work which runs can still be recorded.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Final, NamedTuple

from muster.events.log import BATCH_LIMIT, Ack, DuplicateConflictError, Log, LogError, LogFullError, Message

FULL_PERCENT: Final = 90
USAGE_INTERVAL_S: Final = 1.0
WAITING_LIMIT: Final = 20_000
APPEND_TIMEOUT_S: Final = 30.0

_logger = logging.getLogger(__name__)


class BusyError(Exception):
    """More submissions wait for the log than are kept waiting."""


class _Waiting(NamedTuple):
    message: Message
    answer: "asyncio.Future[Ack]"


class Submitter:
    """Appends submissions in groups. Start `run()` as a task; `submit` from any number of handlers."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._checked_s = float("-inf")
        self._full = False

    async def submit(self, message: Message) -> Ack:
        """Append, and wait for the acknowledgement. Raises the errors of `Log.append`, and BusyError."""
        if len(self._waiting) >= WAITING_LIMIT:
            raise BusyError
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(message, answer))
        self._arrived.set()
        return await answer

    async def run(self) -> None:
        """Append what arrives, until cancelled; whoever then waits gets the cancellation."""
        group: list[_Waiting] = []
        try:
            while True:
                await self._arrived.wait()
                group = self._take()
                await self._answer(group)
        finally:
            for waiting in (*group, *self._waiting):
                waiting.answer.cancel()
            self._waiting.clear()

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        ids: set[str] = set()
        while self._waiting and len(group) < BATCH_LIMIT and self._waiting[0].message.message_id not in ids:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():  # its client has gone before anything was written
                ids.add(waiting.message.message_id)
                group.append(waiting)
        if not self._waiting:
            self._arrived.clear()
        return group

    async def _answer(self, group: list[_Waiting]) -> None:
        if not group:
            return
        try:
            await self._check_room()
            acks = await self._log.append_batch([waiting.message for waiting in group], APPEND_TIMEOUT_S)
        except DuplicateConflictError:
            for waiting in group:
                await self._answer_alone(waiting)
        except LogError as error:
            _refuse(group, error)
        except Exception as error:
            _logger.exception("submissions could not be appended")
            _refuse(group, error)
        else:
            for waiting, ack in zip(group, acks, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(ack)

    async def _answer_alone(self, waiting: _Waiting) -> None:
        try:
            ack = await self._log.append(waiting.message, APPEND_TIMEOUT_S)
        except LogError as error:
            _refuse([waiting], error)
        else:
            if not waiting.answer.done():
                waiting.answer.set_result(ack)

    async def _check_room(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s >= USAGE_INTERVAL_S:
            usage = await self._log.usage()
            self._full = bool(usage.limit_bytes) and usage.used_bytes * 100 >= usage.limit_bytes * FULL_PERCENT
            self._checked_s = now_s
        if self._full:
            raise LogFullError("the log has reached nine tenths of its limit")


def _refuse(group: list[_Waiting], error: Exception) -> None:
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
