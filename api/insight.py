"""Whether this server is well."""

import asyncio
from typing import Final

from aiohttp import web

from muster import __version__
from muster.api.answers import answer
from muster.api.problems import ApiError
from muster.api.service import SERVICE
from muster.api.views import HealthView
from muster.events.log import LogError

READY_LAG_ENTRIES: Final = 10_000
READY_TIMEOUT_S: Final = 3.0


async def healthz(request: web.Request) -> web.Response:
    """The process runs."""
    service = request.app[SERVICE]
    sequence = service.state.sequence
    return answer(HealthView("ok", sequence, __version__, service.read_only), sequence)


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
    return answer(HealthView("ready", sequence, __version__, service.read_only), sequence)
