"""The openb trace against what was published of it (experiments of the ATC 2023 paper on fragmentation): columns 0 to 8
of the fillings with seed 42, in which nothing is refused yet."""

import csv
import lzma
import statistics
from collections import defaultdict

import pytest

from bench.openb import DATA, Trace, empty_cluster, fill, read_orders, read_trace, scheme
from muster.core.fragmentation import DeviceLeft, Measure
from muster.core.node_room import NodeRoom

COLUMNS = range(9)
TOTAL = 6_212_000

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"the openb trace is not at {DATA}")


def published(table: str, policy: str) -> list[float]:
    with lzma.open(DATA / "published" / f"analysis_{table}_discrete.csv.xz", "rt") as file:
        for row in csv.DictReader(file):
            if (row["workload"], row["sc_policy"], row["seed"]) == ("openb_pod_list_default", policy, "42"):
                return [float(row[str(column)]) for column in COLUMNS]
    raise AssertionError(f"no {policy} in {table}")


def fragmentation_of(measure: Measure, room: NodeRoom) -> int:
    kinds = [measure.kind(device) for device in room.inventory.devices]
    return measure.amount(room.cpus, tuple(map(DeviceLeft, kinds, room.device_compute, room.device_memory_mib)))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace()


def test_fragmentation_follows_the_published_curve(trace: Trace) -> None:
    capacity = empty_cluster(trace, "fragmentation")
    mix = scheme(trace, "fragmentation").mix
    assert len(mix) == 35
    measure = Measure(mix)
    by_node = {name: fragmentation_of(measure, room) for name, room in capacity.rooms.items()}
    columns: dict[int, list[float]] = defaultdict(list)
    for step in fill(capacity, (trace.tasks[number] for number in read_orders()[42])):
        column = round(100 * step.arrived / TOTAL)
        if column not in COLUMNS:
            break
        by_node[step.node] = fragmentation_of(measure, capacity.rooms[step.node])
        columns[column].append(100 * sum(by_node.values()) / measure.total / TOTAL)

    curve = [statistics.mean(columns[column]) for column in COLUMNS]

    assert curve == pytest.approx(published("frag", "06-FGD"), abs=0.012)


def test_what_arrives_is_in_use_while_nothing_is_refused(trace: Trace) -> None:
    capacity = empty_cluster(trace, "best-fit")
    columns: dict[int, list[float]] = defaultdict(list)
    for step in fill(capacity, (trace.tasks[number] for number in read_orders()[42])):
        column = round(100 * step.arrived / TOTAL)
        if column not in COLUMNS:
            break
        columns[column].append(100 * step.used / TOTAL)

    curve = [statistics.mean(columns[column]) for column in COLUMNS]

    assert curve == pytest.approx(published("allo", "05-BestFit"), abs=0.006)
