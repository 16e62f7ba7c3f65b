"""Appending to the log on JetStream: acknowledged, repeatable, fenced, atomic.

Rules: the same bytes are sent again until the broker says that they are stored or refused. A duplicate acknowledgement
is believed only after reading the entry back, because the broker compares nothing but the message id. A refused fence
is believed only after reading what moved it, because that may have been this very append. An append never takes longer
than the broker remembers message ids, or a late repeat could be stored twice.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from muster.events.connection import NOT_PERMITTED, ApiError, Connection, NoAnswerError, Reply, raise_for_error
from muster.events.log import (
    BATCH_LIMIT,
    Ack,
    AppendRefusedError,
    DuplicateConflictError,
    Entry,
    LogError,
    LogFullError,
    LogUnavailableError,
    Message,
)
from muster.events.memory import check_fenced
from muster.events.reading import StoredMessage, read_leader
from muster.events.subjects import fence_filter

LONGEST_APPEND_S: Final = 90.0
"""Less than the broker's duplicate window of two minutes."""
ATTEMPT_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.25

WRONG_LAST_SEQUENCE: Final = frozenset({10070, 10071})
BATCH_HAS_DUPLICATE: Final = 10201
STORE_FAILED: Final = 10077
OUT_OF_ROOM: Final = frozenset({10047, 10028})
_STREAM_IS_FULL: Final = "maximum bytes exceeded"
_FAULTS_OF_THE_MESSAGE: Final = frozenset({NOT_PERMITTED, 10054, 10097, 10199, 10060, 10052, 10025})


ReadBack = Callable[[int], Awaitable[Entry | None]]


