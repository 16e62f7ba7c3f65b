"""When running things end, as far as it is known: by queue, for backfill and forecasts, and by time limit."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge
from typing import Final

from muster.core.queues import ENDLESS
from muster.core.state import Attempt, Job

SECOND_NS: Final = 1_000_000_000

End = tuple[int, int]
"""(logical time of the expected end, job). An end that nobody knows is at `ENDLESS`, that of what is stopping at 0."""


class Schedule:
    """The live attempts in the order of their expected ends, and those with a time limit in the order of it."""

    def __init__(self) -> None:
        self.by_queue: Final[dict[str, list[End]]] = {}
        self.limits: Final[list[End]] = []
        self.priorities: Final[dict[str, dict[int, int]]] = {}  # queue → priority → how many live attempts
        self._ends: Final[dict[int, int]] = {}
        self._limits: Final[dict[int, int]] = {}

    def note(self, job: Job, attempt: Attempt) -> None:
        """A live attempt as it is now."""
        end_at = expected_end(job, attempt)
        if self._ends.get(job.id) != end_at:
            self._drop_end(job)
            self._ends[job.id] = end_at
            insort(self.by_queue.setdefault(job.spec.queue, []), (end_at, job.id))
            counts = self.priorities.setdefault(job.spec.queue, {})
            counts[job.priority] = counts.get(job.priority, 0) + 1
        limit = job.spec.limits.time_limit
        if isinstance(limit, int) and attempt.started_at and attempt.stop is None:
            if job.id not in self._limits:
                self._limits[job.id] = attempt.started_at + limit * SECOND_NS
                insort(self.limits, (self._limits[job.id], job.id))
        else:
            self._drop_limit(job)

    def drop(self, job: Job) -> None:
        """An attempt has no workers any more."""
        self._drop_end(job)
        self._drop_limit(job)

    def end_of(self, job: int) -> int | None:
        """When a live attempt is expected to end."""
        return self._ends.get(job)

    def in_order(self) -> Iterator[End]:
        """All live attempts by their expected ends."""
        return iter(merge(*self.by_queue.values()))

    def _drop_end(self, job: Job) -> None:
        end_at = self._ends.pop(job.id, None)
        if end_at is not None:
            ends = self.by_queue[job.spec.queue]
            del ends[bisect_left(ends, (end_at, job.id))]
            counts = self.priorities[job.spec.queue]
            counts[job.priority] -= 1
            if not counts[job.priority]:
                del counts[job.priority]
            if not ends:
                del self.by_queue[job.spec.queue], self.priorities[job.spec.queue]

    def _drop_limit(self, job: Job) -> None:
        limit_at = self._limits.pop(job.id, None)
        if limit_at is not None:
            del self.limits[bisect_left(self.limits, (limit_at, job.id))]


def expected_end(job: Job, attempt: Attempt) -> int:
    """When an attempt is expected to end (logical ns)."""
    if job.phase == "STOPPING":
        return 0
    if not attempt.expected_s:
        return ENDLESS
    return (attempt.started_at or attempt.allocated_at) + attempt.expected_s * SECOND_NS
