"""Passes of a full cluster under each policy: 20 queues, mixed gangs, thousands that wait.

The cluster is filled, then time goes on in steps: some jobs end, some are submitted, one pass after another until
nothing follows. Only the time inside `decide` counts. Every pass is one sample, those that give nothing too.
"""

import random
import sys
import time
from typing import Final, NamedTuple

from bench.table import Row, percentile
from bench.workload import DEVICES, Paper, registrations
from muster.core.decide import decide
from muster.events import types as t
from muster.events.policy import Backfill, Policy, Preemption, QueueSpec
from muster.events.spec import JobSpec, LimitsSpec

QUEUES: Final = 20
SIZES: Final = (1, 1, 1, 2, 1, 4, 8, 1, 2, 1, 8, 1, 16, 1, 1, 2, 4, 1, 32, 8)
SECOND_NS: Final = 1_000_000_000

POLICIES: Final = {
    "fifo, no backfill": Policy(order="fifo", backfill=Backfill(mode="none"), preemption=Preemption(mode="none")),
    "fifo, easy": Policy(order="fifo", preemption=Preemption(mode="none")),
    "priority with preemption, easy": Policy(preemption=Preemption(min_runtime=0)),
    "fair between users, easy": Policy(order="fair", preemption=Preemption(mode="none")),
    "priority, easy, fragmentation": Policy(placement="fragmentation"),
    "priority, easy, tight": Policy(placement="tight"),
    "priority, easy, spread": Policy(placement="spread"),
}


class Load(NamedTuple):
    """How large the cluster is and how many wait."""

    nodes: int = 1000
    pending: int = 10_000
    steps: int = 60


class Passes(NamedTuple):
    """Seconds of each pass that gave something, of each that gave nothing, and how many decisions came of them."""

    working: list[float]
    idle: list[float]
    decisions: int


class World:
    """A cluster on paper under a policy, with its queues, nodes and more jobs than fit."""

    def __init__(self, policy: Policy, load: Load) -> None:
        self.dice: Final = random.Random(7)  # noqa: S311  a workload, not a secret
        self.paper: Final = Paper()
        self.running: Final[list[int]] = []
        self.paper.append(t.PolicyChanged(policy, "ada"))
        for number in range(QUEUES):
            guarantee = "4%" if number % 2 else None
            queue = QueueSpec(f"team-{number}", weight=1 + number % 3, guarantee=guarantee)
            self.paper.append(t.QueueConfigured(queue, "ada"))
        for registration in registrations(load.nodes):
            self.paper.append(registration)
        for _ in range(load.pending + load.nodes * DEVICES // 3):
            self.submit()

    def submit(self) -> None:
        """One more job."""
        self.paper.append(_job(self.dice))

    def end_one(self) -> None:
        """One of the running jobs ends."""
        job_id = self.running.pop(self.dice.randrange(len(self.running)))
        _end(self.paper, job_id, "exited")

    def obey(self, events: list[t.Event]) -> None:
        """Append the events of a pass; the agents do at once what they are told."""
        for event in events:
            self.paper.append(event)
        _obey(self.paper, events, self.running)

    def settle(self) -> None:
        """Passes until nothing follows."""
        while events := decide(self.paper.fold.cluster):
            self.obey(events)


def run(policy: Policy, load: Load) -> Passes:
    """One cluster's life under a policy."""
    world = World(policy, load)
    working, idle, decisions = list[float](), list[float](), 0
    world.settle()
    for _ in range(load.steps):
        for _ in range(max(1, len(world.running) // 200)):
            world.end_one()
            world.submit()
        world.paper.pass_time(20 * SECOND_NS)
        while True:
            begun = time.perf_counter()
            events = decide(world.paper.fold.cluster)
            (working if events else idle).append(time.perf_counter() - begun)
            if not events:
                break
            decisions += sum(isinstance(event, t.Decision) for event in events)
            world.obey(events)
    return Passes(working, idle, decisions)


def _job(dice: random.Random) -> t.JobSubmitted:
    gpus = SIZES[dice.randrange(len(SIZES))]
    estimate = dice.choice((None, 600, 3600, 14_400, 86_400))
    spec = JobSpec(
        command=["train"], name=f"train-{dice.randrange(50)}", queue=f"team-{dice.randrange(QUEUES)}", gpus=gpus,
        nodes="any" if gpus > DEVICES else None, priority=dice.choice((0, 300, 300, 300, 600, 900)),
        limits=LimitsSpec(estimate=estimate),
    )  # fmt: skip
    return t.JobSubmitted(f"user-{dice.randrange(40)}", spec)


def _obey(paper: Paper, events: list[t.Event], running: list[int]) -> None:
    """The agents do at once what they are told."""
    for event in events:
        if isinstance(event, t.StartWorker):
            place = (event.node, event.incarnation, event.job, event.attempt, event.rank)
            paper.append(t.WorkerStarted(*place, pid=4000))
            if event.rank == 0:
                running.append(event.job)
        elif isinstance(event, t.StopWorker) and event.rank == 0:
            running.remove(event.job)
            _end(paper, event.job, "stopped")


def _end(paper: Paper, job_id: int, reason: t.ExitReason) -> None:
    attempt = paper.fold.cluster.state.jobs[job_id].attempt
    for worker in list(attempt.workers) if attempt is not None else []:
        if worker.phase != "gone":
            place = (worker.node, worker.incarnation, job_id, attempt.number if attempt else 0, worker.rank)
            paper.append(t.WorkerExited(*place, t.ExitStatus(reason, 0)))


def measure() -> list[Row]:
    """A row for each policy."""
    rows = []
    for name, policy in POLICIES.items():
        passes = run(policy, Load())
        every = passes.working + passes.idle
        value = f"p50 {percentile(every, 0.5) * 1e3:.1f} ms, p99 {percentile(every, 0.99) * 1e3:.1f} ms"
        rate = passes.decisions / sum(every)
        rows.append(Row(f"a pass: {name}", value, f"{rate:,.0f} decisions/s, {len(every)} passes"))
        sys.stderr.write(f"{rows[-1]}\n")
    return rows


if __name__ == "__main__":
    measure()
