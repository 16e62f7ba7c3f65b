"""Virtual time on the Philly trace: 82,247 jobs on 80 nodes of 8 GPUs, beside what was measured independently."""

import time
from pathlib import Path
from typing import Final

from bench.table import Row
from muster.projections.simulation import POLICIES, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import read_trace
from muster.projections.virtual import VirtualCluster

TRACE: Final = Path(__file__).resolve().parents[2] / "shared" / "traces" / "philly" / "philly.csv.xz"
NODES: Final = 80
MEASURED: Final = {"fifo": "111,350", "easy": "20,015"}
"""Mean waits in s."""


def measure() -> list[Row]:
    """A row for each policy; nothing where the trace is not there."""
    if not TRACE.exists():
        return []
    trace = read_trace(TRACE)
    rows = []
    for policy, waits in MEASURED.items():
        begun = time.process_time()
        run = VirtualCluster(uniform(NODES, 8), POLICIES[policy]).run(trace.jobs)
        seconds = time.process_time() - begun
        value = f"{seconds:.1f} s of one core, mean wait {summarize(run).figures.wait.mean_s:,.0f} s"
        rows.append(Row(f"Philly's {len(trace.jobs):,} jobs, {policy}", value, f"measured elsewhere: {waits} s"))
    return rows
