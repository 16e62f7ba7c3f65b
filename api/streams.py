"""Entries of the log for people and programs: JSON pages, NDJSON, and server-sent events that resume.

Every entry is a CloudEvent whose `id` is its sequence. Pages end; NDJSON ends unless `follow=1`; server-sent events
go on, and a client that comes back with `Last-Event-ID` gets what it missed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import SEQUENCE_HEADER, answer
from muster.api.clients import CLIENTS, write_part
from muster.api.log_views import EventPage, EventView, event_view
from muster.api.parameters import flag, integer
from muster.api.problems import bad_parameter
from muster.api.reading import find_job
from muster.api.service import SERVICE, Service, moment_of
from muster.events.log import Entry

CHUNK: Final = 500
KEEPALIVE_S: Final = 15.0
SSE_TYPE: Final = "text/event-stream"
NDJSON_TYPE: Final = "application/x-ndjson"
_encode: Final = msgspec.json.Encoder().encode

Source = Callable[[int, int], Awaitable[list[Entry]]]
"""(after, limit) → entries after that sequence, in order; fewer than `limit` only where there are no more now."""


async def list_events(request: web.Request) -> web.StreamResponse:
    """The log."""
    service = request.app[SERVICE]

    async def source(after: int, limit: int) -> list[Entry]:
        return await service.entries(after + 1, limit)

    return await _serve(request, source, newest_first_page=True)


async def list_job_events(request: web.Request) -> web.StreamResponse:
    """What concerns one job."""
    service = request.app[SERVICE]
    job = await find_job(request, await moment_of(request))

    async def source(after: int, limit: int) -> list[Entry]:
        return await service.job_entries(job.id, after, limit)

    return await _serve(request, source, newest_first_page=False)


def _after(request: web.Request, default: int) -> int:
    resumed = request.headers.get("Last-Event-ID")
    if resumed is None:
        return integer(request, "after", default, 0)
    if not resumed.isascii() or not resumed.isdecimal() or len(resumed) > 18:  # noqa: PLR2004 - digits of a sequence
        raise bad_parameter("Last-Event-ID", "it is the sequence of the last event seen")
    return int(resumed)


async def _serve(request: web.Request, source: Source, *, newest_first_page: bool) -> web.StreamResponse:
    """In the form that the request accepts. A page of the log that says neither `after` nor `at` is its end."""
    accepted = request.headers.get("Accept", "")
    moment = await moment_of(request)
    last = moment.state.sequence if moment.past else None
    limit = integer(request, "limit", 100, 1, 1000)
    if SSE_TYPE in accepted:
        return await _stream(request, source, _after(request, 0), last, sse=True, follow=last is None)
    if NDJSON_TYPE in accepted:
        follow = flag(request, "follow") and last is None and not request.app[SERVICE].read_only
        return await _stream(request, source, _after(request, 0), last, sse=False, follow=follow)
    after = _after(request, max(moment.state.sequence - limit, 0) if newest_first_page else 0)
    found = [entry for entry in await source(after, limit) if last is None or entry.sequence <= last]
    following = found[-1].sequence if len(found) == limit else None
    return answer(EventPage(moment.state.sequence, list(map(event_view, found)), following), moment.state.sequence)


async def _stream(
    request: web.Request, source: Source, after: int, last: int | None, *, sse: bool, follow: bool
) -> web.StreamResponse:
    service = request.app[SERVICE]
    response = web.StreamResponse(
        headers={
            "Content-Type": SSE_TYPE if sse else NDJSON_TYPE,
            "Cache-Control": "no-store",
            SEQUENCE_HEADER: str(service.state.sequence if last is None else last),
        }
    )
    async with request.app[CLIENTS].long_request():
        await response.prepare(request)
        async for chunk in _chunks(service, source, after, follow=follow):
            views = [event_view(entry) for entry in chunk if last is None or entry.sequence <= last]
            part = b"".join(map(_sse if sse else _ndjson, views)) or (b":\n\n" if sse else b"\n")
            await write_part(request, response, part)
            if last is not None and chunk and chunk[-1].sequence >= last:
                break
        await response.write_eof()
    return response


async def _chunks(service: Service, source: Source, after: int, *, follow: bool) -> AsyncIterator[list[Entry]]:
    """Chunks of entries; while nothing comes, an empty one now and then, so that a client that left is noticed."""
    while True:
        seen = service.state.sequence
        chunk = await source(after, CHUNK)
        if chunk:
            after = chunk[-1].sequence
            yield chunk
            continue
        if not follow:
            return
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                await service.follower.changed(seen)
        except TimeoutError:
            yield []


def _ndjson(view: EventView) -> bytes:
    return _encode(view) + b"\n"


def _sse(view: EventView) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (int(view.sequence), view.type.encode(), _encode(view))
