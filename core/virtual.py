"""Attempts in virtual time, without a log: how a cluster is once one has begun, and once it is over."""

from muster.core.cluster import START_WINDOW_NS, Cluster
from muster.core.estimates import expected_s
from muster.core.order import note_service, note_use
from muster.core.state import Attempt, Job, Worker
from muster.events import types as t


def begin_attempt(cluster: Cluster, event: t.JobAllocated) -> Job:
    """A job that waited runs where it was placed, at once; the job."""
    state = cluster.state
    job, now_at = state.jobs[event.job], state.time_at
    cluster.dequeue(job)
    workers = [Worker(p.rank, p.node, p.incarnation, p.devices, "running") for p in event.placements]
    job.attempts = event.attempt
    job.phase = "RUNNING"
    job.attempt = Attempt(
        number=event.attempt,
        allocated=0,
        allocated_ns=0,
        allocated_at=now_at,
        workers=workers,
        master_address=event.master_address,
        master_port=event.master_port,
        start_by_at=now_at + START_WINDOW_NS,
        expected_s=expected_s(state, job)[0],
        started_at=now_at,
        endpoints=event.endpoints,
    )
    cluster.hold_ports(job.attempt)
    for worker in workers:
        cluster.claim(job.id, worker)
    note_use(state, job, sum(cluster.occupied(job, worker) for worker in workers), cluster.fading)
    cluster.review(job)
    return job


def end_attempt(cluster: Cluster, job: Job) -> None:
    """All that a live attempt holds is free. What becomes of the job is the caller's to say."""
    assert job.attempt is not None
    live = [worker for worker in job.attempt.workers if worker.phase != "gone"]
    note_use(cluster.state, job, -sum(cluster.occupied(job, worker) for worker in live), cluster.fading)
    for worker in live:
        worker.phase = "gone"
        cluster.release(job.id, worker)
    cluster.free_ports(job.attempt)
    note_service(cluster.state, job, job.attempt, cluster.milli(job))
