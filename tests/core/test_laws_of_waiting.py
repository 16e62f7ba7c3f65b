"""What waiting jobs are promised, as properties: none starves, the head is not put off, the impossible bars nobody."""

from typing import Literal

import msgspec
import pytest
from cluster_script import Script, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from law_cluster import Do, LivingCluster, Setup, Step, Submit
from law_settings import LONG, QUICK
from law_stories import contests

from muster.events import types as t
from muster.events.policy import Backfill, Policy, Preemption
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, WhereSpec

IMPOSSIBLE = [
    JobSpec(command="true", gpus=5, nodes=1, priority=1000),
    JobSpec(command="true", gpus=1, gpu=GpuSpec(model=["Z"]), priority=1000),
    JobSpec(command="true", gpus=1, where=WhereSpec(["node-9"]), priority=1000),
    JobSpec(command="true", gpus=16, nodes="any", priority=1000),
]
Contest = tuple[Setup, list[Step]]


def decisions(contest: Contest, place: int, impossible: Submit, *, there: bool) -> list[list[t.Event]]:
    """What each step decides of all jobs but the impossible one, which is there or is cancelled at once."""
    setup, steps = contest
    world = LivingCluster(setup)
    found: list[list[t.Event]] = []
    for number, step in enumerate(steps):
        if number == place:
            world.do(impossible)
            job = world.state.sequence
            world.script.append(t.ClockAdvanced() if there else t.JobCancelRequested(job, "root"))
        first = len(world.script.entries)
        if step != Do("cancel"):
            world.do(step)
        entries = world.script.entries[first:]
        found.append([without_chain(entry.payload) for entry in entries if entry.subject.startswith("muster.decision")])
    return found


def without_chain(payload: bytes) -> t.Event:
    found = msgspec.json.decode(payload)
    found.pop("basis", None)
    return found  # type: ignore[no-any-return]


def calm(contest: Contest) -> Contest:
    """Without what chooses among the jobs that wait, and with every job within the depth of backfill."""
    setup, steps = contest
    policy = msgspec.structs.replace(setup.policy, backfill=msgspec.structs.replace(setup.policy.backfill, depth=100))
    return setup._replace(policy=policy), [
        step for step in steps if not (isinstance(step, Do) and step.what == "cancel")
    ]


def check_impossible(contest: Contest, place: int, kind: int, mode: str) -> None:
    setup, steps = calm(contest)
    policy = msgspec.structs.replace(setup.policy, backfill=Backfill(mode))  # type: ignore[arg-type]
    setup = setup._replace(policy=policy)
    leaf = next(step.spec.queue for step in steps if isinstance(step, Submit))
    impossible = Submit("eve", msgspec.structs.replace(IMPOSSIBLE[kind], queue=leaf))
    place %= len(steps)
    with_it = decisions((setup, steps), place, impossible, there=True)
    assert with_it == decisions((setup, steps), place, impossible, there=False)


kinds, places, modes = (
    st.integers(0, len(IMPOSSIBLE) - 1),
    st.integers(0, 30),
    st.sampled_from(["easy", "none", "greedy", "conservative"]),
)


@settings(QUICK, max_examples=30)
@given(contests(), places, kinds, modes)
def test_an_impossible_job_blocks_nobody_and_evicts_nobody(contest: Contest, place: int, kind: int, mode: str) -> None:
    check_impossible(contest, place, kind, mode)


@pytest.mark.slow
@settings(LONG, max_examples=300)
@given(contests(), places, kinds, modes)
def test_many_impossible_jobs_block_nobody(contest: Contest, place: int, kind: int, mode: str) -> None:
    check_impossible(contest, place, kind, mode)


