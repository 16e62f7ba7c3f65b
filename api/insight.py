"""Reads that compute: why a job waits, the audit, and whether this server is well."""

import asyncio
import threading
from typing import Final

from aiohttp import web

from muster import __version__
from muster.api.answers import answer
from muster.api.log_views import audit_view
from muster.api.problems import ApiError, bad_parameter
from muster.api.service import SERVICE, Service
from muster.api.views import HealthView
from muster.events.log import LogError
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror

READY_LAG_ENTRIES: Final = 10_000
READY_TIMEOUT_S: Final = 3.0
AUDITING: Final = web.AppKey("auditing", asyncio.Lock)


async def healthz(request: web.Request) -> web.Response:
    """The process runs."""
    sequence = request.app[SERVICE].state.sequence
    return answer(HealthView("ok", sequence, __version__), sequence)


async def readyz(request: web.Request) -> web.Response:
    """The log answers, and the fold is with it."""
    service = request.app[SERVICE]
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            last = await service.log.last_sequence()
    except (LogError, TimeoutError) as error:
        raise ApiError(503, "not_ready", "the log does not answer", detail=str(error), retry_after_s=1) from error
    sequence = service.state.sequence
    if last - sequence > READY_LAG_ENTRIES:
        detail = f"it is at entry {sequence} of {last}"
        raise ApiError(503, "not_ready", "the state is still catching up", detail=detail, retry_after_s=1)
    return answer(HealthView("ready", sequence, __version__), sequence)


class _AuditEndedError(Exception):
    """Nobody waits for this audit any more."""


async def run_audit(request: web.Request) -> web.Response:
    """Fold the log, or with `source=mirror` this server's copy of it, again from its first entry, and decide every
    decision again. One audit runs at a time."""
    service = request.app[SERVICE]
    expect, source = request.query.get("expect", ""), request.query.get("source", "log")
    if source not in ("log", "mirror"):
        raise bad_parameter("source", f"{source[:40]!r} is neither log nor mirror")
    async with request.app[AUDITING]:
        try:
            report = await _audit(service, source, expect)
        except ValueError as error:
            raise bad_parameter("expect", str(error)) from error
        except LogError as error:
            raise ApiError(503, "log_unavailable", "the log could not be read", detail=str(error)) from error
    return answer(audit_view(report, source), report.last)


async def _audit(service: Service, source: str, expect: str) -> AuditReport:
    loop = asyncio.get_running_loop()
    ended = threading.Event()

    def check(sequence: int) -> None:
        if ended.is_set():
            raise _AuditEndedError(f"at entry {sequence}")

    def work() -> AuditReport:
        if source == "log":
            return audit(LogSource(service.log, loop), expect=expect, progress=check)
        with Mirror(service.store.path) as mirror:
            return audit(mirror, expect=expect, progress=check)

    try:
        return await asyncio.to_thread(work)
    finally:
        ended.set()
