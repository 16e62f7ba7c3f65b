"""The traces' experiments, against what was measured on them independently."""

from pathlib import Path

import pytest

from muster.projections.simulation import Summary, simulate, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"

pytestmark = pytest.mark.skipif(not TRACES.exists(), reason="the traces are not at ../shared/traces")

NOVEMBER = "2017-11-01 00:00:00", "2017-11-30 23:59:59"


def summary_of(name: str, nodes: int, policy: str, since: str = "", until: str = "") -> Summary:
    trace = read_trace(TRACES / name).between(since, until)
    return summarize(simulate(uniform(nodes, 8), trace.jobs, policy))


@pytest.mark.parametrize(
    ("name", "nodes", "policy", "mean_jct_s"),
    [
        ("itp/cluster06.csv.xz", 13, "fifo", 258_398.5),
        ("itp/cluster06.csv.xz", 13, "easy", 123_457.0),
        ("muri/trace1.csv.xz", 8, "fifo", 11_001_202.4),
        ("muri/trace1.csv.xz", 8, "easy", 8_555_754.3),
        ("muri/trace3.csv.xz", 8, "fifo", 991_215.2),
        ("muri/trace3.csv.xz", 8, "easy", 421_204.1),
    ],
)
def test_completion_times(name: str, nodes: int, policy: str, mean_jct_s: float) -> None:
    summary = summary_of(name, nodes, policy)
    assert round(summary.figures.jct.mean_s, 1) == mean_jct_s
    assert (summary.never_started, summary.broken_reservations) == (0, 0)


@pytest.mark.parametrize(
    ("name", "nodes", "policy", "mean_jct_s"),
    [
        ("itp/cluster06.csv.xz", 13, "fjf", 87_047),
        ("itp/cluster06.csv.xz", 13, "sjf", 48_846),
        ("muri/trace1.csv.xz", 8, "fjf", 5_548_762),
        ("muri/trace1.csv.xz", 8, "sjf", 1_623_609),
        ("muri/trace3.csv.xz", 8, "fjf", 480_913),
        ("muri/trace3.csv.xz", 8, "sjf", 262_107),
    ],
)
def test_completion_times_to_the_second(name: str, nodes: int, policy: str, mean_jct_s: int) -> None:
    assert summary_of(name, nodes, policy).figures.jct.mean_s == pytest.approx(mean_jct_s, abs=1)


@pytest.mark.parametrize(("policy", "mean_wait_s"), [("fifo", 38_998), ("easy", 8_282)])
def test_waits_of_a_month_of_philly(policy: str, mean_wait_s: int) -> None:
    summary = summary_of("philly/philly.csv.xz", 55, policy, *NOVEMBER)
    assert summary.figures.jobs == 21_318
    assert round(summary.figures.wait.mean_s) == mean_wait_s
    assert summary.broken_reservations == 0
