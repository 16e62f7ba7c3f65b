"""What people's facts and the scheduler's decisions about jobs do to the state.

Every rule gives None, or why it was not applied.
"""

from typing import Final

from muster.core.cluster import START_WINDOW_NS, Cluster
from muster.core.estimates import expected_s, note_expected
from muster.core.fading import Fading
from muster.core.order import duration_s, note_use
from muster.core.quantities import priority_number
from muster.core.schedule import SECOND_NS
from muster.core.spec_check import flaw
from muster.core.state import ENDED, Attempt, Job, Key, Room, Stray, Worker
from muster.events import types as t
from muster.projections import accounts, device_rules, worker_rules
from muster.projections.policy_rules import default_priority, note_mix, queue_flaw

KEY_MEMORY_NS: Final = 24 * 3600 * SECOND_NS
ENDED_MEMORY_NS: Final = 3600 * SECOND_NS


def job_submitted(cluster: Cluster, event: t.JobSubmitted) -> str | None:
    """A new job, waiting; its id is the entry's sequence. A key in use makes no second job."""
    state = cluster.state
    if event.key:
        if (event.user, event.key) in cluster.keys:
            return f"the key was used before, for job {cluster.keys[event.user, event.key]}"
        cluster.keys[event.user, event.key] = state.sequence
        state.keys.append(Key(event.user, event.key, state.sequence, state.time_at + KEY_MEMORY_NS))
    job = Job(state.sequence, event.user, event.spec, state.timestamp_ns, since=state.sequence, since_at=state.time_at)
    state.jobs[job.id] = job
    accounts.begin_wait(job, state.timestamp_ns)
    problem = flaw(event.spec) or queue_flaw(cluster, event.spec.queue)
    if problem:
        worker_rules.end(cluster, job, "REJECTED", problem)
    else:
        priority = event.spec.priority
        if priority is None:
            job.priority = default_priority(state.queues, event.spec.queue)
        else:
            job.priority = priority_number(priority)
        note_mix(state.mix, cluster.demand(job))
        cluster.note_kind()
        note_expected(state, job)
        cluster.enqueue(job)
    return None


def job_allocated(cluster: Cluster, event: t.JobAllocated) -> str | None:
    """An attempt begins. It is applied as what it is even where the job was cancelled or a node's life ended
    between basis and append: agents may have acted, and the next pass undoes it."""
    state = cluster.state
    job = state.jobs.get(event.job)
    if job is None or (job.phase not in ("PENDING", "CANCELLED")) or event.attempt != job.attempts + 1:
        return f"allocation {event.job}.{event.attempt} does not follow from the job's state"
    workers: list[Worker] = []
    for rank, place in enumerate(event.placements):
        if place.rank != rank:
            break
        workers.append(Worker(rank, place.node, place.incarnation, place.devices))
    if not workers or len(workers) < len(event.placements):
        return f"allocation {event.job}.{event.attempt} does not rank its workers from 0"
    master = t.Endpoint(event.master_address, event.master_port)
    if event.endpoints and (len(event.endpoints) != len(workers) or event.endpoints[0] != master):
        return f"allocation {event.job}.{event.attempt} does not give each worker a port, the master's first"
    attempt = Attempt(
        event.attempt,
        state.sequence,
        state.timestamp_ns,
        state.time_at,
        workers,
        event.master_address,
        event.master_port,
        state.time_at + START_WINDOW_NS,
        expected_s(state, job)[0],
        event.why,
        endpoints=event.endpoints,
    )
    if job.id in state.rooms:
        attempt.made_room = state.rooms[job.id].victims
        cluster.unreserve(job)
    if job.phase == "PENDING":
        cluster.dequeue(job)
    else:
        attempt.stop = "cancelled"
        state.jobs_ended["CANCELLED"] -= 1
    job.attempt = attempt
    job.attempts = event.attempt
    job.tries += 1
    job.reason = ""
    job.phase = "STARTING" if attempt.stop is None else "STOPPING"
    job.ended_ns = 0
    cluster.hold_ports(attempt)
    nodes = state.nodes
    void: list[Worker] = []
    accounts.end_wait(job, state.timestamp_ns)
    for worker in workers:
        worker.held = cluster.occupied(job, worker)
    note_use(cluster.state, job, sum(worker.held for worker in workers), cluster.fading)
    for worker in workers:
        cluster.claim(job.id, worker)
        node = nodes.get(worker.node)
        if node is None or node.incarnation != worker.incarnation:
            void.append(worker)
    for worker in void:
        worker_rules.lose_worker(
            cluster, job, worker, "its agent began a new life before it could start", never_ran=True
        )
    device_rules.fail_on_arrival(cluster, job)
    if attempt.stop is None:
        cluster.starting[job.id] = attempt.start_by_at
        cluster.schedule.note(job, attempt)
    elif cluster.is_live(job):
        cluster.review(job)
    return None


