"""Reading stored entries by sequence: in bulk from any replica, and one by one from the leader.

Rules: a bulk read may come from a replica that lags or has rotted, so its answer is taken only as far as it has no
gap; what is missing is read from the stream's leader. Only the leader's answer that an entry is not there counts.
"""

import asyncio
import base64
from typing import Any, Final

import msgspec

from muster.events.connection import NOT_PERMITTED, ApiError, Connection, NoAnswerError, Reply
from muster.events.log import Entry, LogError, LogUnavailableError, MissingEntryError
from muster.events.wire import header, parse_time_ns, status_of

DIRECT_BATCH: Final = 1000
ANSWER_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.05
_NO_MESSAGE: Final = 10037


class StoredMessage(msgspec.Struct, frozen=True):
    """An entry together with the id it was written with ("" = none)."""

    entry: Entry
    message_id: str


class _Stored(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


async def read_leader(connection: Connection, stream: str, query: dict[str, Any]) -> StoredMessage | None:
    """What the stream's leader has for a query (`seq`, `last_by_subj`, or `next_by_subj` with `seq`); None where it
    has nothing. Raises LogUnavailableError."""
    deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
    while True:
        try:
            answer = await connection.api(f"STREAM.MSG.GET.{stream}", query, timeout_s=2.0)
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return None
            if error.code == NOT_PERMITTED:
                raise LogError(str(error)) from None
            reason = str(error)
        except NoAnswerError as error:
            reason = str(error)
        else:
            return _stored_of(answer["message"])
        if asyncio.get_running_loop().time() > deadline:
            raise LogUnavailableError(f"cannot read {stream}: {reason}")
        await asyncio.sleep(RETRY_S)


def _stored_of(message: dict[str, Any]) -> StoredMessage:
    stored = msgspec.convert(message, _Stored)
    headers = base64.b64decode(stored.hdrs)
    entry = Entry(stored.seq, parse_time_ns(stored.time), stored.subject, base64.b64decode(stored.data))
    return StoredMessage(entry, header(headers, b"Nats-Msg-Id").decode())


async def read_entry(connection: Connection, stream: str, sequence: int) -> Entry:
    """One entry, from the leader. Raises MissingEntryError or LogUnavailableError."""
    stored = await read_leader(connection, stream, {"seq": sequence})
    if stored is None:
        raise MissingEntryError(sequence)
    return stored.entry


async def read_direct(connection: Connection, stream: str, query: dict[str, Any], batch: int) -> list[Entry]:
    """Up to `batch` entries for a query (`seq` or `start_time`) from some replica: it may lag, and may have gaps.
    Raises NoAnswerError."""
    answers = await connection.request_many(
        f"{connection.api_prefix}.DIRECT.GET.{stream}",
        msgspec.json.encode({**query, "batch": batch}),
        lambda answer: status_of(answer.headers) != 0,
        timeout_s=5.0,
    )
    return [_entry_of(answer) for answer in answers[:-1]]


def _entry_of(answer: Reply) -> Entry:
    headers = answer.headers
    return Entry(
        int(header(headers, b"Nats-Sequence")),
        parse_time_ns(header(headers, b"Nats-Time-Stamp").decode()),
        header(headers, b"Nats-Subject").decode(errors="replace"),
        answer.payload,
    )
