"""`GET /v1/history`: jobs of all times with their accounts, and sums of them."""

from typing import Final, get_args

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.parameters import ID_DIGITS, flag, integer, names
from muster.api.problems import bad_parameter, no_such
from muster.api.reading import PAGE_DEFAULT, PAGE_LIMIT, phases_of, see_queues
from muster.api.service import SERVICE, Moment, Service, moment_of, see_mirrored
from muster.api.times import rfc3339, rfc3339_or_none
from muster.core.state import PHASE_CODES, Job, JobPhase
from muster.projections.accounts import totals
from muster.projections.history import By, Sums, jobs_of, sums_of
from muster.projections.moments import MomentError, parse_moment
from muster.projections.read_models import JobQuery

_BY: Final[tuple[By, ...]] = get_args(By)


class AccountsView(msgspec.Struct, frozen=True):
    """Accounts in ms: time waited, time that attempts ran, and in a whole device's ms the time of devices held, and of
    work that was lost."""

    waited_ms: int
    ran_ms: int
    device_ms: int
    lost_ms: int
    preemptions: int
    attempts: int


class HistoryRow(AccountsView, frozen=True):
    """A job with its accounts. `started` is when it first ran."""

    id: int
    name: str
    user: str
    queue: str
    state: JobPhase
    code: str
    gpus: int
    submitted: str
    started: str | None
    ended: str | None
    exit_code: int | None
    reason: str | None


class SumRow(AccountsView, frozen=True):
    """The accounts of `jobs` together, of which `ended` have ended; `key` is the user, queue, state, day, week
    (2026-W05, as ISO 8601 counts) or month."""

    key: str
    jobs: int
    ended: int


class HistoryView(msgspec.Struct, frozen=True):
    """A page of jobs, newest first (`next` is the `after` of the following page), or with `by` the sums; and `total`
    over all that match. Jobs that have not ended count up to `time`."""

    sequence: int
    time: str
    total: SumRow
    by: str | None
    sums: list[SumRow]
    jobs: list[HistoryRow]
    next: int | None


async def show_history(request: web.Request) -> web.Response:
    """Jobs of all times with what they took, or sums of that."""
    service = request.app[SERVICE]
    query, by = await _query_of(request, service), _by_of(request)
    moment = await moment_of(request)
    await see_mirrored(service, service.state.sequence)  # who left the state by then is in the read models
    await _see_jobs(service, moment, query.ids)
    await see_queues(service, moment, query.queues)
    total = await sums_of(service.store, moment.state, query, None, moment.now_ns)
    sums = {} if by is None else await sums_of(service.store, moment.state, query, by, moment.now_ns)
    jobs = [] if by is not None else await jobs_of(service.store, moment.state, query)
    view = HistoryView(
        sequence=moment.state.sequence,
        time=rfc3339(moment.now_ns),
        total=_sum_row("", total.get("", Sums())),
        by=by,
        sums=[_sum_row(key, found) for key, found in sums.items()],
        jobs=[_row(job, moment.now_ns) for job in jobs],
        next=jobs[-1].id if len(jobs) == query.limit else None,
    )
    return answer(view, moment.state.sequence)


async def _query_of(request: web.Request, service: Service) -> JobQuery:
    since_ns, until_ns = await _time(request, service, "since"), await _time(request, service, "until")
    if until_ns and until_ns < since_ns:
        raise bad_parameter("until", "it is before since")
    return JobQuery(
        ids=_ids(request),
        users=names(request, "user"),
        queues=names(request, "queue"),
        name=request.query.get("name", ""),
        phases=phases_of(request),
        since_ns=since_ns,
        until_ns=until_ns,
        by_end=flag(request, "ended"),
        before=integer(request, "after", 0, 0),
        limit=integer(request, "limit", PAGE_DEFAULT, 1, PAGE_LIMIT),
    )


def _ids(request: web.Request) -> tuple[int, ...]:
    words = names(request, "jobs")
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) <= ID_DIGITS and int(word)):
            raise bad_parameter("jobs", f"{word[:40]!r} is no job id")
    if len(words) > PAGE_LIMIT:
        raise bad_parameter("jobs", f"these are {len(words)}; {PAGE_LIMIT} can be asked for at once")
    return tuple(map(int, words))


async def _see_jobs(service: Service, moment: Moment, ids: tuple[int, ...]) -> None:
    """Raises ApiError where one of them is not there."""
    held = moment.state.jobs
    elsewhere = tuple(job for job in ids if job not in held)
    query = JobQuery(ids=elsewhere, upto=moment.state.sequence, limit=PAGE_LIMIT)
    found = {row.id for row in await service.store.jobs(query)} if elsewhere else set()
    for job in elsewhere:
        if job not in found:
            raise no_such("job", job, "muster history lists the jobs of all times")


async def _time(request: web.Request, service: Service, name: str) -> int:
    """The time of a moment, of a sequence that of its entry; 0 where it is left out. Raises ApiError."""
    text = request.query.get(name)
    if text is None:
        return 0
    try:
        named = parse_moment(text, service.now_ns())
    except MomentError as error:
        raise bad_parameter(name, str(error)) from error
    if named.sequence is None:
        return max(named.first_ns if name == "since" else named.time_ns, 1)
    entries = await service.entries(named.sequence, 1) if named.sequence else []
    if not entries:
        raise bad_parameter(name, f"there is no entry {named.sequence}; the last one is {service.state.sequence}")
    return entries[0].timestamp_ns


def _by_of(request: web.Request) -> By | None:
    text = request.query.get("by")
    if text is None:
        return None
    for by in _BY:
        if by == text:
            return by
    raise bad_parameter("by", f"{text[:40]!r} is none of {', '.join(_BY)}")


def _sum_row(key: str, sums: Sums) -> SumRow:
    return SumRow(
        key=key,
        jobs=sums.jobs,
        ended=sums.ended,
        waited_ms=sums.waited_ms,
        ran_ms=sums.ran_ms,
        device_ms=sums.device_ms,
        lost_ms=sums.lost_ms,
        preemptions=sums.preemptions,
        attempts=sums.attempts,
    )


def _row(job: Job, now_ns: int) -> HistoryRow:
    account = totals(job, now_ns)
    return HistoryRow(
        id=job.id,
        name=job.spec.name,
        user=job.user,
        queue=job.spec.queue,
        state=job.phase,
        code=PHASE_CODES[job.phase],
        gpus=job.spec.gpus,
        submitted=rfc3339(job.submitted_ns),
        started=rfc3339_or_none(job.started_ns),
        ended=rfc3339_or_none(job.ended_ns),
        exit_code=job.exit_code,
        reason=job.reason or None,
        waited_ms=account.waited_ms,
        ran_ms=account.ran_ms,
        device_ms=account.device_ms,
        lost_ms=account.lost_ms,
        preemptions=job.preemptions,
        attempts=job.attempts,
    )