class Clockwork:
    """A cluster whose jobs start at once, run for exactly as long as they say, and stop as soon as they are told to."""

    def __init__(self, devices: list[int], policy: Policy) -> None:
        self.script = Script(check=False)
        for number, count in enumerate(devices, start=1):
            self.script.node(f"node-{number}", count, fabric="f")
        self.script.append(t.PolicyChanged(policy, "root"))
        self.begun_s = self.now_s

    @property
    def now_s(self) -> int:
        return self.script.cluster.state.time_at // 1_000_000_000

    def rest(self) -> None:
        """Passes, and what follows from them at once."""
        for _ in range(50):
            events = self.script.settle()
            if not events:
                return
            for job in list(self.script.cluster.state.jobs.values()):
                if job.phase == "STARTING":
                    self.script.start(job.id)
                if job.phase == "STOPPING" and job.attempt is not None and not job.attempt.over:
                    self.script.exit(job.id, None, reason="stopped")
        raise AssertionError("no rest")

    def tick(self) -> None:
        """A minute goes by; whose time has come ends."""
        self.script.advance(60 - 60 * 1e-3)  # so that the entries of a minute, a millisecond each, stay within it
        for job in list(self.script.cluster.state.jobs.values()):
            if job.phase == "RUNNING" and job.attempt is not None:
                ran_s = (self.script.cluster.state.time_at - job.attempt.started_at) / 1_000_000_000
                if ran_s >= int(job.spec.limits.estimate or 0) - 40:
                    self.script.exit(job.id)
        self.rest()

    def minutes_to_start(self, job: int, most: int) -> int:
        for minute in range(most):
            if self.script.job(job).started_ns:
                return minute
            self.tick()
        raise AssertionError(f"job {job} has not started after {most} minutes")


def minutes_of(gpus: int, minutes: int, **more: object) -> JobSpec:
    return spec(gpus, limits=LimitsSpec(estimate=60 * minutes), **more)


sizes = st.tuples(st.integers(1, 4), st.integers(1, 12))


@settings(QUICK, max_examples=400)
@given(
    st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3),
    st.lists(sizes, min_size=1, max_size=6),
    st.tuples(st.integers(2, 12), st.integers(1, 5)),
    st.lists(st.tuples(sizes, st.integers(0, 6)), max_size=8),
    st.sampled_from(["place", "time"]),
)
def test_backfill_never_puts_off_the_head(
    devices: list[int],
    before: list[tuple[int, int]],
    asked: tuple[int, int],
    behind: list[tuple[tuple[int, int], int]],
    keep: Literal["place", "time"],
) -> None:
    """With exact estimates the first job that waits starts in the same minute with others behind it as without."""

    def start_of_head(followers: list[tuple[tuple[int, int], int]]) -> int:
        world = Clockwork(devices, Policy("fifo", backfill=Backfill(keep=keep), preemption=Preemption(mode="none")))
        for gpus, minutes in before:
            world.script.submit(minutes_of(min(gpus, max(devices)), minutes))
            world.rest()
            for job in list(world.script.cluster.state.jobs.values()):
                if job.phase == "PENDING":  # only what runs is before the head
                    world.script.append(t.JobCancelRequested(job.id, "root"))
        head = world.script.submit(minutes_of(min(asked[0], sum(devices)), asked[1], nodes="any"))
        world.rest()
        for minute in range(30):
            for (gpus, minutes), at in followers:
                if at == minute:
                    world.script.submit(minutes_of(min(gpus, max(devices)), minutes))
            world.rest()
            if world.script.job(head).started_ns:
                return minute
            world.tick()
        raise AssertionError("the head never starts")

    assert start_of_head(behind) <= start_of_head([])


@settings(QUICK, max_examples=40)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=2, max_size=5),
    st.booleans(),
)
def test_nobody_starves_under_ageing(gpus: int, stream: list[tuple[int, int]], estimated: bool) -> None:  # noqa: FBT001
    """At 600 points an hour P3 passes P0 after an hour and a half, however much of P0 comes in: then it is the head,
    and starts when what runs has ended."""
    world = Clockwork([4], Policy(ageing=600, preemption=Preemption(min_runtime=60)))
    for number in range(4):
        world.script.submit(minutes_of(*stream[number % len(stream)], priority="P0"))
    world.rest()
    poor = world.script.submit(minutes_of(gpus, 5, priority="P3") if estimated else spec(gpus, priority="P3"))
    for minute in range(90 + 8 * 20):  # those that came before its time, and what runs, of 20 minutes at most each
        if world.script.job(poor).started_ns:
            break
        waiting = [job for job in world.script.cluster.state.jobs.values() if job.phase == "PENDING"]
        if len(waiting) < 6:
            world.script.submit(minutes_of(*stream[minute % len(stream)], priority="P0"))
        world.rest()
        world.tick()
    assert world.script.job(poor).started_ns, "it has waited for four hours"
