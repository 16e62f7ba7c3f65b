"""How a stretch of a log goes: what becomes of each job, and the cluster at evenly spaced moments.

Whoever folds the log tells of each entry, before and after. Device time is what jobs hold, in thousandths of devices;
what the cluster has is the devices of the nodes that take work, and what is held on others. Nothing here is decided
by, so times are the server's.
"""

from typing import Final

import msgspec

from muster.core.cluster import Cluster
from muster.core.fragmentation import DeviceLeft, Measure
from muster.core.state import Job
from muster.events import types as t
from muster.events.binding import WHOLE_COMPUTE
from muster.events.log import Entry
from muster.events.subjects import kebab
from muster.projections.accounts import Totals, totals
from muster.projections.fold import Fold

SAMPLES: Final = 240
Placing = tuple[tuple[str, tuple[int, ...]], ...]
"""An attempt's nodes with its devices there, by rank."""
_NODE_NEWS: Final = frozenset(
    kebab(kind.__name__)
    for kind in (
        t.NodeRegistered, t.NodeCordoned, t.NodeUncordoned, t.NodeDegraded, t.NodeRestored, t.NodeSuspected,
        t.NodeRecovered, t.NodeLost, t.StopFailed, t.DeviceFaulted, t.DeviceRecovered, t.DeviceCordoned,
        t.DeviceUncordoned, t.DeviceReadmitted, t.ForeignUsageChanged,
    )
)  # fmt: skip
"""What changes the room of nodes beside the coming and going of jobs."""


class Sample(msgspec.Struct, frozen=True):
    """The cluster at a moment (ns): jobs that wait, and devices held, there, idle, and idle but of no use to the work
    that is expected, all in thousandths."""

    at_ns: int
    waiting: int
    held: int
    capacity: int
    idle: int
    useless: int


