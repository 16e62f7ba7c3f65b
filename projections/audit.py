"""The audit: the log folded again, with nothing believed that can be computed.

Checked are the sequence; the chain, of every row that has one and of every decision's basis; the invariants, of what
each entry touched and now and then of everything; that devices are held within what they have and given back once; the
mirror's snapshots, up to the first finding; and every pass, decided again from its basis. The chain finds loss and rot
up to the last decision (in a mirror or an export up to its end); deliberate rewriting is found by `expect`, a sequence
and chain that were kept elsewhere. Blocking; for a worker thread.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from muster.core.invariants import check_indexes, check_job, check_node, check_state
from muster.events.log import Entry
from muster.projections.audit_ledger import Ledger
from muster.projections.audit_passes import PassChecker
from muster.projections.audit_ranges import bases_between, bounds, enter
from muster.projections.audit_report import AuditReport
from muster.projections.audit_snapshots import snapshot_check
from muster.projections.audit_sources import LogSource, Source
from muster.projections.fold import Fold
from muster.projections.mirror import MirrorRow
from muster.projections.schema import HoleError, StoreError

WHOLE_EVERY: Final = 1000
"""After so many entries, every job and node is looked at."""
INDEXES_EVERY: Final = 10_000
"""After so many, or as many as the state has members, what the fold keeps beside the state is built anew."""

_EXPECT: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{32})")

Progress = Callable[[int], None]
"""Told the sequence reached, now and then; what it raises ends the audit."""


def audit(
    source: Source,
    first: int | None = None,
    last: int | None = None,
    *,
    expect: str = "",
    progress: Progress | None = None,
    may_be_cut: bool = False,
) -> AuditReport:
    """Audit entries `first` to `last` (all that there are where they are None), and to the end of the pass that `last`
    is in. With a later `first`, the audit enters at a state that the source has before it, takes it on trust, and can
    decide every pass in the range again; without such a state, at the first entry. `expect` is "SEQUENCE:CHAIN". What
    `may_be_cut` is a window of a log, which may end inside a pass. Raises ValueError for a wrong range or `expect`,
    StoreError where the source has no state to begin with, LogError."""
    started = time.perf_counter()
    first, last = bounds(source, first, last)
    expected = expectation(expect)
    report = audit_on(source, enter(source, first, last), last, expected, progress, may_be_cut=may_be_cut)
    report.seconds = time.perf_counter() - started
    return report


def expectation(text: str) -> tuple[int, str] | None:
    """A sequence and its chain, of "SEQUENCE:CHAIN"; None of "". Raises ValueError."""
    found = _EXPECT.fullmatch(text)
    if text and found is None:
        raise ValueError(f"{text[:64]!r} is not written as SEQUENCE:CHAIN")
    return (int(found[1]), found[2]) if found else None


def audit_on(
    source: Source,
    fold: Fold,
    last: int,
    expect: tuple[int, str] | None,
    progress: Progress | None,
    *,
    may_be_cut: bool = False,
) -> AuditReport:
    """Audit what follows a fold, which stands in the middle of no pass and is taken along, up to entry `last`."""
    auditor = _Auditor(source, fold, bases_between(source, fold.cluster.state.sequence + 1, last), last, expect)
    auditor.run(progress, may_be_cut=may_be_cut)
    return auditor.report


class _NodePeek(msgspec.Struct, gc=False):
    node: str = ""


_peek_node: Final = msgspec.json.Decoder(_NodePeek).decode


class _Auditor:
    """One audit: `fold` begins at a snapshot or empty, and everything else beside it."""

    def __init__(self, source: Source, fold: Fold, bases: set[int], last: int, expect: tuple[int, str] | None) -> None:
        state = fold.cluster.state
        self.report = AuditReport(state.sequence + 1, last)
        self._source = source
        self._fold = fold
        self._expect = expect
        self._find = self.report.find
        self._ledger = Ledger(fold.cluster)
        self._passes = PassChecker(fold, bases, state.sequence, self._find)
        self._snapshots, self._check_snapshot = snapshot_check(source, fold, last, self._find)
        self._log = source if isinstance(source, LogSource) else None
        self._refused_before = state.refused_count
        self._until_whole = WHOLE_EVERY
        self._until_indexes = INDEXES_EVERY
        self._writers: dict[str, tuple[str, str]] = {}  # by subject
        self._told: set[str] = set()  # what breaks an invariant, without where that was seen
        if expect is not None and expect[0] == state.sequence:
            self._check_expected(state.sequence)

    def run(self, progress: Progress | None, *, may_be_cut: bool) -> None:
        state = self._fold.cluster.state
        try:
            for rows in self._source.rows(state.sequence + 1, self.report.last):
                for row in rows:
                    self._check(row)
                if progress is not None:
                    progress(state.sequence)
        except StoreError as error:
            sequence = error.sequence if isinstance(error, HoleError) else state.sequence + 1
            self._find(sequence, "sequence", "every entry up to the last", str(error))
        else:
            self._passes.finish(may_be_cut=may_be_cut and self.report.last == self._source.position())
            if self._log is not None:
                self._check_end(self._log)
        self._check_whole()
        self._finish()

    def _check_end(self, log: LogSource) -> None:
        end = log.position()
        if log.mirrored > end:
            which = f"entries {end + 1} to {log.mirrored} are" if log.mirrored > end + 1 else f"entry {end + 1} is"
            why = f"{which} missing from the end of the stream; the mirror has what is missing"
            self._find(end + 1, "sequence", f"a log that ends at entry {log.mirrored} or later", why)

    def _check(self, row: MirrorRow) -> None:
        fold = self._fold
        entry = row.entry
        writer, owner = self._writers.get(entry.subject) or self._classify(entry.subject)
        self._passes.before(entry, writer)
        fold.apply_all((entry,))
        self._check_chain(row, entry)
        if fold.touched:
            problem = self._ledger.note(fold.touched)
            if problem:
                self._find(row.sequence, "holding", "devices held within what they have, given back once", problem)
        if writer != "command":
            self._check_touched(entry, writer, owner)
        fold.touched.clear()
        self._passes.after(row.sequence)
        if row.sequence in self._snapshots and not self.report.findings_count:  # what was taken before a damage differs
            self._check_snapshot()
        self.report.entries += 1
        self._until_whole -= 1
        if self._until_whole <= 0:
            self._check_whole(indexes=False)

    def _classify(self, subject: str) -> tuple[str, str]:
        """The writer's class of a subject, and the node of an agent's."""
        writer, _, rest = subject.partition(".")[2].partition(".")
        found = self._writers[subject] = writer, rest.partition(".")[0] if writer == "node" else ""
        return found

    # -- the chain ------------------------------------------------------------------------------------------------

    def _check_chain(self, row: MirrorRow, entry: Entry) -> None:
        """Each row's chain follows from the one before it; after a difference the audit goes on from the row's own,
        so that every damage is found where it is."""
        state = self._fold.cluster.state
        self._passes.note(entry, chained=bool(row.chain))
        if row.chain and row.chain != state.chain:
            found = f"chain {row.chain.hex()} in the {'mirror' if self._log else 'copy'}"
            self._find(row.sequence, "chain", f"chain {state.chain.hex()}", found, self._changed(row))
            state.chain = row.chain
        if self._log is not None and row.sequence in self._log.lost:
            found = f"entry {row.sequence} is missing from the stream; the mirror has it"
            self._find(row.sequence, "sequence", "every entry up to the last", found)
        if self._expect is not None and self._expect[0] == row.sequence:
            self._check_expected(row.sequence)

    def _changed(self, row: MirrorRow) -> str:
        """How an entry whose chain does not follow differs from what it was, as far as that is known."""
        kept = self._log.mirror.row(row.sequence) if self._log is not None and self._log.mirror is not None else None
        if kept is None:
            return f"entry {row.sequence} is not what was written, or its chain is not"
        differing = [name for name in Entry._fields if getattr(kept, name) != getattr(row, name)]
        if not differing:
            return f"entry {row.sequence} is the same in the mirror, whose chain does not follow from it"
        texts = (
            f"{name} {_shown(getattr(row, name))} (the mirror has {_shown(getattr(kept, name))})" for name in differing
        )
        return f"entry {row.sequence} is not the one that the mirror has: {', '.join(texts)}"

    def _check_expected(self, sequence: int) -> None:
        assert self._expect is not None
        chain = self._fold.cluster.state.chain.hex()
        if self._expect[1] != chain:
            self._find(sequence, "expect", f"chain {self._expect[1]}", f"chain {chain}")

    # -- the invariants -------------------------------------------------------------------------------------------

    def _check_touched(self, entry: Entry, writer: str, owner: str) -> None:
        """The invariants of the jobs that an entry touched, and of the nodes: of a decision, its jobs' nodes too."""
        cluster = self._fold.cluster
        state = cluster.state
        jobs = [job for job_id in self._fold.touched if (job := state.jobs.get(job_id)) is not None]
        names = {owner} if owner else set[str]()
        if writer == "decision":
            names.update(worker.node for job in jobs if job.attempt is not None for worker in job.attempt.workers)
        if writer == "admin" or (writer == "decision" and not jobs):
            names.add(_node_named(entry.payload))
        nodes = [node for name in names if (node := state.nodes.get(name)) is not None]
        try:
            for job in jobs:
                check_job(cluster, job)
            for node in nodes:
                check_node(cluster, node)
        except (AssertionError, LookupError):
            for job in jobs:
                self._check_that(partial(check_job, cluster, job))
            for node in nodes:
                self._check_that(partial(check_node, cluster, node))

    def _check_whole(self, *, indexes: bool = True) -> None:
        """Every job and node, and what the fold keeps beside the state where that is asked for or due: building it
        anew takes long."""
        cluster = self._fold.cluster
        self._until_whole = WHOLE_EVERY
        self._check_that(partial(check_state, cluster))
        self._until_indexes -= WHOLE_EVERY
        if indexes or self._until_indexes <= 0:
            self._until_indexes = max(INDEXES_EVERY, len(cluster.state.jobs) + len(cluster.state.nodes))
            self._check_that(partial(check_indexes, cluster))

    def _check_that(self, check: Callable[[], None]) -> None:
        """What is broken is told once."""
        try:
            check()
        except (AssertionError, LookupError) as error:
            text = str(error) or repr(error)
            what = text.partition(", ")[2] or text
            if what not in self._told:
                self._told.add(what)
                self._find(self._fold.cluster.state.sequence, "invariant", "the invariants of the state", text)

    def _finish(self) -> None:
        state = self._fold.cluster.state
        report = self.report
        report.passes = self._passes.counts
        report.refused = state.refused_count - self._refused_before
        report.chain = state.chain.hex()
        report.vouched_by = self._passes.vouched_by if report.first > 1 else 0
        if self._expect is not None and not report.first - 1 <= self._expect[0] <= state.sequence:
            expected = f"chain {self._expect[1]} after entry {self._expect[0]}"
            self._find(self._expect[0], "expect", expected, f"entries {report.first} to {state.sequence} only")


def _node_named(payload: bytes) -> str:
    """The node that an event is about, where it is about one."""
    try:
        return _peek_node(payload).node
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _shown(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return f"{text[:200]}..." if len(text) > 200 else text  # noqa: PLR2004
