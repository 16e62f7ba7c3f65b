"""The openb trace against what was published of it (experiments of the ATC 2023 paper on fragmentation): columns 0 to 8
of the fillings with seed 42, in which nothing is refused yet."""

import csv
import lzma
import statistics
from collections import defaultdict

import pytest

from bench.openb import DATA, filling, orders
from muster.projections.fill_lists import Filling, arrivals
from muster.projections.fillup import Fragments, empty_cluster, fill, mix

COLUMNS = range(9)
TOTAL = 6_212_000

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"the openb trace is not at {DATA}")


def published(table: str, policy: str) -> list[float]:
    with lzma.open(DATA / "published" / f"analysis_{table}_discrete.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            if (row["workload"], row["sc_policy"], row["seed"]) == ("openb_pod_list_default", policy, "42"):
                return [float(row[str(column)]) for column in COLUMNS]
    raise AssertionError(f"no {policy} in {table}")


@pytest.fixture(scope="module")
def trace() -> Filling:
    return filling()


def test_fragmentation_follows_the_published_curve(trace: Filling) -> None:
    assert len(mix(trace, 95)) == 35
    capacity = empty_cluster(trace, "fragmentation")
    fragments = Fragments(trace, capacity.rooms)
    columns: dict[int, list[float]] = defaultdict(list)
    for step in fill(capacity, arrivals(trace, orders(), 42)):
        column = round(100 * step.arrived / TOTAL)
        if column not in COLUMNS:
            break
        fragments.review(step.node)
        columns[column].append(fragments.percent)

    curve = [statistics.mean(columns[column]) for column in COLUMNS]

    assert curve == pytest.approx(published("frag", "06-FGD"), abs=0.012)


def test_what_arrives_is_in_use_while_nothing_is_refused(trace: Filling) -> None:
    capacity = empty_cluster(trace, "best-fit")
    columns: dict[int, list[float]] = defaultdict(list)
    for step in fill(capacity, arrivals(trace, orders(), 42)):
        column = round(100 * step.arrived / TOTAL)
        if column not in COLUMNS:
            break
        columns[column].append(100 * step.used / TOTAL)

    curve = [statistics.mean(columns[column]) for column in COLUMNS]

    assert curve == pytest.approx(published("allo", "05-BestFit"), abs=0.006)
