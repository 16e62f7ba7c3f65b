"""A cluster in virtual time: the product's own pass over jobs whose run times are known, and no log.

In order of time, attempts end, jobs come, and then there is a pass: one, as experiments on traces are defined, or one
after another until one gives nothing, as the scheduler does. Jobs start in no time, end exactly when they should, and
are forgotten.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

import msgspec

from muster.core.cluster import Cluster
from muster.core.estimates import note_expected
from muster.core.plan import Plan
from muster.core.queues import ENDLESS
from muster.core.schedule import SECOND_NS
from muster.core.scheme import BY_MIX
from muster.core.settling import place_waiting
from muster.core.state import Job, Node, State
from muster.core.virtual import begin_attempt, end_attempt
from muster.events import types as t
from muster.events.policy import Policy
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec
from muster.projections.policy_rules import note_mix
from muster.projections.trace_nodes import DEVICE_MIB
from muster.projections.traces import WHOLE, TraceJob


class Outcome(msgspec.Struct, gc=False):
    """What became of a job: when it started and when it ended (ns; -1 = never)."""

    job: TraceJob
    started_ns: int = -1
    ended_ns: int = -1


class Moment(NamedTuple):
    """From a time on: how many jobs wait, and how much of the GPUs is in use, in thousandths of one."""

    at_ns: int
    waiting: int
    milli: int


class Run(msgspec.Struct, frozen=True):
    """What a run gave, by job in the order of the trace. `gpus` is the cluster's size; `reserved` counts the heads
    that were given a reservation, `broken` lists those (by place in the trace) that started later than their first.
    `preemptions` counts how often a job that ran had to wait again; `moments` are there where they do not follow from
    the outcomes, since there were some."""

    outcomes: list[Outcome]
    gpus: int
    reserved: int
    broken: list[int]
    preemptions: int = 0
    moments: list[Moment] = msgspec.field(default_factory=list)


class _WholePlan(Plan):
    """A pass that no append cuts short."""

    def add_all(self, events: Sequence[t.Event]) -> bool:
        self.events.extend(events)
        return True


class VirtualCluster:
    """Nodes under a policy, through one run. Whoever is preempted would have to be stopped: such a policy is none for
    it."""

    def __init__(self, nodes: Mapping[str, t.Inventory], policy: Policy, *, to_rest: bool = False) -> None:
        assert policy.preemption.mode == "none"
        known = {name: Node(name, "", inventory, 0, 0) for name, inventory in nodes.items()}
        self._state: Final = State(nodes=known, policy=policy)
        self._cluster: Final = Cluster(self._state)
        self._gpus: Final = sum(len(inventory.devices) for inventory in nodes.values())
        self._to_rest: Final = to_rest
        self._outcomes: list[Outcome] = []
        self._ends: Final[list[tuple[int, int]]] = []  # (ns, job)
        self._promised: Final[dict[int, int]] = {}  # job → when its first reservation begins
        self._broken: Final[list[int]] = []

    def run(self, jobs: Sequence[TraceJob], progress: Callable[[int], object] = lambda _: None) -> Run:
        """Let the jobs come, which are in order of time, until all that can run have run. `progress` is told how many
        have come."""
        self._outcomes = [Outcome(job) for job in jobs]
        state, ends = self._state, self._ends
        come = 0
        while (now_ns := self._next_time(jobs[come].submitted_ns if come < len(jobs) else ENDLESS)) < ENDLESS:
            state.time_at = now_ns
            while ends and ends[0][0] <= now_ns:
                self._end(state.jobs[heappop(ends)[1]])
            while come < len(jobs) and jobs[come].submitted_ns <= now_ns:
                come += 1
                self._submit(come, jobs[come - 1])
            while self._pass() and self._to_rest:
                pass
            progress(come)
        return Run(self._outcomes, self._gpus, len(self._promised), sorted(self._broken))

    def _next_time(self, arrival_ns: int) -> int:
        """When something happens next (`ENDLESS` = never)."""
        end_ns = self._ends[0][0] if self._ends else ENDLESS
        look_ns = self._cluster.look_at if self._cluster.lines.count else None
        if look_ns is not None and self._state.time_at < look_ns < ENDLESS and end_ns < ENDLESS:
            return min(arrival_ns, end_ns, look_ns)
        return min(arrival_ns, end_ns)

    # -- what happens ---------------------------------------------------------------------------------------------

    def _submit(self, number: int, of: TraceJob) -> None:
        state = self._state
        spec = spec_of(of, self._cluster.hardware.largest)
        job = Job(number, of.user, spec, 0, since=number, since_at=state.time_at)
        state.jobs[number] = job
        note_expected(state, job)
        if state.policy.placement in BY_MIX:
            note_mix(state.mix, self._cluster.demand(job))
            self._cluster.note_kind()
        self._cluster.enqueue(job)

    def _pass(self) -> bool:
        """Start what can start; whether anything did."""
        plan = _WholePlan(self._cluster)
        allocator = place_waiting(plan)
        for job_id, at in allocator.promises().items() if allocator is not None else ():
            self._promised.setdefault(job_id, at)
        for event in plan.events:
            if isinstance(event, t.JobAllocated):
                self._start(event)
        return bool(plan.events)

    def _start(self, event: t.JobAllocated) -> None:
        now_at = self._state.time_at
        job = begin_attempt(self._cluster, event)
        outcome = self._outcomes[job.id - 1]
        outcome.started_ns = now_at
        if now_at > self._promised.get(job.id, now_at):
            self._broken.append(job.id - 1)
        heappush(self._ends, (now_at + outcome.job.duration_ns, job.id))

    def _end(self, job: Job) -> None:
        cluster = self._cluster
        self._outcomes[job.id - 1].ended_ns = self._state.time_at
        end_attempt(cluster, job)
        job.phase = "COMPLETED"
        cluster.close(job)
        cluster.forget(job.id)
        del self._state.jobs[job.id]


def spec_of(job: TraceJob, largest: int) -> JobSpec:
    """A job of a trace as somebody would submit it where a node has at most so many devices."""
    return JobSpec(
        command="true",
        gpus=job.gpus,
        nodes="fewest" if job.gpus > largest else None,
        cpus=job.cpus,
        memory=job.memory_mib,
        gpu=_WHOLE_GPU if job.compute == WHOLE and not job.models else _gpu_of(job),
        limits=LimitsSpec(estimate=job.estimate_s or max(1, -(-job.duration_ns // SECOND_NS))),
    )


_WHOLE_GPU: Final = GpuSpec()


def _gpu_of(job: TraceJob) -> GpuSpec:
    if job.compute == WHOLE:
        return GpuSpec(model=list(job.models) or None)
    return GpuSpec(job.compute * DEVICE_MIB // WHOLE, job.compute / WHOLE, list(job.models) or None)
