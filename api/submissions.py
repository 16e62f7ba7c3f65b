"""`POST /v1/jobs`, and the cancelling of jobs: a request becomes one entry, or a problem and nothing.

Rules: the same Idempotency-Key with the same job is the same job, however often it is sent; with another job it is
refused. The log's own memory of ids is short; the fold keeps keys for a day, and what it names is compared byte by
byte with what is sent.
"""

from hashlib import blake2b
from typing import Annotated, Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.appending import append, leaf_of, next_id, unavailable
from muster.api.bodies import read_body, read_spec
from muster.api.cordons import REASON_LENGTH
from muster.api.parameters import flag, job_id, key_of, user_of
from muster.api.problems import ApiError, FieldError
from muster.api.reading import live_job
from muster.api.service import SERVICE, Service, see_minimum
from muster.api.submitting import BusyError
from muster.api.views import Accepted
from muster.core.cluster import Cluster
from muster.core.queue_check import queue_problems, size_problems, whole_tree
from muster.core.spec_check import capacity_problems
from muster.core.state import ENDED, PHASE_CODES
from muster.events.codec import encode
from muster.events.log import DuplicateConflictError, LogFullError, LogUnavailableError, Message
from muster.events.spec import JobSpec
from muster.events.subjects import subject_of
from muster.events.types import JobCancelRequested, JobSubmitted

_ROUTE: Final = "POST /v1/jobs"


class CancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a job is cancelled."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH)] = ""


def _message_id(user: str, key: str) -> str:
    if not key:
        return next_id()
    return blake2b(f"{user}\0{_ROUTE}\0{key}".encode(), digest_size=16).hexdigest()


async def submit(request: web.Request) -> web.Response:
    """Accept a job: 201 once the log has it, 200 where the key made it before."""
    service = request.app[SERVICE]
    user, key, waits = user_of(request), key_of(request), flag(request, "wait_for_capacity")
    spec = await read_spec(request)
    payload = encode(JobSubmitted(user=user, spec=spec, key=key, wait_for_capacity=waits))
    if key and (known := service.cluster.keys.get((user, key))):
        await _compare(service, known, payload)
        return _accepted(known, already=True)
    check_queue(service.cluster, spec)
    if not waits:
        check_capacity(service.cluster, spec)
    subject = subject_of(JobSubmitted(user=user, spec=spec), leaf_of(spec.queue), service.log.prefix)
    try:
        ack = await service.submitter.submit(Message(subject, payload, _message_id(user, key)))
    except DuplicateConflictError as error:
        raise _key_reused(error.sequence) from error
    except LogFullError as error:
        raise _full() from error
    except LogUnavailableError as error:
        raise unavailable() from error
    except BusyError as error:
        raise ApiError(503, "busy", "too many submissions wait for the log", retry_after_s=1) from error
    return _accepted(ack.sequence, already=ack.duplicate)


def check_queue(cluster: Cluster, spec: JobSpec) -> None:
    """Refuse a job whose queue takes none."""
    problems = queue_problems(spec, cluster.ledger().tree)
    if problems:
        raise ApiError(
            422,
            "no_queue",
            "the job's queue takes no jobs",
            next_step="`muster queues` lists the queues",
            errors=[FieldError(each.pointer, each.detail) for each in problems],
        )


def check_capacity(cluster: Cluster, spec: JobSpec) -> None:
    """Refuse a job that could never be placed."""
    problems = capacity_problems(spec, cluster.hardware)
    if not problems:
        problems = size_problems(spec, whole_tree(cluster.state, cluster.ledger().tree))
    if problems:
        raise ApiError(
            422,
            "never_fits",
            "this job can never be placed on this cluster",
            next_step="ask for less, or submit with wait_for_capacity=1 to wait for more",
            errors=[FieldError(each.pointer, each.detail) for each in problems],
        )


async def _compare(service: Service, job: int, payload: bytes) -> None:
    entries = await service.entries(job, 1)
    if not entries or entries[0].payload != payload:
        raise _key_reused(job)


def _accepted(job: int, *, already: bool) -> web.Response:
    headers = {"Location": f"/v1/jobs/{job}"}
    return answer(Accepted(job, job, already), job, status=200 if already else 201, headers=headers)


def _key_reused(job: int) -> ApiError:
    detail = f"it made job {job}, from another body"
    return ApiError(
        422,
        "key_reused",
        "this Idempotency-Key was used for another job",
        detail=detail,
        next_step="send the first body again, or use a new key",
        errors=[FieldError("Idempotency-Key", detail)],
    )


def _full() -> ApiError:
    return ApiError(
        507,
        "log_full",
        "the log is nearly full: no more jobs are accepted, what runs goes on",
        next_step="raise the log's size limit",
    )


async def cancel(request: web.Request) -> web.Response:
    """Ask for a job to end: 202 once the log has it; 409 where it has ended otherwise."""
    service = request.app[SERVICE]
    await see_minimum(request)
    user, body = user_of(request), await read_body(request, CancelBody)
    job = await live_job(service, job_id(request))
    if job.phase == "CANCELLED" or job.cancelled_by:
        return answer(Accepted(service.state.sequence, job.id, already=True), service.state.sequence)
    if job.phase in ENDED:
        raise ApiError(409, "ended", f"job {job.id} has ended: {job.phase} ({PHASE_CODES[job.phase]})")
    ack = await append(service.log, JobCancelRequested(job=job.id, user=user, reason=body.reason), job.spec.queue)
    return answer(Accepted(ack.sequence, job.id), ack.sequence, status=202)
