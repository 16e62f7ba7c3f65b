"""Make the golden logs of this release: `python tests/golden/make_golden.py` from the repository's root.

Each log is a story told to the real fold and the real `decide`, with a clock of its own: the same program makes the
same entries every time. Decisions stand under the subjects that a scheduler writes them under.
"""

import argparse
import hashlib
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster_script import SECOND, Script, spec
from device_script import cordon, fault, foreign, recovery, uncordon, uuid_of
from log_maker import RandomCluster, rows_of
from policy_script import pass_time

from muster import __version__
from muster.core.order import ENGINE_VERSION
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.policy import Backfill, Lane, OrderName, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, RetrySpec
from muster.events.subjects import subject_of
from muster.projections.decision_subjects import decision_subject
from muster.projections.exports import EXPORT_VERSION, Header, entry_line, header_line
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.mirror import GENESIS


class Log(msgspec.Struct, frozen=True):
    """What is known of one golden log: where its chain and its state must come to."""

    entries: int
    chain: str
    state: str  # BLAKE2b-128 of the state's bytes, by the release's fold
    refused: int
    passes: int
    phases: dict[int, str]  # of the jobs that are still in the state


class Golden(msgspec.Struct, frozen=True):
    """The golden logs of one release, by name."""

    release: str
    engine: int
    fold: int
    logs: dict[str, Log]