class Course:
    """The course of a fold from where it stands, from `began_ns` until `until_ns`."""

    def __init__(self, fold: Fold, began_ns: int, until_ns: int, measure: Measure | None) -> None:
        state = fold.cluster.state
        self.began_ns: Final = began_ns
        self.until_ns: Final = max(until_ns, self.began_ns)
        self.jobs: Final[dict[int, Job]] = dict(state.jobs)  # also those that leave the state
        self.before: Final[dict[int, Totals]] = {}
        self.preempted_before: Final[dict[int, int]] = {}
        self.had_begun: Final[set[int]] = set()  # jobs that did not wait at the beginning
        self.placings: Final[dict[int, dict[int, Placing]]] = {}  # job → attempt → where it was
        self.samples: Final[list[Sample]] = []
        self.held_ns = 0  # thousandths of devices times ns, likewise
        self.capacity_ns = 0
        self._fold: Final = fold
        self._measure: Final = measure
        self._now_ns = self.began_ns
        self._waiting: Final[set[int]] = set()
        self._held: Final[dict[int, dict[str, int]]] = {}  # job → node → thousandths
        self._held_on: Final[dict[str, int]] = {}
        self._total = 0
        self._capacity = 0
        self._away: list[str] = []  # nodes that take no work and may hold some
        self._idle: Final[dict[str, tuple[int, int]]] = {}  # node that takes work → idle there, and useless
        self._stale: Final[set[str]] = set()  # nodes of which that is to be found anew
        fold.touched.clear()
        for job in state.jobs.values():
            self.before[job.id] = totals(job, self.began_ns)
            self.preempted_before[job.id] = job.preemptions
            if job.phase != "PENDING":
                self.had_begun.add(job.id)
            self._note(job)
        self._note_nodes()

    def pass_time(self, now_ns: int) -> None:
        """Time goes by up to the next entry."""
        now_ns = min(now_ns, self.until_ns)
        while len(self.samples) <= SAMPLES and self._moment(len(self.samples)) <= now_ns:
            self._go_to(self._moment(len(self.samples)))
            self.samples.append(self._sample())
        self._go_to(now_ns)

    def note(self, entry: Entry) -> None:
        """The entry has been folded."""
        jobs, touched = self._fold.cluster.state.jobs, self._fold.touched
        for job_id in touched:
            job = jobs.get(job_id)
            if job is not None:
                self.jobs[job_id] = job
                self._note(job)
        touched.clear()
        if entry.subject.rpartition(".")[2] in _NODE_NEWS:
            self._note_nodes()

    def finish(self) -> None:
        """Nothing more comes."""
        self.pass_time(self.until_ns)

    def is_compared(self, job_id: int) -> bool:
        """Whether a job came in this stretch, or waited when it began."""
        return job_id not in self.had_begun

    def totals(self, job_id: int) -> Totals:
        """A job's accounts for this stretch alone."""
        now, before = totals(self.jobs[job_id], self.until_ns), self.before.get(job_id, Totals(0, 0, 0, 0))
        return Totals(*(after - then for after, then in zip(now, before, strict=True)))

    def waited_ms(self, job_id: int) -> int:
        """How long a job has waited in all, up to the end of the stretch."""
        return totals(self.jobs[job_id], self.until_ns).waited_ms

    def preemptions(self, job_id: int) -> int:
        """How often a job had to make room."""
        return self.jobs[job_id].preemptions - self.preempted_before.get(job_id, 0)

    # -- what is kept in step -------------------------------------------------------------------------------------

    def _moment(self, number: int) -> int:
        return self.began_ns + (self.until_ns - self.began_ns) * number // SAMPLES

    def _go_to(self, now_ns: int) -> None:
        elapsed_ns = now_ns - self._now_ns
        if elapsed_ns > 0:
            self._now_ns = now_ns
            self.held_ns += elapsed_ns * self._total
            self.capacity_ns += elapsed_ns * self._size()

    def _size(self) -> int:
        return self._capacity + sum(self._held_on.get(name, 0) for name in self._away)

    def _note(self, job: Job) -> None:
        if job.phase == "PENDING":
            self._waiting.add(job.id)
        else:
            self._waiting.discard(job.id)
        held: dict[str, int] = {}
        attempt = job.attempt
        if attempt is not None:
            self.placings.setdefault(job.id, {})[attempt.number] = tuple(
                (worker.node, tuple(worker.devices)) for worker in attempt.workers
            )
            for worker in attempt.workers:
                if worker.phase != "gone" and worker.held:
                    held[worker.node] = held.get(worker.node, 0) + worker.held
        before = self._held.get(job.id, {})
        if held == before:
            return
        for nodes, sign in ((before, -1), (held, 1)):
            for name, milli in nodes.items():
                self._held_on[name] = self._held_on.get(name, 0) + sign * milli
                self._total += sign * milli
                self._stale.add(name)
        if held:
            self._held[job.id] = held
        else:
            del self._held[job.id]

    def _note_nodes(self) -> None:
        nodes = self._fold.cluster.state.nodes.values()
        self._capacity = sum(len(node.inventory.devices) * WHOLE_COMPUTE for node in nodes if node.available)
        self._away = [node.name for node in nodes if not node.available]
        self._stale.update(self._fold.cluster.state.nodes)

    def _sample(self) -> Sample:
        idle, useless = self._fragmentation()
        return Sample(self._now_ns, len(self._waiting), self._total, self._size(), idle, useless)

    def _fragmentation(self) -> tuple[int, int]:
        """What is idle on the nodes that take work, and what of it the expected work cannot use."""
        measure = self._measure
        if measure is None or not measure.total:
            return 0, 0
        for name in sorted(self._stale):
            if self._fold.cluster.state.nodes[name].available:
                self._idle[name] = _idle_on(self._fold.cluster, name, measure)
            else:
                self._idle.pop(name, None)
        self._stale.clear()
        found = self._idle.values()
        return sum(idle for idle, _ in found), sum(useless for _, useless in found) // measure.total


def _idle_on(cluster: Cluster, name: str, measure: Measure) -> tuple[int, int]:
    """What is idle on a node, and what of it is useless times the mix's weight."""
    room = cluster.room_now(name)
    single = room.ailments.single
    kinds = [measure.kind(device, single=device.index in single) for device in room.inventory.devices]
    left = tuple(sorted(map(DeviceLeft, kinds, room.device_compute, room.device_memory_mib)))
    return sum(room.device_compute), measure.amount(room.cpus, left)
