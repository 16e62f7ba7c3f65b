"""One connection to the broker, for everything a process does there: requests with an answer, publishing, subscribing.

Rules: a request ends at once when the connection is lost (`NoAnswerError`), and whoever asked decides what that means.
Nothing is sent later than it was asked for: what had not left when the connection broke is dropped, never sent after a
reconnect behind its writer's back. It reconnects for ever. A hung server is left after about three seconds.
"""

import asyncio
import contextlib
import itertools
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client

from muster.events.wire import OneSocket, Sink, SinkParser, status_of

PING_INTERVAL_S: Final = 1
WATCH_INTERVAL_S: Final = 0.25
RECONNECT_WAIT_S: Final = 0.1
HEADER_ROOM_BYTES: Final = 1024
NOT_PERMITTED: Final = -1
"""The code of an ApiError for a subject that this user may not publish."""
_NOT_LET_IN: Final = "authorization violation"
_FORBIDDEN: Final = re.compile('permissions violation for publish to "([^"]+)"')

_logger: Final = logging.getLogger("muster.events.connection")


JETSTREAM_API: Final = "$JS.API"


class Credential(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user of the broker. Its answers come under its own inbox, which nobody else may read; `api` is where it finds
    JetStream's API."""

    user: str
    password: str
    api: str = JETSTREAM_API

    @property
    def inbox(self) -> str:
        """The first two tokens of this user's reply subjects."""
        return f"_INBOX.{self.user}"


class NoAnswerError(Exception):
    """No answer came: a time-out, a lost connection, or nobody there. The request may have been carried out."""


class ApiError(Exception):
    """The broker refused a request. `code` is its error code, or NOT_PERMITTED."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


class Reply(NamedTuple):
    """An answer: its raw header block (b"" = none) and its payload."""

    headers: bytes
    payload: bytes


class _ErrorBody(msgspec.Struct):
    err_code: int = 0
    description: str = ""
    code: int = 0


class _ApiReply(msgspec.Struct):
    error: _ErrorBody | None = None


_decode_reply: Final = msgspec.json.Decoder(_ApiReply).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


def raise_for_error(payload: bytes) -> None:
    """Raise ApiError where a JetStream answer is an error; NoAnswerError where the broker is not ready to answer."""
    error = _decode_reply(payload).error
    if error is not None:
        raise ApiError(error.err_code, error.description)


class Subscription:
    """A subject and what is called with each of its messages; it outlives reconnects."""

    def __init__(self, subject: str, sink: Sink) -> None:
        self.subject = subject
        self.sink = sink
        self.sid = 0
        self.handle: Any = None


class Connection:
    """See the module. Made by `open`."""

    def __init__(self, servers: Sequence[str], credential: Credential | None, name: str) -> None:
        self.servers = list(servers)
        self.credential = credential
        self.name = name
        self.api_prefix = credential.api if credential else JETSTREAM_API
        prefix = credential.inbox if credential else "_INBOX.any"
        self._inbox = f"{prefix}.{secrets.token_hex(8)}"
        self._counter = itertools.count(1)
        self._waiting: dict[bytes, tuple[str, Callable[[Reply | Exception], None]]] = {}
        self._subscriptions: list[Subscription] = []
        self._loss_callbacks: set[Callable[[], None]] = set()
        self._closing = False
        self._last_error: Exception | None = None
        self._refusal: Exception | None = None
        self._refused = asyncio.Event()
        self._watchdog: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, servers: Sequence[str], credential: Credential | None = None, name: str = "muster", timeout_s: float = 10.0
    ) -> "Connection":
        """Connect to any of `servers` (`nats://host:port`). Raises NoAnswerError when none lets this user in."""
        connection = cls(servers, credential, name)
        dialing = asyncio.create_task(connection._dial())
        refused = asyncio.create_task(connection._refused.wait())
        try:
            await asyncio.wait({dialing, refused}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_in = dialing.done() and not dialing.cancelled() and dialing.exception() is None
            for task in (dialing, refused):
                task.cancel()
            await asyncio.wait({dialing, refused})
        if not is_in:
            error = connection._refusal or connection._last_error
            reason = f": {error}" if error else ""
            await connection.close()
            raise NoAnswerError(f"no broker at {', '.join(servers)} lets {name} in{reason}")
        await connection.subscribe(f"{connection._inbox}.*", connection._on_reply)
        connection._watchdog = asyncio.create_task(connection._watch(), name="connection watchdog")
        return connection

    @property
    def is_connected(self) -> bool:
        """Whether a server is there right now, as far as is known."""
        return bool(self._client.is_connected)

    def new_inbox(self) -> str:
        """A subject of this connection's own for answers."""
        return f"{self._inbox}-{next(self._counter)}"

    def on_loss(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called at each loss of the connection; returns what ends that."""
        self._loss_callbacks.add(callback)
        return lambda: self._loss_callbacks.discard(callback)

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a message without waiting for anything. Raises NoAnswerError when there is no connection, ValueError
        for what the broker would never take."""
        if len(payload) > self._client.max_payload - HEADER_ROOM_BYTES:
            raise ValueError(f"a message of {len(payload)} bytes is larger than the broker takes")
        try:
            await self._client.publish(subject, payload, reply=reply, headers=dict(headers) if headers else None)
        except nats.errors.BadSubjectError:
            raise ValueError(f"no message can be sent under {subject!r}") from None
        except (nats.errors.Error, OSError) as error:
            raise NoAnswerError(f"not connected: {error}") from None

    async def request(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
    ) -> Reply:
        """Send a message and wait for one answer. Raises NoAnswerError, or ApiError where it is not permitted."""
        answers = await self.request_many(subject, payload, lambda _: True, headers=headers, timeout_s=timeout_s)
        return answers[0]

    async def request_many(
        self,
        subject: str,
        payload: bytes,
        is_last: Callable[[Reply], bool],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> list[Reply]:
        """Send a message and collect answers up to and with the one that `is_last`. Raises as `request` does."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        answers: list[Reply] = []

        def take(answer: Reply | Exception) -> None:
            if done.done():
                return
            if isinstance(answer, Exception):
                done.set_exception(answer)
                return
            answers.append(answer)
            if status_of(answer.headers) == 503:  # noqa: PLR2004  the protocol's "no responders"
                done.set_exception(NoAnswerError(f"nobody answers {subject}"))
            elif is_last(answer):
                done.set_result(None)

        reply = f"{self._inbox}.{next(self._counter)}"
        key = reply.encode()
        self._waiting[key] = subject, take
        timer = loop.call_later(timeout_s, take, NoAnswerError(f"no answer from {subject} in {timeout_s:.1f} s"))
        try:
            await self.publish(subject, payload, reply=reply, headers=headers)
            await done
        finally:
            timer.cancel()
            del self._waiting[key]
            if done.done() and not done.cancelled():
                done.exception()
        return answers

    async def api(self, name: str, body: Mapping[str, Any] | None = None, timeout_s: float = 5.0) -> dict[str, Any]:
        """Call the JetStream API's `<name>`. Raises ApiError or NoAnswerError."""
        payload = msgspec.json.encode(body) if body is not None else b""
        answer = await self.request(f"{self.api_prefix}.{name}", payload, timeout_s=timeout_s)
        raise_for_error(answer.payload)
        return _decode_object(answer.payload)

    async def subscribe(self, subject: str, sink: Sink) -> Subscription:
        """Have `sink` called, in order and at once, with each message under `subject`."""
        subscription = Subscription(subject, sink)
        self._subscriptions.append(subscription)
        await self._register(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. Harmless when it has ended."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        self._parser.sinks.pop(subscription.sid, None)
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.handle.unsubscribe()

    async def close(self) -> None:
        """Close for good; whoever waits for an answer gets NoAnswerError."""
        self._closing = True
        if self._watchdog is not None:
            self._watchdog.cancel()
            await asyncio.gather(self._watchdog, return_exceptions=True)
        self._socket.abort_closing()
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.close()
        self._socket.abort()  # one that was opened while a reconnection was being given up
        await asyncio.sleep(0)
        self._fail_all("the connection was closed")

    # -- keeping it up ------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        client = Client()
        self._client = client
        self._parser = SinkParser(client)
        client._ps = self._parser  # noqa: SLF001  the client has no public seam for its parser
        self._socket = OneSocket()  # type: ignore[no-untyped-call]  # the library's is not typed
        client._transport = self._socket  # noqa: SLF001  nor for its socket
        await client.connect(
            servers=list(self.servers),
            name=self.name,
            user=self.credential.user if self.credential else None,
            password=self.credential.password if self.credential else None,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # it is slept, so fractions work
            connect_timeout=2,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=2,
            pending_size=0,
        )
        for subscription in self._subscriptions:
            await self._register(subscription)

    async def _register(self, subscription: Subscription) -> None:
        try:
            handle = await self._client.subscribe(subscription.subject, cb=_never_called)
        except (nats.errors.Error, OSError) as error:
            raise NoAnswerError(f"cannot subscribe to {subscription.subject}: {error}") from None
        subscription.handle = handle
        subscription.sid = handle._id  # noqa: SLF001  the wire's number of the subscription
        self._parser.sinks[subscription.sid] = subscription.sink

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self._client.is_closed:
                self._lose()
                _logger.warning("%s: the client gave up (%s); connecting anew", self.name, self._last_error)
                with contextlib.suppress(nats.errors.Error, OSError, NoAnswerError):
                    await self._dial()
            elif self._client.is_reconnecting:
                self._socket.abort_closing()

    async def _on_disconnect(self) -> None:
        self._client._pending.clear()  # noqa: SLF001  what was not sent must not be sent later
        self._client._pending_data_size = 0  # noqa: SLF001
        self._lose()

    async def _on_reconnect(self) -> None:
        self._last_error = None
        _logger.info("%s: connected again", self.name)

    async def _on_error(self, error: Exception) -> None:
        forbidden = _FORBIDDEN.search(str(error).lower())
        if forbidden is not None:
            self._forbid(forbidden[1])
        is_old = self._closing or str(error) == str(self._last_error)
        self._last_error = error
        if _NOT_LET_IN in str(error).lower():
            self._refusal = error
            self._refused.set()
        _logger.log(logging.DEBUG if is_old else logging.INFO, "%s: %s", self.name, error)

    def _forbid(self, lowered_subject: str) -> None:
        """The broker names the subject (the client in lower case), not the message."""
        for subject, take in list(self._waiting.values()):
            if subject.lower() == lowered_subject:
                take(ApiError(NOT_PERMITTED, f"{self.name} may not publish {subject}"))

    def _lose(self) -> None:
        if not self._closing:
            _logger.info("%s: lost the broker", self.name)
        self._fail_all("the connection was lost")

    def _fail_all(self, reason: str) -> None:
        for _, take in list(self._waiting.values()):
            take(NoAnswerError(reason))
        for callback in list(self._loss_callbacks):
            callback()

    def _on_reply(self, subject: bytes, _reply: bytes, headers: bytes, payload: bytes) -> None:
        waiting = self._waiting.get(subject)
        if waiting is not None:
            waiting[1](Reply(headers, payload))


async def _never_called(_message: object) -> None:
    """Stand in for the client's own dispatch, which the parser's sinks replace."""
