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


class JobQuery(msgspec.Struct, frozen=True):
    """Which jobs to list, newest first: all conditions hold. `before` is the last id of the page before (0 = first
    page); `name` is a part of the name; times bound the submission, in ns (0 = unbounded)."""

    user: str = ""
    queue: str = ""
    name: str = ""
    phases: tuple[JobPhase, ...] = ()
    since_ns: int = 0
    until_ns: int = 0
    before: int = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100

    def sql(self) -> tuple[str, list[str | int]]:
        """The SELECT and its parameters."""
        conditions: list[tuple[str, list[str | int]]] = [
            ("user = ?", [self.user] if self.user else []),
            ("queue = ?", [self.queue] if self.queue else []),
            ("instr(name, ?) > 0", [self.name] if self.name else []),
            (f"phase IN ({', '.join('?' * len(self.phases))})", list(self.phases)),
            ("submitted_ns >= ?", [self.since_ns] if self.since_ns else []),
            ("submitted_ns <= ?", [self.until_ns] if self.until_ns else []),
            ("id < ?", [self.before] if self.before else []),
        ]
        used = [(text, values) for text, values in conditions if values]
        where = " AND ".join(text for text, _ in used) or "1"
        parameters: list[str | int] = [value for _, values in used for value in values]
        text = f"SELECT * FROM jobs WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - literals; values are bound
        return text, [*parameters, max(1, min(self.limit, PAGE_LIMIT))]


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
