"""Questions to an agent, answered with a stream of bytes (a worker's output), over plain messages with credit.

Rules: the question goes to `<prefix>.ask.<node>` with `<prefix>.answer.<node>.<token>` as its reply subject; what the
asker sends later goes to `<prefix>.ask.<node>.<token>`. An answer is frames: one kind byte, a count, data. The agent
sends at most WINDOW data frames that the asker has not taken. Both sides show life every few seconds and end when the
other shows none; a frame that was lost ends the answer, and the asker asks again from where it was.
"""

import asyncio
import contextlib
import logging
import secrets
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Protocol, TypeVar

import msgspec

from muster.events.connection import Connection, NoAnswerError
from muster.events.subjects import DEFAULT_PREFIX
from muster.events.wire import status_of

WINDOW: Final = 16
FRAME_BYTES: Final = 64 * 1024
QUESTION_BYTES: Final = 64 * 1024
ANSWERS_LIMIT: Final = 64
LIFE_S: Final = 3.0
SILENCE_S: Final = 10.0

_DATA, _ALIVE, _END = b"D", b"A", b"E"
_HEAD: Final = struct.Struct(">cQ")
_STOP: Final = b"stop"
_NO_RESPONDERS: Final = 503

_logger: Final = logging.getLogger("muster.events.asks")

Q = TypeVar("Q", bound=msgspec.Struct)


class AskError(Exception):
    """The answer failed or broke off; the message says why."""


class Asks(Protocol):
    """Both ends."""

    def ask(self, node: str, question: msgspec.Struct) -> AsyncGenerator[bytes, None]:
        """The answer of a node's agent, in parts as they come. Raises AskError, also in the middle."""
        ...

    async def serve(self, node: str, kind: type[Q], answer: Callable[[Q], AsyncIterator[bytes]]) -> None:
        """Answer the questions for a node until cancelled. A LookupError's text goes to the asker."""
        ...


class NatsAsks:
    """See `Asks`."""

    def __init__(self, connection: Connection, prefix: str = DEFAULT_PREFIX) -> None:
        self._connection = connection
        self._prefix = prefix

    async def ask(self, node: str, question: msgspec.Struct) -> AsyncGenerator[bytes, None]:
        """See `Asks.ask`."""
        token = secrets.token_hex(12)
        asked = _Asked(self._connection, node, f"{self._prefix}.ask.{node}.{token}")
        answer_subject = f"{self._prefix}.answer.{node}.{token}"
        forget = self._connection.on_loss(lambda: asked.end("the connection to the broker was lost"))
        try:
            subscription = await self._connection.subscribe(answer_subject, asked.take)
            try:
                payload = msgspec.json.encode(question)
                await self._connection.publish(f"{self._prefix}.ask.{node}", payload, reply=answer_subject)
                async with contextlib.aclosing(asked.parts()) as parts:
                    async for part in parts:
                        yield part
            finally:
                await self._connection.unsubscribe(subscription)
        except NoAnswerError as error:
            raise AskError(f"node {node} cannot be asked: {error}") from None
        finally:
            forget()

    async def serve(self, node: str, kind: type[Q], answer: Callable[[Q], AsyncIterator[bytes]]) -> None:
        """See `Asks.serve`. Raises NoAnswerError where it cannot begin."""
        served = _Served(self._connection, f"{self._prefix}.answer.{node}.", kind, answer)
        forget = self._connection.on_loss(served.cancel_all)
        questions = await self._connection.subscribe(f"{self._prefix}.ask.{node}", served.take_question)
        signs = await self._connection.subscribe(f"{self._prefix}.ask.{node}.*", served.take_sign)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            forget()
            await self._connection.unsubscribe(questions)
            await self._connection.unsubscribe(signs)
            await served.close()


class _Asked:
    """The asker's end of one answer."""

    def __init__(self, connection: Connection, node: str, sign_subject: str) -> None:
        self._connection = connection
        self._node = node
        self._sign_subject = sign_subject
        self._parts: deque[bytes] = deque()
        self._count = 0
        self._end: str | None = None
        self._news = asyncio.Event()
        self._credit = 0
        self._sign_due = asyncio.Event()
        self._is_heard = False

    def take(self, _subject: bytes, _reply: bytes, headers: bytes, payload: bytes) -> None:
        """A frame."""
        if status_of(headers) == _NO_RESPONDERS:
            self.end(f"no agent of node {self._node} is there")
            return
        if len(payload) < _HEAD.size:
            return
        kind, count = _HEAD.unpack_from(payload)
        self._is_heard = True
        if kind == _ALIVE:
            self._sign_due.set()
            return
        self._count += 1
        if count != self._count:
            self.end("a part of the answer was lost")
        elif kind == _DATA:
            self._parts.append(payload[_HEAD.size :])
            self._news.set()
        else:
            self.end(payload[_HEAD.size :].decode(errors="replace"))

    def end(self, reason: str) -> None:
        """Nothing follows; "" is a good end."""
        if self._end is None:
            self._end = reason
        self._news.set()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The parts. Raises AskError."""
        signing = asyncio.create_task(self._sign())
        try:
            while True:
                while self._parts:
                    yield self._parts.popleft()
                    self._credit += 1
                    self._sign_due.set()
                if self._end is not None:
                    break
                await self._wait()
            if self._end:
                raise AskError(self._end)
        finally:
            signing.cancel()
            await asyncio.wait({signing})
            if self._end is None:
                with contextlib.suppress(NoAnswerError):
                    await self._connection.publish(self._sign_subject, _STOP)

    async def _wait(self) -> None:
        self._news.clear()
        self._is_heard = False
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._news.wait()
        except TimeoutError:
            if not self._is_heard:
                self.end(f"the agent of node {self._node} shows no life")

    async def _sign(self) -> None:
        """Tell the agent of parts taken, and that somebody still listens."""
        while True:
            await self._sign_due.wait()
            self._sign_due.clear()
            credit, self._credit = self._credit, 0
            with contextlib.suppress(NoAnswerError):
                await self._connection.publish(self._sign_subject, b"%d" % credit)


class _Answering:
    """The agent's end of one answer."""

    def __init__(self) -> None:
        self.credit = WINDOW
        self.is_heard = False
        self.more = asyncio.Event()
        self.count = 0
        self.task: asyncio.Task[None] | None = None


