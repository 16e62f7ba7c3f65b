"""Days on a cluster on paper, played to the second: people submit at their times, the scheduler passes a little later,
agents start workers after a delay, and each job runs for as long as it is said to."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from cluster_script import SECOND, Script

from muster.core.decide import decide, next_time
from muster.events import codec
from muster.events import types as t
from muster.events.spec import JobSpec
from muster.projections.decision_subjects import decision_subject

DAWN_NS = 1_000 * SECOND
MS = 1_000_000
NEVER_NS = 1 << 62


class Task(NamedTuple):
    """A job to come: when (s), for how long it runs (s), and what it asks for."""

    at_s: float
    runs_s: float
    spec: JobSpec
    user: str = "ada"
    exit_code: int = 0


class Day(Script):
    """A log of a day. Times are seconds since its beginning; passes are appended `lag_ms` after what they are based
    on, workers start `start_ms` after their commands and end `stop_ms` after their stops."""

    def __init__(self, *, lag_ms: int = 2, start_ms: int = 20, stop_ms: int = 30) -> None:
        super().__init__(check=False)
        self.now_ns = DAWN_NS
        self.jobs: list[int] = []
        self._lag_ns, self._start_ns, self._stop_ns = lag_ms * MS, start_ms * MS, stop_ms * MS
        self._plays: list[tuple[int, int, Callable[[], object]]] = []
        self._tasks: dict[int, Task] = {}
        self._count = count()
        self._deciding = False

    def append_raw(self, subject: str, payload: bytes) -> int:
        self.now_ns -= MS  # which every entry of a script takes
        return super().append_raw(subject, payload)

    def at(self, at_s: float, play: Callable[[], object]) -> None:
        """Something is to happen."""
        heappush(self._plays, (DAWN_NS + round(at_s * SECOND), next(self._count), play))

    def come(self, tasks: Sequence[Task]) -> None:
        """These jobs are to come."""
        for task in tasks:
            self.at(task.at_s, lambda task=task: self._come(task))  # type: ignore[misc]

    def _come(self, task: Task) -> None:
        job = self.append(t.JobSubmitted(task.user, task.spec), task.spec.queue)
        self.jobs.append(job)
        self._tasks[job] = task

    def play(self, until_s: float) -> None:
        """Let it all happen."""
        until_ns = DAWN_NS + round(until_s * SECOND)
        while True:
            if not self._deciding and (events := decide(self.cluster)):
                self._deciding = True
                self._later(self._lag_ns, lambda events=events: self._command(events))  # type: ignore[misc]
            clock_ns = NEVER_NS if self._deciding else self._clock_ns()
            due_ns = self._plays[0][0] if self._plays else NEVER_NS
            if min(clock_ns, due_ns) > until_ns:
                return
            self.now_ns = min(clock_ns, due_ns)
            if clock_ns < due_ns:
                self.append(t.ClockAdvanced())
            while self._plays and self._plays[0][0] <= self.now_ns:
                heappop(self._plays)[2]()

    def _clock_ns(self) -> int:
        due_at, state = next_time(self.cluster), self.cluster.state
        if due_at is None:
            return NEVER_NS
        return state.timestamp_ns + min(max(due_at - state.time_at, SECOND), 60 * SECOND)

    def _later(self, span_ns: int, play: Callable[[], object]) -> None:
        heappush(self._plays, (self.now_ns + span_ns, next(self._count), play))

    def _command(self, events: list[t.Event]) -> None:
        subjects = [decision_subject(event, self.cluster.state, "muster") for event in events]
        for event, subject in zip(events, subjects, strict=True):
            self.append_raw(subject, codec.encode(event))
            if isinstance(event, t.StartWorker):
                self._later(self._start_ns, lambda event=event: self._start(event))  # type: ignore[misc]
            elif isinstance(event, t.StopWorker):
                self._later(self._stop_ns, lambda event=event: self._end(event, t.ExitStatus("stopped")))  # type: ignore[misc]
        self._deciding = False

    def _start(self, command: t.StartWorker) -> None:
        self.append(
            t.WorkerStarted(command.node, command.incarnation, command.job, command.attempt, command.rank, 4000)
        )
        task = self._tasks[command.job]
        self._later(round(task.runs_s * SECOND), lambda: self._end(command, t.ExitStatus("exited", task.exit_code)))

    def _end(self, command: t.StartWorker | t.StopWorker, status: t.ExitStatus) -> None:
        key = command.job, command.attempt, command.rank
        job = self.cluster.state.jobs.get(command.job)
        if job is None or job.attempt is None or job.attempt.number != command.attempt:
            return
        if job.attempt.workers[command.rank].phase != "gone":
            self.append(t.WorkerExited(command.node, command.incarnation, *key, exit=status))
