"""Facts that people write, appended to the log: an answer waits for the log's acknowledgement, and what goes wrong on
the way is a problem for the caller."""

import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final

from muster.api.problems import ApiError
from muster.events.codec import encode
from muster.events.log import Ack, Log, LogFullError, LogUnavailableError, Message
from muster.events.subjects import CLUSTER_QUEUE, subject_of
from muster.events.types import Event

_id_prefix: Final = secrets.token_hex(8)
_ids: Final = count(1)


def next_id() -> str:
    """A message id that no other message has."""
    return f"{_id_prefix}-{next(_ids)}"


def leaf_of(queue: str) -> str:
    """The last name of a queue's path: what stands in subjects."""
    return queue.rpartition("/")[2]


async def append(log: Log, event: Event, queue: str | None = None) -> Ack:
    """Append one fact; `queue` is the path of its job's queue. Raises ApiError."""
    with _explained():
        return await log.append(_message(log, event, queue))


async def append_all(log: Log, events: Sequence[Event]) -> list[Ack]:
    """Append facts about the cluster in order, all or none. Raises ApiError."""
    with _explained():
        return await log.append_batch([_message(log, event, None) for event in events])


def _message(log: Log, event: Event, queue: str | None) -> Message:
    leaf = CLUSTER_QUEUE if queue is None else leaf_of(queue)
    return Message(subject_of(event, leaf, log.prefix), encode(event), next_id())


@contextmanager
def _explained() -> Generator[None, None, None]:
    try:
        yield
    except LogFullError as error:
        raise ApiError(507, "log_full", "the log is full", next_step="raise the log's size limit") from error
    except LogUnavailableError as error:
        raise unavailable() from error


def unavailable() -> ApiError:
    """The log did not say whether it has what was sent."""
    return ApiError(
        503,
        "log_unavailable",
        "the log did not answer: it may or may not have this",
        next_step="send it again; with the same Idempotency-Key a job is made once",
        retry_after_s=2,
    )