class _Stored(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False


class _Outcome(msgspec.Struct):
    """How the broker settled an append; `is_ambiguous` when an earlier attempt may have been the one stored."""

    sequence: int = 0
    duplicate: bool = False
    error: ApiError | None = None
    is_ambiguous: bool = False


_decode_stored: Final = msgspec.json.Decoder(_Stored).decode


class Appender:
    """Appends to one stream. `read_back` gives the entry at a sequence, read after write (None = there is none)."""

    def __init__(self, connection: Connection, stream: str, prefix: str, read_back: ReadBack | None = None) -> None:
        self._connection = connection
        self._stream = stream
        self._fence_filter = fence_filter(prefix)
        self._read_back = read_back or self._read_leader

    async def append(self, message: Message, timeout_s: float = 30.0) -> Ack:
        """See `Log.append`."""
        deadline = _deadline(timeout_s)
        outcome = await self._settle([message], {}, deadline)
        self._raise_if_refused(outcome)
        if outcome.duplicate:
            await self._believe_duplicate(message, outcome.sequence)
        return Ack(outcome.sequence, outcome.duplicate)

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """See `Log.append_batch`."""
        acks: list[Ack] = []
        deadline = _deadline(timeout_s)
        for start in range(0, len(messages), BATCH_LIMIT):
            acks += await self._append_together(messages[start : start + BATCH_LIMIT], deadline)
        return acks

    async def append_fenced(self, messages: Sequence[Message], fence: int, timeout_s: float = 30.0) -> int:
        """See `Log.append_fenced`."""
        check_fenced(messages, self._fence_filter.removesuffix(">"))
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(fence),
            "Nats-Expected-Last-Subject-Sequence-Subject": self._fence_filter,
        }
        outcome = await self._settle(messages, headers, _deadline(timeout_s))
        error = outcome.error
        if error is None and not outcome.duplicate:
            return outcome.sequence
        if error is not None and error.code not in WRONG_LAST_SEQUENCE and error.code != BATCH_HAS_DUPLICATE:
            if not outcome.is_ambiguous:
                self._raise_if_refused(outcome)
            own = await self._find_own(messages, fence)
            if own:
                return own
            self._raise_if_refused(outcome)
        own = await self._find_own(messages, fence)
        if own:
            return own
        last = await read_leader(self._connection, self._stream, {"last_by_subj": self._fence_filter})
        actual = last.entry.sequence if last else 0
        if actual == fence:
            raise DuplicateConflictError(messages[0].message_id, outcome.sequence)
        raise AppendRefusedError(fence, actual)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _append_together(self, messages: Sequence[Message], deadline: float) -> list[Ack]:
        if len(messages) == 1 or len({each.message_id for each in messages}) < len(messages):
            return [await self.append(each, _left(deadline)) for each in messages]
        outcome = await self._settle(messages, {}, deadline)
        if outcome.error is not None and outcome.error.code == BATCH_HAS_DUPLICATE:
            return [await self.append(each, _left(deadline)) for each in messages]
        self._raise_if_refused(outcome)
        first = outcome.sequence - len(messages) + 1
        return [Ack(sequence, duplicate=False) for sequence in range(first, outcome.sequence + 1)]

    async def _settle(self, messages: Sequence[Message], headers: Mapping[str, str], deadline: float) -> _Outcome:
        """Send until the broker stores or refuses. Raises LogUnavailableError when the time is over."""
        is_ambiguous = False
        pause = FIRST_PAUSE_S
        reason: Exception | None = None
        while True:
            left = _left(deadline)
            if left <= 0:
                raise LogUnavailableError(f"not acknowledged in time: {reason}")
            try:
                stored = await self._attempt(messages, headers, min(left, ATTEMPT_S))
            except NoAnswerError as error:
                reason, is_ambiguous = error, True
            except ApiError as error:
                if not _is_passing(error):
                    return _Outcome(error=error, is_ambiguous=is_ambiguous)
                reason = error
            else:
                return _Outcome(stored.seq, stored.duplicate, is_ambiguous=is_ambiguous)
            await asyncio.sleep(min(pause, max(_left(deadline), 0)))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _attempt(self, messages: Sequence[Message], headers: Mapping[str, str], timeout_s: float) -> _Stored:
        if len(messages) == 1:
            first = messages[0]
            answer = await self._connection.request(
                first.subject,
                first.payload,
                headers={"Nats-Msg-Id": first.message_id, **headers},
                timeout_s=timeout_s,
            )
        else:
            answer = await self._attempt_batch(messages, headers, timeout_s)
        raise_for_error(answer.payload)
        return _decode_stored(answer.payload)

    async def _attempt_batch(self, messages: Sequence[Message], headers: Mapping[str, str], timeout_s: float) -> Reply:
        """One atomic batch (ADR-50), under an id of its own each time: what an earlier attempt left is given up."""
        batch = secrets.token_hex(12)
        extra = dict(headers)
        for number, message in enumerate(messages, 1):
            head = {"Nats-Msg-Id": message.message_id, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number < len(messages):
                await self._connection.publish(message.subject, message.payload, headers={**head, **extra})
            extra = {}
        last = messages[-1]
        return await self._connection.request(
            last.subject, last.payload, headers={**head, "Nats-Batch-Commit": "1"}, timeout_s=timeout_s
        )

    def _raise_if_refused(self, outcome: _Outcome) -> None:
        error = outcome.error
        if error is None:
            return
        is_full = error.code in OUT_OF_ROOM or (error.code == STORE_FAILED and _STREAM_IS_FULL in error.description)
        if outcome.is_ambiguous:
            raise LogUnavailableError(f"an earlier attempt may have been stored, this one was not: {error}")
        if is_full:
            raise LogFullError(str(error))
        raise LogError(f"the broker refuses the append: {error}")

    async def _believe_duplicate(self, message: Message, sequence: int) -> None:
        entry = await self._read_back(sequence)
        if entry is None or entry.subject != message.subject or entry.payload != message.payload:
            raise DuplicateConflictError(message.message_id, sequence)

    async def _find_own(self, messages: Sequence[Message], fence: int) -> int:
        """The sequence of the last message, when what moved the fence was this very append (0 = it was not)."""
        start = self._fence_filter.removesuffix(">")
        index = next(i for i, message in enumerate(messages) if message.subject.startswith(start))
        query = {"seq": fence + 1, "next_by_subj": self._fence_filter}
        moved = await read_leader(self._connection, self._stream, query)
        if moved is None or not _is_same(moved, messages[index]):
            return 0
        last = moved.entry.sequence - index + len(messages) - 1
        stored = await read_leader(self._connection, self._stream, {"seq": last})
        return last if stored is not None and _is_same(stored, messages[-1]) else 0

    async def _read_leader(self, sequence: int) -> Entry | None:
        stored = await read_leader(self._connection, self._stream, {"seq": sequence})
        return stored.entry if stored else None


def _is_same(stored: StoredMessage, message: Message) -> bool:
    return (stored.entry.subject, stored.entry.payload, stored.message_id) == message


def _is_passing(error: ApiError) -> bool:
    """Whether the same bytes may be taken a moment later: not refused for what they are, nor for want of room."""
    if error.code == STORE_FAILED:
        return _STREAM_IS_FULL not in error.description
    is_settled = error.code in WRONG_LAST_SEQUENCE or error.code == BATCH_HAS_DUPLICATE
    return not (is_settled or error.code in OUT_OF_ROOM or error.code in _FAULTS_OF_THE_MESSAGE)


def _deadline(timeout_s: float) -> float:
    return asyncio.get_running_loop().time() + min(timeout_s, LONGEST_APPEND_S)


def _left(deadline: float) -> float:
    return deadline - asyncio.get_running_loop().time()
