"""What people read, made from the cluster's state: one Struct for each kind of answer.

Everything is computed from the `State` that is given, so a view of the past is made by the same code as one of the
present. Times are RFC 3339 text; `None` is a time that has not come.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from muster.api.node_views import holders
from muster.api.times import rfc3339, rfc3339_or_none
from muster.core.allocate import in_order
from muster.core.cluster import Cluster
from muster.core.estimates import expected_s
from muster.core.explain import Short, in_short
from muster.core.state import PHASE_CODES, Attempt, Job, JobPhase, Refusal, State
from muster.events.spec import JobSpec
from muster.events.types import ExitStatus

EXPLAINED: Final = 25
ORDERED: Final = 1000
FORECAST: Final = 100
UNSAID: Final = Short("", "")


class WorkerView(msgspec.Struct, frozen=True):
    """One worker of a job's live or last attempt."""

    rank: int
    node: str
    devices: list[int]
    phase: str
    pid: int
    exit: ExitStatus | None


class JobRow(msgspec.Struct, frozen=True):
    """One line of a list of jobs. `started` is when it first ran, `attempt_started` when its present or last attempt
    began to run, and `elapsed_ms` for how long that has run or did; None of the two for a job that waits, or was
    cancelled while it waited. `why` says why it waits or ended, `reason` in a word or two why it waits; None of the two
    for a job that waits and of which that was not worked out."""

    id: int
    name: str
    user: str
    queue: str
    state: JobPhase
    code: str
    priority: int
    gpus: int
    nodes: list[str]
    reason: str | None
    why: str | None
    submitted: str
    started: str | None
    attempt_started: str | None
    ended: str | None
    elapsed_ms: int | None
    exit_code: int | None


class JobView(JobRow, frozen=True):
    """All about one job. `expected_s` is how long an attempt is expected to run (None = nobody knows), which is known
    from `expected_from`: its estimate, its history (the last runs of that name), or its time limit. `preemptions`
    counts how often it made room for others."""

    attempts: int
    tries: int
    preemptions: int
    time_limit_s: int | None
    expected_s: int | None
    expected_from: str
    master_port: int | None
    workers: list[WorkerView]
    excluded_nodes: list[str]
    cancelled_by: str
    spec: JobSpec


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs in order of their ids; `next` is the `after` of the following page (None = the last)."""

    sequence: int
    jobs: list[JobRow]
    next: int | None


class WaitingRow(JobRow, frozen=True):
    """One line of those that wait. `expected_start` is worked out for the first hundred, where it is asked for (None =
    nobody knows)."""

    expected_start: str | None = None


class QueueView(msgspec.Struct, frozen=True):
    """The running jobs, and the waiting ones in the order in which they are considered, those with room reserved first;
    at most so many of each as were asked for. The counts are of all that match."""

    sequence: int
    time: str | None
    running_count: int
    pending_count: int
    running: list[JobRow]
    pending: list[WaitingRow]


class StateView(msgspec.Struct, frozen=True):
    """The state in figures, with the chain hash that proves which log it follows from. `time` is that of its last
    entry, `now` the moment that is looked at: the present, or the one asked for."""

    sequence: int
    chain: str
    time: str | None
    now: str | None
    leader: str
    fence: int
    jobs: dict[str, int]
    jobs_ended: dict[str, int]
    nodes: dict[str, int]
    devices: int
    devices_held: int
    refused_count: int
    refusals: list[Refusal]
    unknown_since: int


class Accepted(msgspec.Struct, frozen=True):
    """What was asked for is in the log, at `sequence`. For a submission `id` is the job's."""

    sequence: int
    id: int | None = None
    already: bool = False


class HealthView(msgspec.Struct, frozen=True):
    """Whether this server is well, and how far it has come. `read_only` says why nothing can be written to it ("" = it
    can be)."""

    status: str
    sequence: int
    version: str
    read_only: str


def nodes_of(attempt: Attempt | None) -> list[str]:
    """The nodes of an attempt, in rank order."""
    return [worker.node for worker in attempt.workers] if attempt is not None else []


def _attempt_started_ns(job: Job) -> int:
    """When the attempt began that the job is in, or ended in; 0 where it did in none."""
    attempt = job.attempt
    if attempt is None or job.phase == "PENDING" or (job.phase == "CANCELLED" and attempt.stop != "cancelled"):
        return 0
    return attempt.started_ns


def job_row(job: Job, now_ns: int, waits: Short | None = None) -> JobRow:
    """A line about a job, as of `now_ns`; why it `waits`, where that has been worked out."""
    if waits is None and job.phase != "PENDING":
        waits = UNSAID
    began_ns = _attempt_started_ns(job)
    return JobRow(
        id=job.id,
        name=job.spec.name,
        user=job.user,
        queue=job.spec.queue,
        state=job.phase,
        code=PHASE_CODES[job.phase],
        priority=job.priority,
        gpus=job.spec.gpus,
        nodes=nodes_of(job.attempt) if job.phase != "PENDING" else [],
        reason=waits.word if waits is not None else None,
        why=_why_text(job, waits),
        submitted=rfc3339(job.submitted_ns),
        started=rfc3339_or_none(job.started_ns),
        attempt_started=rfc3339_or_none(began_ns),
        ended=rfc3339_or_none(job.ended_ns),
        elapsed_ms=max((job.ended_ns or now_ns) - began_ns, 0) // 1_000_000 if began_ns else None,
        exit_code=job.exit_code,
    )


