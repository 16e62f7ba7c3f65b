"""Nodes of other clusters, from CSV files by their columns.

- `openb`: sn (the node's name), cpu_milli, memory_mib, gpu (how many), model
- `spot2026`: node_name, gpu_model, gpu_capacity_num, cpu_num
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from muster.events.types import Device, Inventory
from muster.projections.traces import COUNT_MOST, Cell, Row, TraceError, reading, rows

DEVICE_MIB: Final = 1000
"""The memory of a GPU where nobody says what it has: a share takes as much of it as of the compute."""
FABRIC: Final = "fabric"
GPUS_MOST: Final = 1024


def uniform(nodes: int, gpus: int) -> dict[str, Inventory]:
    """So many nodes of so many GPUs each on one fabric, their names in order of their numbers."""
    width = len(str(nodes))
    names = [f"node-{number:0{width}}" for number in range(1, nodes + 1)]
    return {name: _inventory(name, "GPU", gpus, 0, 0) for name in names}


def read_nodes(path: Path, cpu_parts: int = 1) -> dict[str, Inventory]:
    """The nodes of a file by name, all on one fabric; their CPUs count as so many parts each. Raises TraceError."""
    with reading(path) as file:
        columns, every = rows(str(path), file)
        read = next((read for needed, read in _KINDS.items() if set(needed) <= set(columns)), None)
        if read is None:
            known = "; ".join(", ".join(needed) for needed in _KINDS)
            raise TraceError(
                f"{path}, line 1: no list of nodes has the columns {', '.join(columns)[:200]}; known: {known}"
            )
        found: dict[str, Inventory] = {}
        for row in every:
            name, inventory = read(row, cpu_parts)
            if not name.text or name.text in found:
                raise name.error("is the name of no node, or of one before")
            found[name.text] = inventory
        return found


def _openb(row: Row, cpu_parts: int) -> tuple[Cell, Inventory]:
    name = row("sn")
    cpus = row("cpu_milli").number(most=1000 * COUNT_MOST) * cpu_parts // 1000
    memory_mib = row("memory_mib").number(most=1000 * COUNT_MOST)
    return name, _inventory(name.text, row("model").text, row("gpu").number(most=GPUS_MOST), cpus, memory_mib)


def _spot2026(row: Row, cpu_parts: int) -> tuple[Cell, Inventory]:
    name = row("node_name")
    gpus = row("gpu_capacity_num").number(most=GPUS_MOST)
    return name, _inventory(name.text, row("gpu_model").text, gpus, row("cpu_num").number() * cpu_parts, 0)


def _inventory(name: str, model: str, gpus: int, cpus: int, memory_mib: int) -> Inventory:
    devices = [Device(index, "", model, DEVICE_MIB, DEVICE_MIB) for index in range(gpus)]
    return Inventory(devices, cpus, memory_mib, name, FABRIC)


_KINDS: Final[dict[tuple[str, ...], Callable[[Row, int], tuple[Cell, Inventory]]]] = {
    ("sn", "cpu_milli", "memory_mib", "gpu", "model"): _openb,
    ("node_name", "gpu_model", "gpu_capacity_num", "cpu_num"): _spot2026,
}
