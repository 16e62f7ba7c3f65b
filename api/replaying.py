"""The log from one moment to another: as a story, and whole, as an export that proves itself. Both are NDJSON."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import SEQUENCE_HEADER
from muster.api.clients import CLIENTS, write_part
from muster.api.log_views import UNREADABLE, EventView, event_view
from muster.api.parameters import flag, integer, names
from muster.api.problems import ApiError, bad_parameter
from muster.api.reading import live_job
from muster.api.service import SERVICE, Range, Service, range_of, see_minimum
from muster.api.story import Teller, Told
from muster.api.streams import NDJSON_TYPE
from muster.events.log import BATCH_LIMIT, Entry
from muster.events.subjects import WRITERS, kebab
from muster.projections.audit_passes import pass_end
from muster.projections.exports import entry_line, header_line, header_of, with_chains
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK, Mirror, MirrorRow
from muster.projections.schema import StoreError
from muster.projections.timetravel import state_at

_KINDS: Final = {
    spelled: name
    for name in (*(kind.__name__ for kind in WRITERS), UNREADABLE)
    for spelled in (name.lower(), kebab(name))
}
_encode: Final = msgspec.json.Encoder().encode
_logger: Final = logging.getLogger(__name__)

Wanted = Callable[[Told], bool]


class StoryView(EventView, frozen=True):
    """An entry as a CloudEvent, with what it says in words in the extension `text`."""

    text: str


async def replay(request: web.Request) -> web.StreamResponse:
    """The log as a story, one entry a line. What only follows from other entries is left out unless `all=1`."""
    service = request.app[SERVICE]
    wanted, until = _wanted(request), _kind_of_end(request)
    if "job" in request.query:
        await live_job(service, integer(request, "job", 0, 1))
    asked = await _window(request, service)
    first, last = asked.first, asked.last
    if "until_event" in request.query and not until and not asked.empty:
        last = _last_of(request, service, first, last)
    return await _stream(request, last, _story(service, first, last, wanted, until))


async def export(request: web.Request) -> web.StreamResponse:
    """The log, or a window of it, as a file that can be imported and audited."""
    service = request.app[SERVICE]
    asked = await _window(request, service)
    if asked.empty and request.query.keys() & {"from", "to"}:
        raise bad_parameter("from" if "from" in request.query else "to", asked.empty)
    last = asked.last
    if last >= asked.first:
        last = pass_end(last, await service.entries(last, BATCH_LIMIT + 1))
    return await _stream(request, last, _exported(service, asked.first, last))


async def _window(request: web.Request, service: Service) -> Range:
    """The entries asked for; all of them where nothing is said. Raises ApiError."""
    await see_minimum(request)
    return await range_of(service, request.query.get("from"), request.query.get("to"))


async def _stream(request: web.Request, last: int, parts: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """What fails before the first part is answered as always; later, the connection is cut."""
    async with request.app[CLIENTS].long_request(), aclosing(parts):
        part = await anext(parts, b"")
        response = web.StreamResponse(
            headers={"Content-Type": NDJSON_TYPE, "Cache-Control": "no-store", SEQUENCE_HEADER: str(last)}
        )
        await response.prepare(request)
        try:
            await write_part(request, response, part)
            async for following in parts:
                await write_part(request, response, following)
        except StoreError:
            _logger.exception("%s ended before entry %d", request.path, last)
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the mirror cannot be read on") from None
        await response.write_eof()
        return response


async def _fold_before(service: Service, first: int) -> Fold:
    """The fold before an entry, the caller's own."""
    return await state_at(service.store, service.log, first - 1) if first > 1 else Fold.empty()


# -- the story ---------------------------------------------------------------------------------------------------


def _wanted(request: web.Request) -> Wanted:
    """Which lines are asked for: all conditions hold. Raises ApiError."""
    query = request.query
    job, users, node = integer(request, "job", 0, 1), frozenset(names(request, "user")), query.get("node", "")
    queues, asides = names(request, "queue"), flag(request, "all")
    kinds = frozenset(_kind(word, "kind") for word in names(request, "kind"))
    always = kinds | {_kind_of_end(request)}

    def wanted(told: Told) -> bool:
        return (
            (asides or not told.aside or told.kind in always)
            and (not job or job in told.jobs)
            and (not users or bool(users & told.users))
            and (not node or node in told.nodes)
            and (not queues or any(f"{name}/".startswith(f"{queue}/") for name in told.queues for queue in queues))
            and (not kinds or told.kind in kinds)
        )

    return wanted


def _kind(word: str, name: str) -> str:
    kind = _KINDS.get(word.lower())
    if kind is None:
        raise bad_parameter(name, f"{word[:40]!r} is none of {', '.join(sorted(set(_KINDS.values())))}")
    return kind


def _kind_of_end(request: web.Request) -> str:
    """The type of event behind which the story ends; "" where it ends at an entry. Raises ApiError."""
    text = request.query.get("until_event", "0")
    return "" if text.isdecimal() else _kind(text, "until_event")


def _last_of(request: web.Request, service: Service, first: int, last: int) -> int:
    """The entry behind which the story ends. Raises ApiError where it is not one of the log's from `first` on."""
    until, end = integer(request, "until_event", 0, 1), service.state.sequence
    if until > end:
        raise bad_parameter("until_event", f"entry {until} is in the future: the log ends at entry {end}")
    if until < first:
        raise bad_parameter("until_event", f"entry {until} is before entry {first}, at which it begins")
    return min(last, until)


async def _story(service: Service, first: int, last: int, wanted: Wanted, until: str) -> AsyncGenerator[bytes, None]:
    """The lines of the entries that are wanted, up to the first one of the type `until` ("" = all)."""
    teller = Teller(await _fold_before(service, first))

    def tell(entries: list[Entry]) -> tuple[bytes, bool]:
        lines = []
        for entry in entries:
            told = teller.tell(entry)
            if wanted(told):
                lines.append(_line(entry, told))
                if told.kind == until:
                    return b"".join(lines), True
        return b"".join(lines), False

    ended = False
    while first <= last and not ended:
        entries = await service.entries(first, min(CHUNK, last - first + 1))
        if not entries:
            raise ApiError(503, "log_unavailable", f"entry {first} cannot be read")
        part, ended = await asyncio.to_thread(tell, entries)
        yield part
        first = entries[-1].sequence + 1


def _line(entry: Entry, told: Told) -> bytes:
    return _encode(StoryView(**msgspec.structs.asdict(event_view(entry)), text=told.text)) + b"\n"


# -- the export --------------------------------------------------------------------------------------------------


async def _exported(service: Service, first: int, last: int) -> AsyncGenerator[bytes, None]:
    """The lines of an export: each entry with the chain that the mirror has for it, so that an export tells of damage
    to the mirror; what the mirror has not got yet with the chain that follows."""
    path, mirrored = service.store.path, min(last, service.store.position)

    def rows(start: int) -> list[MirrorRow]:
        with Mirror(path) as mirror:
            return next(mirror.rows(start, min(start + CHUNK - 1, mirrored)))

    before = await _fold_before(service, first)
    yield header_line(await asyncio.to_thread(header_of, before, service.log.prefix, last))
    chain = before.cluster.state.chain
    while first <= mirrored:
        found = await asyncio.to_thread(rows, first)
        chain = found[-1].chain
        yield b"".join(map(entry_line, found))
        first = found[-1].sequence + 1
    while first <= last and (entries := await service.entries(first, min(CHUNK, last - first + 1))):
        found = list(with_chains(entries, chain))
        chain = found[-1].chain
        yield b"".join(map(entry_line, found))
        first = found[-1].sequence + 1