class _Served:
    """All answers that an agent gives."""

    def __init__(
        self, connection: Connection, answer_prefix: str, kind: type[Q], answer: Callable[[Q], AsyncIterator[bytes]]
    ) -> None:
        self._connection = connection
        self._answer_prefix = answer_prefix
        self._decode = msgspec.json.Decoder(kind).decode
        self._answer: Callable[..., AsyncIterator[bytes]] = answer
        self._answering: dict[str, _Answering] = {}

    def take_question(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        """Somebody asks; a reply subject that is not an answer's is nobody."""
        to = reply.decode()
        token = to.removeprefix(self._answer_prefix)
        if token == to or token in self._answering:
            return
        answering = _Answering()
        self._answering[token] = answering
        answering.task = asyncio.create_task(self._run(token, answering, payload))
        answering.task.add_done_callback(lambda _: self._answering.pop(token, None))

    def take_sign(self, subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        """An asker took parts, or is alive, or wants no more."""
        answering = self._answering.get(subject.rsplit(b".", 1)[-1].decode())
        if answering is None or answering.task is None:
            return
        answering.is_heard = True
        if payload == _STOP:
            answering.task.cancel()
        elif payload.isdigit():
            answering.credit = min(answering.credit + int(payload[:4]), WINDOW)
            answering.more.set()

    def cancel_all(self) -> None:
        """No asker can hear us."""
        for answering in self._answering.values():
            if answering.task is not None:
                answering.task.cancel()

    async def close(self) -> None:
        """Cancel all and wait until each has told its asker."""
        self.cancel_all()
        tasks = {answering.task for answering in self._answering.values() if answering.task is not None}
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, token: str, answering: _Answering, payload: bytes) -> None:
        reason = "the agent broke off"
        living = asyncio.create_task(self._live(token, answering))
        try:
            reason = await self._give(token, answering, payload)
        except LookupError as error:
            reason = str(error) or "there is no such thing"
        except NoAnswerError:
            _logger.debug("an asker went away")
        except Exception:
            _logger.exception("a question could not be answered")
            reason = "the agent failed to answer"
        finally:
            living.cancel()
            with contextlib.suppress(NoAnswerError):
                await self._send(token, answering, _END, reason.encode())

    async def _give(self, token: str, answering: _Answering, payload: bytes) -> str:
        if len(self._answering) > ANSWERS_LIMIT:
            return "the agent answers too many questions already"
        try:
            question = self._decode(payload[:QUESTION_BYTES])
        except msgspec.MsgspecError as error:
            return f"the question is not understood: {error}"
        parts = self._answer(question)
        try:
            async for data in parts:
                for start in range(0, len(data), FRAME_BYTES):
                    await self._send_data(token, answering, data[start : start + FRAME_BYTES])
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
        return ""

    async def _send_data(self, token: str, answering: _Answering, data: bytes) -> None:
        while answering.credit <= 0:
            answering.more.clear()
            await answering.more.wait()
        answering.credit -= 1
        await self._send(token, answering, _DATA, data)

    async def _send(self, token: str, answering: _Answering, kind: bytes, data: bytes) -> None:
        answering.count += 1
        await self._connection.publish(self._answer_prefix + token, _HEAD.pack(kind, answering.count) + data)

    async def _live(self, token: str, answering: _Answering) -> None:
        """Show life; end the answer when its asker shows none."""
        silent_s = 0.0
        while silent_s < SILENCE_S:
            with contextlib.suppress(NoAnswerError):
                await self._connection.publish(self._answer_prefix + token, _HEAD.pack(_ALIVE, 0))
            await asyncio.sleep(LIFE_S)
            silent_s = 0.0 if answering.is_heard else silent_s + LIFE_S
            answering.is_heard = False
        if answering.task is not None:
            answering.task.cancel()


class MemoryAsks:
    """See `Asks`: both ends in one process."""

    def __init__(self) -> None:
        self._answers: dict[str, Callable[..., AsyncIterator[bytes]]] = {}

    async def ask(self, node: str, question: msgspec.Struct) -> AsyncGenerator[bytes, None]:
        """See `Asks.ask`."""
        if node not in self._answers:
            raise AskError(f"no agent of node {node} is there")
        try:
            async for part in self._answers[node](question):
                yield part
        except LookupError as error:
            raise AskError(str(error)) from None

    async def serve(self, node: str, kind: type[Q], answer: Callable[[Q], AsyncIterator[bytes]]) -> None:
        """See `Asks.serve`."""

        def answer_copy(question: msgspec.Struct) -> AsyncIterator[bytes]:
            return answer(msgspec.convert(msgspec.to_builtins(question), kind))

        self._answers[node] = answer_copy
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            del self._answers[node]
