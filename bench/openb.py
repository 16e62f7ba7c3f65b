"""Placement on the openb trace (`python -m bench.openb`): tasks that never leave fill a cluster of 1,213 nodes with
6,212 GPUs, and what fits nowhere is dropped. The yardstick is the share of the GPUs in use once the arrivals have asked
for 100 % and for 130 % of them, as the mean over the arrivals that round to it.

The rules are the product's own, on the product's own room. In the trace's terms: a CPU is a thousandth of one, and a
device has 1,000 MiB of memory, of which a share takes as much as of the compute.
"""

import argparse
import csv
import json
import lzma
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.table import Row
from muster.core.capacity import Capacity
from muster.core.placement import place
from muster.core.resources import Demand
from muster.core.scheme import BY_MIX, Rule, Scheme, TaskClass, mix_of
from muster.events.binding import WHOLE_COMPUTE
from muster.events.types import Device, Inventory

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "traces" / "openb"
SEEDS: Final = range(42, 52)
RULES: Final[tuple[Rule, ...]] = ("best-fit", "spread", "fragmentation", "tight")
PUBLISHED: Final[dict[Rule, str]] = {"best-fit": "92.86, 93.08 (BestFit)", "fragmentation": "95.23, 95.39 (FGD)"}
CPUS_PER_DEVICE: Final = 16_000


class Trace(NamedTuple):
    """The nodes by name, and the tasks of a list in its order."""

    nodes: dict[str, Inventory]
    tasks: list[Demand]


class Step(NamedTuple):
    """After an arrival: thousandths of devices asked for so far and in use, and where it went ("" = nowhere)."""

    arrived: int
    used: int
    node: str


def read_trace(tasks: str = "default") -> Trace:
    """The cluster and a list of tasks."""
    with (DATA / "openb_node_list_gpu_node.csv").open() as file:
        nodes = {row["sn"]: _inventory(row) for row in csv.DictReader(file)}
    path = DATA / f"openb_pod_list_{tasks}.csv"
    with path.open() if path.exists() else lzma.open(f"{path}.xz", "rt") as file:
        return Trace(nodes, [_demand(row) for row in csv.DictReader(file)])


def _inventory(row: dict[str, str]) -> Inventory:
    devices = [Device(index, "", row["model"], WHOLE_COMPUTE, WHOLE_COMPUTE) for index in range(int(row["gpu"]))]
    return Inventory(devices, int(row["cpu_milli"]), int(row["memory_mib"]), "")


def _demand(row: dict[str, str]) -> Demand:
    gpus = int(row["num_gpu"])
    compute = int(row["gpu_milli"]) if gpus == 1 else WHOLE_COMPUTE
    return Demand(
        gpus=gpus,
        nodes=1,
        cpus=int(row["cpu_milli"]) // max(gpus, 1),
        memory_mib=int(row["memory_mib"]) // max(gpus, 1),
        device_memory_mib=0 if compute == WHOLE_COMPUTE else compute,
        compute=compute,
        models=tuple(filter(None, row.get("gpu_spec", "").split("|"))),
        linked=False,
        node_names=frozenset(),
        labels=(),
    )


def read_orders(tasks: str = "default") -> dict[int, list[int]]:
    """The arrivals of a list by seed, as numbers of its tasks. The `gpuspec` lists arrive as the default one does."""
    with lzma.open(DATA / "arrivals" / f"{'default' if tasks.startswith('gpuspec') else tasks}.json.xz") as file:
        orders: dict[str, list[int]] = json.load(file)
    return {int(seed): order for seed, order in orders.items()}


def empty_cluster(trace: Trace, rule: Rule) -> Capacity:
    """The cluster with nothing running, under a rule that knows the whole list."""
    capacity = Capacity()
    capacity.scheme = scheme(trace, rule)
    for name, inventory in trace.nodes.items():
        capacity.set_node(name, inventory)
        capacity.set_available(name, available=True)
    return capacity


