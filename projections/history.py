"""History: jobs of all times with their accounts, and the accounts summed by user, queue, state, day, week or
month.

What the state still holds is taken from it, as of its moment; what has left it, which has ended, from the read models.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from itertools import chain
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from muster.core.state import ENDED, Job, State
from muster.projections.accounts import totals
from muster.projections.read_models import JobQuery, decode_job
from muster.projections.store import Store

By = Literal["user", "queue", "state", "day", "week", "month"]

_SECOND_NS: Final = 1_000_000_000
_COLUMN: Final = {"user": "user", "queue": "queue", "state": "phase"}


class Sums(NamedTuple):
    """Accounts summed over `jobs` of which `ended` have ended; device times in a whole device's milliseconds."""

    jobs: int = 0
    ended: int = 0
    waited_ms: int = 0
    ran_ms: int = 0
    device_ms: int = 0
    lost_ms: int = 0
    preemptions: int = 0
    attempts: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        return Sums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


_SUMS: Final = ", ".join(f"coalesce(sum({name}), 0)" for name in Sums._fields[2:])


def _key(job: Job, by: By, *, by_end: bool) -> str:
    """The group of a job; of one by time its day."""
    if by == "user":
        return job.user
    if by == "queue":
        return job.spec.queue
    if by == "state":
        return job.phase
    time_ns = job.ended_ns if by_end else job.submitted_ns
    return f"{datetime.fromtimestamp(time_ns // _SECOND_NS, UTC):%Y-%m-%d}"


def _span(day: str, by: By | None) -> str:
    """The week or month that a day is in; what is no day stays as it is."""
    if by == "week":
        return f"{date.fromisoformat(day):%G-W%V}"
    return day[: len("2026-01")] if by == "month" else day


def _held(state: State, query: JobQuery) -> Iterator[Job]:
    return (job for job in reversed(state.jobs.values()) if query.matches(job))


def _elsewhere(state: State, query: JobQuery) -> JobQuery:
    """The same for those that have left the state."""
    return replace(query, upto=state.sequence, without=tuple(state.jobs))


async def jobs_of(store: Store, state: State, query: JobQuery) -> list[Job]:
    """A page of jobs, newest first, each as it was in that state, or as it had ended before."""
    found = [job for job, _ in zip(_held(state, query), range(query.limit), strict=False)]
    found += [decode_job(row.job) for row in await store.jobs(_elsewhere(state, query))]
    found.sort(key=lambda job: -job.id)
    return found[: query.limit]


async def sums_of(store: Store, state: State, query: JobQuery, by: By | None, now_ns: int) -> dict[str, Sums]:
    """The accounts of all jobs that match, by group ("" where there is no `by`), as of `now_ns`."""
    where, parameters = _elsewhere(state, replace(query, before=0)).where()
    column = "''" if by is None else _COLUMN.get(by) or _day_column(by_end=query.by_end)
    rows = await store.select(
        f"SELECT {column}, count(*), count(*), {_SUMS} FROM jobs WHERE {where} GROUP BY 1",  # noqa: S608 - bound
        parameters,
    )
    left = ((str(row[0]), Sums(*row[1:])) for row in rows)
    held = _accounts(_held(state, replace(query, before=0)), by, now_ns, by_end=query.by_end)
    sums: dict[str, Sums] = {}
    for key, some in chain(left, held):
        group = _span(key, by)
        sums[group] = sums.get(group, Sums()).plus(some)
    return dict(sorted(sums.items()))


def _day_column(*, by_end: bool) -> str:
    return f"strftime('%Y-%m-%d', {'ended_ns' if by_end else 'submitted_ns'} / {_SECOND_NS}, 'unixepoch')"


def _accounts(jobs: Iterable[Job], by: By | None, now_ns: int, *, by_end: bool) -> Iterator[tuple[str, Sums]]:
    for job in jobs:
        key = "" if by is None else _key(job, by, by_end=by_end)
        account = totals(job, now_ns)
        yield (
            key,
            Sums(
                jobs=1,
                ended=int(job.phase in ENDED),
                waited_ms=account.waited_ms,
                ran_ms=account.ran_ms,
                device_ms=account.device_ms,
                lost_ms=account.lost_ms,
                preemptions=job.preemptions,
                attempts=job.attempts,
            ),
        )
