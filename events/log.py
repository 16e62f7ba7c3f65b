"""The log: one ordered sequence of immutable entries, behind one interface with two implementations
(`jetstream.JetStreamLog`, and `memory.MemoryLog` for tests and simulation) that pass one conformance suite.

An append that returns is durable. An append that raises `AppendRefusedError` or `LogFullError` wrote nothing. Any
other outcome is settled inside: the same bytes are sent again until they are acknowledged, found stored, or refused.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

BATCH_LIMIT = 900
"""Most messages of one atomic append."""


class Entry(NamedTuple):
    """One entry of the log. `timestamp_ns` is the server's clock when it was stored."""

    sequence: int
    timestamp_ns: int
    subject: str
    payload: bytes


class Message(NamedTuple):
    """Something to append. `message_id` makes sending it twice harmless; each message has its own."""

    subject: str
    payload: bytes
    message_id: str


class Ack(NamedTuple):
    """The entry's sequence; `duplicate` when an entry with this id and these bytes was there already."""

    sequence: int
    duplicate: bool


class LogError(Exception):
    """Something is wrong with the log."""


class AppendRefusedError(LogError):
    """A fenced append by a stale writer: the last sequence under the fence is `actual` (0 = unknown)."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"fence {expected} is stale: the last fenced entry is {actual or 'a later one'}")
        self.expected = expected
        self.actual = actual


class DuplicateConflictError(LogError):
    """An entry with this message id holds other bytes. `sequence` is that entry's."""

    def __init__(self, message_id: str, sequence: int) -> None:
        super().__init__(f"message id {message_id!r} was used before, with another body, in entry {sequence}")
        self.message_id = message_id
        self.sequence = sequence


class LogFullError(LogError):
    """The log has reached its size limit."""


class LogUnavailableError(LogError):
    """No answer within the time allowed; whether the append was stored is not known."""


class MissingEntryError(LogError):
    """An entry that must exist could not be read, from the leader either."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"entry {sequence} of the log cannot be read")
        self.sequence = sequence


class StreamMismatchError(LogError):
    """The stream or its server was made otherwise than Muster needs; each difference is named."""


class LogUsage(NamedTuple):
    """How much of its size limit the log has used, in bytes (`limit_bytes` 0 = no limit)."""

    used_bytes: int
    limit_bytes: int


class Log(Protocol):
    """The one truth."""

    prefix: str

    async def append(self, message: Message, timeout_s: float = 30.0) -> Ack:
        """Append one message, unfenced. Raises DuplicateConflictError, LogFullError, LogUnavailableError."""
        ...

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """Append facts that came in together, in order, as few writes as can be; each has the meaning of `append`.

        All or none are stored, unless one of them is a duplicate: then each is appended by itself.
        """
        ...

    async def append_fenced(self, messages: Sequence[Message], fence: int, timeout_s: float = 30.0) -> int:
        """Append all (at most BATCH_LIMIT) or none, only while `fence` is the last sequence under the decision
        subjects. Returns the last one's sequence; the batch's entries are contiguous. Raises AppendRefusedError."""
        ...

    async def read(self, first: int, limit: int = 1000) -> list[Entry]:
        """Entries from sequence `first` on, in order without gaps; fewer than `limit` only at the end."""
        ...

    def tail(self, first: int) -> AsyncIterator[list[Entry]]:
        """Entries from `first` on, in chunks, for ever: each sequence is the last plus one. Goes on by itself
        after the broker was away."""
        ...

    async def last_sequence(self) -> int:
        """The sequence of the last entry (0 = empty), as the leader has it."""
        ...

    async def last_fenced_sequence(self) -> int:
        """The last sequence under the decision subjects (0 = none), as the leader has it."""
        ...

    async def sequence_at(self, timestamp_ns: int) -> int:
        """The last sequence whose timestamp is not after `timestamp_ns` (0 = none)."""
        ...

    async def usage(self) -> LogUsage:
        """How full the log is."""
        ...

    async def close(self) -> None:
        """Let go of what the log holds open."""
        ...
