"""Small clusters in virtual time, worked out by hand."""

import msgspec

from muster.events.policy import Backfill, Policy
from muster.projections.percentiles import percentile
from muster.projections.simulation import POLICIES, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import TraceJob
from muster.projections.virtual import Run, VirtualCluster

SECOND = 1_000_000_000


def jobs(*rows: tuple[int, int, int]) -> list[TraceJob]:
    """Jobs by submission (s), duration (s) and GPUs."""
    return [TraceJob(f"j{number}", at * SECOND, lasts * SECOND, gpus) for number, (at, lasts, gpus) in enumerate(rows)]


def run(trace: list[TraceJob], policy: Policy, nodes: int = 1, gpus: int = 4) -> Run:
    return VirtualCluster(uniform(nodes, gpus), policy).run(trace)


def starts(found: Run) -> list[int]:
    """Seconds; -1 = never."""
    return [-1 if outcome.started_ns < 0 else outcome.started_ns // SECOND for outcome in found.outcomes]


def test_the_head_blocks_under_fifo() -> None:
    trace = jobs((0, 100, 3), (1, 10, 2), (2, 5, 1))
    assert starts(run(trace, POLICIES["fifo"])) == [0, 100, 100]


def test_easy_starts_what_ends_before_the_head_starts() -> None:
    trace = jobs((0, 100, 3), (1, 10, 2), (2, 98, 1), (3, 5, 1))
    assert starts(run(trace, POLICIES["easy"])) == [0, 100, 2, 100]


def test_easy_starts_what_leaves_the_head_its_room() -> None:
    """Of 4 GPUs 3 are free at 100: the head takes 2, so one may be held for longer, not two."""
    trace = jobs((0, 100, 2), (0, 300, 1), (1, 10, 3), (2, 400, 1))
    assert starts(run(trace, POLICIES["easy"])) == [0, 0, 100, 110]
    roomy = jobs((0, 100, 3), (1, 10, 2), (2, 400, 1), (3, 400, 1))
    assert starts(run(roomy, POLICIES["easy"])) == [0, 100, 2, 100]


def test_the_head_may_start_on_another_node_than_was_thought() -> None:
    """A gang of 7 holds a whole node and 3 GPUs of another: one is left. At 50 both are free, and the head of 4 needs
    one of them: best fit puts a long job on the one, and the head gets the other."""
    trace = jobs((0, 50, 7), (1, 10, 4), (2, 200, 1), (3, 200, 1))
    assert starts(run(trace, POLICIES["easy"], nodes=2)) == [0, 50, 2, 50]


def test_greedy_starts_whoever_fits() -> None:
    trace = jobs((0, 100, 3), (1, 10, 4), (2, 500, 1), (3, 5, 1))
    assert starts(run(trace, POLICIES["fjf"])) == [0, 502, 2, 100]


def test_the_shortest_is_first_and_blocks() -> None:
    trace = jobs((0, 100, 3), (1, 50, 2), (2, 10, 4), (3, 5, 1))
    assert starts(run(trace, POLICIES["sjf"])) == [0, 110, 100, 3]


def test_conservative_puts_off_nobody_who_comes_before() -> None:
    """Of 4 GPUs 2 are free at 100 and one at 300: the job of 2 starts at 100, the one of 3 at 200. A long job that
    leaves the first of them alone takes the place of the second: easy lets it start, conservative does not."""
    trace = jobs((0, 100, 2), (0, 300, 1), (1, 100, 2), (1, 50, 3), (2, 1000, 1), (3, 90, 1))
    assert starts(run(trace, POLICIES["easy"])) == [0, 0, 100, 300, 2, 200]
    assert starts(run(trace, POLICIES["conservative"])) == [0, 0, 100, 200, 250, 3]


def test_no_start_that_conservative_promised_is_put_off() -> None:
    trace = jobs(*((3 * number, 13 * number % 47 + 1, (1, 2, 3, 4, 8, 6)[number * number % 6]) for number in range(60)))
    found = run(trace, POLICIES["conservative"], nodes=3)
    assert found.reserved > 30
    assert found.broken == []
    assert summarize(found).figures.wait.mean_s < summarize(run(trace, POLICIES["fifo"], nodes=3)).figures.wait.mean_s


def test_fair_lets_the_user_start_who_used_least() -> None:
    rows = [(0, 100, "ada"), (1, 10, "ada"), (2, 10, "bob")]
    trace = [TraceJob(f"j{n}", at * SECOND, lasts * SECOND, 4, user) for n, (at, lasts, user) in enumerate(rows)]
    assert starts(run(trace, POLICIES["fair"])) == [0, 110, 100]


def test_ends_come_before_arrivals_of_the_same_moment() -> None:
    trace = jobs((0, 10, 4), (10, 1, 4))
    assert starts(run(trace, POLICIES["fifo"])) == [0, 10]


def test_a_gang_takes_whole_nodes_and_the_rest_of_one_more() -> None:
    trace = jobs((0, 10, 1), (0, 10, 6), (0, 10, 2), (0, 10, 2))
    assert starts(run(trace, POLICIES["fifo"], nodes=3)) == [0, 0, 0, 0]
    crowded = jobs((0, 10, 3), (0, 10, 6))
    assert starts(run(crowded, POLICIES["fifo"], nodes=2)) == [0, 10]


def test_what_fits_no_cluster_never_starts_and_blocks_nobody() -> None:
    found = run(jobs((0, 10, 5), (0, 10, 4)), POLICIES["fifo"])
    assert starts(found) == [-1, 0]
    assert summarize(found).never_started == 1


def test_jobs_of_no_time_end_when_they_start() -> None:
    found = run(jobs((0, 0, 4), (0, 0, 4), (0, 5, 4)), POLICIES["easy"])
    assert starts(found) == [0, 0, 0]


def test_figures_are_those_of_the_jobs() -> None:
    trace = [TraceJob("a", 0, 10 * SECOND, 4, "ada"), TraceJob("b", 0, 30 * SECOND, 2, "bob")]
    summary = summarize(run(trace, POLICIES["fifo"]))
    assert (summary.figures.wait.mean_s, summary.figures.jct.mean_s) == (5.0, 25.0)
    assert (summary.makespan_s, summary.utilization) == (40.0, 100 / 160)
    assert summary.users["bob"].wait.p99_s == 10.0
    assert summary.users["ada"].gpu_hours == 40 / 3600


def test_percentiles_are_values_that_occur() -> None:
    assert [percentile(list(range(1, 11)), percent) for percent in (50, 95, 99, 100)] == [5, 10, 10, 10]
    assert percentile([], 99) == 0


def test_passes_to_rest_look_deeper_than_one() -> None:
    """Backfill looks at one job behind the head: the first pass starts that one, the next pass the one behind it."""
    policy = msgspec.structs.replace(POLICIES["easy"], backfill=Backfill(depth=1))
    trace = jobs((0, 100, 2), (1, 10, 4), (1, 5, 1), (1, 5, 1))
    once, to_rest = (VirtualCluster(uniform(1, 4), policy, to_rest=rest).run(trace) for rest in (False, True))
    assert starts(once) == [0, 100, 1, 6]
    assert starts(to_rest) == [0, 100, 1, 1]


def test_two_runs_are_alike() -> None:
    trace = jobs(*((number, 7 * number % 31 + 1, number % 5) for number in range(200)))
    first, second = (run(trace, POLICIES["easy"], nodes=2) for _ in range(2))
    assert starts(first) == starts(second)