def _why_text(job: Job, waits: Short | None) -> str | None:
    if waits is not None and not waits.text:
        return job.reason
    now = waits.text if waits is not None else ""
    before = f"(before: {job.reason})" if job.reason and job.reason not in now else ""
    return " ".join(filter(None, (now, before))) or None


def job_view(job: Job, now_ns: int, cluster: Cluster) -> JobView:
    """All about a job, as of `now_ns`; where it waits in `cluster`, also why."""
    row = msgspec.structs.asdict(job_row(job, now_ns, _why(job, cluster)))
    attempt = job.attempt
    workers = attempt.workers if attempt is not None else []
    limit = job.spec.limits.time_limit
    expected, source = expected_s(cluster.state, job)
    return JobView(
        **row,
        attempts=job.attempts,
        tries=job.tries,
        preemptions=job.preemptions,
        time_limit_s=limit if isinstance(limit, int) else None,
        expected_s=expected or None,
        expected_from=source,
        master_port=attempt.master_port if attempt is not None else None,
        workers=[
            WorkerView(rank=w.rank, node=w.node, devices=w.devices, phase=w.phase, pid=w.pid, exit=w.exit)
            for w in workers
        ],
        excluded_nodes=sorted(job.excluded),
        cancelled_by=job.cancelled_by,
        spec=job.spec,
    )


def _why(job: Job, cluster: Cluster) -> Short:
    waits = job.phase == "PENDING" and job.id in cluster.state.jobs
    return in_short(cluster, [job.id])[job.id] if waits else UNSAID


def queue_view(cluster: Cluster, now_ns: int, limit: int, wanted: Callable[[Job], bool] | None) -> QueueView:
    """What runs, and what waits, as far as it is wanted (None = all), of a cluster in which it is `now_ns`; why is
    worked out for those next in line."""
    state = cluster.state
    live = [state.jobs[job_id] for job_id in _live(cluster)]
    running = live if wanted is None else list(filter(wanted, live))
    if wanted is None:
        reserved = _reserved(cluster)
        pending, pending_count = [*reserved, *in_order(cluster, limit)], len(reserved) + cluster.lines.count
    else:
        pending = [job_id for job_id in _waiting(cluster) if wanted(state.jobs[job_id])]
        pending_count = len(pending)
    whys = in_short(cluster, pending[: min(limit, EXPLAINED)])
    return QueueView(
        sequence=state.sequence,
        time=rfc3339_or_none(state.timestamp_ns),
        running_count=len(running),
        pending_count=pending_count,
        running=[job_row(job, now_ns) for job in running[:limit]],
        pending=[
            WaitingRow(**msgspec.structs.asdict(job_row(state.jobs[job_id], now_ns, whys.get(job_id))))
            for job_id in pending[:limit]
        ],
    )


def with_starts(view: QueueView, starts: dict[int, int | None], time_at: int, now_ns: int) -> QueueView:
    """A view with the expected starts of a forecast that was made at logical time `time_at`, which is `now_ns`."""
    pending = [
        msgspec.structs.replace(row, expected_start=rfc3339(now_ns + at - time_at))
        if (at := starts.get(row.id)) is not None
        else row
        for row in view.pending
    ]
    return msgspec.structs.replace(view, pending=pending)


def _live(cluster: Cluster) -> list[int]:
    """The jobs that have been placed and have not ended."""
    placed = (job_id for line in cluster.schedule.by_queue.values() for _, job_id in line)
    return sorted({*placed, *cluster.to_judge})


def _reserved(cluster: Cluster) -> list[int]:
    """The waiting jobs that have room reserved."""
    return [job_id for job_id in cluster.state.rooms if cluster.state.jobs[job_id].phase == "PENDING"]


def _waiting(cluster: Cluster) -> list[int]:
    """Those who have room reserved; then the first of the others in the order in which they are considered; then what
    is behind those, queue by queue."""
    first = [*_reserved(cluster), *in_order(cluster, ORDERED)]
    seen = set(first)
    lines = cluster.lines.by_queue
    behind = (key[-1] for path in sorted(lines) for key in lines[path].keys if key[-1] not in seen)
    return [*first, *behind]


def state_view(state: State, now_ns: int) -> StateView:
    """The state in figures, as of `now_ns`."""
    jobs: dict[str, int] = {}
    for job in state.jobs.values():
        jobs[job.phase] = jobs.get(job.phase, 0) + 1
    nodes: dict[str, int] = {}
    for node in state.nodes.values():
        nodes[node.status] = nodes.get(node.status, 0) + 1
    return StateView(
        sequence=state.sequence,
        chain=state.chain.hex(),
        time=rfc3339_or_none(state.timestamp_ns),
        now=rfc3339_or_none(now_ns),
        leader=state.leader,
        fence=state.fence,
        jobs=dict(sorted(jobs.items())),
        jobs_ended={str(phase): count for phase, count in sorted(state.jobs_ended.items())},
        nodes=dict(sorted(nodes.items())),
        devices=sum(len(node.inventory.devices) for node in state.nodes.values()),
        devices_held=len(holders(state)),
        refused_count=state.refused_count,
        refusals=state.refusals,
        unknown_since=state.unknown_since,
    )
