"""The broker's wire protocol as far as Muster reads it itself: messages, header blocks, times.

Rules: messages go from the socket's buffer straight to the subscription's sink, without a task or an object in
between: a replay is bound by this path. Everything else on the wire is left to the client library's own parser.
"""

import calendar
import time
from collections.abc import Callable
from typing import Final, TypeAlias
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with a message's subject, reply subject (b"" = none), raw header block (b"" = none) and payload."""

NANOSECONDS: Final = 1_000_000_000
_MESSAGE: Final = ord("M")
_MESSAGE_WITH_HEADERS: Final = ord("H")
_CRLF: Final = b"\r\n"


class OneSocket(TcpTransport):
    """The client's socket. The library opens another after a handshake that failed and drops the last one unclosed;
    here the last one is let go first."""

    def __bool__(self) -> bool:
        """Always: an unopened transport is not to be replaced by one of the library's own."""
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Open a socket to a server."""
        self.abort()
        await super().connect(uri, buffer_size, connect_timeout)

    def abort(self) -> None:
        """Let the socket go at once, whatever is unsent. Harmless when it is closed."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    def abort_closing(self) -> None:
        """A socket with unsent data to a hung server never finishes closing by itself."""
        if self._io_writer is not None and self._io_writer.transport.is_closing():
            self.abort()


class SinkParser(Parser):
    """Gives the messages of subscriptions in `sinks` (by number) to their sink, and the rest to the library."""

    def __init__(self, client: Client) -> None:
        self.sinks: dict[int, Sink] = {}
        self._life = 0
        super().__init__(client)

    def reset(self) -> None:
        """Forget what was half read: the socket is a new one."""
        self._life += 1
        super().reset()

    async def parse(self, data: bytes = b"") -> None:
        """Take in what the socket gave."""
        life = self._life
        buffer = bytes(self.buf) + data if self.buf else data
        position, size = 0, len(buffer)
        while position < size and life == self._life:
            end = buffer.find(_CRLF, position)
            if end < 0:
                break
            kind = buffer[position]
            if kind not in (_MESSAGE, _MESSAGE_WITH_HEADERS):
                self.buf = bytearray(buffer[position : end + 2])
                position = end + 2
                await super().parse()
                continue
            words = buffer[position:end].split()
            start = end + 2
            stop = start + int(words[-1])
            if stop + 2 > size:
                break
            position = stop + 2
            body = start + int(words[-2]) if kind == _MESSAGE_WITH_HEADERS else start
            reply = words[3] if len(words) == (6 if kind == _MESSAGE_WITH_HEADERS else 5) else b""
            sink = self.sinks.get(int(words[2]))
            if sink is not None:
                sink(words[1], reply, buffer[start:body], buffer[body:stop])
        if life == self._life:
            self.buf = bytearray(buffer[position:])


def status_of(headers: bytes) -> int:
    """The status of a header block such as `NATS/1.0 404 No Messages` (0 = it is a message, not a status)."""
    code = headers[9:12]
    return int(code) if headers[8:9] == b" " and code.isdigit() else 0


def header(headers: bytes, name: bytes) -> bytes:
    """The value of a header (b"" = it is not there)."""
    start = headers.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return headers[start : headers.find(_CRLF, start)].strip()


def parse_time_ns(text: str) -> int:
    """An RFC 3339 time in UTC with up to nine decimals, as nanoseconds since 1970."""
    if not text.endswith("Z"):
        raise ValueError(f"not a time in UTC: {text!r}")
    seconds = calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    fraction = text[20:-1]
    return seconds * NANOSECONDS + (int(fraction.ljust(9, "0")) if fraction else 0)


def format_time_ns(nanoseconds: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 in UTC."""
    seconds, fraction = divmod(nanoseconds, NANOSECONDS)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z"
