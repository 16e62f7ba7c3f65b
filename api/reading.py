"""Reads of jobs, queue, nodes, state and audit: a view of the state at the moment asked for."""

import asyncio
from itertools import islice
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.clients import CLIENTS
from muster.api.forecasting import beside_the_loop
from muster.api.node_views import Look, node_answer, node_page
from muster.api.parameters import flag, integer, job_id, names, seconds
from muster.api.problems import ApiError, bad_parameter, no_such
from muster.api.service import SERVICE, Moment, Service, moment_of, see_job
from muster.api.views import (
    FORECAST,
    JobPage,
    JobRow,
    job_row,
    job_view,
    queue_view,
    state_view,
    with_starts,
)
from muster.core.forecast import Forecast
from muster.core.queues import DEFAULT_QUEUE
from muster.core.state import ENDED, PHASE_CODES, Job, JobPhase
from muster.projections.read_models import JobQuery, decode_job

PAGE_LIMIT: Final = 1000
PAGE_DEFAULT: Final = 100
WAIT_LIMIT_S: Final = 300.0
QUEUES_SHOWN: Final = 20
NEXT_QUEUES: Final = "muster queues shows the queues"
_PHASE_OF: Final[dict[str, JobPhase]] = {
    **{str(phase): phase for phase in PHASE_CODES},
    **{code: phase for phase, code in PHASE_CODES.items()},
}


async def find_job(request: web.Request, moment: Moment) -> Job:
    """The job in the path, as it was at the moment, also one that had ended and left the state by then."""
    number = job_id(request)
    service, sequence = request.app[SERVICE], moment.state.sequence
    if not moment.past:
        return await live_job(service, number)
    job = moment.state.jobs.get(number)
    if job is None and number <= sequence:
        job = await service.store.job(number)
    if job is None:
        raise no_such("job", f"{number} at entry {sequence}", f"muster at {sequence} jobs lists the jobs of then")
    return job


async def live_job(service: Service, number: int) -> Job:
    """A job as it is now, or as it ended."""
    await see_job(service, number)
    job = service.state.jobs.get(number) or await service.store.job(number)
    if job is None:
        raise no_such("job", number, "muster jobs lists the jobs")
    return job


def _job_answer(job: Job, moment: Moment) -> web.Response:
    with moment.as_of_now() as cluster:
        view = job_view(job, moment.now_ns, cluster)
    return answer(view, moment.state.sequence)


async def show_job(request: web.Request) -> web.Response:
    """All about a job."""
    moment = await moment_of(request)
    job = await find_job(request, moment)
    return _job_answer(job, moment)


def known_queue(moment: Moment, name: str) -> str:
    """The queue's name. Raises ApiError, which lists the queues, where there is none of that name."""
    queues = {DEFAULT_QUEUE, *moment.state.queues}
    if name not in queues:
        shown = sorted(queues)[:QUEUES_SHOWN]
        more = f" and {len(queues) - len(shown)} more" if len(queues) > len(shown) else ""
        detail = f"there are {', '.join(shown)}{more}"
        raise ApiError(404, "not_found", f"no queue {name[:200]}", detail=detail, next_step=NEXT_QUEUES)
    return name


async def see_queues(service: Service, moment: Moment, queues: tuple[str, ...]) -> None:
    """Of a queue that is gone, the jobs that ended are still listed. Raises ApiError for one that never had any."""
    for name in queues:
        query = JobQuery(queues=(name,), upto=moment.state.sequence, limit=1)
        if name not in moment.state.queues and not await service.store.jobs(query):
            known_queue(moment, name)


def phases_of(request: web.Request) -> tuple[JobPhase, ...]:
    """The states asked for, by names or codes in any case; () = all."""
    words = [word.upper() for word in names(request, "state")]
    for word in words:
        if word not in _PHASE_OF:
            known = ", ".join(f"{phase} ({code})" for phase, code in PHASE_CODES.items())
            raise bad_parameter("state", f"{word[:40]!r} is none of {known}")
    return tuple(_PHASE_OF[word] for word in words)


def _query_of(request: web.Request, limit: int) -> JobQuery:
    return JobQuery(
        users=names(request, "user"),
        queues=names(request, "queue"),
        phases=phases_of(request),
        before=integer(request, "after", 0, 0),
        limit=integer(request, "limit", limit, 1, PAGE_LIMIT),
    )


