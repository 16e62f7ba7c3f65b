"""Seeded logs with everything in them, made by the real fold and `decide`; and the same logs in a store, or live."""

import random
from collections.abc import Iterable

import msgspec
from cluster_script import SECOND, Script, inventory, spec
from device_script import anew_with

from muster.core.decide import decide
from muster.events import types as t
from muster.events.log import Entry, Message
from muster.events.memory import MemoryLog
from muster.events.spec import GpuSpec, JobSpec, RetrySpec
from muster.events.subjects import CLUSTER_QUEUE
from muster.projections.fold import Fold
from muster.projections.mirror import MirrorRow
from muster.projections.read_models import job_row
from muster.projections.replay import ChangedJobs, snapshot_of
from muster.projections.store import Store

SPECS = [
    spec(1),
    spec(2, queue="research", gpu=GpuSpec(memory=40 * 1024, compute=0.5)),
    spec(1, gpu=GpuSpec(memory=20 * 1024, compute=0.25)),
    spec(12, nodes="any", name="gang"),
    spec(4, queue="research", retry=RetrySpec(max_attempts=3, on=["node_fail", "failed"])),
    spec(500),
    JobSpec(command="make all", cpus=4),
]


FAULTS: list[t.FaultAction] = ["fail_job", "count", "no_gangs", "suspect", "drain", "reset", "quarantine"]


class RandomCluster(Script):
    """A cluster on which anything happens, the same for the same seed."""

    def __init__(self, seed: int, entries: int) -> None:
        super().__init__(check=False)
        self._random = random.Random(seed)
        self.passes = 0
        self.append(t.LeaderStarted("scheduler-1", 1, "fifo/best-fit"))
        for number in (1, 2, 3, 4):
            self.node(f"node-{number}", fabric="ib" if number < 4 else "", lease_ms=60_000)
        actions = [self._submit] * 5 + [self._start] * 4 + [self._exit] * 3 + [self._pass] * 6
        actions += [self._cancel, self._time, self._new_life, self._suspect, self._cordon, self._refuse, self._rubbish]
        actions += [self._device]
        while len(self.entries) < entries:
            self._random.choice(actions)()

    def _submit(self) -> None:
        chosen = self._random.choice(SPECS)
        self.append(t.JobSubmitted(self._random.choice(["ada", "bob"]), chosen), chosen.queue)

    def _pass(self) -> None:
        """Decide, and append when a fact or two may have come in between."""
        state = self.cluster.state
        queues = {job.id: job.spec.queue for job in state.jobs.values()}
        events = decide(self.cluster)
        if not events:
            return
        self.passes += 1
        for _ in range(self._random.randrange(3)):
            self._random.choice([self._submit, self._start, self._cancel])()
        for event in events:
            self.append(event, queues.get(getattr(event, "job", 0), CLUSTER_QUEUE))

    def _live(self) -> list[int]:
        return [job_id for job_id, job in self.cluster.state.jobs.items() if self.cluster.is_live(job)]

    def _start(self) -> None:
        if self._live():
            self.start(self._random.choice(self._live()))

    def _exit(self) -> None:
        if self._live():
            self.exit(self._random.choice(self._live()), self._random.choice([0, 0, 0, 1, 137]))

    def _cancel(self) -> None:
        if self.cluster.state.jobs:
            self.append(t.JobCancelRequested(self._random.choice(list(self.cluster.state.jobs)), "ada"))

    def _time(self) -> None:
        if self._random.random() < 0.03:  # an hour of logical time, after which ended jobs leave the state
            for _ in range(65):
                self.advance(61)
        self.advance(self._random.choice([1, 30, 300, 2000]))

    def _new_life(self) -> None:
        number = self._random.randint(1, 4)
        running = [
            t.WorkerReport(job_id, self.job(job_id).attempts, rank, 77)
            for job_id, rank in self.cluster.workers_on[f"node-{number}"]
            if self._random.random() < 0.8
        ]
        fabric = "ib" if number < 4 else ""
        name = f"node-{number}"
        if self._random.random() < 0.5:
            self.node(name, workers=running, fabric=fabric, lease_ms=60_000)
        else:
            anew_with(self, name, self._other_order(name), workers=running)

    def _other_order(self, name: str) -> t.Inventory:
        """A node's devices, or some of them, under other numbers."""
        whole = inventory(8, fabric=self.cluster.state.nodes[name].inventory.fabric, address=f"10.0.0.{name[-1]}")
        found = self._random.sample(whole.devices, self._random.randint(6, 8))
        devices = [msgspec.structs.replace(device, index=place) for place, device in enumerate(found)]
        return msgspec.structs.replace(whole, devices=devices)

    def _device(self) -> None:
        """Something happens to a device, or is done to it."""
        node = self.cluster.state.nodes[f"node-{self._random.randint(1, 4)}"]
        device = self._random.choice(node.inventory.devices)
        chance = self._random.random()
        if chance < 0.5:
            fault = t.DeviceFault(device.index, device.uuid, "xid", self._random.choice(FAULTS), 13)
            self.append(t.DeviceFaulted(node.name, node.incarnation, fault))
        elif chance < 0.7:
            self.append(t.DeviceRecovered(node.name, node.incarnation, device.index, device.uuid))
        elif chance < 0.8:
            use = t.ForeignUse(device.index, device.uuid, self._random.choice([0, 512, 50_000]))
            self.append(t.ForeignUsageChanged(node.name, node.incarnation, [use]))
        else:
            for uuid in sorted({*node.conditions, *node.device_cordons}):
                self.append(t.DeviceUncordoned(node.name, uuid, "ada"))

    def _suspect(self) -> None:
        name = f"node-{self._random.randint(1, 4)}"
        life = self.cluster.state.nodes[name].incarnation
        if self._random.random() < 0.5:
            self.append(t.NodeSuspected(name, life, self.now_ns - 10 * SECOND, 10_000))
        else:
            self.append(t.NodeRecovered(name, life))

    def _cordon(self) -> None:
        name = f"node-{self._random.randint(1, 4)}"
        if self._random.random() < 0.3:
            self.append(t.NodeCordoned(name, "ada", "dust"))
        else:
            self.append(t.NodeUncordoned(name, "ada"))

    def _refuse(self) -> None:
        if not self._live():
            return
        job = self.job(self._random.choice(self._live()))
        assert job.attempt is not None
        worker = job.attempt.workers[0]
        self.append(t.WorkerRefused(worker.node, worker.incarnation, 1, job.id, job.attempts, worker.rank, "full disk"))

    def _rubbish(self) -> None:
        self.append_raw("muster.node.node-1.worker-exited", b'{"type":"WorkerExited.1","job":"x"}')


