"""`GET /v1/jobs/{id}/logs`: what a worker wrote, asked of its node's agent and passed on as it comes.

Rules: following goes on through requeues until the job has ended and its last worker's output is through. When an
agent goes away meanwhile, the output is asked for again from where it broke off, as long as the job runs.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from muster.api.answers import SEQUENCE_HEADER
from muster.api.clients import CLIENTS, write_part
from muster.api.parameters import flag, integer
from muster.api.problems import ApiError
from muster.api.reading import find_job
from muster.api.service import SERVICE, OutputError, Service, moment_of
from muster.core.state import ENDED, Job, Worker
from muster.node_agent.link import LogAsk

RETRY_WAIT_S: Final = 1.0
MAX_RANK: Final = 100_000
Output = AsyncGenerator[bytes, None]


async def show_logs(request: web.Request) -> web.StreamResponse:
    """What a worker wrote so far; with `follow=1` until the job has ended."""
    service = request.app[SERVICE]
    follow, rank = flag(request, "follow"), integer(request, "rank", 0, 0, MAX_RANK)
    moment = await moment_of(request)
    job = await find_job(request, moment)
    worker = _worker(job, rank)
    if worker is None and job.attempt is not None:
        ranks = f"it has ranks 0 to {len(job.attempt.workers) - 1}"
        raise ApiError(404, "not_found", f"job {job.id} has no rank {rank}", detail=ranks)
    response = web.StreamResponse(
        headers={"Content-Type": "application/octet-stream", SEQUENCE_HEADER: str(moment.state.sequence)}
    )
    async with (
        request.app[CLIENTS].long_request(),
        aclosing(_follow(service, job, rank) if follow else _once(service, job, worker)) as output,
    ):
        first = await _first(output) if not follow else b""
        await response.prepare(request)
        await write_part(request, response, first)
        async for chunk in output:
            await write_part(request, response, chunk)
    await response.write_eof()
    return response


async def _first(output: Output) -> bytes:
    """The first chunk is waited for, so that an agent that cannot answer makes an error and not half an answer."""
    try:
        return await anext(output, b"")
    except OutputError as error:
        raise ApiError(
            503, "agent_unavailable", "the node's agent did not give the output", detail=str(error), retry_after_s=2
        ) from error


def _worker(job: Job, rank: int) -> Worker | None:
    workers = job.attempt.workers if job.attempt is not None else []
    return next((worker for worker in workers if worker.rank == rank), None)


def _ask(service: Service, job: Job, worker: Worker, offset: int, *, follow: bool) -> Output:
    assert job.attempt is not None
    request = LogAsk(job.id, job.attempt.number, worker.rank, offset, follow)
    return service.outputs.ask(worker.node, request)


async def _once(service: Service, job: Job, worker: Worker | None) -> Output:
    if worker is not None and worker.phase != "placed":
        async with aclosing(_ask(service, job, worker, 0, follow=False)) as chunks:
            async for chunk in chunks:
                yield chunk


async def _follow(service: Service, job: Job, rank: int) -> Output:
    shown_attempt, offset = 0, 0
    while True:
        seen = service.state.sequence
        job = service.state.jobs.get(job.id, job)
        worker = _worker(job, rank)
        attempt = job.attempt.number if job.attempt is not None else 0
        if worker is not None and worker.phase != "placed" and attempt > shown_attempt:
            try:
                async with aclosing(_ask(service, job, worker, offset, follow=True)) as chunks:
                    async for chunk in chunks:
                        offset += len(chunk)
                        yield chunk
            except OutputError:
                if job.phase in ENDED:
                    return
            else:
                shown_attempt, offset = attempt, 0
                continue
        if job.phase in ENDED:
            return
        await _news(service, seen)


async def _news(service: Service, seen: int) -> None:
    """Wait for another entry, or a while: an agent that was away may be back."""
    try:
        async with asyncio.timeout(RETRY_WAIT_S):
            await service.follower.changed(seen)
    except TimeoutError:
        return
