"""The audit over HTTP: as one answer, or with its progress as NDJSON for who accepts that."""

import asyncio
import threading
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.audit_parts import audit_log, audit_mirror
from muster.api.clients import CLIENTS
from muster.api.log_views import AuditView, audit_view
from muster.api.problems import ApiError, bad_parameter
from muster.api.progressing import Progress, wants_progress, with_progress
from muster.api.service import SERVICE, Service, range_of
from muster.events.log import LogError
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror

AUDITING: Final = web.AppKey("auditing", asyncio.Lock)
MIRROR_WAIT_S: Final = 5.0


class _AuditEndedError(Exception):
    """Nobody waits for this audit any more."""


class _Asked(msgspec.Struct, frozen=True):
    """What is to be audited: `last` = None is the end. `empty` says that nothing is."""

    source: str
    first: int
    last: int | None
    expect: str
    empty: str


class _Running:
    """One audit in a thread; `reached` is the entry that it is at."""

    def __init__(self, service: Service, lock: asyncio.Lock, asked: _Asked) -> None:
        self.reached = asked.first - 1
        self._service = service
        self._lock = lock
        self._asked = asked
        self._ended = threading.Event()

    async def run(self) -> AuditView:
        """The report. One audit runs at a time. Raises ApiError."""
        asked = self._asked
        if asked.empty and not asked.expect:
            text = [f"{asked.empty}: there is nothing to audit"]
            return AuditView(True, asked.source, AuditReport(asked.first, asked.first - 1), text)  # noqa: FBT003
        async with self._lock:
            try:
                await self._see_mirror()
                report = await asyncio.to_thread(self._work, asyncio.get_running_loop())
            except ValueError as error:
                raise bad_parameter("expect" if "SEQUENCE:CHAIN" in str(error) else "from", str(error)) from error
            except LogError as error:
                raise ApiError(503, "log_unavailable", "the log could not be read", detail=str(error)) from error
            finally:
                self._ended.set()
        return audit_view(report, asked.source)

    def _work(self, loop: asyncio.AbstractEventLoop) -> AuditReport:
        asked, log, path = self._asked, self._service.log, self._service.store.path
        is_window = bool(self._service.read_only)
        with Mirror(path) as mirror:
            if asked.source == "mirror":
                return audit_mirror(
                    path, asked.first, asked.last, expect=asked.expect, progress=self._check, may_be_cut=is_window
                )
            source = LogSource(log, loop, mirror)
            return audit_log(
                source, path, asked.first, asked.last, expect=asked.expect, progress=self._check, may_be_cut=is_window
            )

    async def _see_mirror(self) -> None:
        """It is written a moment after the fold. What it does not have by then is audited without it."""
        last = self._asked.last
        if last is None:
            last = 0 if self._asked.source == "mirror" else await self._service.log.last_sequence()
        with suppress(TimeoutError):
            await self._service.store.wait_for(last, MIRROR_WAIT_S)

    def _check(self, sequence: int) -> None:
        self.reached = sequence
        if self._ended.is_set():
            raise _AuditEndedError(f"at entry {sequence}")


async def run_audit(request: web.Request) -> web.StreamResponse:
    """Fold the log, or with `source=mirror` this server's copy of it, again from its first entry, and decide every
    decision again; with `from`, from a snapshot before that moment on."""
    service = request.app[SERVICE]
    asked = await _asked(request, service)
    running = _Running(service, request.app[AUDITING], asked)
    if wants_progress(request):
        last = asked.last if asked.last is not None else service.state.sequence
        async with request.app[CLIENTS].long_request():
            return await with_progress(request, running.run(), lambda: Progress(running.reached, last), last)
    view = await running.run()
    return answer(view, view.report.last)


async def _asked(request: web.Request, service: Service) -> _Asked:
    query = request.query
    source = query.get("source", "log")
    if source not in ("log", "mirror"):
        raise bad_parameter("source", f"{source[:40]!r} is neither log nor mirror")
    asked = await range_of(service, query.get("from"), query.get("to"))
    last = asked.last if "to" in query or asked.empty else None
    return _Asked(source, asked.first, last, query.get("expect", ""), asked.empty)
