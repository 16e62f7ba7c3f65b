"""`GET /v1/jobs/{id}/logs`: what a worker wrote, asked of its node's agent and passed on as it comes.

Rules: following goes on through requeues until the job has ended and its last worker's output is through. When an
agent goes away meanwhile, the output is asked for again from where it broke off, as long as the job runs. Where an
earlier attempt ran is in the log; whether its output is still there its node's agent knows.
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
from muster.events.codec import decode
from muster.events.types import JobAllocated
from muster.node_agent.link import LogAsk

RETRY_WAIT_S: Final = 1.0
ENTRIES_AT_ONCE: Final = 1000
MOST_ATTEMPTS: Final = 1_000_000
MAX_RANK: Final = 100_000
Output = AsyncGenerator[bytes, None]


async def show_logs(request: web.Request) -> web.StreamResponse:
    """What a worker wrote so far; with `follow=1` until the job has ended."""
    service = request.app[SERVICE]
    follow, rank = flag(request, "follow"), integer(request, "rank", 0, 0, MAX_RANK)
    number = integer(request, "attempt", 0, 1, MOST_ATTEMPTS)
    moment = await moment_of(request)
    job = await find_job(request, moment)
    output = await _output(service, job, rank, number, follow=follow)
    response = web.StreamResponse(
        headers={"Content-Type": "application/octet-stream", SEQUENCE_HEADER: str(moment.state.sequence)}
    )
    async with (
        request.app[CLIENTS].long_request(),
        aclosing(output),
    ):
        first = await _first(output) if not follow else b""
        await response.prepare(request)
        await write_part(request, response, first)
        async for chunk in output:
            await write_part(request, response, chunk)
    await response.write_eof()
    return response


async def _output(service: Service, job: Job, rank: int, number: int, *, follow: bool) -> Output:
    """The output of attempt `number` (0 = the last). Raises ApiError where it has no such attempt or rank."""
    last = job.attempt
    if number and (last is None or number != last.number):
        return _ask(service, job.id, number, rank, await _earlier_node(service, job, number, rank))
    worker = _worker(job, rank)
    if worker is None and last is not None:
        raise _no_rank(job.id, rank, len(last.workers))
    return _follow(service, job, rank, number) if follow else _once(service, job, worker)


async def _earlier_node(service: Service, job: Job, number: int, rank: int) -> str:
    """The node on which a rank of an earlier attempt ran."""
    after = job.id
    while entries := await service.job_entries(job.id, after, ENTRIES_AT_ONCE):
        for entry in entries:
            event = decode(entry.payload) if entry.subject.endswith(".job-allocated") else None
            if isinstance(event, JobAllocated) and event.attempt == number:
                if rank >= len(event.placements):
                    raise _no_rank(job.id, rank, len(event.placements))
                return event.placements[rank].node
        after = entries[-1].sequence
    had = f"it had attempts 1 to {job.attempts}" if job.attempts else "it has not been placed yet"
    raise ApiError(404, "not_found", f"job {job.id} has no attempt {number}", detail=had)


def _no_rank(job: int, rank: int, workers: int) -> ApiError:
    return ApiError(404, "not_found", f"job {job} has no rank {rank}", detail=f"it has ranks 0 to {workers - 1}")


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


def _ask(
    service: Service, job: int, attempt: int, rank: int, node: str, offset: int = 0, *, follow: bool = False
) -> Output:
    return service.outputs.ask(node, LogAsk(job, attempt, rank, offset, follow))


async def _once(service: Service, job: Job, worker: Worker | None) -> Output:
    if worker is not None and worker.phase != "placed":
        assert job.attempt is not None
        async with aclosing(_ask(service, job.id, job.attempt.number, worker.rank, worker.node)) as chunks:
            async for chunk in chunks:
                yield chunk


async def _follow(service: Service, job: Job, rank: int, only: int) -> Output:
    """The output as it comes, of every attempt from now on, or of one alone (0 = all)."""
    shown_attempt, offset = 0, 0
    while True:
        seen = service.state.sequence
        job = service.state.jobs.get(job.id, job)
        worker = _worker(job, rank)
        attempt = job.attempt.number if job.attempt is not None else 0
        if only and (shown_attempt == only or attempt > only):
            return
        if worker is not None and worker.phase != "placed" and attempt > shown_attempt:
            try:
                asked = _ask(service, job.id, attempt, worker.rank, worker.node, offset, follow=True)
                async with aclosing(asked) as chunks:
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
