"""The server's clients: how many are served at once, and how long one may keep it waiting.

Rules: a connection that would take more descriptors than the process can spare is answered 503 and closed; so is a
request that goes on for long (a stream, a long poll) where too many do. A client that does not send a whole request,
or does not take what it is sent, is cut off after a while.
"""

import asyncio
import resource
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec
from aiohttp import web

from muster.api.problems import PROBLEM_TYPE, ApiError

CONNECTIONS_LIMIT: Final = 1_000
LONG_PERCENT: Final = 75
"""Of the connections, so many may be streams and long polls; the rest is for everybody else."""
REFUSALS_LIMIT: Final = 32
PATIENCE_S: Final = 30.0
"""So long a client may take to send a request, to take an answer, or to take the next part of a stream."""
LOOK_S: Final = 1.0
RETRY_AFTER_S: Final = 5


def connections_limit() -> int:
    """At most half of the descriptors that this process may have: broker, store and workers need theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_LIMIT if soft == resource.RLIM_INFINITY else min(CONNECTIONS_LIMIT, soft // 2)


class _Refused(asyncio.Protocol):
    """A connection too many: it is told so, and what it sends is not read."""

    def __init__(self, refused: set[asyncio.BaseTransport], limit: int) -> None:
        self._refused = refused
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._refused) >= REFUSALS_LIMIT:
            transport.abort()
            return
        self._refused.add(transport)
        body = msgspec.json.encode(too_many(f"{self._limit} connections are open").view)
        head = (
            f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PROBLEM_TYPE}\r\nContent-Length: {len(body)}\r\n"
            f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.write_eof()
        asyncio.get_running_loop().call_later(LOOK_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._refused.discard(self._transport)


class Clients:
    """All connections. A protocol factory for the loop's `create_server`; `watch` is to run beside it."""

    def __init__(self, limit: int, patience_s: float = PATIENCE_S) -> None:
        self.server: web.Server | None = None
        """Set before the first connection comes."""
        self._limit = limit
        self._patience_s = patience_s
        self._long = 0
        self._refused: set[asyncio.BaseTransport] = set()
        self._coming: set[asyncio.BaseProtocol] = set()
        self._waiting: dict[asyncio.BaseProtocol, float] = {}  # connections between requests, and since when

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of a connection that has just come."""
        assert self.server is not None
        if len(self.server.connections) + len(self._coming) >= self._limit:
            return _Refused(self._refused, self._limit)
        loop = asyncio.get_running_loop()
        protocol = self.server()
        self._coming.add(protocol)
        loop.call_soon(self._coming.discard, protocol)  # the next callback makes it one of the server's
        self._waiting[protocol] = loop.time()
        return protocol

    @contextmanager
    def answering(self, request: web.Request) -> Generator[None, None, None]:
        """While a request is worked on, its client is not waited for."""
        self._waiting.pop(request.protocol, None)
        try:
            yield
        finally:
            self._waiting[request.protocol] = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def long_request(self) -> AsyncGenerator[None, None]:
        """A request that may go on for long. Raises ApiError where too many do."""
        limit = self._limit * LONG_PERCENT // 100
        if self._long >= limit:
            raise too_many(f"{limit} requests that go on for long are being answered")
        self._long += 1
        try:
            yield
        finally:
            self._long -= 1

    async def watch(self) -> None:
        """Cut off whoever is waited for in vain, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            assert self.server is not None
            connected = set(self.server.connections)
            for protocol, since_s in list(self._waiting.items()):
                if loop.time() - since_s < self._patience_s:
                    continue
                del self._waiting[protocol]
                if isinstance(protocol, web.RequestHandler) and protocol in connected and protocol.transport:
                    protocol.transport.abort()


CLIENTS: Final = web.AppKey("clients", Clients)


def too_many(detail: str) -> ApiError:
    """What a client is told that should come again later."""
    return ApiError(
        503,
        "too_many",
        "this server has too many clients",
        detail=detail,
        next_step="ask again",
        retry_after_s=RETRY_AFTER_S,
    )


async def read_whole(request: web.Request) -> bytes:
    """The body. Raises ApiError where it does not come."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await request.read()
    except TimeoutError as error:
        raise ApiError(408, "too_slow", f"the body did not come within {PATIENCE_S:.0f} s") from error


async def write_part(request: web.Request, response: web.StreamResponse, part: bytes) -> None:
    """The next part of a stream. Raises ConnectionError, also where the client does not take it."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await response.write(part)
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not take what it is sent") from error
