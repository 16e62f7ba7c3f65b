"""An explanation of `muster.core.explain` as people read it."""

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.forecasting import beside_the_loop
from muster.api.parameters import flag
from muster.api.problems import ApiError
from muster.api.reading import find_job
from muster.api.service import SERVICE, Service, moment_of
from muster.api.times import elapsed, rfc3339
from muster.core.explain import begin
from muster.core.explanation import ExpectedStart, Explanation, Past, ReasonKind, Victim, WorkerPlace
from muster.core.state import PHASE_CODES
from muster.events.codec import decode
from muster.events.types import JobAllocated, RoomReserved


class ExplainView(msgspec.Struct, frozen=True):
    """Why a job waits or runs where it does, and the same in lines for a terminal. `basis` is the entry after which
    steps 1 and 2 are shown where that is another moment than the explanation's own."""

    explanation: Explanation
    text: list[str]
    basis: int | None = None


async def explain_job(request: web.Request) -> web.Response:
    """Why a job waits or runs where it does, now or at a past moment."""
    moment = await moment_of(request)
    job = await find_job(request, moment)
    state = moment.state
    if job.id not in state.jobs:
        raise ApiError(
            409,
            "ended",
            f"job {job.id} ended long ago: {job.phase} ({PHASE_CODES[job.phase]})",
            next_step=f"muster at WHEN explain {job.id}, with a moment at which it waited or ran",
        )
    with moment.as_of_now() as cluster:
        begun, sequence, now_ns = begin(cluster, job.id), state.sequence, max(moment.now_ns, state.timestamp_ns)
    decided = job.attempt.allocated if job.attempt is not None and job.phase != "PENDING" else 0
    if job.id in state.rooms:
        decided = state.rooms[job.id].reserved
    explanation, basis = begun.found, None
    if begun.takes_long:
        explanation = await beside_the_loop(begun.finish)
    wants_all = flag(request, "full") and decided > 0
    if wants_all:
        explanation, basis = await _with_first_steps(request.app[SERVICE], explanation, decided)
    lines = list(explanation_lines(explanation, basis, now_ns))
    if wants_all and basis is None:
        lines.insert(1, "steps 1 and 2 are not told: the job did not wait where its place was decided")
    return answer(ExplainView(explanation, lines, basis), sequence)


async def _with_first_steps(service: Service, found: Explanation, decided: int) -> tuple[Explanation, int | None]:
    """The explanation with steps 1 and 2, and whom it needed to be stopped, as they were at the basis of the decision
    on its place, and that basis; as it was, and None, where the job did not wait then. It folds the log up to there: a
    moment's work, and hence only when asked."""
    for _ in range(2):  # room that had been reserved was decided on when it was
        event = decode((await service.entries(decided, 1))[0].payload)
        if not isinstance(event, JobAllocated | RoomReserved):
            break
        cluster = (await service.past.state_at(event.basis.sequence)).cluster
        if found.job not in cluster.state.jobs:
            break
        then = begin(cluster, found.job).found
        if then.filter is not None:
            seen = msgspec.structs.replace(found, filter=then.filter, order=then.order)
            if then.victims:
                seen = msgspec.structs.replace(seen, victims=then.victims)
            return seen, event.basis.sequence
        if then.reservation is None:
            break
        decided = then.reservation.reserved
    return found, None


def explanation_lines(found: Explanation, basis: int | None, now_ns: int) -> Iterator[str]:
    """An explanation of the moment `now_ns` for a terminal: no line is empty."""
    summary = found.summary.removeprefix(f"is {found.phase}").removeprefix(": ")
    yield f"job {found.job} {found.phase} at entry {found.sequence}" + (f": {summary}" if summary else "")
    if basis is not None:
        yield f"steps 1 and 2 as they were after entry {basis}, on which its place was decided"
    yield from _first_steps(found, basis)
    yield f"3 allocation   {found.allocation.why}"
    for worker in found.allocation.workers:
        yield f"{_INDENT}{_place(worker)}"
    yield "4 environment  " + ("some of what its workers see" if found.environment else "made when it is placed")
    for seen in found.environment:
        words = " ".join(f"{name}={quote(value)}" for name, value in sorted(seen.variables.items()))
        yield f"{_INDENT}rank {seen.rank} on {seen.node}: {words}"
    yield from _block("why it waits", [f"{_REASONS[reason.kind]:<13}{reason.detail}" for reason in found.reasons])
    yield from _block("nobody stopped", found.unstopped)
    yield from _block("stopped for it", _victims(found.victims))
    yield from _block("to start", found.needs)
    if found.expected is not None:
        yield f"{'expected':<15}{_expected(found.expected, now_ns)}"
    if found.past is not None:
        yield from _block("so far", _past(found.past, victims_told=bool(found.victims)))


