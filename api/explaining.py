"""An explanation of `muster.core.explain` as people read it."""

from collections.abc import Iterator
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.parameters import flag
from muster.api.problems import ApiError
from muster.api.reading import find_job
from muster.api.service import SERVICE, Service, moment_of
from muster.core.explain import explain
from muster.core.explanation import Explanation, WorkerPlace
from muster.core.state import PHASE_CODES, Attempt
from muster.events.codec import decode
from muster.events.types import JobAllocated


class ExplainView(msgspec.Struct, frozen=True):
    """Why a job waits or runs where it does: the four steps, and the same in lines for a terminal. `basis` is the
    entry after which steps 1 and 2 are shown where that is another moment than the explanation's own."""

    explanation: Explanation
    text: list[str]
    basis: int | None = None


async def explain_job(request: web.Request) -> web.Response:
    """The four steps for a job, now or at a past moment."""
    moment = await moment_of(request)
    job = await find_job(request, moment)
    if job.id not in moment.state.jobs:
        raise ApiError(
            409,
            "ended",
            f"job {job.id} ended long ago: {job.phase} ({PHASE_CODES[job.phase]})",
            next_step=f"muster at WHEN explain {job.id}, with a moment at which it waited or ran",
        )
    explanation, basis = explain(moment.cluster, job.id), None
    if flag(request, "full") and job.attempt is not None and job.phase != "PENDING":
        explanation, basis = await _with_first_steps(request.app[SERVICE], explanation, job.attempt)
    return answer(ExplainView(explanation, list(_lines(explanation, basis)), basis), moment.state.sequence)


async def _with_first_steps(service: Service, found: Explanation, attempt: Attempt) -> tuple[Explanation, int | None]:
    """The explanation with steps 1 and 2 as they were at the basis of the allocation, and that basis; as it was, and
    None, where the job did not wait then. It folds the log up to there: a moment's work, and hence only when asked."""
    [entry] = await service.entries(attempt.allocated, 1)
    event = decode(entry.payload)
    if not isinstance(event, JobAllocated):
        return found, None
    cluster = (await service.past.state_at(event.basis.sequence)).cluster
    if found.job not in cluster.state.jobs:
        return found, None
    then = explain(cluster, found.job)
    if then.filter is None:
        return found, None
    return msgspec.structs.replace(found, filter=then.filter, order=then.order), event.basis.sequence


def _lines(found: Explanation, basis: int | None) -> Iterator[str]:
    summary = found.summary.removeprefix(f"is {found.phase}").removeprefix(": ")
    yield f"job {found.job} {found.phase} at entry {found.sequence}" + (f": {summary}" if summary else "")
    if basis is not None:
        yield f"steps 1 and 2 as they were after entry {basis}, on which the allocation was decided"
    if found.filter is not None:
        step = found.filter
        when = "now" if basis is None else "then"
        count = f"{len(step.candidates)} of {step.nodes} nodes"
        yield f"1 filter       {count} could hold a worker {when}{_named(step.candidates)}"
        for check in step.refused:
            yield f"{_INDENT}{check.nodes} cannot: {check.reason}{_named(check.examples)}"
    if found.order is not None:
        order = found.order
        behind = f", behind job {order.held_back_by}, which does not fit yet" if order.held_back_by else ""
        yield f"2 order        place {order.place} of {order.waiting} by {order.policy}{behind}"
    yield f"3 allocation   {found.allocation.why}"
    for worker in found.allocation.workers:
        yield f"{_INDENT}{_place(worker)}"
    yield "4 environment  " + ("what its workers see" if found.environment else "made when it is placed")
    for seen in found.environment:
        words = " ".join(f"{name}={value}" for name, value in sorted(seen.variables.items()))
        yield f"{_INDENT}rank {seen.rank} on {seen.node}: {words}"


_INDENT: Final = " " * 15
_SHOWN: Final = 5


def _named(names: list[str]) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > _SHOWN else ""
    return f": {', '.join(names[:_SHOWN])}{more}"


def _place(worker: WorkerPlace) -> str:
    return f"rank {worker.rank} on {worker.node}, devices {', '.join(map(str, worker.devices)) or 'none'}"
