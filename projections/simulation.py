"""What a run in virtual time comes to: waits, completion times and use, as a whole and by user."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.core.scheme import Rule
from muster.events.policy import Backfill, OrderName, Policy, Preemption
from muster.events.types import Inventory
from muster.projections.free import ORDERS, FreeCluster
from muster.projections.percentiles import percentile
from muster.projections.traces import WHOLE, TraceJob
from muster.projections.virtual import Moment, Outcome, Run, VirtualCluster

SECOND: Final = 1e9


def _policy(order: OrderName, backfill: Backfill) -> Policy:
    return Policy(order=order, backfill=backfill, preemption=Preemption(mode="none"), topology=[])


POLICIES: Final = {
    "fifo": _policy("fifo", Backfill(mode="none")),
    "fjf": _policy("fifo", Backfill("greedy", depth=100_000)),
    "easy": _policy("fifo", Backfill(depth=200, keep="time")),
    "conservative": _policy("fifo", Backfill("conservative", depth=200)),
    "sjf": _policy("sjf", Backfill(mode="none")),
    "srtf": _policy("srtf", Backfill(mode="none")),
    "srsf": _policy("srsf", Backfill(mode="none")),
    "las": _policy("las", Backfill(mode="none")),
    "fair": _policy("fair", Backfill(depth=200, keep="time")),
}
"""`fifo`: the head blocks. `easy`: those of the 200 behind it start that do not put off its start. `sjf`: the shortest
first, which blocks; `srtf`, `srsf` and `las` likewise in their orders, where nobody is stopped. `fair`: the user who
uses least first, with the same backfill."""


def simulate(
    nodes: Mapping[str, Inventory],
    jobs: Sequence[TraceJob],
    policy: str,
    placement: Rule = "best-fit",
    *,
    free: bool = True,
    progress: Callable[[int], object] = lambda _: None,
) -> Run:
    """Run jobs, which are in order of time, on nodes under one of `POLICIES`; with `free`, jobs of the orders that are
    meant for it are stopped and go on at no cost. `progress` is told how many have come."""
    if free and policy in ORDERS:
        return FreeCluster(nodes, policy, placement).run(jobs, progress)
    rules = msgspec.structs.replace(POLICIES[policy], placement=placement)
    return VirtualCluster(nodes, rules).run(jobs, progress)


class Spread(msgspec.Struct, frozen=True):
    """Seconds: the mean, and what so many percent of the jobs do not exceed."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


class Figures(msgspec.Struct, frozen=True):
    """Of the jobs that ended: how many, how long they waited (in all, where they were stopped), and how long from
    submission to end (JCT). `gpu_hours` is what they used."""

    jobs: int
    wait: Spread
    jct: Spread
    gpu_hours: float


class Summary(msgspec.Struct, frozen=True):
    """`makespan_s` is from the first submission to the last end, `utilization` the part of the GPUs' time in it that
    was used. `never_started` counts jobs that the cluster cannot hold. `reservations` counts the heads for which jobs
    behind them were held back, `broken_reservations` those that started later than they were first promised.
    `preemptions` is how often a job that ran had to wait again."""

    figures: Figures
    makespan_s: float
    utilization: float
    never_started: int
    reservations: int
    broken_reservations: int
    preemptions: int
    users: dict[str, Figures]


def gpus_only(jobs: Iterable[TraceJob]) -> list[TraceJob]:
    """The jobs, asking for GPUs of any model and nothing else: for nodes of which nothing else is known."""
    return [
        msgspec.structs.replace(job, cpus=0, memory_mib=0, models=())
        if job.cpus or job.memory_mib or job.models
        else job
        for job in jobs
    ]


def summarize(run: Run) -> Summary:
    """A run in figures."""
    ended = [outcome for outcome in run.outcomes if outcome.ended_ns >= 0]
    begun_ns = min((outcome.job.submitted_ns for outcome in run.outcomes), default=0)
    makespan_ns = max((outcome.ended_ns for outcome in ended), default=begun_ns) - begun_ns
    users: dict[str, list[Outcome]] = {}
    for outcome in ended:
        users.setdefault(outcome.job.user, []).append(outcome)
    return Summary(
        figures(ended),
        makespan_ns / SECOND,
        _used_ns(ended) / (makespan_ns * run.gpus) if makespan_ns and run.gpus else 0.0,
        len(run.outcomes) - len(ended),
        run.reserved,
        len(run.broken),
        run.preemptions,
        {user: figures(users[user]) for user in sorted(users)},
    )


def figures(ended: list[Outcome]) -> Figures:
    """The figures of some of the jobs, which have ended."""
    return Figures(
        len(ended),
        _spread([outcome.ended_ns - outcome.job.submitted_ns - outcome.job.duration_ns for outcome in ended]),
        _spread([outcome.ended_ns - outcome.job.submitted_ns for outcome in ended]),
        _used_ns(ended) / SECOND / 3600,
    )


def _used_ns(ended: list[Outcome]) -> float:
    milli = sum(one.job.duration_ns * one.job.gpus * one.job.compute for one in ended)
    return milli / WHOLE


def _spread(times_ns: list[int]) -> Spread:
    times_ns.sort()
    mean_ns = sum(times_ns) / len(times_ns) if times_ns else 0.0
    p50, p95, p99 = (percentile(times_ns, percent) / SECOND for percent in (50, 95, 99))
    return Spread(mean_ns / SECOND, p50, p95, p99)


def moments(run: Run) -> list[Moment]:
    """The jobs that wait and the GPUs in use over time, those left out that the cluster cannot hold."""
    if run.moments:
        return run.moments
    changes: dict[int, tuple[int, int]] = {}

    def change(at_ns: int, waiting: int, milli: int) -> None:
        before = changes.get(at_ns, (0, 0))
        changes[at_ns] = before[0] + waiting, before[1] + milli

    for outcome in run.outcomes:
        if outcome.ended_ns >= 0:
            milli = outcome.job.gpus * outcome.job.compute
            change(outcome.job.submitted_ns, 1, 0)
            change(outcome.started_ns, -1, milli)
            change(outcome.ended_ns, 0, -milli)
    found, waiting, in_use = [], 0, 0
    for at_ns in sorted(changes):
        waiting, in_use = waiting + changes[at_ns][0], in_use + changes[at_ns][1]
        found.append(Moment(at_ns, waiting, in_use))
    return found