def scheme(trace: Trace, rule: Rule) -> Scheme:
    """The rule, with the list as the mix that is expected."""
    counts = Counter(
        TaskClass(task.host_share(task.gpus, 1)[0], task.gpus, task.compute, task.models) for task in trace.tasks
    )
    return Scheme(rule, (), mix_of(counts, BY_MIX.get(rule, 0)), CPUS_PER_DEVICE)


def fill(capacity: Capacity, arrivals: Iterable[Demand]) -> Iterator[Step]:
    """Let tasks arrive one by one."""
    arrived = used = 0
    for demand in arrivals:
        asked = demand.gpus * demand.compute
        arrived += asked
        found = place(capacity, demand)
        if found is not None:
            used += asked
            capacity.take(found.shares[0], demand)
        yield Step(arrived, used, found.shares[0].node if found is not None else "")


class Run(NamedTuple):
    """One filling: percent of the GPUs in use in the columns 100 and 130, and how long it took."""

    at_100: float
    at_130: float
    seconds: float


def run(trace: Trace, rule: Rule, order: list[int]) -> Run:
    """Fill the cluster once."""
    capacity = empty_cluster(trace, rule)
    total = WHOLE_COMPUTE * sum(len(inventory.devices) for inventory in trace.nodes.values())
    columns: dict[int, list[float]] = {100: [], 130: []}
    begun = time.perf_counter()
    for step in fill(capacity, (trace.tasks[number] for number in order)):
        column = round(100 * step.arrived / total)
        if column in columns:
            columns[column].append(round(100 * step.used / total, 2))
    seconds = time.perf_counter() - begun
    return Run(statistics.mean(columns[100]), statistics.mean(columns[130]), seconds)


def measure() -> list[Row]:
    """Every rule on the first order; nothing where the trace is not there."""
    if not DATA.exists():
        return []
    trace, order = read_trace(), read_orders()[SEEDS[0]]
    rows = []
    for rule in RULES:
        once = run(trace, rule, order)
        beside = f"{once.seconds / len(order) * 1e6:,.0f} us a task; published, mean of ten: {PUBLISHED.get(rule, '-')}"
        rows.append(
            Row(f"openb filled by {rule}", f"{once.at_100:.2f}, {once.at_130:.2f} % of the GPUs in use", beside)
        )
    return rows


def main() -> None:
    """Print one row a rule: the mean over the seeds, and each seed's column 130."""
    parser = argparse.ArgumentParser(prog="bench.openb", description=__doc__.partition(":")[0] if __doc__ else "")
    parser.add_argument("--list", default="default", help="the list of tasks: default, cpu050, multigpu20 ..")
    parser.add_argument("--rule", choices=RULES, action="append", help="these rules only")
    parser.add_argument("--seed", type=int, choices=SEEDS, action="append", help="these orders only")
    arguments = parser.parse_args()
    if not DATA.exists():
        sys.stdout.write(f"the openb trace is not at {DATA}: nothing measured\n")
        return
    trace, orders = read_trace(arguments.list), read_orders(arguments.list)
    sys.stdout.write("| rule | at 100 % | at 130 % | sd | s a seed | each seed at 130 % |\n|" + " --- |" * 6 + "\n")
    for rule in arguments.rule or RULES:
        runs = [run(trace, rule, orders[seed]) for seed in arguments.seed or SEEDS]
        at_130 = [once.at_130 for once in runs]
        numbers = [statistics.mean(once.at_100 for once in runs), statistics.mean(at_130), statistics.pstdev(at_130)]
        seconds = statistics.mean(once.seconds for once in runs)
        cells = [rule, *(f"{number:.2f}" for number in numbers), f"{seconds:.1f}"]
        sys.stdout.write(f"| {' | '.join(cells)} | {' '.join(f'{share:.2f}' for share in at_130)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
