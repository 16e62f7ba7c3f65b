"""Explanations, ends: when the jobs that others wait for are expected to be gone."""

from collections.abc import Collection
from typing import Final

from muster.core.cluster import Cluster
from muster.core.commands import stop_terms
from muster.core.explain_words import jobs_named, span
from muster.core.queues import ENDLESS
from muster.core.state import Job

_MS_NS: Final = 1_000_000


def stop_takes_ms(job: Job) -> int:
    """How long after it was told to stop an attempt is gone at the latest; of one that runs, after it is told to make
    room."""
    stop = job.attempt.stop if job.attempt is not None else None
    grace_ms, _, notice_ms = stop_terms(job.spec, stop or "preempted")
    return grace_ms + notice_ms


def being_stopped(cluster: Cluster, jobs: Collection[int]) -> list[int]:
    """Those of some jobs that are being stopped."""
    return sorted(job_id for job_id in jobs if job_id in cluster.leaving)


def once_stopped(cluster: Cluster, jobs: Collection[int]) -> str:
    """When jobs that are being stopped, or will be, have ended: "as soon as job 3 has ended (it has up to 10s from its
    stop)"; "" where there are none."""
    if not jobs:
        return ""
    named = sorted(jobs)
    longest = span(max(stop_takes_ms(cluster.state.jobs[job_id]) for job_id in named) * _MS_NS)
    if len(named) == 1:
        return f"as soon as {jobs_named(named)} has ended (it has up to {longest} from its stop)"
    return f"as soon as {jobs_named(named)} have ended (they have up to {longest} from their stop)"


def last_end(cluster: Cluster, ends: Collection[int]) -> int | None:
    """When the last of some jobs is expected to have ended (None = nobody knows)."""
    known = [cluster.schedule.end_of(job_id) for job_id in ends]
    last = max((ENDLESS if end_at is None else end_at for end_at in known), default=ENDLESS)
    return None if last == ENDLESS else max(last, cluster.state.time_at)


def once_ended(cluster: Cluster, ends: list[int]) -> str:
    """Jobs whose end makes room, and when that is expected: "job 3 has ended (expected in 40s)"."""
    one, last, now_at = len(ends) == 1, last_end(cluster, ends), cluster.state.time_at
    stopped = being_stopped(cluster, ends)
    if last is None:
        when = "nobody knows when"
    elif last > now_at:
        when = f"expected in {span(last - now_at)}"
    elif stopped:
        longest = span(max(stop_takes_ms(cluster.state.jobs[job_id]) for job_id in stopped) * _MS_NS)
        who = ("it is" if one else "they are") if len(stopped) == len(ends) else jobs_named(stopped) + " being"
        when = f"{who} being stopped, which takes up to {longest}"
    else:
        when = "expected any moment"
    return f"{jobs_named(ends)} {'has' if one else 'have'} ended ({when})"
