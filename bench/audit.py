"""How quickly a log is audited: each entry folded, each decision taken again and compared, the invariants checked.

The log is one of a busy cluster with gangs, queues, priorities, backfill and preemption, as `bench.policies` makes it.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.policies import SECOND_NS, World
from bench.policies import Load as ClusterLoad
from bench.table import Row
from bench.workload import DEVICES, history
from bench.workload import NODES as LARGE
from muster.api.audit_parts import Cores, audit_mirror
from muster.core.decide import decide
from muster.events.log import BATCH_LIMIT, Entry
from muster.events.policy import Policy, Preemption
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.exports import with_chains
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK, Mirror
from muster.projections.replay import collector_at_rest, snapshot_of
from muster.projections.snapshots import SPACING_ENTRIES, spacing_entries
from muster.projections.store import Store

ENTRIES: Final = 100_000
NODES: Final = 100


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


async def mirror_of(path: Path, entries: list[Entry]) -> None:
    """A mirror of a log, with the snapshots that a server would take."""
    store = await Store.open(path)
    fold, due = Fold.empty(), SPACING_ENTRIES
    for begin in range(0, len(entries), CHUNK):
        chunk = entries[begin : begin + CHUNK]
        rows = list(with_chains(chunk, fold.cluster.state.chain))
        fold.apply_all(chunk)
        snapshots = [snapshot_of(fold)] if rows[-1].sequence >= due else []
        if snapshots:
            due = rows[-1].sequence + spacing_entries(len(snapshots[0].state))
        await store.append(rows, snapshots=snapshots)
    await store.close()


async def measure() -> list[Row]:
    """A busy cluster with queues and preemption; a large one whose jobs start as they come. Each in one process and on
    all cores, in seconds of the clock on the wall."""
    made = {
        f"audit, {NODES} nodes, gangs, 20 queues, preemption": lambda: busy_log(ENTRIES, NODES),
        f"audit, {LARGE:,} nodes, small jobs and gangs": lambda: history(ENTRIES + BATCH_LIMIT),
    }
    rows = []
    for what, make in made.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mirror.sqlite"
            await mirror_of(path, make())
            rows.append(_row(f"{what}, in one process", lambda path=path: _in_one(path)))
            rows.append(_row(f"{what}, in {Cores().processes}", lambda path=path: audit_mirror(path, last=ENTRIES)))
    return rows


def _in_one(path: Path) -> AuditReport:
    with collector_at_rest(), Mirror(path) as mirror:
        return audit(mirror, last=ENTRIES)


def _row(what: str, work: Callable[[], AuditReport]) -> Row:
    begun = time.perf_counter()
    report = work()
    seconds = time.perf_counter() - begun
    assert report.ok, report.findings[0]
    decisions, commands = report.passes.decisions, report.passes.commands
    rate = f"{decisions / seconds:,.0f} decisions/s, {report.entries / seconds:,.0f} entries/s"
    row = Row(what, rate, f"{decisions:,} decisions in {report.passes.passes:,} passes, {commands:,} commands")
    sys.stderr.write(f"{row}\n")
    return row
