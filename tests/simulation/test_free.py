"""Free preemption: who runs when, worked out by hand, and that fast rooms are the scheduler's own."""

import random

import pytest

from muster.core.scheme import Rule
from muster.projections.free import FreeCluster, FreeOrder
from muster.projections.free_rooms import AnyNodes, EqualNodes
from muster.projections.simulation import moments, simulate, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import TraceJob
from muster.projections.virtual import Run

SECOND = 1_000_000_000


def jobs(*rows: tuple[float, float, int]) -> list[TraceJob]:
    """Submitted (s), duration (s) and GPUs."""
    return [
        TraceJob(str(number), round(at * SECOND), round(lasts * SECOND), gpus)
        for number, (at, lasts, gpus) in enumerate(rows)
    ]


def run(trace: list[TraceJob], order: FreeOrder, nodes: int = 1, gpus: int = 2) -> Run:
    return FreeCluster(uniform(nodes, gpus), order).run(trace)


def ends(found: Run) -> list[float]:
    return [outcome.ended_ns / SECOND for outcome in found.outcomes]


def test_the_shortest_runs_and_the_longest_goes_on_after_it() -> None:
    """The long job is stopped at 10, has 90 s left, and goes on at 30; both its GPUs are free for 20 s before that."""
    found = run(jobs((0, 100, 2), (10, 20, 1)), "srtf")
    assert ends(found) == [120, 30]
    assert found.preemptions == 1


def test_a_job_is_overtaken_only_by_what_is_left_of_another() -> None:
    """At 90 the first has 10 s left: the one of 20 s waits for it."""
    found = run(jobs((0, 100, 2), (90, 20, 1), (95, 30, 1)), "srtf")
    assert ends(found) == [100, 120, 130]
    assert found.preemptions == 0


def test_service_counts_the_devices_too() -> None:
    """30 s of 2 GPUs against 40 s of one: by time the first is shorter, by service the second."""
    trace = jobs((0, 30, 2), (0, 40, 1))
    assert ends(run(trace, "srtf")) == [30, 70]
    assert ends(run(trace, "srsf")) == [70, 40]


def test_a_job_in_the_first_queue_stops_one_that_had_an_hour() -> None:
    """On 2 GPUs, 1,800 s are an hour: then the second job, which came at 10, runs, and falls into the second queue
    after 1,800 s too; the first has waited longer, so it goes on until it ends."""
    found = run(jobs((0, 3000, 2), (10, 2000, 2)), "las")
    assert ends(found) == [4800, 5000]
    assert found.preemptions == 2


def test_small_jobs_run_beside_a_large_one_that_does_not_fit() -> None:
    """The third is first in rank, then the first; the second needs both GPUs, and waits without keeping one idle."""
    found = run(jobs((0, 50, 1), (0, 60, 2), (0, 10, 1), (0, 70, 1)), "srtf")
    assert ends(found) == [50, 140, 10, 80]


def test_waits_and_use_are_those_of_the_jobs_in_all() -> None:
    summary = summarize(run(jobs((0, 100, 2), (10, 20, 1)), "srtf"))
    assert (summary.figures.wait.mean_s, summary.figures.jct.mean_s) == (10.0, 70.0)
    assert (summary.makespan_s, summary.utilization, summary.preemptions) == (120.0, 220 / 240, 1)


def test_moments_tell_who_waits_and_what_is_in_use() -> None:
    found = [
        (at_ns // SECOND, waiting, milli)
        for at_ns, waiting, milli in run(jobs((0, 100, 2), (10, 20, 1)), "srtf").moments
    ]
    assert found == [(0, 0, 2000), (10, 1, 1000), (30, 0, 2000), (120, 0, 0)]


def test_moments_of_a_run_in_which_nobody_is_stopped_follow_from_its_outcomes() -> None:
    found = simulate(uniform(1, 2), jobs((0, 100, 2), (10, 20, 1), (10, 5, 3)), "fifo")
    assert [(moment.at_ns // SECOND, *moment[1:]) for moment in moments(found)] == [
        (0, 0, 2000),
        (10, 1, 2000),
        (100, 0, 1000),
        (120, 0, 0),
    ]


def test_what_fits_no_cluster_never_starts() -> None:
    summary = summarize(run(jobs((0, 10, 3), (0, 10, 2)), "srsf"))
    assert (summary.never_started, summary.figures.jobs) == (1, 1)


def test_jobs_of_no_time_and_of_no_gpus_end() -> None:
    assert ends(run(jobs((0, 10, 2), (5, 0, 1), (6, 3, 0)), "srtf")) == [10, 5, 9]


def test_shares_of_a_gpu_are_ranked_and_placed_too() -> None:
    """Two halves fit on one GPU, a third half waits for the shorter of them."""
    halves = [TraceJob(str(number), 0, lasts * SECOND, 1, compute=500) for number, lasts in enumerate((30, 20, 40))]
    assert ends(run(halves, "srtf", gpus=1)) == [30, 20, 60]


@pytest.mark.parametrize("rule", ["best-fit", "spread", "fragmentation", "tight"])
def test_every_rule_of_placement_runs_all(rule: Rule) -> None:
    found = simulate(
        uniform(2, 4), jobs(*((number, 50 + number % 7, 1 + number % 5) for number in range(30))), "srtf", rule
    )
    assert all(outcome.ended_ns > 0 for outcome in found.outcomes)


def test_without_preemption_an_order_only_says_who_is_next() -> None:
    found = simulate(uniform(1, 2), jobs((0, 100, 2), (10, 30, 2), (20, 20, 2)), "srtf", free=False)
    assert ends(found) == [100, 150, 120]
    assert summarize(found).preemptions == 0


def test_equal_nodes_are_filled_as_best_fit_fills_them() -> None:
    """Put in and taken out at random: the same jobs fit, of one node and of several."""
    chance = random.Random(1)
    fast, own = EqualNodes(6, 8), AnyNodes(uniform(6, 8), "best-fit")
    held = fitted = 0
    for _ in range(1500):
        if held and chance.random() < 0.2:
            held = chance.randrange(held)
            fast.keep(held)
            own.keep(held)
        job = TraceJob("", 0, 0, chance.choice((1, 1, 2, 3, 4, 5, 8, 8, 12, 16, 20)))
        fits = fast.take(fast.kind(job))
        assert own.take(own.kind(job)) == fits
        held += fits
        fitted += fits
    assert 300 < fitted < 1400
