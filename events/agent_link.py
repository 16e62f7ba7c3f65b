"""An agent's way to the log: its reports, its commands, its telemetry and the questions to it, in one object.

Rules: it needs no more than its own node's credential permits. It reads commands and its node's registrations through
consumers with its node's subject as the filter, and believes a duplicate only after reading back its own subject in the
same way.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from muster.events.append import Appender
from muster.events.asks import MemoryAsks, NatsAsks, Q
from muster.events.beats import Beat, MemoryTelemetry, NatsBeats, NatsTelemetry
from muster.events.connection import Connection, NoAnswerError
from muster.events.credentials import command_consumer, log_stream, readback_consumer, registration_consumer
from muster.events.log import Ack, Entry, LogUnavailableError, Message
from muster.events.memory import MemoryLog
from muster.events.pull import LONGEST_RETRY_S, Pull, PullLostError, retry_level
from muster.events.reading import RETRY_S
from muster.events.subjects import DEFAULT_PREFIX, registration_subject
from muster.events.telemetry import GpuSampled, Heartbeat

READ_BACK_S: Final = 10.0

_logger: Final = logging.getLogger("muster.events.agent_link")

R = TypeVar("R")


async def commands(
    connection: Connection, node: str, after_sequence: int, prefix: str = DEFAULT_PREFIX
) -> AsyncIterator[list[Entry]]:
    """A node's commands after a sequence, in order, in chunks as they come, for ever; goes on after a restart of the
    broker. One reader a node: a second one takes over from the first."""
    async for entries in _followed(
        connection, f"{prefix}.command.{node}", command_consumer(node), after_sequence, prefix
    ):
        yield entries


async def _followed(
    connection: Connection, subject: str, consumer: str, after_sequence: int, prefix: str
) -> AsyncIterator[list[Entry]]:
    pause_s = RETRY_S
    while True:
        try:
            async with Pull(
                connection,
                log_stream(prefix),
                after_sequence + 1,
                subject=subject,
                name=consumer,
            ) as pull:
                while True:
                    taken = await pull.take()
                    pause_s = RETRY_S
                    after_sequence = taken[-1].sequence
                    yield taken
        except PullLostError as error:
            _logger.log(retry_level(pause_s), "%s goes on after %d: %s", consumer, after_sequence, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)


async def _patiently(read: Callable[[], Awaitable[R]], failure: str) -> R:
    """Read through a consumer, anew where it is lost: on several brokers not each knows of a new one at once. Raises
    LogUnavailableError."""
    reason = f"no answer in {READ_BACK_S} s"
    try:
        async with asyncio.timeout(READ_BACK_S):
            while True:
                try:
                    return await read()
                except PullLostError as error:
                    reason = str(error)
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise LogUnavailableError(f"{failure}: {reason}") from None


class NatsAgentLink(Generic[Q]):
    """The link of one node's agent. `question` is the type of the questions it answers."""

    def __init__(self, connection: Connection, node: str, question: type[Q], prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = prefix
        self._connection = connection
        self._node = node
        self._question = question
        self._reading_back = asyncio.Lock()
        self._appender = Appender(connection, log_stream(prefix), prefix, self._read_back)
        self._telemetry = NatsTelemetry(connection, prefix)
        self._asks = NatsAsks(connection, prefix)

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """Append reports, in order. See `Log.append_batch`."""
        return await self._appender.append_batch(messages, timeout_s)

    def commands(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        """The node's commands after sequence `after`. See `commands`."""
        return commands(self._connection, node, after, self.prefix)

    def registrations(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        """The node's registrations after sequence `after`, whoever wrote them, in the same way."""
        subject = registration_subject(node, self.prefix)
        return _followed(self._connection, subject, registration_consumer(node), after, self.prefix)

    async def last_registration(self, node: str) -> Entry | None:
        """The node's last registration as some broker has it, which on several may lag. Raises LogUnavailableError."""

        async def read() -> Entry | None:
            async with Pull(
                self._connection,
                log_stream(self.prefix),
                1,
                subject=registration_subject(node, self.prefix),
                name=registration_consumer(node),
                policy="last_per_subject",
            ) as pull:
                return (await pull.take())[-1] if pull.pending else None

        return await _patiently(read, f"the registrations of {node} cannot be read")

    def beats(self, node: str) -> AsyncIterator[Beat]:
        """The node's beats as they arrive, whoever sends them, for ever. Raises LogUnavailableError."""
        return NatsBeats(self._connection, self.prefix, node).arriving()

    async def beat(self, beat: Heartbeat) -> bool:
        """Publish a beat; whether the broker acknowledged it."""
        return await self._telemetry.beat(beat)

    async def sample(self, sample: GpuSampled) -> None:
        """Publish the devices' samples. Raises LogUnavailableError."""
        await self._telemetry.sample(sample)

    async def serve_asks(self, node: str, answer: Callable[[Q], AsyncIterator[bytes]]) -> None:
        """Answer questions until cancelled. Raises LogUnavailableError where it cannot begin."""
        try:
            await self._asks.serve(node, self._question, answer)
        except NoAnswerError as error:
            raise LogUnavailableError(str(error)) from None

    async def _read_back(self, sequence: int) -> Entry | None:
        async def read() -> Entry:
            async with Pull(
                self._connection,
                log_stream(self.prefix),
                sequence,
                subject=f"{self.prefix}.node.{self._node}.>",
                name=readback_consumer(self._node),
            ) as pull:
                return (await pull.take())[0]

        async with self._reading_back:
            entry = await _patiently(read, f"entry {sequence} cannot be read back")
        return entry if entry.sequence == sequence else None


class MemoryAgentLink(Generic[Q]):
    """The same on a log in memory."""

    def __init__(self, log: MemoryLog, telemetry: MemoryTelemetry, asks: MemoryAsks, question: type[Q]) -> None:
        self.prefix = log.prefix
        self._log = log
        self._telemetry = telemetry
        self._asks = asks
        self._question = question

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """See `NatsAgentLink.append_batch`."""
        return await self._log.append_batch(messages, timeout_s)

    def commands(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        """See `NatsAgentLink.commands`."""
        return self._followed(f"{self.prefix}.command.{node}", after)

    def registrations(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        """See `NatsAgentLink.registrations`."""
        return self._followed(registration_subject(node, self.prefix), after)

    async def last_registration(self, node: str) -> Entry | None:
        """See `NatsAgentLink.last_registration`."""
        subject = registration_subject(node, self.prefix)
        entries = await self._log.read(1, await self._log.last_sequence())
        return next((entry for entry in reversed(entries) if entry.subject == subject), None)

    async def beats(self, node: str) -> AsyncIterator[Beat]:
        """See `NatsAgentLink.beats`."""
        async for beat in self._telemetry.arriving():
            if beat.node == node:
                yield beat

    async def _followed(self, subject: str, after: int) -> AsyncIterator[list[Entry]]:
        async for chunk in self._log.tail(after + 1):
            entries = [entry for entry in chunk if entry.subject == subject]
            if entries:
                yield entries

    async def beat(self, beat: Heartbeat) -> bool:
        """See `NatsAgentLink.beat`."""
        return await self._telemetry.beat(beat)

    async def sample(self, sample: GpuSampled) -> None:
        """See `NatsAgentLink.sample`."""
        await self._telemetry.sample(sample)

    async def serve_asks(self, node: str, answer: Callable[[Q], AsyncIterator[bytes]]) -> None:
        """See `NatsAgentLink.serve_asks`."""
        await self._asks.serve(node, self._question, answer)
