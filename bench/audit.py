"""How quickly a log is audited: each entry folded, each decision taken again and compared, the invariants checked.

The log is one of a busy cluster with gangs, queues, priorities, backfill and preemption, as `bench.policies` makes it.
"""

import sys
from collections.abc import Iterator
from typing import Final

from bench.policies import SECOND_NS, World
from bench.policies import Load as ClusterLoad
from bench.table import Row
from bench.workload import DEVICES
from muster.core.decide import decide
from muster.events.log import Entry
from muster.events.policy import Policy, Preemption
from muster.projections.audit import audit
from muster.projections.fold import next_chain
from muster.projections.mirror import CHUNK, GENESIS, MirrorRow
from muster.projections.replay import collector_at_rest

ENTRIES: Final = 100_000
SIZES: Final = (100, 1000)
"""Nodes."""


class Rows:
    """A log in memory as a mirror has it: each entry with its chain."""

    def __init__(self, entries: list[Entry]) -> None:
        self._rows: Final[list[MirrorRow]] = []
        chain = GENESIS
        for entry in entries:
            chain = next_chain(chain, entry)
            self._rows.append(MirrorRow(*entry, chain))

    def position(self) -> int:
        """The last entry's sequence."""
        return len(self._rows)

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Entries in chunks."""
        for start in range(first - 1, last, CHUNK):
            yield self._rows[start : min(start + CHUNK, last)]


def busy_log(entries: int, nodes: int) -> list[Entry]:
    """So many entries, or some more, of a cluster with 20 queues whose jobs of 1 to 32 devices ask for four fifths of
    it: one comes as another ends, some wait, some are preempted."""
    world = World(Policy(preemption=Preemption(min_runtime=0)), ClusterLoad(nodes, -nodes * DEVICES // 6))
    world.settle()
    while len(world.paper.entries) < entries:
        for _ in range(max(1, len(world.running) // 50)):
            world.end_one()
            world.submit()
        world.paper.pass_time(20 * SECOND_NS)
        while events := decide(world.paper.fold.cluster):
            world.obey(events)
    return world.paper.entries


def measure() -> list[Row]:
    """A row for each size of the cluster."""
    rows = []
    for nodes in SIZES:
        source = Rows(busy_log(ENTRIES, nodes))
        with collector_at_rest():
            report = audit(source)
        assert report.ok, report.findings[0]
        decisions, passes = report.passes.decisions, report.passes.passes
        rate = f"{decisions / report.seconds:,.0f} decisions/s"
        beside = f"{report.entries:,} entries in {report.seconds:.1f} s; {decisions:,} decisions, {passes:,} passes"
        rows.append(Row(f"audit, {nodes:,} nodes, 20 queues, preemption", rate, beside))
        sys.stderr.write(f"{rows[-1]}\n")
    return rows