def stop_ordered(cluster: Cluster, event: t.StopOrdered) -> str | None:
    """Workers were told to stop; those of a later life of their agent still have to be."""
    if event.cause == "stray":  # of no attempt any more: whatever its job does now goes on
        _strays_told(cluster, event)
        return None
    job = cluster.state.jobs.get(event.job)
    attempt = job.attempt if job is not None else None
    if job is None or attempt is None or attempt.number != event.attempt or not cluster.is_live(job):
        return f"attempt {event.job}.{event.attempt} has no workers to stop"
    if event.cause == "start_overdue" and attempt.stop is None:
        attempt.stop = "start_overdue"
        attempt.failure = attempt.failure or "never_started"
        job.reason = "a worker was not reported in time"
        for worker in attempt.workers:
            if worker.phase == "placed":
                job.excluded[worker.node] = cluster.state.time_at + worker_rules.EXCLUSION_NS
    _note_told(attempt, event.workers)
    job.phase = "STOPPING"
    cluster.review(job)
    return None


def _strays_told(cluster: Cluster, event: t.StopOrdered) -> None:
    for ref in event.workers:
        node = cluster.state.nodes.get(ref.node)
        stray = Stray(event.job, event.attempt, ref.rank)
        if node is not None and stray in node.strays:
            node.strays_told = max(node.strays_told, node.strays.index(stray) + 1)
            cluster.review_node(node)


def job_requeued(cluster: Cluster, event: t.JobRequeued) -> str | None:
    """The job waits again, in its old place, or behind those that wait where its time ran out."""
    job = cluster.state.jobs.get(event.job)
    if job is None or job.attempt is None or job.attempt.number != event.attempt or not job.attempt.over:
        return f"attempt {event.job}.{event.attempt} is not over, or its job has ended"
    if not event.counted:
        job.tries -= 1
    job.attempt.over = False
    job.phase = "PENDING"
    accounts.begin_anew(job, job.attempt, cluster.state.timestamp_ns)
    if event.cause == "timed_out":
        job.since, job.since_at = cluster.state.sequence, cluster.state.time_at
    note_expected(cluster.state, job)
    cluster.review(job)
    cluster.enqueue(job)
    return None


def job_preempted(cluster: Cluster, event: t.JobPreempted) -> str | None:
    """An attempt is being stopped for another job; the try does not count."""
    refusal = _stop_for(cluster, event, "preempted", f"stopped for job {event.beneficiary} ({event.cause})")
    if refusal is None:
        job = cluster.state.jobs[event.job]
        job.preemptions += 1
        if job.attempt is not None and job.attempt.stop == "preempted":
            job.attempt.stopped_for = job.attempt.stopped_for or event.beneficiary
    return refusal


def job_timed_out(cluster: Cluster, event: t.JobTimedOut) -> str | None:
    """An attempt's time is over."""
    job = cluster.state.jobs.get(event.job)
    limit = job.spec.limits.time_limit if job is not None else None
    refusal = _stop_for(cluster, event, "timed_out", f"its time limit of {limit} s is over")
    if refusal is None and job is not None:
        job.timeouts += 1
    return refusal


