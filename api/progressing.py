"""Work that takes a while: as one answer, or with its progress as NDJSON for who accepts that."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
from aiohttp import web

from muster.api.answers import SEQUENCE_HEADER, problem
from muster.api.clients import write_part
from muster.api.problems import ApiError
from muster.api.streams import NDJSON_TYPE

TELL_S: Final = 0.5
"""How often progress is told."""


class Progress(msgspec.Struct, frozen=True):
    """Work that goes on is at `reached` of `last`."""

    reached: int
    last: int


def wants_progress(request: web.Request) -> bool:
    """Whether who asks reads lines."""
    return NDJSON_TYPE in request.headers.get("Accept", "")


async def with_progress(
    request: web.Request, work: Coroutine[Any, Any, msgspec.Struct], progress: Callable[[], Progress], sequence: int
) -> web.StreamResponse:
    """Lines with what the work is at, then one with what comes of it, or with the problem that ended it. What ends it
    before the first line is answered as always. Whoever leaves ends the work."""
    response: web.StreamResponse | None = None
    working = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({working}, timeout=TELL_S))[0]:
            if response is None:
                response = await _begin(request, sequence)
            await write_part(request, response, _line(progress()))
        error = working.exception()
        if response is None:
            if error is not None:
                raise error
            response = await _begin(request, sequence)
        if isinstance(error, ApiError):
            body = problem(error).body
            assert isinstance(body, bytes)
            await write_part(request, response, b'{"problem":' + body + b"}\n")
        else:
            await write_part(request, response, _line(working.result()))
        await response.write_eof()
        return response
    finally:
        working.cancel()


async def _begin(request: web.Request, sequence: int) -> web.StreamResponse:
    headers = {"Content-Type": NDJSON_TYPE, "Cache-Control": "no-store", SEQUENCE_HEADER: str(sequence)}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


def _line(view: msgspec.Struct) -> bytes:
    return msgspec.json.encode(view) + b"\n"
