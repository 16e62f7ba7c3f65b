"""What agents' reports of workers do to the state, up to the end of an attempt and of its job.

Every rule gives None, or why it was not applied.
"""

from typing import Final

from muster.core.cluster import Cluster
from muster.core.estimates import learn
from muster.core.order import note_service, note_use
from muster.core.schedule import SECOND_NS
from muster.core.state import Attempt, Job, JobPhase, Stray, Worker
from muster.events import types as t
from muster.projections import accounts

EXCLUSION_NS: Final = 600 * SECOND_NS
"""How long a job is not placed again on a node that refused its start."""
UNCOUNTED_LIMIT: Final = 3
"""So often a job is placed at once after a try that never ran; then it leaves the node for a while."""
FLAPPING_NS: Final = 60 * SECOND_NS


def find_worker(cluster: Cluster, job_id: int, number: int, rank: int) -> tuple[Job, Attempt, Worker] | None:
    """The worker of a job's live attempt that is not gone."""
    job = cluster.state.jobs.get(job_id)
    if job is None:
        return None
    attempt = job.attempt
    if attempt is None or attempt.number != number or not 0 <= rank < len(attempt.workers):
        return None
    worker = attempt.workers[rank]
    return None if worker.phase == "gone" else (job, attempt, worker)


def worker_started(cluster: Cluster, event: t.WorkerStarted) -> str | None:
    """A worker runs."""
    found = find_worker(cluster, event.job, event.attempt, event.rank)
    if found is None or found[2].node != event.node:
        return f"worker {event.job}.{event.attempt}.{event.rank} is not expected on {event.node}"
    job, attempt, worker = found
    mark_running(cluster, job, attempt, worker, event.pid)
    return None


def mark_running(cluster: Cluster, job: Job, attempt: Attempt, worker: Worker, pid: int) -> None:
    """A placed worker was seen running."""
    if worker.phase != "placed":
        return
    worker.phase = "running"
    worker.pid = pid
    now_ns = cluster.state.timestamp_ns
    if not attempt.started_ns:
        attempt.started_ns = now_ns
        attempt.started_at = cluster.state.time_at
        cluster.note_running(job, attempt)
    job.started_ns = job.started_ns or now_ns
    if not attempt.awaits_start():
        cluster.starting.pop(job.id, None)
        if job.phase == "STARTING":
            job.phase = "RUNNING"


def worker_exited(cluster: Cluster, event: t.WorkerExited) -> str | None:
    """A worker's tree is gone."""
    found = find_worker(cluster, event.job, event.attempt, event.rank)
    if found is None or found[2].node != event.node:
        return _stray_gone(cluster, event)
    job, attempt, worker = found
    worker_gone(cluster, job, attempt, worker, event.exit)
    return None


def _stray_gone(cluster: Cluster, event: t.WorkerExited) -> str | None:
    node = cluster.state.nodes.get(event.node)
    stray = Stray(event.job, event.attempt, event.rank)
    if node is None or stray not in node.strays:
        return f"worker {event.job}.{event.attempt}.{event.rank} is not expected on {event.node}"
    place = node.strays.index(stray)
    del node.strays[place]
    if place < node.strays_told:
        node.strays_told -= 1
    cluster.review_node(node)
    return None


def worker_refused(cluster: Cluster, event: t.WorkerRefused) -> str | None:
    """A worker was not started: its node is left out for this job for a while."""
    found = find_worker(cluster, event.job, event.attempt, event.rank)
    if found is None or found[2].node != event.node or found[2].phase != "placed":
        return f"worker {event.job}.{event.attempt}.{event.rank} is not awaited on {event.node}"
    job, attempt, worker = found
    job.excluded[event.node] = cluster.state.time_at + EXCLUSION_NS
    if attempt.failure is None:
        attempt.failure = "never_started"
        job.reason = f"{event.node} refused to start it: {event.reason}"
        attempt.stop = attempt.stop or "start_refused"
    worker_gone(cluster, job, attempt, worker, t.ExitStatus("start_failed", detail=event.reason))
    return None


def lose_worker(cluster: Cluster, job: Job, worker: Worker, detail: str, *, never_ran: bool) -> None:
    """A worker that is not running and never will be. A try in which it never ran does not count."""
    attempt = job.attempt
    assert attempt is not None
    if never_ran and attempt.failure is None:
        attempt.failure = "never_started"
        attempt.counted = False
        attempt.stop = attempt.stop or "worker_lost"
        job.reason = detail
        if job.attempts - job.tries >= UNCOUNTED_LIMIT:  # an agent that begins life after life would have it for ever
            job.excluded[worker.node] = cluster.state.time_at + FLAPPING_NS
    worker_gone(cluster, job, attempt, worker, t.ExitStatus("lost", detail=detail))


