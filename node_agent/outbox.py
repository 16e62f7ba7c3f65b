"""Reports on their way to the log: in order, each kept until the log has it, sent again with the same message id.

A full log, or none that answers, loses nothing: reports wait here and in the journal.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from muster.events import codec
from muster.events.log import BATCH_LIMIT, DuplicateConflictError, LogError, Message
from muster.events.subjects import subject_of
from muster.events.types import NodeFact
from muster.node_agent.journal import Journal
from muster.node_agent.link import AgentLink

logger = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0


class _Report(NamedTuple):
    message: Message
    stored: "asyncio.Future[int]"
    event: NodeFact | None


class Outbox:
    """The only way of an agent's reports. `on_stored` hears of each report of this process that the log has."""

    def __init__(
        self, journal: Journal, link: AgentLink, id_prefix: str, on_stored: Callable[[NodeFact], None]
    ) -> None:
        self._journal = journal
        self._link = link
        self._id_prefix = id_prefix
        self._on_stored = on_stored
        self._count = 0
        self._open = 0
        self._waiting: deque[_Report] = deque()
        self._unkept: deque[_Report] = deque()
        self._new = asyncio.Event()
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        for message in journal.unreported():
            self._add(message, None)

    def put(self, event: NodeFact) -> "asyncio.Future[int]":
        """Send a report after all that were put before; the future gets its sequence in the log."""
        self._count += 1
        subject = subject_of(event, prefix=self._link.prefix)
        return self._add(Message(subject, codec.encode(event), f"{self._id_prefix}-{self._count}"), event)

    async def flushed(self) -> None:
        """Return when the log has everything that was put."""
        await self._empty.wait()

    async def run(self) -> None:
        """Journal and send, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._journal_all())
            group.create_task(self._send_all())

    async def _journal_all(self) -> None:
        while True:
            await self._new.wait()
            self._new.clear()
            reports = list(self._unkept)
            self._unkept.clear()
            await self._keep([report.message for report in reports])
            self._waiting.extend(reports)
            self._work.set()

    async def _send_all(self) -> None:
        while True:
            await self._work.wait()
            batch = list(islice(self._waiting, BATCH_LIMIT))
            sequences = await self._send(batch)
            for report in batch:
                self._waiting.popleft()
                if report.event is not None:
                    self._on_stored(report.event)
                if not report.stored.done():
                    report.stored.set_result(sequences.get(report.message.message_id, 0))
            await self._drop([report.message for report in batch])
            if not self._waiting:
                self._work.clear()
            self._open -= len(batch)
            if self._open == 0:
                self._empty.set()

    def _add(self, message: Message, event: NodeFact | None) -> "asyncio.Future[int]":
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open += 1
        self._unkept.append(_Report(message, stored, event))
        self._empty.clear()
        self._new.set()
        return stored

    async def _send(self, batch: list[_Report]) -> dict[str, int]:
        """Message id → sequence, of all that are stored."""
        messages = [report.message for report in batch]
        wait_s = FIRST_RETRY_S
        while messages:
            try:
                acks = await self._link.append_batch(messages)
            except DuplicateConflictError as conflict:
                logger.exception("a report's message id was used by somebody else; the report is dropped")
                messages = [message for message in messages if message.message_id != conflict.message_id]
            except (LogError, OSError, TimeoutError) as error:
                logger.warning("%d reports wait: %s", len(messages), error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, LAST_RETRY_S)
            else:
                return {message.message_id: ack.sequence for message, ack in zip(messages, acks, strict=True)}
        return {}

    async def _keep(self, messages: list[Message]) -> None:
        try:
            await self._journal.keep(messages)
        except sqlite3.Error as error:  # a full disk: sent without a copy, the worker's folder tells of its exit
            logger.warning("reports are not journalled: %s", error)

    async def _drop(self, messages: list[Message]) -> None:
        try:
            await self._journal.drop(messages)
        except sqlite3.Error as error:  # sent once more after a restart, with the same id
            logger.warning("stored reports stay in the journal: %s", error)
