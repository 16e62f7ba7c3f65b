"""Whose turn it is: the queue that is furthest under its share, from the top of the tree down, and of its jobs the next
in its order.

First come queues that stay within their guarantee with their next job, by the part of it that they hold; then those
whose next job is larger than the queue's share and has waited until that made up for it; then the others, by the part
of their share that they hold. Ties go to the queue whose next job has waited longer.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from muster.core.plan import Draft
from muster.core.queues import ENDLESS, Queue, Vector
from muster.core.releasing import least_vector
from muster.core.standing import HOUR_NS
from muster.core.state import Job

RIPE_POINTS: Final = 300
"""So much ageing puts a job that is larger than its queue's share before the shares of others."""

Rank = tuple[int, int, int, str]
"""Smallest first."""


class OpenLine:
    """A queue's line as a pass works through it: `depth` is how many are still looked at, `blocked_by` the head that
    waits (0 = none does)."""

    __slots__ = ("_at", "_found", "_jobs", "_read", "blocked_by", "depth")

    def __init__(self, jobs: Iterator[int]) -> None:
        self._jobs: Final = jobs
        self._read: Final = list(islice(jobs, 1))
        self._at = 0  # who of those read is next
        self._found = 0  # those before it were found not to be wanted by `first`
        self.blocked_by = 0
        self.depth = ENDLESS

    @property
    def next(self) -> int | None:
        """Who is next; None = nobody is looked at any more."""
        return self._read[self._at] if self._at < len(self._read) and self.depth > 0 else None

    def advance(self) -> None:
        """Who was next has been looked at."""
        self.depth -= 1
        self._at += 1
        if self._at == len(self._read) and self.depth > 0:
            self._read.extend(islice(self._jobs, 1))

    def pass_over(self, unwanted: Callable[[int], bool]) -> None:
        """Go on to the next that is not unwanted."""
        read, at, depth = self._read, self._at, self.depth
        while at < len(read) and depth > 0 and unwanted(read[at]):
            depth -= 1
            at += 1
            if at == len(read) and depth > 0 and (job := next(self._jobs, None)) is not None:
                read.append(job)
        self._at, self.depth = at, depth

    def first(self, wanted: Callable[[int], bool]) -> int | None:
        """The first that is wanted, of those who are still to be looked at; always asked for the same."""
        self._found = max(self._found, self._at)
        while True:
            if self._found == len(self._read):
                self._read.extend(islice(self._jobs, 1))
                if self._found == len(self._read):
                    return None
            if wanted(self._read[self._found]):
                return self._read[self._found]
            self._found += 1


class Turns:
    """The lines, and which of them is next. `wake_at` is when time alone may change that."""

    def __init__(self, draft: Draft, lines: Mapping[str, OpenLine]) -> None:
        self.lines: Final = lines
        self.wake_at = ENDLESS
        self._draft: Final = draft
        self._claims: Final[dict[int, Vector]] = {}  # by shape
        self._found: Final[dict[Queue, tuple[Rank, str, Job] | None]] = {}
        self._stay = ""  # the line whose head waits and behind which others are looked at

    def next_line(self) -> str | None:
        """The queue whose next job's turn it is; None = all lines are done."""
        if self._stay and self.lines[self._stay].next is not None:
            return self._stay
        self._stay = ""
        found = self._next_under(self._draft.ledger.tree.root)
        return None if found is None else found[1]

    def looked_at(self, path: str, *, started: bool) -> None:
        """The next job of a line was looked at."""
        line = self.lines[path]
        line.advance()
        if line.blocked_by and not started and line.next is not None:
            self._stay = path
            return
        self.forget_line(path)

    def forget_line(self, path: str) -> None:
        """Who is next in a line, or what its queue holds, has changed."""
        self._stay = ""
        for queue in self._draft.ledger.tree.queues[path].upwards():
            self._found.pop(queue, None)

    def forget_shares(self) -> None:
        """What queues hold has changed all over."""
        self._found.clear()

    def _next_under(self, queue: Queue) -> tuple[Rank, str, Job] | None:
        """The next job under a queue, with its queue's path and the rank of the queue asked for."""
        if queue in self._found:
            return self._found[queue]
        inside = [found for child in queue.children if (found := self._next_under(child)) is not None]
        if inside:
            _, path, job = min(inside, key=lambda found: found[0])
        else:
            first = self._next_in(queue)
            if first is None:
                self._found[queue] = None
                return None
            path, job = queue.path, first
        if queue.parent is None:
            return (0, 0, 0, ""), path, job
        found = self._found[queue] = self._rank(queue, job), path, job
        return found

    def _next_in(self, queue: Queue) -> Job | None:
        """The next job of a queue's line by which its rank goes: one that could never start has no say in that, unless
        nobody else is left."""
        line = self.lines.get(queue.path)
        if line is None or line.next is None:
            return None
        jobs = self._draft.cluster.state.jobs
        return jobs[line.first(lambda job_id: self._could_start(jobs[job_id])) or line.next]

    def _could_start(self, job: Job) -> bool:
        return self._draft.cluster.could_start(self._draft.ledger.claimant(job), job, self._claim(job))

    def _rank(self, queue: Queue, job: Job) -> Rank:
        ledger = self._draft.ledger
        claim = self._claim(job)
        if not self._could_start(job):
            return 3, 0, job.since, queue.path
        if ledger.keeps_guarantee(queue, claim):
            return 0, ledger.part_of_guarantee_ppm(queue), job.since, queue.path
        if self.is_ripe(queue, job, claim):
            return 1, 0, job.since, queue.path
        return 2, ledger.part_of_share_ppm(queue), job.since, queue.path

    def is_ripe(self, queue: Queue, job: Job, claim: Vector) -> bool:
        """Whether a job is larger than its queue's share, and has waited until that made up for it."""
        ageing = self._draft.cluster.state.policy.ageing
        if not ageing or self._draft.ledger.tree.share_ppm(claim) <= queue.entitled_ppm:
            return False
        ripe_at = job.since_at + RIPE_POINTS * HOUR_NS // ageing
        if ripe_at <= self._draft.plan.now_at:
            return True
        self.wake_at = min(self.wake_at, ripe_at)
        return False

    def _claim(self, job: Job) -> Vector:
        cluster = self._draft.cluster
        shape = cluster.shape(job)
        claim = self._claims.get(shape)
        if claim is None:
            claim = self._claims[shape] = least_vector(cluster.demand(job), self._draft.ledger.tree.largest_mib)
        return claim
