"""What a window of the log says of the world outside: what people and nodes did, and how long work took there.

Decisions are read only for how agents answered them. Times are the server's timestamps and spans between them, in ns.
"""

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

from muster.core.order import ENGINE_VERSION
from muster.core.state import Job, State
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.spec import JobSpec

OBSERVED: Final = (t.LeaderStarted, t.NodeSuspected, t.NodeRecovered)
"""Observations that say what happened, and not only that time went by."""
BY_ITSELF: Final = ("exited", "start_failed")
"""How workers end that nobody stopped."""


class Outside(NamedTuple):
    """One fact, as the log has it."""

    sequence: int
    timestamp_ns: int
    subject: str
    event: t.Event


class Try(msgspec.Struct):
    """One attempt as its agents reported it, by rank."""

    number: int
    workers: int
    allocated_ns: int
    started_ns: dict[int, int] = {}
    ended: dict[int, tuple[int, t.ExitStatus]] = {}
    told_ns: dict[int, int] = {}  # to stop

    def began_ns(self) -> int:
        """When its first worker ran, or at least was placed."""
        return min(self.started_ns.values(), default=self.allocated_ns)


class Run(NamedTuple):
    """What an attempt did until it ended by itself: for how long each rank ran, and with what it ended. `whole` is what
    ended the attempt: its first failure, or else the last rank to end."""

    attempt: int
    workers: int
    ranks: dict[int, tuple[int, t.ExitStatus]]
    whole: tuple[int, t.ExitStatus]


def keeps_work(spec: JobSpec) -> bool:
    """Whether a job that is stopped goes on where it was: it is told by its signal, or its limit requeues it."""
    return bool(spec.preemption.signal) or spec.limits.on_timeout == "requeue"


