"""The accounts: how long a job waited and ran, the device time it held, and what of its work was lost.

Kept by the fold on each job, in the server's timestamps, since they are for people: a clock that was put back counts
as no time. What is still going on is added by the reader, as of its moment. Work is lost where a job begins anew; an
attempt that was given a checkpoint signal before it had to go counts as saved.
"""

from typing import Final, NamedTuple

from muster.core.state import Attempt, Job, Worker

ACCOUNTS_VERSION: Final = 1
"""Grows whenever the same state gives other totals; rows of another version are made anew from the log."""

MADE_TO_STOP: Final = ("preempted", "timed_out")
"""Stops that are no fault of the job's, and are announced by its checkpoint signal."""
_MS: Final = 1_000_000
_MILLI_MS: Final = 1000 * _MS


class Totals(NamedTuple):
    """A job's accounts as of a moment, in ms; `device_ms` and `lost_ms` in a whole device's milliseconds."""

    waited_ms: int
    ran_ms: int
    device_ms: int
    lost_ms: int


def begin_wait(job: Job, now_ns: int) -> None:
    """The job waits from now on."""
    job.account.waits_since_ns = now_ns


def end_wait(job: Job, now_ns: int) -> None:
    """The job waits no more; where it did not, nothing changes."""
    account = job.account
    if account.waits_since_ns:
        account.waited_ms += max(now_ns - account.waits_since_ns, 0) // _MS
        account.waits_since_ns = 0


def end_worker(job: Job, attempt: Attempt, worker: Worker, now_ns: int) -> None:
    """What a worker held is free."""
    if worker.held:
        job.account.device_ms += worker.held * max(now_ns - attempt.allocated_ns, 0) // _MILLI_MS
        if attempt.started_ns:
            attempt.worked_ms += worker.held * max(now_ns - attempt.started_ns, 0) // _MILLI_MS


def end_attempt(job: Job, attempt: Attempt, now_ns: int) -> None:
    """The last worker of an attempt is gone."""
    if attempt.started_ns:
        job.account.ran_ms += max(now_ns - attempt.started_ns, 0) // _MS


def begin_anew(job: Job, attempt: Attempt, now_ns: int) -> None:
    """The job waits for another attempt after this one."""
    if not (attempt.stop in MADE_TO_STOP and job.spec.preemption.signal):
        job.account.lost_ms += attempt.worked_ms
    begin_wait(job, now_ns)


def totals(job: Job, now_ns: int) -> Totals:
    """The accounts with what is going on, as of `now_ns`."""
    account, attempt = job.account, job.attempt
    waited_ms, ran_ms, device_ms = account.waited_ms, account.ran_ms, account.device_ms
    if account.waits_since_ns:
        waited_ms += max(now_ns - account.waits_since_ns, 0) // _MS
    if attempt is not None:
        held = sum(worker.held for worker in attempt.workers if worker.phase != "gone")
        device_ms += held * max(now_ns - attempt.allocated_ns, 0) // _MILLI_MS
        if attempt.started_ns and attempt.has_workers():
            ran_ms += max(now_ns - attempt.started_ns, 0) // _MS
    return Totals(waited_ms, ran_ms, device_ms, account.lost_ms)
