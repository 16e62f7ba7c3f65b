"""Virtual time on the Philly trace: 82,247 jobs on 80 nodes of 8 GPUs, and a month of it with free preemption, beside
what was measured independently."""

import time
from typing import Final

from bench.experiments import DATA
from bench.measured import TRACES
from bench.table import Row
from muster.projections.simulation import simulate, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import read_trace

RUNS: Final = (("philly", "fifo"), ("philly", "easy"), ("philly-november", "srtf"))


def measure() -> list[Row]:
    """A row for each run; nothing where the trace is not there."""
    if not DATA.exists():
        return []
    rows = []
    for name, policy in RUNS:
        trace = TRACES[name]
        jobs = read_trace(DATA / trace.path).between(*trace.window).jobs
        begun = time.process_time()
        summary = summarize(simulate(uniform(trace.nodes, 8), jobs, policy))
        seconds = time.process_time() - begun
        value = f"{seconds:.1f} s of one core, mean wait {summary.figures.wait.mean_s:,.0f} s"
        beside = f"measured elsewhere: {trace.known[policy].wait_s:,.0f} s"
        rows.append(Row(f"{name}, {len(jobs):,} jobs, {policy}", value, beside))
    return rows
