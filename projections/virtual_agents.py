"""Agents that exist in a branch only: they answer commands as the recorded ones did, in virtual time.

A worker starts after the delay that its job's start took, runs for as long as it ran, and ends as it ended. What is
stopped runs anew, or goes on where it was if it keeps its work. A job whose end the log never saw runs for as long as
it is expected to, at least for as long as it was seen to. Reports from a silent node come when it is back.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final, Literal

import msgspec

from muster.core.cluster import Cluster
from muster.core.estimates import Source, expected_s
from muster.core.queues import ENDLESS
from muster.core.schedule import SECOND_NS
from muster.core.state import Job, Worker
from muster.events import types as t
from muster.projections.facts import Facts, keeps_work
from muster.projections.worker_rules import find_worker

Key = tuple[int, int, int]
"""Job (of the branch), attempt, rank."""
Guess = Source | Literal["seen", "median"]
"""Where the run time of a job is from whose end the log never saw."""
STOPPED: Final = t.ExitStatus("stopped")
DONE: Final = t.ExitStatus("exited", 0)


class Ids:
    """Jobs in the branch and in the record: those submitted before the branch began have the same ids."""

    def __init__(self) -> None:
        self._branch: Final[dict[int, int]] = {}
        self._record: Final[dict[int, int]] = {}

    def note(self, recorded: int, branch: int) -> None:
        """A recorded submission was made again."""
        self._branch[recorded] = branch
        self._record[branch] = recorded

    def in_branch(self, recorded: int) -> int:
        """A recorded job's id in the branch."""
        return self._branch.get(recorded, recorded)

    def in_record(self, branch: int) -> int:
        """A job of the branch in the record."""
        return self._record.get(branch, branch)


class _Virtual(msgspec.Struct):
    """One worker: when it starts and ends, as far as that is known."""

    node: str
    workers: int
    start_ns: int
    started_ns: int = 0
    end_ns: int = ENDLESS
    exit: t.ExitStatus = DONE
    stopped: bool = False


