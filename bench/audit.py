"""How quickly a log is audited: each entry folded, each decision taken again and compared, the invariants checked.

The log is one of a busy cluster with gangs, queues, priorities, backfill and preemption, as `bench.policies` makes it.
"""

import sys
import time
from collections.abc import Iterator
from typing import Final

from bench.policies import SECOND_NS, World
from bench.policies import Load as ClusterLoad
from bench.table import Row
from bench.workload import DEVICES, history
from bench.workload import NODES as LARGE
from muster.core.decide import decide
from muster.events.log import BATCH_LIMIT, Entry
from muster.events.policy import Policy, Preemption
from muster.projections.audit import audit
from muster.projections.fold import next_chain
from muster.projections.mirror import CHUNK, GENESIS, MirrorRow
from muster.projections.replay import collector_at_rest

ENTRIES: Final = 100_000
NODES: Final = 100


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
    """A busy cluster with queues and preemption; a large one whose jobs start as they come."""
    return [
        _row(f"audit, {NODES} nodes, gangs, 20 queues, preemption", busy_log(ENTRIES, NODES)),
        _row(f"audit, {LARGE:,} nodes, small jobs and gangs", history(ENTRIES + BATCH_LIMIT)),
    ]


def _row(what: str, entries: list[Entry]) -> Row:
    source = Rows(entries)
    with collector_at_rest():
        begun = time.process_time()
        report = audit(source, last=ENTRIES)
        seconds = time.process_time() - begun
    assert report.ok, report.findings[0]
    decisions, commands = report.passes.decisions, report.passes.commands
    rate = f"{decisions / seconds:,.0f} decisions/s, {report.entries / seconds:,.0f} entries/s"
    row = Row(what, rate, f"{decisions:,} decisions in {report.passes.passes:,} passes, {commands:,} commands")
    sys.stderr.write(f"{row}\n")
    return row