def _stop_for(cluster: Cluster, event: t.JobPreempted | t.JobTimedOut, cause: t.StopCause, reason: str) -> str | None:
    job = cluster.state.jobs.get(event.job)
    attempt = job.attempt if job is not None else None
    if job is None or attempt is None or attempt.number != event.attempt or not cluster.is_live(job) or attempt.over:
        return f"attempt {event.job}.{event.attempt} has no workers to stop"
    if attempt.stop is None:
        attempt.stop = cause
        job.reason = reason
    _note_told(attempt, event.workers)
    job.phase = "STOPPING"
    cluster.review(job)
    return None


def _note_told(attempt: Attempt, workers: list[t.WorkerRef]) -> None:
    told = {(ref.rank, ref.incarnation) for ref in workers}
    attempt.stop_ordered = all(
        worker.phase == "gone" or (worker.rank, worker.incarnation) in told for worker in attempt.workers
    )


def room_reserved(cluster: Cluster, event: t.RoomReserved) -> str | None:
    """Room is kept for a waiting job. Where the job was cancelled between basis and append, the next pass lets the room
    go."""
    state = cluster.state
    job = state.jobs.get(event.job)
    if job is None or job.phase not in ("PENDING", "CANCELLED") or job.id in state.rooms:
        return f"job {event.job} does not wait for room"
    nodes = {place.node for place in event.placements}
    if not nodes or len(nodes) < len(event.placements) or not nodes <= state.nodes.keys():
        return f"the room for job {event.job} is not on nodes that there are, one worker on each"
    cluster.reserve(Room(job.id, state.sequence, event.placements, event.victims, event.why))
    return None


def room_released(cluster: Cluster, event: t.RoomReleased) -> str | None:
    """Room is kept no more; a job that still waits takes its place in the line again."""
    job = cluster.state.jobs.get(event.job)
    if job is None or job.id not in cluster.state.rooms:
        return f"no room is kept for job {event.job}"
    cluster.unreserve(job)
    if job.phase == "PENDING":
        cluster.enqueue(job)
    return None


def job_cancel_requested(cluster: Cluster, event: t.JobCancelRequested) -> str | None:
    """A waiting job ends at once; a live one is to be stopped."""
    job = cluster.state.jobs.get(event.job)
    if job is None:
        return f"there is no job {event.job}"
    if job.phase in ENDED or job.cancelled_by:
        return f"job {job.id} has ended, or is cancelled already"
    job.cancelled_by = event.user
    job.cancel_reason = event.reason
    attempt = job.attempt
    if job.phase == "PENDING":
        cluster.dequeue(job)
        worker_rules.end_cancelled(cluster, job)
    elif attempt is not None and attempt.over:
        attempt.over = False
        worker_rules.end_cancelled(cluster, job)
    elif attempt is not None:
        if attempt.stop in accounts.MADE_TO_STOP:  # told again, without the time for a checkpoint
            attempt.stop_ordered = False
            attempt.stop = "cancelled"
        attempt.stop = attempt.stop or "cancelled"
        job.phase = "STOPPING"
        cluster.review(job)
    return None


def forget_old(cluster: Cluster) -> None:
    """Once a logical minute: ended jobs leave an hour after their end, keys a day after their use."""
    state = cluster.state
    limit = state.time_at - ENDED_MEMORY_NS
    count = 0
    for ended_at, job_id in state.ended:
        if ended_at > limit:
            break
        count += 1
        job = state.jobs.get(job_id)
        if job is not None and job.phase in ENDED:
            if job_id in state.rooms:
                cluster.unreserve(job)
            del state.jobs[job_id]
            cluster.forget(job_id)
    del state.ended[:count]
    count = 0
    for key in state.keys:
        if key.forget_at > state.time_at:
            break
        count += 1
        cluster.keys.pop((key.user, key.key), None)
    del state.keys[:count]
    half_life_s = duration_s(state.policy.half_life)
    if cluster.fading is None or cluster.fading.half_life_s != half_life_s:
        cluster.fading = Fading(state.past_use, half_life_s)
    for name in cluster.fading.take_faded(state.past_use, state.time_at):
        del state.past_use[name]
