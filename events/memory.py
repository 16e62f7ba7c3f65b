"""The log in memory: for tests and simulation, with the meaning of the real one and none of its waiting.

Rules: it keeps every message id for ever (the real one forgets them after its window), and its clock is whatever it
was given. It never runs backwards: an entry's timestamp is at least the one before.
"""

import asyncio
import bisect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from muster.events.log import (
    BATCH_LIMIT,
    Ack,
    AppendRefusedError,
    DuplicateConflictError,
    Entry,
    LogFullError,
    LogUsage,
    Message,
)
from muster.events.subjects import DEFAULT_PREFIX, fence_filter

CHUNK_LIMIT: Final = 1000
ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry costs besides its subject and payload, roughly as in the real log."""


class MemoryLog:
    """See `muster.events.log.Log`. `limit_bytes` 0 = no limit."""

    def __init__(
        self, prefix: str = DEFAULT_PREFIX, clock: Callable[[], int] = time.time_ns, limit_bytes: int = 0
    ) -> None:
        self.prefix = prefix
        self.entries: list[Entry] = []
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._fence_prefix = fence_filter(prefix).removesuffix(">")
        self._last_fenced = 0
        self._sequence_of: dict[str, int] = {}
        self._grown = asyncio.Event()

    async def append(self, message: Message, timeout_s: float = 30.0) -> Ack:  # noqa: ARG002  it never waits
        """See `Log.append`."""
        known = self._sequence_of.get(message.message_id)
        if known is not None:
            return self._duplicate(message, known)
        self._make_room([message])
        self._store([message])
        await asyncio.sleep(0)
        return Ack(self._sequence_of[message.message_id], duplicate=False)

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """See `Log.append_batch`."""
        ids = {message.message_id for message in messages}
        if len(ids) < len(messages) or not ids.isdisjoint(self._sequence_of):
            return [await self.append(message, timeout_s) for message in messages]
        self._make_room(messages)
        first = len(self.entries) + 1
        self._store(messages)
        await asyncio.sleep(0)
        return [Ack(sequence, duplicate=False) for sequence in range(first, first + len(messages))]

    async def append_fenced(
        self,
        messages: Sequence[Message],
        fence: int,
        timeout_s: float = 30.0,  # noqa: ARG002  it never waits
    ) -> int:
        """See `Log.append_fenced`."""
        check_fenced(messages, self._fence_prefix)
        if fence != self._last_fenced:
            raise AppendRefusedError(fence, self._last_fenced)
        for message in messages:
            if message.message_id in self._sequence_of:
                raise DuplicateConflictError(message.message_id, self._sequence_of[message.message_id])
        self._make_room(messages)
        self._store(messages)
        last = len(self.entries)
        await asyncio.sleep(0)
        return last

    async def read(self, first: int, limit: int = 1000) -> list[Entry]:
        """See `Log.read`."""
        start = max(first, 1) - 1
        return self.entries[start : start + limit]

    async def tail(self, first: int) -> AsyncIterator[list[Entry]]:
        """See `Log.tail`."""
        applied = max(first, 1) - 1
        while True:
            while len(self.entries) <= applied:
                await self._grown.wait()
            chunk = self.entries[applied : applied + CHUNK_LIMIT]
            applied += len(chunk)
            yield chunk

    async def last_sequence(self) -> int:
        """See `Log.last_sequence`."""
        return len(self.entries)

    async def last_fenced_sequence(self) -> int:
        """See `Log.last_fenced_sequence`."""
        return self._last_fenced

    async def sequence_at(self, timestamp_ns: int) -> int:
        """See `Log.sequence_at`."""
        return bisect.bisect_right(self.entries, timestamp_ns, key=lambda entry: entry.timestamp_ns)

    async def usage(self) -> LogUsage:
        """See `Log.usage`."""
        return LogUsage(self._used_bytes, self._limit_bytes)

    async def close(self) -> None:
        """Nothing is held open."""

    def _duplicate(self, message: Message, sequence: int) -> Ack:
        entry = self.entries[sequence - 1]
        if entry.subject != message.subject or entry.payload != message.payload:
            raise DuplicateConflictError(message.message_id, sequence)
        return Ack(sequence, duplicate=True)

    def _make_room(self, messages: Sequence[Message]) -> None:
        size = sum(len(each.subject) + len(each.payload) + ENTRY_OVERHEAD_BYTES for each in messages)
        if self._limit_bytes and self._used_bytes + size > self._limit_bytes:
            raise LogFullError(f"the log's limit of {self._limit_bytes} bytes is reached")
        self._used_bytes += size

    def _store(self, messages: Sequence[Message]) -> None:
        entries, sequence_of, fence_prefix = self.entries, self._sequence_of, self._fence_prefix
        now = self._clock()
        if entries and entries[-1].timestamp_ns > now:
            now = entries[-1].timestamp_ns
        sequence = len(entries)
        for subject, payload, message_id in messages:
            sequence += 1
            entries.append(Entry(sequence, now, subject, payload))
            sequence_of[message_id] = sequence
            if subject.startswith(fence_prefix):
                self._last_fenced = sequence
        self._grown.set()
        self._grown = asyncio.Event()


def check_fenced(messages: Sequence[Message], fence_prefix: str) -> None:
    """Refuse (ValueError) what cannot be a fenced append: nothing, too much, or nothing that moves the fence."""
    if not 1 <= len(messages) <= BATCH_LIMIT:
        raise ValueError(f"a fenced append has 1 to {BATCH_LIMIT} messages, not {len(messages)}")
    if not any(message.subject.startswith(fence_prefix) for message in messages):
        raise ValueError("a fenced append needs a message under the decision subjects: it is what moves the fence")
    if len({message.message_id for message in messages}) < len(messages):
        raise ValueError("each message of a fenced append needs its own message id")
