"""The rows that history and search are answered from, and how they follow from jobs and entries."""

from typing import Annotated, Final, NamedTuple

import msgspec

from muster.core.state import Job, JobPhase
from muster.events.log import Entry
from muster.events.subjects import writer_class
from muster.projections.accounts import totals

PAGE_LIMIT: Final = 1000
_INTEGER_LIMIT: Final = 2**63

_Id = Annotated[int, msgspec.Meta(ge=1, le=_INTEGER_LIMIT - 1)]


class JobRow(NamedTuple):
    """A job as history lists it; times are server timestamps in ns, 0 = not yet. The accounts have what is over by
    then: of a job that has ended, all of it. `job` is the whole of it as JSON."""

    id: int
    user: str
    queue: str
    name: str
    phase: JobPhase
    submitted_ns: int
    started_ns: int
    ended_ns: int
    exit_code: int | None
    reason: str
    gpus: int
    attempts: int
    preemptions: int
    waited_ms: int
    ran_ms: int
    device_ms: int
    lost_ms: int
    job: bytes


_encode: Final = msgspec.json.Encoder().encode
decode_job: Final = msgspec.json.Decoder(Job).decode
"""`JobRow.job` → the Job."""


def job_row(job: Job) -> JobRow:
    """The row of a job as it is now."""
    return JobRow(
        job.id,
        job.user,
        job.spec.queue,
        job.spec.name,
        job.phase,
        job.submitted_ns,
        job.started_ns,
        job.ended_ns,
        job.exit_code if job.exit_code is not None and abs(job.exit_code) < _INTEGER_LIMIT else None,
        job.reason,
        job.spec.gpus,
        job.attempts,
        job.preemptions,
        *totals(job, job.ended_ns),
        _encode(job),
    )


def _one_of(column: str, values: tuple[object, ...]) -> str:
    return f"{column} IN ({', '.join('?' * len(values))})"


class JobQuery(msgspec.Struct, frozen=True):
    """Which jobs to list, newest first: all conditions hold, of each list any one (() = no condition). `before` is the
    last id of the page before (0 = first page); `name` is a part of the name; times bound the submission, or with
    `by_end` the end of jobs that have ended, in ns (0 = unbounded). `upto` is the last id (0 = any); the jobs in
    `without` are left out."""

    ids: tuple[int, ...] = ()
    users: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    name: str = ""
    phases: tuple[JobPhase, ...] = ()
    since_ns: int = 0
    until_ns: int = 0
    by_end: bool = False
    before: int = 0
    upto: int = 0
    without: tuple[int, ...] = ()
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100

    def where(self) -> tuple[str, list[str | int]]:
        """The conditions in SQL and their parameters."""
        time = "ended_ns" if self.by_end else "submitted_ns"
        conditions: list[tuple[str, list[str | int]]] = [
            (_one_of("id", self.ids), list(self.ids)),
            (_one_of("user", self.users), list(self.users)),
            (_one_of("queue", self.queues), list(self.queues)),
            ("instr(name, ?) > 0", [self.name] if self.name else []),
            (_one_of("phase", self.phases), list(self.phases)),
            (f"{time} >= ?", [self.since_ns] if self.since_ns else []),
            (f"{time} <= ?", [self.until_ns] if self.until_ns else []),
            ("ended_ns > ?", [0] if self.by_end else []),
            ("id < ?", [self.before] if self.before else []),
            ("id <= ?", [self.upto] if self.upto else []),
            ("id NOT IN (SELECT value FROM json_each(?))", [str(list(self.without))] if self.without else []),
        ]
        used = [(text, values) for text, values in conditions if values]
        where = " AND ".join(text for text, _ in used) or "1"
        return where, [value for _, values in used for value in values]

    def sql(self) -> tuple[str, list[str | int]]:
        """The SELECT and its parameters."""
        where, parameters = self.where()
        text = f"SELECT {', '.join(JobRow._fields)} FROM jobs WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608
        return text, [*parameters, max(1, min(self.limit, PAGE_LIMIT))]

    def matches(self, job: Job) -> bool:
        """Whether a job of a state meets the conditions."""
        time_ns = job.ended_ns if self.by_end else job.submitted_ns
        return (
            (not self.before or job.id < self.before)
            and (not self.ids or job.id in self.ids)
            and (not self.users or job.user in self.users)
            and (not self.queues or job.spec.queue in self.queues)
            and self.name in job.spec.name
            and (not self.phases or job.phase in self.phases)
            and (not self.by_end or job.ended_ns > 0)
            and (not self.since_ns or time_ns >= self.since_ns)
            and (not self.until_ns or time_ns <= self.until_ns)
        )


class _JobRef(msgspec.Struct, gc=False):
    job: _Id | None = None


class _Mentions(_JobRef, gc=False):
    beneficiary: _Id | None = None
    fault: _JobRef | None = None
    ended: list[_JobRef] = []
    workers: list[_JobRef] = []
    victims: list[_JobRef] = []


_decode_mentions: Final = msgspec.json.Decoder(_Mentions).decode


def mentioned_jobs(entry: Entry) -> set[int]:
    """The jobs that an entry concerns: the one it submits, or those its payload names. Whatever the payload is,
    this does not fail."""
    if writer_class(entry.subject) == "submission":
        return {entry.sequence}
    try:
        found = _decode_mentions(entry.payload)
    except (msgspec.MsgspecError, RecursionError):
        return set()
    refs = (found, found.fault, *found.ended, *found.workers, *found.victims)
    jobs = (found.beneficiary, *(ref.job for ref in refs if ref is not None))
    return {job for job in jobs if job is not None}
