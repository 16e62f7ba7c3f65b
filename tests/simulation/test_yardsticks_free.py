"""Free preemption and fillings, against what was measured on the same traces independently, and what was published."""

import statistics
from pathlib import Path

import pytest

from muster.projections.fill_lists import Filling, arrivals, read_filling, read_orders
from muster.projections.fillup import Filled, FillRule, run
from muster.projections.simulation import simulate, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
OPENB = TRACES / "openb"

pytestmark = pytest.mark.skipif(not TRACES.exists(), reason="the traces are not at ../shared/traces")


@pytest.mark.parametrize(
    ("name", "nodes", "policy", "mean_jct_s"),
    [
        ("itp/cluster06", 13, "srtf", 36_463),
        ("itp/cluster06", 13, "srsf", 36_952),
        ("itp/cluster06", 13, "las", 108_212),
        ("muri/trace1", 8, "srtf", 1_333_917),
        ("muri/trace1", 8, "srsf", 952_245),
        ("muri/trace1", 8, "las", 6_701_372),
        ("muri/trace3", 8, "srtf", 180_116),
        ("muri/trace3", 8, "srsf", 172_684),
        ("muri/trace3", 8, "las", 473_381),
        pytest.param("itp/cluster02", 12, "srtf", 29_092, marks=pytest.mark.slow),
        pytest.param("itp/cluster02", 12, "las", 209_828, marks=pytest.mark.slow),
        pytest.param("itp/cluster04", 72, "srsf", 20_823, marks=pytest.mark.slow),
    ],
)
def test_mean_completion_times(name: str, nodes: int, policy: str, mean_jct_s: int) -> None:
    jobs = read_trace(TRACES / f"{name}.csv.xz").jobs
    assert round(summarize(simulate(uniform(nodes, 8), jobs, policy)).figures.jct.mean_s) == mean_jct_s


@pytest.fixture(scope="module")
def openb() -> tuple[Filling, dict[int, list[int]]]:
    filling = read_filling(OPENB / "openb_pod_list_default.csv", OPENB / "openb_node_list_gpu_node.csv")
    return filling, read_orders(OPENB / "arrivals" / "default.json.xz")


def filled(openb: tuple[Filling, dict[int, list[int]]], rule: FillRule, seed: int) -> Filled:
    filling, orders = openb
    return run(filling, rule, arrivals(filling, orders, seed), seed)


@pytest.mark.parametrize(
    ("rule", "allocation_pct", "fragmented_pct"),
    [("best-fit", 93.13, (10.70, 8.16, 6.93, 6.72)), ("random", 87.47, (15.09, 15.89, 13.38, 12.27))],
)
def test_the_first_order(
    openb: tuple[Filling, dict[int, list[int]]],
    rule: FillRule,
    allocation_pct: float,
    fragmented_pct: tuple[float, ...],
) -> None:
    """Of one order of ten: within what they differ by."""
    columns = filled(openb, rule, 42).columns
    assert columns[130].allocation_pct == pytest.approx(allocation_pct, abs=0.6)
    found = [columns[percent].fragmented_pct for percent in (50, 80, 100, 130)]
    assert found == pytest.approx(fragmented_pct, abs=0.6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "allocation_pct", "within", "fragmented_pct"),
    [
        ("best-fit", 93.1, 0.3, (10.70, 8.16, 6.93, 6.72)),
        ("fragmentation", 95.3, 0.2, (8.96, 6.00, 4.82, 4.65)),
        ("random", 87.5, 0.3, (15.09, 15.89, 13.38, 12.27)),
    ],
)
def test_the_mean_of_ten_orders(
    openb: tuple[Filling, dict[int, list[int]]],
    rule: FillRule,
    allocation_pct: float,
    within: float,
    fragmented_pct: tuple[float, ...],
) -> None:
    every = [filled(openb, rule, seed).columns for seed in range(42, 52)]
    allocated = [columns[130].allocation_pct for columns in every]
    assert statistics.mean(allocated) == pytest.approx(allocation_pct, abs=within)
    for percent, wanted in zip((50, 80, 100, 130), fragmented_pct, strict=True):
        found = statistics.mean(columns[percent].fragmented_pct for columns in every)
        assert found == pytest.approx(wanted, abs=0.2)
