"""The log on NATS JetStream. See `muster.events.log` for what each method means.

Rules: whatever a decision depends on (last sequences, reading back) is asked of the stream's leader. A tail is read
through a consumer that is thrown away at any doubt, and checked entry by entry: each sequence is the last plus one.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Self

from muster.events.append import Appender
from muster.events.connection import ApiError, Connection, NoAnswerError
from muster.events.credentials import log_stream
from muster.events.log import Ack, Entry, LogUnavailableError, LogUsage, Message
from muster.events.pull import LONGEST_RETRY_S, Pull, PullLostError, retry_level
from muster.events.reading import ANSWER_TIMEOUT_S, DIRECT_BATCH, RETRY_S, read_direct, read_entry, read_leader
from muster.events.streams import check_log
from muster.events.subjects import DEFAULT_PREFIX, fence_filter
from muster.events.wire import format_time_ns

CHUNK_LIMIT: Final = 1000

_logger: Final = logging.getLogger("muster.events.jetstream")


class JetStreamLog:
    """Made by `open`. It uses `connection` and does not close it."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self.prefix = prefix
        self.connection = connection
        self._stream = log_stream(prefix)
        self._appender = Appender(connection, self._stream, prefix)

    @classmethod
    async def open(cls, connection: Connection, prefix: str = DEFAULT_PREFIX) -> Self:
        """The log whose stream is there. Raises StreamMismatchError or LogUnavailableError."""
        await check_log(connection, prefix)
        return cls(connection, prefix)

    async def append(self, message: Message, timeout_s: float = 30.0) -> Ack:
        """See `Log.append`."""
        return await self._appender.append(message, timeout_s)

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """See `Log.append_batch`."""
        return await self._appender.append_batch(messages, timeout_s)

    async def append_fenced(self, messages: Sequence[Message], fence: int, timeout_s: float = 30.0) -> int:
        """See `Log.append_fenced`."""
        return await self._appender.append_fenced(messages, fence, timeout_s)

    async def read(self, first: int, limit: int = 1000) -> list[Entry]:
        """See `Log.read`."""
        entries: list[Entry] = []
        applied = max(first, 1) - 1
        until = applied + limit
        last = -1
        while applied < until:
            found = await self._read_some(applied + 1, until - applied)
            applied += await self._extend(entries, applied, found)
            if not found:
                if last < 0:
                    last = await self.last_sequence()
                if applied >= min(last, until):
                    break
                entries.append(await read_entry(self.connection, self._stream, applied + 1))
                applied += 1
        return entries[:limit]

    async def tail(self, first: int) -> AsyncIterator[list[Entry]]:
        """See `Log.tail`. Raises MissingEntryError where an entry is lost."""
        applied = max(first, 1) - 1
        pause_s = RETRY_S
        while True:
            try:
                async with Pull(self.connection, self._stream, applied + 1) as pull:
                    while True:
                        taken = await pull.take()
                        pause_s = RETRY_S
                        if taken[0].sequence != applied + 1 or taken[-1].sequence != applied + len(taken):
                            taken = await self._repair(taken, applied)
                        for start in range(0, len(taken), CHUNK_LIMIT):
                            chunk = taken[start : start + CHUNK_LIMIT]
                            applied = chunk[-1].sequence
                            yield chunk
            except (PullLostError, LogUnavailableError, NoAnswerError) as error:
                _logger.log(retry_level(pause_s), "reading goes on after entry %d: %s", applied, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    async def last_sequence(self) -> int:
        """See `Log.last_sequence`. Raises LogUnavailableError."""
        return int((await self._state())["last_seq"])

    async def last_fenced_sequence(self) -> int:
        """See `Log.last_fenced_sequence`. Raises LogUnavailableError."""
        found = await read_leader(self.connection, self._stream, {"last_by_subj": fence_filter(self.prefix)})
        return found.entry.sequence if found else 0

    async def sequence_at(self, timestamp_ns: int) -> int:
        """See `Log.sequence_at`. Raises LogUnavailableError."""
        query = {"start_time": format_time_ns(timestamp_ns + 1)}
        deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(NoAnswerError):
                later = await read_direct(self.connection, self._stream, query, 1)
                if later:
                    return later[0].sequence - 1
                last = await self.last_sequence()
                if last == 0 or (await read_entry(self.connection, self._stream, last)).timestamp_ns <= timestamp_ns:
                    return last
            await asyncio.sleep(RETRY_S)
        raise LogUnavailableError("the log does not answer")

    async def usage(self) -> LogUsage:
        """See `Log.usage`. Raises LogUnavailableError."""
        answer = await self._info()
        return LogUsage(answer["state"]["bytes"], max(answer["config"]["max_bytes"], 0))

    async def close(self) -> None:
        """Nothing of its own is held open."""

    # -- inside -------------------------------------------------------------------------------------------------

    async def _info(self) -> dict[str, Any]:
        deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        while True:
            try:
                return await self.connection.api(f"STREAM.INFO.{self._stream}", timeout_s=2.0)
            except (ApiError, NoAnswerError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise LogUnavailableError(f"the log does not answer: {error}") from None
            await asyncio.sleep(RETRY_S)

    async def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self._info())["state"]
        return state

    async def _read_some(self, first: int, limit: int) -> list[Entry]:
        """Entries from `first` on as some replica has them."""
        deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        while True:
            try:
                return await read_direct(self.connection, self._stream, {"seq": first}, min(limit, DIRECT_BATCH))
            except NoAnswerError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise LogUnavailableError(f"the log does not answer: {error}") from None
            await asyncio.sleep(RETRY_S)

    async def _extend(self, entries: list[Entry], applied: int, found: list[Entry]) -> int:
        """Put what was found behind what there is, without a gap; returns how many entries that were."""
        if found and (found[0].sequence != applied + 1 or found[-1].sequence != applied + len(found)):
            found = await self._repair(found, applied)
        entries += found
        return len(found)

    async def _repair(self, taken: list[Entry], applied: int) -> list[Entry]:
        """What was taken, with every missing entry read from the leader."""
        whole: list[Entry] = []
        for entry in taken:
            if entry.sequence <= applied:
                continue
            for sequence in range(applied + 1, entry.sequence):
                _logger.warning("entry %d was not delivered; reading it from the leader", sequence)
                whole.append(await read_entry(self.connection, self._stream, sequence))
            whole.append(entry)
            applied = entry.sequence
        return whole