def _first_steps(found: Explanation, basis: int | None) -> Iterator[str]:
    if found.filter is not None:
        step = found.filter
        when = "now" if basis is None else "then"
        count = f"{len(step.candidates)} of {step.nodes} nodes"
        which = f": {_named(step.candidates)}" if step.candidates else ""
        yield f"1 filter       {count} could hold a worker {when}{which}"
        for check in step.refused:
            yield f"{_INDENT}{check.nodes} cannot ({_named(check.examples)}): {check.reason}"
    if found.order is not None:
        order = found.order
        behind = f", behind job {order.held_back_by}, which does not fit yet" if order.held_back_by else ""
        own = f" ({order.queue_place} of {order.queue_waiting} in queue {order.queue})" if order.queue_place else ""
        place = f"place {order.place} of" if order.place else "behind the first thousand of"
        yield f"2 order        {place} {order.waiting}{own} by {order.policy}{behind}"


def _expected(expected: ExpectedStart, now_ns: int) -> str:
    if expected.in_ms is None:
        return f"unknown: {expected.why}"
    if expected.in_ms <= 0:
        return expected.why or "any moment now"
    then = rfc3339(now_ns + expected.in_ms * 1_000_000)
    but = f"; {expected.why}" if expected.why else ""
    return f"{then[:10]} {then[11:19]} UTC, in {elapsed(expected.in_ms)}{but}"


def _victims(victims: list[Victim]) -> Iterator[str]:
    for victim in victims:
        yield f"job {victim.job} ({victim.cause}): {victim.detail}"
    if any(victim.work_lost_ms is not None for victim in victims):
        yield "of those that may be stopped the lowest priority goes first, then the least work; only whom it needs"


def _past(past: Past, *, victims_told: bool) -> Iterator[str]:
    if past.attempts > 1:
        yield f"placed {past.attempts} times; tries that count: {past.tries}"
    if past.backfilled_past:
        yield f"backfilled past job {past.backfilled_past}"
    if past.made_room and not victims_told:
        yield f"room was made by {_numbered(past.made_room)}"
    if past.preemptions:
        last = f", the last time for job {past.stopped_for}" if past.stopped_for else ""
        yield f"made room for others {_times(past.preemptions)}{last}"
    if past.timeouts:
        yield f"ran for its whole time limit {_times(past.timeouts)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _numbered(jobs: list[int]) -> str:
    return f"job{'' if len(jobs) == 1 else 's'} {', '.join(map(str, jobs[:_SHOWN]))}" + (
        f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
    )


def _block(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines under a title that stands beside the first."""
    for number, line in enumerate(lines):
        yield f"{title if number == 0 else '':<15}{line}"


_REASONS: Final[dict[ReasonKind, str]] = {
    "capacity": "never fits",
    "order": "order",
    "ahead": "order",
    "queue_limit": "queue limit",
    "user_limit": "user limit",
    "urgent_limit": "urgent limit",
    "job_limit": "job limit",
    "lane": "lane",
    "kept": "kept",
    "room": "room",
    "fabric": "fabric",
    "reservation": "reserved",
    "cordon": "cordon",
    "silent": "silent",
    "degraded": "degraded",
    "devices": "devices",
    "strays": "busy",
    "excluded": "left out",
    "port": "port",
}
_INDENT: Final = " " * 15
_SHOWN: Final = 5


def _named(names: list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _place(worker: WorkerPlace) -> str:
    return f"rank {worker.rank} on {worker.node}, devices {', '.join(map(str, worker.devices)) or 'none'}"