class VirtualAgents:
    """The agents of a branch, from the moment at which it leaves the record."""

    def __init__(self, cluster: Cluster, facts: Facts, ids: Ids) -> None:
        self.guessed: Final[dict[int, Guess]] = {}  # recorded job → where its run time is from
        self._cluster: Final = cluster
        self._facts: Final = facts
        self._ids: Final = ids
        self._workers: Final[dict[Key, _Virtual]] = {}
        self._due: Final[list[tuple[int, int, Key]]] = []  # what is due at once comes in the order of its causes
        self._order: Final = count()
        self._held: Final[dict[str, list[tuple[int, Key]]]] = {}
        self._runs_done: Final[dict[int, int]] = {}
        self._counted: Final[set[tuple[int, int]]] = set()  # attempts whose run is done, or whose work is kept
        self._kept_ns: Final[dict[int, int]] = {}
        for job in cluster.state.jobs.values():
            self._adopt(job)

    # -- what is asked of them ------------------------------------------------------------------------------------

    def next_ns(self) -> int:
        """When the next report is due."""
        return self._due[0][0] if self._due else ENDLESS

    def told(self, command: t.Command, now_ns: int) -> None:
        """A command has come."""
        key = command.job, command.attempt, command.rank
        if isinstance(command, t.StartWorker):
            start_ns = now_ns + self._facts.start_delay_ns(self._ids.in_record(command.job))
            self._workers[key] = _Virtual(command.node, command.world, start_ns)
            self._expect(start_ns, key)
        elif key in self._workers:
            self._stop(key, now_ns)

    def reports(self, now_ns: int) -> Iterator[t.NodeFact]:
        """What is reported up to now, in order; each is to be folded before the next is asked for."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, key = heappop(self._due)
            worker = self._workers.get(key)
            if worker is None or due_ns not in (worker.start_ns, worker.end_ns):
                continue
            if find_worker(self._cluster, *key) is None:
                del self._workers[key]
                continue
            node = self._cluster.state.nodes[worker.node]
            if node.status != "ready":
                self._held.setdefault(worker.node, []).append((due_ns, key))
            elif due_ns == worker.end_ns:
                yield self._end(key, worker, node.incarnation)
            else:
                yield self._start(key, worker, due_ns, node.incarnation)

    def back(self, node: str) -> None:
        """A node is heard again: what it had to say is due."""
        for due_ns, key in self._held.pop(node, []):
            self._expect(due_ns, key)

    def listed(self, node: str) -> list[t.WorkerReport]:
        """What runs on a node whose agent begins a new life."""
        placed = sorted(self._cluster.workers_on.get(node, {}))
        keys = [(job_id, self._cluster.state.jobs[job_id].attempts, rank) for job_id, rank in placed]
        return [t.WorkerReport(*key, pid=1) for key in keys if key in self._workers and self._workers[key].started_ns]

    def _expect(self, due_ns: int, key: Key) -> None:
        heappush(self._due, (due_ns, next(self._order), key))

    # -- one worker's life ----------------------------------------------------------------------------------------

    def _start(self, key: Key, worker: _Virtual, due_ns: int, incarnation: str) -> t.WorkerStarted:
        worker.start_ns, worker.started_ns = ENDLESS, due_ns
        self._plan_end(key, worker)
        return t.WorkerStarted(worker.node, incarnation, *key, pid=1)

    def _plan_end(self, key: Key, worker: _Virtual) -> None:
        length_ns, worker.exit = self._length(key, worker)
        if length_ns < ENDLESS:
            worker.end_ns = worker.started_ns + max(0, length_ns - self._kept_ns.get(key[0], 0))
            self._expect(worker.end_ns, key)

    def _end(self, key: Key, worker: _Virtual, incarnation: str) -> t.WorkerExited:
        del self._workers[key]
        if not worker.stopped and key[:2] not in self._counted:
            self._counted.add(key[:2])
            self._runs_done[key[0]] = self._runs_done.get(key[0], 0) + 1
            self._kept_ns.pop(key[0], None)
        return t.WorkerExited(worker.node, incarnation, *key, exit=worker.exit)

    def _stop(self, key: Key, now_ns: int) -> None:
        worker = self._workers[key]
        end_ns = now_ns + self._facts.stop_delay_ns(self._ids.in_record(key[0]))
        if worker.stopped or worker.end_ns < end_ns:  # at once: the stop it is, as of what is seen no further
            return
        job = self._cluster.state.jobs[key[0]]
        if worker.started_ns and keeps_work(job.spec) and key[:2] not in self._counted:
            self._counted.add(key[:2])
            self._kept_ns[key[0]] = self._kept_ns.get(key[0], 0) + end_ns - worker.started_ns
        worker.start_ns, worker.end_ns, worker.exit, worker.stopped = ENDLESS, end_ns, STOPPED, True
        self._expect(end_ns, key)

    # -- for how long ---------------------------------------------------------------------------------------------

    def _length(self, key: Key, worker: _Virtual) -> tuple[int, t.ExitStatus]:
        """For how long a worker runs, and with what it ends (`ENDLESS` = until it is stopped)."""
        recorded = self._ids.in_record(key[0])
        runs = self._facts.runs(recorded)
        if not runs:
            return self._unseen(key[0], recorded), DONE
        run = runs[min(self._runs_done.get(key[0], 0), len(runs) - 1)]
        if run.workers == worker.workers:
            return run.ranks.get(key[2], (ENDLESS, DONE))
        return run.whole

    def _unseen(self, job_id: int, recorded: int) -> int:
        """For how long a job runs whose end the log never saw."""
        facts, job = self._facts, self._cluster.state.jobs[job_id]
        if recorded in facts.cancelled:
            return ENDLESS
        expected, source = expected_s(self._cluster.state, job)
        seen_ns = facts.longest_ns(recorded)
        length_ns = max(expected * SECOND_NS, seen_ns)
        if length_ns:
            self.guessed[recorded] = "seen" if length_ns == seen_ns else source
            return length_ns
        self.guessed[recorded] = "median"
        return facts.median_run_ns()

    # -- the moment at which the branch begins --------------------------------------------------------------------

    def _adopt(self, job: Job) -> None:
        """What is live then goes on as the record has it."""
        attempt, recorded = job.attempt, self._ids.in_record(job.id)
        live = attempt is not None and self._cluster.is_live(job) and not attempt.over
        before = job.attempts if not live else job.attempts - 1
        done = sum(run.attempt <= before for run in self._facts.runs(recorded))
        if done:
            self._runs_done[job.id] = done
        if attempt is None or not live:
            return
        for worker in attempt.workers:
            if worker.phase != "gone":
                self._adopt_worker(job, attempt.number, worker)

    def _adopt_worker(self, job: Job, number: int, worker: Worker) -> None:
        attempt = job.attempt
        assert attempt is not None
        key = job.id, number, worker.rank
        now_ns = self._cluster.state.timestamp_ns
        recorded = self._ids.in_record(job.id)
        known = self._facts.attempt(recorded, number)
        virtual = self._workers[key] = _Virtual(worker.node, len(attempt.workers), ENDLESS)
        started_ns = known.started_ns.get(worker.rank, 0) if known is not None else 0
        if worker.phase == "placed":
            virtual.start_ns = max(now_ns, started_ns or attempt.allocated_ns + self._facts.start_delay_ns(recorded))
            self._expect(virtual.start_ns, key)
        else:
            virtual.started_ns = started_ns or attempt.started_ns
            self._plan_end(key, virtual)
        if attempt.stop is not None and attempt.stop_ordered:
            ended = known.ended.get(worker.rank) if known is not None else None
            delay_ns = self._facts.stop_delay_ns(recorded)
            virtual.start_ns, virtual.stopped = ENDLESS, True
            virtual.end_ns, virtual.exit = ended or (now_ns + delay_ns, STOPPED)
            self._expect(virtual.end_ns, key)
