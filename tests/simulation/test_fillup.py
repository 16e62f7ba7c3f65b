"""Filling a cluster: five tasks worked out by hand, and what is refused."""

import json
from pathlib import Path

import pytest

from muster.projections.fill_lists import Filling, arrivals, read_filling, read_orders
from muster.projections.fillup import Column, FillRule, Step, run
from muster.projections.traces import TraceError

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,64000,2,A\nn2,8000,64000,2,B\n"
TASKS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "half,1000,1000,1,500,\npair,1000,1000,2,1000,\none,1000,1000,1,1000,B\nhost,1500,1000,0,0,\nlarge,1000,1000,3,1000,\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "tasks.csv").write_text(TASKS)
    (tmp_path / "orders.json").write_text(json.dumps({"1": [0, 0, 1, 2, 4], "7": [3]}))
    return tmp_path


@pytest.fixture
def filling(folder: Path) -> Filling:
    return read_filling(folder / "tasks.csv", folder / "nodes.csv")


def fill(filling: Filling, order: list[int], rule: FillRule = "best-fit") -> list[tuple[int, int, str]]:
    steps: list[tuple[int, int, str]] = []

    def told(step: Step, _: Column) -> None:
        steps.append((step.arrived, step.used, step.node))

    run(filling, rule, arrivals(filling, {1: order}, 1), 1, told)
    return steps


def test_five_tasks_on_two_nodes(filling: Filling) -> None:
    """Two halves share a GPU of n1; the pair needs the whole of n2; the one that runs on B alone, and the large one,
    which no node could hold, are dropped."""
    assert fill(filling, [0, 0, 1, 2, 4]) == [
        (500, 500, "n1"),
        (1000, 1000, "n1"),
        (3000, 3000, "n2"),
        (4000, 3000, ""),
        (7000, 3000, ""),
    ]


def test_columns_are_means_over_the_arrivals_that_round_to_them(filling: Filling) -> None:
    """Of 4 GPUs, at 50 % asked for 50 % are in use. The pair then finds one GPU on each node: at 100 % it is no more,
    after it and after a task without GPUs. Where the pair comes first, it is 75 %."""
    filled = run(filling, "best-fit", arrivals(filling, {1: [0, 0, 2, 1, 3]}, 1), 1)
    assert {percent: column.allocation_pct for percent, column in filled.columns.items()} == {50: 50.0, 100: 50.0}
    crowded = run(filling, "best-fit", arrivals(filling, {1: [0, 0, 1, 2, 3]}, 1), 1)
    assert {percent: column.allocation_pct for percent, column in crowded.columns.items()} == {100: 75.0}
    assert (crowded.arrivals, crowded.placed) == (5, 4)


def test_fragmented_is_what_the_lists_tasks_cannot_use(folder: Path) -> None:
    """A list of pairs alone: each takes two whole GPUs of one node. A half of one leaves 1.5 GPUs that none can use:
    of 4 GPUs these are 37.5 %, all that is idle on its node."""
    text = "cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "1000,1000,2,1000\n" * 99 + "1000,1000,1,500\n"
    (folder / "pairs.csv").write_text(text)
    filling = read_filling(folder / "pairs.csv", folder / "nodes.csv")
    filled = run(filling, "best-fit", arrivals(filling, {1: [99]}, 1), 1)
    assert filled.end == Column(12.5, 37.5)


def test_cpus_count_in_thousandths(filling: Filling) -> None:
    """8 CPUs hold five tasks of one and a half; the sixth goes to the other node, the eleventh nowhere."""
    assert [node for _, _, node in fill(filling, [3] * 11)] == ["n1"] * 5 + ["n2"] * 5 + [""]


def test_random_places_what_fits_and_repeats_itself(filling: Filling) -> None:
    order = [0, 2, 0, 0, 1, 1, 0, 0]
    first, second = (fill(filling, order, "random") for _ in range(2))
    assert first == second
    assert all(used <= arrived for arrived, used, _ in first)
    assert next(node for _, _, node in first[1:2]) == "n2"


def test_an_unknown_seed_is_told_with_those_that_there_are(folder: Path, filling: Filling) -> None:
    with pytest.raises(TraceError, match="seed 2: there are orders of arrival for 1, 7"):
        arrivals(filling, read_orders(folder / "orders.json"), 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "is not JSON"),
        ("[1]", "is not orders of arrival"),
        ('{"a": [1]}', "is not orders of arrival"),
        ('{"1": [1.5]}', "is not orders of arrival"),
        ('{"1": [true]}', "is not orders of arrival"),
    ],
)
def test_orders_that_are_none(folder: Path, text: str, why: str) -> None:
    (folder / "orders.json").write_text(text)
    with pytest.raises(TraceError, match=why):
        read_orders(folder / "orders.json")


def test_a_task_that_the_list_does_not_have(filling: Filling) -> None:
    with pytest.raises(TraceError, match="task 5 arrives, but the list has the tasks 0 to 4"):
        arrivals(filling, {1: [0, 5]}, 1)


def test_a_list_without_a_column(folder: Path) -> None:
    (folder / "tasks.csv").write_text("name,cpu_milli,memory_mib,num_gpu\na,1,1,1\n")
    with pytest.raises(TraceError, match="line 1: no column gpu_milli"):
        read_filling(folder / "tasks.csv", folder / "nodes.csv")