async def list_jobs(request: web.Request) -> web.Response:
    """Jobs, newest first, page by page."""
    query = _query_of(request, PAGE_DEFAULT)
    moment = await moment_of(request)
    await see_queues(request.app[SERVICE], moment, query.queues)
    matching = (job for job in reversed(moment.state.jobs.values()) if query.matches(job))
    rows = [job_row(job, moment.now_ns) for job in islice(matching, query.limit)]
    least = rows[-1].id if len(rows) == query.limit else 0
    rows += await _forgotten(request.app[SERVICE], query, moment, least)
    rows.sort(key=lambda row: -row.id)
    page = rows[: query.limit]
    following = page[-1].id if len(page) == query.limit else None
    return answer(JobPage(moment.state.sequence, page, following), moment.state.sequence)


async def _forgotten(service: Service, query: JobQuery, moment: Moment, least: int) -> list[JobRow]:
    """Jobs after `least` that had left the state, long after their end: they are as the read model has them. What was
    in the state is passed over there, whatever has become of it since."""
    held, found = moment.state.jobs, list[JobRow]()
    before, limit = query.before, query.limit
    if moment.past:
        following = moment.state.sequence + 1
        before = min(before or following, following)
    while len(found) < query.limit:
        page = await service.store.jobs(msgspec.structs.replace(query, before=before, limit=limit))
        found += [job_row(decode_job(row.job), moment.now_ns) for row in page if row.id not in held]
        if len(page) < limit or page[-1].id <= least:
            break
        before, limit = page[-1].id, PAGE_LIMIT
    return found


async def wait_job(request: web.Request) -> web.Response:
    """A job once it has ended, or as it is when the time is up."""
    service = request.app[SERVICE]
    timeout_s = seconds(request, "timeout", 30.0, WAIT_LIMIT_S)
    job = await find_job(request, await moment_of(request))
    if service.read_only and job.phase not in ENDED:
        step = "muster show says how it stood at its end"
        raise ApiError(409, "read_only", f"job {job.id} does not end here", detail=service.read_only, next_step=step)
    try:
        async with request.app[CLIENTS].long_request(), asyncio.timeout(timeout_s):
            while job.phase not in ENDED:
                await service.follower.changed(service.state.sequence)
                job = service.state.jobs.get(job.id, job)
    except TimeoutError:
        pass  # the answer says how far it has come
    moment = await moment_of(request)
    return _job_answer(job, moment)


async def show_queue(request: web.Request) -> web.Response:
    """What runs, and what waits in the order it is considered."""
    query = _query_of(request, PAGE_LIMIT)
    moment = await moment_of(request)
    filtered = bool(query.users or query.queues or query.phases)
    wanted = query.matches if filtered else None
    for name in query.queues:
        known_queue(moment, name)
    with moment.as_of_now() as cluster:
        view = queue_view(cluster, moment.now_ns, query.limit, wanted)
        wants_starts = flag(request, "start") and bool(view.pending)
        forecast = Forecast(cluster, min(query.limit, FORECAST)) if wants_starts else None
    if forecast is not None:
        time_at = forecast.time_at
        view = with_starts(view, await beside_the_loop(forecast.starts), time_at, moment.now_ns)
    return answer(view, moment.state.sequence)


async def _look(request: web.Request, moment: Moment, nodes: list[str]) -> Look:
    """What these nodes are shown from, with what their devices did at that moment."""
    service = request.app[SERVICE]
    is_over = moment.past or bool(service.read_only)
    seen = await service.samples.at(nodes, moment.now_ns) if is_over else service.samples
    return Look(moment.cluster, moment.now_ns, seen)


async def list_nodes(request: web.Request) -> web.Response:
    """All nodes."""
    moment = await moment_of(request)
    look = await _look(request, moment, sorted(moment.state.nodes))
    return answer(node_page(look), moment.state.sequence)


async def show_node(request: web.Request) -> web.Response:
    """One node."""
    moment = await moment_of(request)
    node = moment.state.nodes.get(request.match_info["name"])
    if node is None:
        raise no_such("node", request.match_info["name"], "muster nodes lists the nodes")
    look = await _look(request, moment, [node.name])
    return answer(node_answer(look, node), moment.state.sequence)


async def show_state(request: web.Request) -> web.Response:
    """The state in figures."""
    moment = await moment_of(request)
    return answer(state_view(moment.state, moment.now_ns), moment.state.sequence)
