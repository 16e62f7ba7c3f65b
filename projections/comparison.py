"""Two courses of the same window side by side: as it was recorded, and as it would have been.

Compared are the jobs that were submitted in the window or waited when it began. A job's wait is all its waiting, up to
the window's end where it goes on; JCT, from submission to end, is told of the jobs that ended in both.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from muster.core.state import ENDED, Job
from muster.projections.course import Course
from muster.projections.percentiles import percentile
from muster.projections.virtual_agents import Ids

MOVERS: Final = 10
SECOND_MS: Final = 1000
SECOND_NS: Final = 1_000_000_000
HOUR_MS: Final = 3_600_000


class Figures(msgspec.Struct, frozen=True):
    """What some jobs got. Of waits and JCTs the mean, and what so many percent of the jobs do not exceed (None = of no
    job at all). `gpu_hours` is what they held in the window, `lost_gpu_hours` what of their work was begun anew."""

    started: int
    ended: int
    mean_wait_s: float | None
    p50_wait_s: float | None
    p95_wait_s: float | None
    p99_wait_s: float | None
    mean_jct_s: float | None
    p50_jct_s: float | None
    p95_jct_s: float | None
    p99_jct_s: float | None
    gpu_hours: float
    preemptions: int
    lost_gpu_hours: float


class Group(msgspec.Struct, frozen=True):
    """Some of the jobs in both courses."""

    name: str
    jobs: int
    recorded: Figures
    whatif: Figures


class Whole(msgspec.Struct, frozen=True):
    """What the cluster did, of all jobs: device time held, as a part (of 1) of what nodes that take work had; the
    percentage of what was idle there that the expected work could not have used (None = nothing was idle); and Jain's
    index, from 0 to 1, of what each user's jobs held against what they would have held had each started at once (None =
    no devices were asked for)."""

    utilization: float
    fragmented_pct: float | None
    preemptions: int
    lost_gpu_hours: float
    fairness: float | None


class Mover(msgspec.Struct, frozen=True):
    """A job, by its recorded id, and how long it waits in both. `change_s` < 0 is a gain. Where it still waits when the
    window ends (`recorded_waits_on`, `whatif_waits_on`), its wait is that up to there."""

    job: int
    user: str
    queue: str
    name: str
    gpus: int
    recorded_wait_s: float
    whatif_wait_s: float
    change_s: float
    recorded_waits_on: bool
    whatif_waits_on: bool


class Comparison(msgspec.Struct, frozen=True):
    """All of it. `rejected` counts the jobs that are not compared, since their submission is refused under the other
    rules; `placed` the jobs that began in either, and `same_devices` those of them that had the same devices in both,
    at every try. `series` has, at evenly spaced moments, the seconds since the window began, the jobs that wait and the
    devices held as recorded, and both as they would have been."""

    jobs: Group
    rejected: int
    recorded: Whole
    whatif: Whole
    placed: int
    same_devices: int
    queues: list[Group]
    users: list[Group]
    gained: list[Mover]
    lost: list[Mover]
    series: list[tuple[float, int, float, int, float]]


class _Pair(msgspec.Struct, frozen=True):
    """One job in both courses."""

    recorded: Job
    whatif: Job


def compare(recorded: Course, whatif: Course, ids: Ids, length_ns: Callable[[int], int]) -> Comparison:
    """Compare. `length_ns` says for how long a recorded job runs."""
    pairs = list(_pairs(recorded, whatif, ids))
    places = [(recorded.placings.get(pair.recorded.id), whatif.placings.get(pair.whatif.id)) for pair in pairs]
    movers = [_mover(recorded, whatif, pair) for pair in pairs]
    movers.sort(key=lambda mover: (mover.change_s, mover.job))
    return Comparison(
        _group("all", pairs, recorded, whatif),
        _rejected(recorded, whatif, ids),
        _whole(recorded, [pair.recorded for pair in pairs], lambda job: length_ns(job.id)),
        _whole(whatif, [pair.whatif for pair in pairs], lambda job: length_ns(ids.in_record(job.id))),
        sum(before is not None or after is not None for before, after in places),
        sum(before == after for before, after in places if before is not None),
        _groups(pairs, lambda pair: pair.recorded.spec.queue, recorded, whatif),
        _groups(pairs, lambda pair: pair.recorded.user, recorded, whatif),
        [mover for mover in movers[:MOVERS] if mover.change_s < 0],
        [mover for mover in movers[: -MOVERS - 1 : -1] if mover.change_s > 0],
        _series(recorded, whatif),
    )


def _pairs(recorded: Course, whatif: Course, ids: Ids) -> Iterable[_Pair]:
    for job_id, job in recorded.jobs.items():
        other = whatif.jobs.get(ids.in_branch(job_id))
        if other is not None and "REJECTED" not in (job.phase, other.phase) and recorded.is_compared(job_id):
            yield _Pair(job, other)


def _rejected(recorded: Course, whatif: Course, ids: Ids) -> int:
    others = (
        whatif.jobs.get(ids.in_branch(job_id)) for job_id, job in recorded.jobs.items() if job.phase != "REJECTED"
    )
    return sum(other is not None and other.phase == "REJECTED" for other in others)


def _groups(pairs: list[_Pair], key: Callable[[_Pair], str], recorded: Course, whatif: Course) -> list[Group]:
    found: dict[str, list[_Pair]] = {}
    for pair in pairs:
        found.setdefault(key(pair), []).append(pair)
    return [_group(name, found[name], recorded, whatif) for name in sorted(found)]


def _group(name: str, pairs: list[_Pair], recorded: Course, whatif: Course) -> Group:
    ended = [pair for pair in pairs if pair.recorded.phase in ENDED and pair.whatif.phase in ENDED]
    return Group(
        name,
        len(pairs),
        _figures(recorded, [pair.recorded for pair in pairs], [pair.recorded for pair in ended]),
        _figures(whatif, [pair.whatif for pair in pairs], [pair.whatif for pair in ended]),
    )


def _figures(course: Course, jobs: Sequence[Job], ended: Sequence[Job]) -> Figures:
    totals = [course.totals(job.id) for job in jobs]
    return Figures(
        sum(job.started_ns > 0 for job in jobs),
        sum(job.phase in ENDED for job in jobs),
        *_spread([course.waited_ms(job.id) for job in jobs]),
        *_spread([max(0, job.ended_ns - job.submitted_ns) // 1_000_000 for job in ended]),
        sum(each.device_ms for each in totals) / HOUR_MS,
        sum(course.preemptions(job.id) for job in jobs),
        sum(each.lost_ms for each in totals) / HOUR_MS,
    )


def _spread(times_ms: list[int]) -> tuple[float | None, float | None, float | None, float | None]:
    """Seconds: the mean, and what 50, 95 and 99 percent of them do not exceed; None of none."""
    if not times_ms:
        return None, None, None, None
    times_ms.sort()
    p50, p95, p99 = (percentile(times_ms, percent) / SECOND_MS for percent in (50, 95, 99))
    return sum(times_ms) / len(times_ms) / SECOND_MS, p50, p95, p99


def _whole(course: Course, jobs: Sequence[Job], length_ns: Callable[[Job], int]) -> Whole:
    idle = sum(sample.idle for sample in course.samples)
    useless = sum(sample.useless for sample in course.samples)
    return Whole(
        course.held_ns / course.capacity_ns if course.capacity_ns else 0.0,
        100 * useless / idle if idle else None,
        sum(map(course.preemptions, course.jobs)),
        sum(course.totals(job_id).lost_ms for job_id in course.jobs) / HOUR_MS,
        _fairness(course, jobs, length_ns),
    )


def _fairness(course: Course, jobs: Sequence[Job], length_ns: Callable[[Job], int]) -> float | None:
    """Jain's index, (sum x)^2 / (n sum x^2), of each user's part x."""
    held: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for job in jobs:
        left_ns = course.until_ns - max(job.submitted_ns, course.began_ns)
        milli = _milli(job)
        wanted[job.user] = wanted.get(job.user, 0) + milli * max(0, min(length_ns(job), left_ns)) // SECOND_NS
        held[job.user] = held.get(job.user, 0) + course.totals(job.id).device_ms
    parts = [held[user] / wanted[user] for user in sorted(wanted) if wanted[user]]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else None


def _milli(job: Job) -> int:
    """The thousandths of devices that a job holds while it runs, by compute where it never ran."""
    if job.attempt is not None:
        return sum(worker.held for worker in job.attempt.workers)
    return job.spec.gpus * round(1000 * (job.spec.gpu.compute or 1))


def _mover(recorded: Course, whatif: Course, pair: _Pair) -> Mover:
    job = pair.recorded
    before, after = recorded.waited_ms(job.id), whatif.waited_ms(pair.whatif.id)
    return Mover(
        job.id,
        job.user,
        job.spec.queue,
        job.spec.name,
        job.spec.gpus,
        before / SECOND_MS,
        after / SECOND_MS,
        (after - before) / SECOND_MS,
        job.phase == "PENDING",
        pair.whatif.phase == "PENDING",
    )


def _series(recorded: Course, whatif: Course) -> list[tuple[float, int, float, int, float]]:
    return [
        (
            (one.at_ns - recorded.began_ns) / SECOND_NS,
            one.waiting,
            one.held / 1000,
            other.waiting,
            other.held / 1000,
        )
        for one, other in zip(recorded.samples, whatif.samples, strict=True)
    ]
