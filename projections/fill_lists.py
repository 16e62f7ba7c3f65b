"""What a filling is read from: a list of tasks with the columns of openb's, a file of nodes, and orders of arrival.

In the lists' terms: a CPU is a thousandth of one, and a device has 1,000 MiB of memory, of which a share takes as much
as of the compute.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from muster.core.resources import Demand
from muster.events.binding import WHOLE_COMPUTE
from muster.events.types import Inventory
from muster.projections.trace_nodes import read_nodes
from muster.projections.traces import COUNT_MOST, Row, TraceError, reading, rows

MILLI_CPU: Final = 1000
NEEDED: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class Filling(NamedTuple):
    """The nodes by name, and the tasks of a list in its order."""

    nodes: Mapping[str, Inventory]
    tasks: Sequence[Demand]

    @property
    def milli(self) -> int:
        """Thousandths of devices that there are."""
        return WHOLE_COMPUTE * sum(len(inventory.devices) for inventory in self.nodes.values())


def read_filling(tasks: Path, nodes: Path) -> Filling:
    """A cluster, and a list of tasks for it. Raises TraceError."""
    return Filling(read_nodes(nodes, MILLI_CPU), list(_tasks(tasks)))


def _tasks(path: Path) -> Iterator[Demand]:
    with reading(path) as file:
        columns, every = rows(str(path), file)
        missing = next((name for name in NEEDED if name not in columns), None)
        if missing is not None:
            raise TraceError(f"{path}, line 1: no column {missing}: a list of tasks has {', '.join(NEEDED)}")
        yield from map(_demand, every)


def _demand(row: Row) -> Demand:
    gpus = row("num_gpu").number()
    compute = row("gpu_milli").number(least=1, most=WHOLE_COMPUTE) if gpus == 1 else WHOLE_COMPUTE
    return Demand(
        gpus=gpus,
        nodes=1,
        cpus=row("cpu_milli").number(most=MILLI_CPU * COUNT_MOST) // max(gpus, 1),
        memory_mib=row("memory_mib").number(most=1000 * COUNT_MOST) // max(gpus, 1),
        device_memory_mib=0 if compute == WHOLE_COMPUTE else compute,
        compute=compute,
        models=tuple(filter(None, row("gpu_spec").text.split("|"))),
        linked=False,
        node_names=frozenset(),
        labels=(),
    )


def read_orders(path: Path) -> dict[int, list[int]]:
    """The orders of arrival of a list by seed, as numbers of its tasks: {"42": [255, 1685, ..], ..}, compressed or not.
    Raises TraceError."""
    with reading(path) as file:
        try:
            orders = json.load(file)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"{path} is not JSON: {error}") from error
    if not isinstance(orders, dict) or not all(map(_is_order, orders.items())):
        raise TraceError(f"{path} is not orders of arrival: an object of seeds, each with a list of numbers of tasks")
    return {int(seed): order for seed, order in orders.items()}


def _is_order(item: tuple[str, object]) -> bool:
    seed, order = item
    if not (seed.isdecimal() and seed.isascii() and len(seed) < len(str(COUNT_MOST * COUNT_MOST))):
        return False
    return isinstance(order, list) and all(type(number) is int for number in order)


def arrivals(filling: Filling, orders: Mapping[int, Sequence[int]], seed: int) -> list[Demand]:
    """The tasks in the order of a seed. Raises TraceError."""
    order = orders.get(seed)
    if order is None:
        raise TraceError(
            f"seed {seed}: there are orders of arrival for {', '.join(map(str, sorted(orders)))[:200] or 'none'}"
        )
    last = len(filling.tasks) - 1
    beyond = next((number for number in order if not 0 <= number <= last), None)
    if beyond is not None:
        raise TraceError(f"seed {seed}: task {beyond} arrives, but the list has the tasks 0 to {last}")
    return [filling.tasks[number] for number in order]
