"""A consumer of a stream, read by pull requests: the quick path of replay and the way agents get their commands.

Rules: nothing about it lasts (no durable, kept in the server's memory, gone when unused). Whoever reads knows what was
read last and begins again from there: any doubt (silence, a lost connection, a status, a gap in the consumer's own
count) ends it with `PullLostError`. At most two requests of 500 are open, and a new one goes out only as entries are
taken, so a slow reader holds a bounded amount.
"""

import asyncio
import logging
import secrets
from typing import Any, Final, Self

import msgspec

from muster.events.connection import ApiError, Connection, NoAnswerError, Subscription
from muster.events.log import Entry, LogError
from muster.events.reading import RETRY_S
from muster.events.wire import header, status_of

REQUEST_SIZE: Final = 500
OPEN_REQUESTS: Final = 2
HEARTBEAT_S: Final = 0.5
SILENCE_S: Final = 2.0
REQUEST_LIFE_S: Final = 30.0
UNUSED_S: Final = 30.0
LONGEST_RETRY_S: Final = 0.5
SUBJECT_CACHE_LIMIT: Final = 10_000

_NS: Final = 1_000_000_000
_REPLY_TOKENS: Final = 9
_IDLE: Final = 100
_REQUEST_OVER: Final = 408
_NOT_FOUND: Final = 10014


def retry_level(pause_s: float) -> int:
    """How loudly to log that reading begins again after a pause: the first time, and then for those who debug."""
    return logging.INFO if pause_s <= RETRY_S else logging.DEBUG


class PullLostError(Exception):
    """The consumer is gone or silent: begin again after the last entry."""


class Pull:
    """Entries of `stream` from sequence `first` on, all or those under `subject`. An async context manager.

    A given `name` is one that the user is permitted; an earlier consumer of that name ends.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        first: int,
        *,
        subject: str = "",
        name: str = "",
        policy: str = "by_start_sequence",
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._first = first
        self._subject = subject
        self._is_named = bool(name)
        self._name = name or secrets.token_hex(12)
        self._policy = policy
        self._inbox = connection.new_inbox()
        self._raw: list[tuple[bytes, bytes, bytes]] = []
        self._wake = asyncio.Event()
        self._lost = ""
        self._heard = False
        self._wanted = 0
        self._delivered = 0
        self._subscription: Subscription | None = None
        self._forget_loss = connection.on_loss(self._on_loss)
        self._subjects: dict[bytes, str] = {}
        self.pending = 0
        """How many more entries there were after the last one taken."""

    async def __aenter__(self) -> Self:
        try:
            self._subscription = await self._connection.subscribe(self._inbox, self._on_message)
            await self._create()
            await self._request()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._forget_loss()
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)

    async def take(self) -> list[Entry]:
        """All that has arrived, at least one entry. Raises PullLostError."""
        while not self._raw:
            if self._lost:
                raise PullLostError(self._lost)
            self._wake.clear()
            self._heard = False
            await self._request()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._wake.wait()
            except TimeoutError:
                if not self._heard:
                    raise PullLostError(f"nothing heard for {SILENCE_S} s") from None
        raw, self._raw = self._raw, []
        self._wanted -= len(raw)
        entries = self._decode(raw)
        if not self._lost:
            await self._request()
        return entries

    # -- inside -------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        if self._is_named:
            try:
                await self._connection.api(f"CONSUMER.DELETE.{self._stream}.{self._name}")
            except ApiError as error:
                if error.code != _NOT_FOUND:
                    raise PullLostError(str(error)) from None
            except NoAnswerError as error:
                raise PullLostError(str(error)) from None
        config: dict[str, Any] = {
            "name": self._name,
            "deliver_policy": self._policy,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": int(UNUSED_S * _NS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if self._policy == "by_start_sequence":
            config["opt_start_seq"] = self._first
        if self._subject:
            config["filter_subject"] = self._subject
        where = f"{self._stream}.{self._name}" + (f".{self._subject}" if self._subject else "")
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        try:
            info = await self._connection.api(f"CONSUMER.CREATE.{where}", body)
        except (ApiError, NoAnswerError) as error:
            raise PullLostError(f"cannot read {self._stream}: {error}") from None
        self.pending = info.get("num_pending", 0)

    async def _request(self) -> None:
        """Keep up to two requests open, counting what has not been taken yet."""
        while self._wanted <= REQUEST_SIZE * (OPEN_REQUESTS - 1):
            body = {
                "batch": REQUEST_SIZE,
                "expires": int(REQUEST_LIFE_S * _NS),
                "idle_heartbeat": int(HEARTBEAT_S * _NS),
            }
            try:
                await self._connection.publish(
                    f"{self._connection.api_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}",
                    msgspec.json.encode(body),
                    reply=self._inbox,
                )
            except NoAnswerError as error:
                raise PullLostError(str(error)) from None
            self._wanted += REQUEST_SIZE

    def _decode(self, raw: list[tuple[bytes, bytes, bytes]]) -> list[Entry]:
        subjects, entries, delivered = self._subjects, [], self._delivered
        if len(subjects) > SUBJECT_CACHE_LIMIT:
            subjects.clear()
        parts: list[bytes] = []
        for subject, reply, payload in raw:
            parts = reply.split(b".")
            if len(parts) != _REPLY_TOKENS:
                raise LogError(f"the broker's reply subjects are not understood: {reply!r}")
            delivered += 1
            if int(parts[6]) != delivered:
                self._lost = "the consumer's count has a gap"
                break
            name = subjects.get(subject)
            if name is None:
                name = subjects[subject] = subject.decode(errors="replace")
            entries.append(Entry(int(parts[5]), int(parts[7]), name, payload))
        if not entries:
            raise PullLostError(self._lost)
        self._delivered = delivered
        self.pending = int(parts[8])
        return entries

    def _on_message(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        self._heard = True
        if reply:
            self._raw.append((subject, reply, payload))
        else:
            status = status_of(headers)
            if status == _IDLE:
                return
            if status == _REQUEST_OVER:
                self._wanted -= int(header(headers, b"Nats-Pending-Messages") or 0)
            else:
                self._lost = headers[9:].split(b"\r\n", 1)[0].decode(errors="replace")
        self._wake.set()

    def _on_loss(self) -> None:
        self._lost = "the connection was lost"
        self._wake.set()