def worker_gone(cluster: Cluster, job: Job, attempt: Attempt, worker: Worker, exit_status: t.ExitStatus) -> None:
    """Release what a worker held; a failure ends its attempt, the last one to go ends it for good."""
    worker.phase = "gone"
    worker.exit = exit_status
    cluster.release(job.id, worker)
    note_use(cluster.state, job, -cluster.occupied(job, worker), cluster.fading)
    accounts.end_worker(job, attempt, worker, cluster.state.timestamp_ns)
    clean = exit_status.reason == "exited" and exit_status.exit_code == 0
    if not clean:
        _note_failure(job, attempt, worker, exit_status)
    if not attempt.has_workers():
        _finish_attempt(cluster, job, attempt)
    elif not clean:
        if job.phase in ("STARTING", "RUNNING"):
            job.phase = "STOPPING"
        cluster.review(job)
    elif job.phase == "STARTING" and not attempt.awaits_start():
        job.phase = "RUNNING"
        cluster.review(job)


def _note_failure(job: Job, attempt: Attempt, worker: Worker, exit_status: t.ExitStatus) -> None:
    if attempt.failure is not None or attempt.stop == "cancelled":
        return
    reason, code = exit_status.reason, exit_status.exit_code
    if reason == "stopped" and attempt.stop is not None:
        return
    if reason in ("lost", "lease_expired"):
        attempt.failure = "node_fail"
        attempt.stop = attempt.stop or "worker_lost"
        job.reason = f"worker {worker.rank} was lost with {worker.node}: {exit_status.detail or reason}"
    elif reason == "stopped":  # no scheduler ordered it: a person ended the agent, and what it runs
        attempt.stop = "cancelled"
        job.reason = f"ended with its agent on {worker.node}"
    else:
        attempt.failure = "failed"
        attempt.exit_code = code
        attempt.stop = attempt.stop or "worker_failed"
        how = f"signal {exit_status.signal}" if exit_status.signal else f"exit code {code}"
        if exit_status.detail:
            how += f": {exit_status.detail}"
        if reason == "start_failed":
            how = exit_status.detail or "it could not be started"
        job.reason = f"worker {worker.rank} on {worker.node}: {how}"


def _finish_attempt(cluster: Cluster, job: Job, attempt: Attempt) -> None:
    cluster.free_ports(attempt)
    accounts.end_attempt(job, attempt, cluster.state.timestamp_ns)
    note_service(cluster.state, job, attempt, cluster.milli(job))
    retry, failure = job.spec.retry, attempt.failure
    if job.cancelled_by:
        end_cancelled(cluster, job)
    elif attempt.stop == "cancelled":
        end(cluster, job, "CANCELLED", job.reason)
    elif failure is None and (attempt.stop is None or _completed(attempt)):
        job.exit_code = 0
        _learn(cluster, job, attempt)
        end(cluster, job, "COMPLETED", "")
    elif attempt.stop in accounts.MADE_TO_STOP and failure in (None, "node_fail"):
        attempt.failure = None
        if attempt.stop == "timed_out" and job.spec.limits.on_timeout == "kill":
            end(cluster, job, "TIMEOUT", job.reason)
        else:
            attempt.counted = False
            _await_judgement(cluster, job, attempt)
    elif not attempt.counted or (
        job.tries < retry.max_attempts and (failure in retry.on or failure in (None, "never_started"))
    ):
        _await_judgement(cluster, job, attempt)
    else:
        job.exit_code = attempt.exit_code
        end(cluster, job, "NODE_FAIL" if failure == "node_fail" else "FAILED", job.reason)


def _await_judgement(cluster: Cluster, job: Job, attempt: Attempt) -> None:
    attempt.over = True
    job.phase = "STOPPING"
    cluster.review(job)


def _completed(attempt: Attempt) -> bool:
    """Whether every worker had ended by itself, and well, before a stop reached it."""
    exits = [worker.exit for worker in attempt.workers]
    return all(each is not None and each.reason == "exited" and each.exit_code == 0 for each in exits)


def _learn(cluster: Cluster, job: Job, attempt: Attempt) -> None:
    if attempt.started_at:
        learn(cluster.state, job, (cluster.state.time_at - attempt.started_at) // SECOND_NS)


def end_cancelled(cluster: Cluster, job: Job) -> None:
    """A cancelled job has ended."""
    why = f": {job.cancel_reason}" if job.cancel_reason else ""
    end(cluster, job, "CANCELLED", f"cancelled by {job.cancelled_by}{why}")


def end(cluster: Cluster, job: Job, phase: JobPhase, reason: str) -> None:
    """A job has ended."""
    state = cluster.state
    job.phase = phase
    job.reason = reason
    accounts.end_wait(job, state.timestamp_ns)
    job.ended_ns = state.timestamp_ns
    state.ended.append((state.time_at, job.id))
    state.jobs_ended[phase] = state.jobs_ended.get(phase, 0) + 1
    cluster.close(job)