class Facts:
    """A window's facts. `read` takes its entries in order, and after `close` those that come later, of which only how
    long work took is learned."""

    def __init__(self, state: State) -> None:
        self.outside: Final[list[Outside]] = []
        self.survived: Final[dict[int, bool]] = {}  # registration → whether the workers before it live on
        self.cancelled: Final[set[int]] = set()
        self.lags_ns: Final[list[int]] = []  # from a pass's basis to its decisions
        self.seen_ns = state.timestamp_ns
        self.other_engine = 0  # decisions of the window that another engine version took
        self._closed = False
        self._tries: Final[dict[int, dict[int, Try]]] = {}
        self._specs: Final[dict[int, JobSpec]] = {job.id: job.spec for job in state.jobs.values()}
        self._running_on: Final[dict[str, set[tuple[int, int, int]]]] = {}
        self._timestamps: Final[dict[int, int]] = {state.sequence: state.timestamp_ns}
        self._last_pass = 0
        self._typical: dict[str, int] | None = None
        self._runs: Final[dict[int, list[Run]]] = {}
        for job in state.jobs.values():
            self._adopt(job)

    def _adopt(self, job: Job) -> None:
        """What is known of an attempt that is live when the window begins."""
        attempt = job.attempt
        if attempt is None or job.phase not in ("STARTING", "RUNNING", "STOPPING"):
            return
        known = Try(attempt.number, len(attempt.workers), attempt.allocated_ns)
        for worker in attempt.workers:
            if worker.phase == "running":
                known.started_ns[worker.rank] = attempt.started_ns
                self._running_on.setdefault(worker.node, set()).add((job.id, attempt.number, worker.rank))
            elif worker.phase == "gone" and worker.exit is not None:
                known.ended[worker.rank] = attempt.started_ns, worker.exit
        self._tries[job.id] = {attempt.number: known}

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, entries: Iterable[Entry]) -> None:
        """Take in the next entries; what cannot be read is no fact."""
        for entry in entries:
            self.seen_ns = max(self.seen_ns, entry.timestamp_ns)
            if not self._closed:
                self._timestamps[entry.sequence] = entry.timestamp_ns
            try:
                event = codec.decode(entry.payload)
            except codec.UnreadableEventError:
                continue
            if not self._closed and isinstance(event, (*t.Fact.__args__, *OBSERVED)) and not _is_report(event):
                self.outside.append(Outside(entry.sequence, entry.timestamp_ns, entry.subject, event))
            self._learn(entry, event)

    def close(self) -> None:
        """The window ends here."""
        self._closed = True

    def _learn(self, entry: Entry, event: t.Event) -> None:
        now_ns = entry.timestamp_ns
        match event:
            case t.JobSubmitted():
                self._specs[entry.sequence] = event.spec
            case t.JobCancelRequested():
                self.cancelled.add(event.job)
            case t.JobAllocated():
                known = Try(event.attempt, len(event.placements), now_ns)
                self._tries.setdefault(event.job, {})[event.attempt] = known
            case t.StopWorker():
                if (known_try := self.attempt(event.job, event.attempt)) is not None:
                    known_try.told_ns.setdefault(event.rank, now_ns)
            case t.WorkerStarted():
                if (known_try := self.attempt(event.job, event.attempt)) is not None:
                    known_try.started_ns.setdefault(event.rank, now_ns)
                    self._running_on.setdefault(event.node, set()).add((event.job, event.attempt, event.rank))
            case t.WorkerExited():
                self._ended(event.node, (event.job, event.attempt, event.rank), now_ns, event.exit)
            case t.NodeRegistered():
                self._registered(entry, event)
            case _:
                pass
        if isinstance(event, t.Decision) and not self._closed:
            self.other_engine += event.basis.engine != ENGINE_VERSION
        if isinstance(event, t.Decision) and event.basis.sequence != self._last_pass:
            self._last_pass = event.basis.sequence
            basis_ns = self._timestamps.get(event.basis.sequence)
            if basis_ns is not None:
                self.lags_ns.append(max(0, now_ns - basis_ns))

    def _ended(self, node: str, worker: tuple[int, int, int], now_ns: int, status: t.ExitStatus) -> None:
        self._running_on.setdefault(node, set()).discard(worker)
        known = self.attempt(worker[0], worker[1])
        if known is not None:
            known.ended.setdefault(worker[2], (now_ns, status))

    def _registered(self, entry: Entry, event: t.NodeRegistered) -> None:
        before = self._running_on.get(event.node, set())
        listed = {(each.job, each.attempt, each.rank): each for each in event.workers}
        self.survived[entry.sequence] = not before or not before.isdisjoint(listed)
        for worker in sorted(before - listed.keys()):
            self._ended(event.node, worker, entry.timestamp_ns, t.ExitStatus("lost"))
        for worker, report in listed.items():
            if report.exit is not None:
                self._ended(event.node, worker, entry.timestamp_ns, report.exit)
        self._running_on[event.node] = {worker for worker, report in listed.items() if report.exit is None}

    # -- answers --------------------------------------------------------------------------------------------------

    def attempt(self, job: int, number: int) -> Try | None:
        """What is known of a recorded attempt."""
        return self._tries.get(job, {}).get(number)

    def runs(self, job: int) -> list[Run]:
        """The attempts of a job that ended by themselves, in order. Of one that keeps its work when it is stopped, a
        run includes what it had done before in attempts that were cut short."""
        found = self._runs.get(job)
        if found is None:
            found = self._runs[job] = self._find_runs(job)
        return found

    def _find_runs(self, job: int) -> list[Run]:
        runs: list[Run] = []
        done_ns, keeps = 0, job in self._specs and keeps_work(self._specs[job])
        for _, known in sorted(self._tries.get(job, {}).items()):
            run = _run_of(known, done_ns)
            if run is not None:
                runs.append(run)
                done_ns = 0
            elif keeps and known.started_ns:
                done_ns += self._ran_ns(known)
        return runs

    def longest_ns(self, job: int) -> int:
        """The longest that a job was seen to run (0 = it was not)."""
        tries = [each for each in self._tries.get(job, {}).values() if each.started_ns]
        if job in self._specs and keeps_work(self._specs[job]):
            return sum(map(self._ran_ns, tries))
        return max(map(self._ran_ns, tries), default=0)

    def _ran_ns(self, known: Try) -> int:
        ends = [at_ns for at_ns, _ in known.ended.values()]
        return max(0, (max(ends) if len(ends) == known.workers else self.seen_ns) - known.began_ns())

    def start_delay_ns(self, job: int) -> int:
        """From allocation to a running worker: this job's first, or else the window's median."""
        for _, known in sorted(self._tries.get(job, {}).items()):
            if known.started_ns and known.allocated_ns:
                return max(0, known.began_ns() - known.allocated_ns)
        return self._typically("start")

    def stop_delay_ns(self, job: int) -> int:
        """From a stop to its end: this job's first, or else the window's median (0 = nobody was stopped)."""
        for _, known in sorted(self._tries.get(job, {}).items()):
            for delay_ns in _stop_delays(known):
                return delay_ns
        return self._typically("stop")

    def median_run_ns(self) -> int:
        """The median of all that ran to its own end (0 = nothing did)."""
        return self._typically("run")

    def lag_ns(self) -> int:
        """The median from a pass's basis to its decisions."""
        return median_low(self.lags_ns) if self.lags_ns else 0

    def _typically(self, what: str) -> int:
        if self._typical is None:
            tries = [known for job in self._tries.values() for known in job.values()]
            spans = {
                "start": [max(0, each.began_ns() - each.allocated_ns) for each in tries if each.started_ns],
                "stop": [delay_ns for each in tries for delay_ns in _stop_delays(each)],
                "run": [run.whole[0] for each in tries if (run := _run_of(each, 0)) is not None],
            }
            self._typical = {name: median_low(values) if values else 0 for name, values in spans.items()}
        return self._typical[what]


def _is_report(event: t.Event) -> bool:
    """Whether an agent answers a command by this."""
    return isinstance(event, t.WorkerFact)


def _stop_delays(known: Try) -> list[int]:
    return [
        max(0, known.ended[rank][0] - told_ns)
        for rank, told_ns in sorted(known.told_ns.items())
        if rank in known.ended and known.ended[rank][1].reason == "stopped"
    ]


def _run_of(known: Try, before_ns: int) -> Run | None:
    """The run of an attempt that ended by itself; None where it was cut short, or has not ended."""
    ranks = {
        rank: (max(0, at_ns - known.started_ns.get(rank, known.began_ns())) + before_ns, status)
        for rank, (at_ns, status) in known.ended.items()
        if status.reason in BY_ITSELF
    }
    failures = [span for span in ranks.values() if span[1].reason != "exited" or span[1].exit_code != 0]
    if not ranks or (len(ranks) < known.workers and not failures):
        return None
    whole = min(failures, key=_length) if failures else max(ranks.values(), key=_length)
    return Run(known.number, known.workers, ranks, whole)


def _length(span: tuple[int, t.ExitStatus]) -> int:
    return span[0]


def prefix_of(entries: Sequence[Entry], fallback: str) -> str:
    """The prefix of the log's subjects."""
    return entries[0].subject.partition(".")[0] if entries else fallback