def rows_of(entries: Iterable[Entry]) -> list[MirrorRow]:
    """The entries with their chains."""
    fold = Fold.empty()
    rows = []
    for entry in entries:
        fold.apply(entry)
        rows.append(MirrorRow(*entry, fold.cluster.state.chain))
    return rows


async def fill(store: Store, entries: list[Entry], snapshots: Iterable[int] = ()) -> None:
    """Write a whole log into an empty store, with snapshots after the named entries."""
    wanted = set(snapshots)
    fold = Fold.empty()
    rows, changed, taken = [], ChangedJobs(), []
    for entry in entries:
        fold.apply(entry)
        changed.note(fold)
        rows.append(MirrorRow(*entry, fold.cluster.state.chain))
        if entry.sequence in wanted:
            taken.append(snapshot_of(fold))
    await store.append(rows, [job_row(job) for job in changed.jobs.values()])
    for snapshot in taken:
        await store.save_snapshot(snapshot)


def fold_of(entries: Iterable[Entry]) -> Fold:
    """The fold from zero."""
    fold = Fold.empty()
    fold.apply_all(entries)
    return fold


def log_of(entries: list[Entry]) -> MemoryLog:
    """A log that holds these entries already."""
    log = MemoryLog()
    log.entries.extend(entries)
    return log


async def grow(log: MemoryLog, entries: Iterable[Entry]) -> None:
    """Append entries as they are, with their own timestamps."""
    for entry in entries:
        log._clock = lambda entry=entry: entry.timestamp_ns  # type: ignore[misc]
        await log.append(Message(entry.subject, entry.payload, f"entry-{entry.sequence}"))