class Story(Script):
    """A script whose entries stand where the product writes them. `passes` counts those that gave something."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.append(t.LeaderStarted("scheduler-1", ENGINE_VERSION, "priority/easy/best-fit"))

    def append(self, event: t.Event, queue: str = "") -> int:
        if isinstance(event, t.JobSubmitted):
            subject = subject_of(event, event.spec.queue.rpartition("/")[2])
        else:
            subject = decision_subject(event, self.cluster.state, "muster")
        return self.append_raw(subject, codec.encode(event))

    def run_pass(self) -> list[t.Event]:
        events = super().run_pass()
        self.passes += bool(events)
        return events

    def life(self, node: str) -> str:
        return self.cluster.state.nodes[node].incarnation

    def ended(self, job: int, code: int = 0) -> None:
        self.start(job)
        self.exit(job, code)
        self.settle()

    def stopped(self, *jobs: int) -> None:
        for job in jobs:
            self.exit(job, None, reason="stopped")
        self.settle()


def jobs() -> Story:
    """Jobs in all their ways to end."""
    story = Story()
    for number in (1, 2, 3, 4):
        story.node(f"node-{number}", fabric="ib", lease_ms=60_000)
    gang = story.submit(spec(12, nodes="any", name="gang", framework="pytorch"), key="once")
    story.submit(spec(12, nodes="any", name="gang", framework="pytorch"), key="once")
    tensors = story.submit(spec(10, nodes=2, framework="tensorflow"), "bob")
    halves = [story.submit(spec(1, gpu=GpuSpec(memory=40 * 1024, compute=0.5))) for _ in range(2)]
    script = story.submit(JobSpec(command="make all", cpus=4))
    story.submit(spec(500))
    story.settle()
    for job in (gang, *halves, script):
        story.start(job)
    story.start(tensors, 0)
    story.exit(script, 0)
    story.exit(gang, 1, 1)
    story.settle()
    story.stopped(gang)
    attempt = story.job(tensors).attempt
    assert attempt is not None
    worker = attempt.workers[1]
    story.append(t.WorkerRefused(worker.node, worker.incarnation, 7, tensors, 1, 1, "no such program"))
    story.settle()
    story.stopped(tensors)
    for job in halves:
        story.exit(job, 0)
    story.settle()
    retried = story.submit(spec(4, retry=RetrySpec(max_attempts=3, on=["node_fail", "failed"])))
    story.settle()
    story.start(retried)
    story.exit(retried, 137)
    story.settle()
    story.ended(retried)
    _limited(story)
    _cancelled(story)
    story.append_raw("muster.node.node-1.worker-exited", b'{"type":"WorkerExited.1","job":"x"}')
    pass_time(story, 3700)
    story.settle()
    return story


def _limited(story: Story) -> None:
    """Attempts whose time is over."""
    late = story.submit(spec(2, limits=LimitsSpec(time_limit=90, on_timeout="requeue")))
    killed = story.submit(spec(2, limits=LimitsSpec(time_limit=90, on_timeout="kill")))
    story.settle()
    story.start(late)
    story.start(killed)
    pass_time(story, 100)
    story.settle()
    story.stopped(late, killed)


def _cancelled(story: Story) -> None:
    """Cancellations: of a worker that does not end, of a job that never started."""
    stuck = story.submit(spec(1))
    story.settle()
    story.start(stuck)
    story.append(t.JobCancelRequested(stuck, "ada"))
    story.settle()
    place = story.job(stuck).attempt
    assert place is not None
    node = place.workers[0].node
    story.append(t.StopFailed(node, story.life(node), stuck, 1, 0, "in uninterruptible sleep"))
    story.settle()
    story.append(t.NodeUncordoned(node, "root"))
    story.stopped(stuck)
    never = story.submit(spec(1))
    story.settle()
    pass_time(story, 150)
    story.settle()
    story.append(t.JobCancelRequested(never, "bob"))
    story.settle()


def nodes() -> Story:
    """Nodes and devices that fail and come back: silence, loss, strays, faults, probation, cordons."""
    story = Story()
    for number in (1, 2, 3):
        story.node(f"node-{number}", fabric="ib", lease_ms=60_000)
    running = [story.submit(spec(4)) for _ in range(4)]
    waits = story.submit(spec(4, retry=RetrySpec(max_attempts=1, on=[])))
    story.settle()
    for job in (*running, waits):
        story.start(job)
    first = story.life("node-1")
    story.append(t.NodeSuspected("node-1", first, story.now_ns - 10 * SECOND, 10_000))
    story.append(t.NodeRecovered("node-1", first))
    story.append(t.NodeSuspected("node-1", first, story.now_ns - 10 * SECOND, 10_000))
    pass_time(story, 120)
    story.settle()
    story.node("node-1", fabric="ib", lease_ms=60_000, workers=[t.WorkerReport(running[0], 1, 0, 4000)])
    story.settle()
    story.exit(running[2], 0)
    story.append(t.NodeCordoned("node-2", "root", "fan"))
    story.append(t.NodeDegraded("node-3", story.life("node-3"), "driver_mismatch", "library 560, driver 550"))
    story.submit(spec(1))
    story.settle()
    story.append(t.NodeUncordoned("node-2", "root"))
    story.append(t.NodeRestored("node-3", story.life("node-3")))
    story.settle()
    actions: list[t.FaultAction] = ["note", "count", "no_gangs", "suspect", "drain", "reset", "quarantine"]
    for number, action in enumerate(actions):
        fault(story, number, action, "node-3", xid=13)
        story.settle()
    fault(story, 0, "fail_job", "node-2", xid=31)
    story.settle()
    recovery(story, 3, "node-3", "reset")
    recovery(story, 5, "node-3")
    foreign(story, {7: 20_000}, "node-3")
    foreign(story, {}, "node-3")
    cordon(story, 7, "node-3", "loose cable")
    uncordon(story, 7, "node-3")
    uncordon(story, 6, "node-3")
    assert uuid_of(story, 7, "node-3")
    pass_time(story, 3700)
    story.settle()
    return story


def policies() -> Story:
    """A tree of queues under one policy after another: preemption, reclaim, reserved room, lanes, every order."""
    story = Story()
    for number in (1, 2):
        story.node(f"node-{number}", fabric="ib")
    for queue in (
        QueueSpec("org", weight=2),
        QueueSpec("org/research", guarantee=8, order="fair"),
        QueueSpec("org/serving", guarantee="50%", urgent_limit=4),
        QueueSpec("scratch", limit=12, max_job_devices=8),
    ):
        story.append(t.QueueConfigured(queue, "root"))
    story.append(t.PolicyChanged(Policy(preemption=Preemption(min_runtime=0)), "root"))
    low = [story.submit(spec(4, queue="scratch", priority=0)) for _ in range(3)]
    story.settle()
    for job in low:
        story.start(job)
    whole = story.submit(spec(16, nodes="any", queue="org/research", priority=900), "bob")
    story.settle()
    story.stopped(*[job for job in low if story.job(job).phase == "STOPPING"])
    story.append(t.JobCancelRequested(whole, "bob"))
    story.settle()
    urgent = story.submit(spec(16, nodes="any", queue="org/research", priority=900), "bob")
    story.settle()
    story.append(t.JobCancelRequested(urgent, "bob"))
    story.settle()
    story.stopped(*[job for job in story.cluster.state.jobs if story.job(job).phase == "STOPPING"])
    story.submit(spec(8, queue="org/serving"), "cleo")
    story.settle()
    lane = Lane("quick", devices=2, max_time=600)
    orders: tuple[OrderName, ...] = get_args(OrderName)
    for order in orders:
        backfill = Backfill(mode="none" if order == "fifo" else "easy")
        story.append(t.PolicyChanged(Policy(order=order, backfill=backfill, lanes=[lane], placement="spread"), "root"))
        _churn(story)
    story.append(t.PolicyChanged(Policy(placement="fragmentation"), "root"))
    _churn(story)
    for job in list(story.cluster.state.jobs):
        if story.job(job).phase == "PENDING":
            story.append(t.JobCancelRequested(job, "root"))
    story.settle()
    pass_time(story, 3700)
    story.append(t.QueueRemoved("scratch", "root"))
    story.settle()
    return story


def rooms() -> Story:
    """Room that is reserved, let go because a limit shuts it, and reserved and used."""
    story = Story()
    story.node("node-1")
    story.append(t.PolicyChanged(Policy(preemption=Preemption(min_runtime=0)), "root"))
    low = story.submit(spec(8, priority=0))
    story.settle()
    story.start(low)
    high = story.submit(spec(8, priority=900), "bob")
    story.settle()
    story.append(t.QueueConfigured(QueueSpec("default", limit=1), "root"))
    story.settle()
    story.append(t.QueueConfigured(QueueSpec("default"), "root"))
    story.settle()
    story.stopped(low)
    story.ended(high)
    story.ended(low)
    return story


def _churn(story: Story) -> None:
    """A few jobs come, run and end."""
    for number, queue in enumerate(("org/research", "org/serving", "scratch", "org/research")):
        limits = LimitsSpec(estimate=300 * (number + 1))
        story.submit(spec((1, 8, 4, 2)[number], queue=queue, limits=limits), ("ada", "bob", "cleo", "ada")[number])
    story.settle()
    for job in list(story.cluster.state.jobs):
        if story.job(job).phase == "STARTING":
            story.start(job)
    pass_time(story, 120)
    for job in list(story.cluster.state.jobs):
        if story.job(job).phase == "RUNNING" and job % 2:
            story.exit(job, 0)
    story.stopped(*[job for job in story.cluster.state.jobs if story.job(job).phase == "STOPPING"])


STORIES: dict[str, Callable[[], Story]] = {"jobs": jobs, "nodes": nodes, "policies": policies, "rooms": rooms}


def told() -> dict[str, tuple[list[Entry], Fold, int]]:
    """Every log: its entries, the fold after them, how many passes it has."""
    logs = {name: story() for name, story in STORIES.items()}
    found = {name: (story.entries, story.fold, story.passes) for name, story in logs.items()}
    anything = RandomCluster(seed=2026, entries=500)
    return {**found, "anything": (anything.entries, anything.fold, anything.passes)}


def main() -> None:
    """Write the files of this release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / __version__)
    folder: Path = parser.parse_args().folder
    folder.mkdir(exist_ok=True)
    logs: dict[str, Log] = {}
    for name, (entries, fold, passes) in told().items():
        state = fold.cluster.state
        header = Header(EXPORT_VERSION, "muster", 1, len(entries), GENESIS.hex(), FOLD_VERSION)
        lines = header_line(header) + b"".join(map(entry_line, rows_of(entries)))
        (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress(lines, preset=9))
        digest = hashlib.blake2b(fold.state_bytes(), digest_size=16).hexdigest()
        phases = {job.id: str(job.phase) for job in state.jobs.values()}
        logs[name] = Log(len(entries), state.chain.hex(), digest, state.refused_count, passes, phases)
    golden = Golden(__version__, ENGINE_VERSION, FOLD_VERSION, logs)
    (folder / "golden.json").write_bytes(msgspec.json.format(msgspec.json.encode(golden), indent=1) + b"\n")


if __name__ == "__main__":
    main()
