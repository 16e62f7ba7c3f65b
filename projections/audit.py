"""The audit: the log folded again, with nothing believed that can be computed.

Checked are the sequence; the chain, of every mirror row and of every decision's basis; the invariants; that devices
are held within what they have and given back once; and every pass, decided again from its basis. The chain finds loss
and rot up to the last decision (in a mirror up to its end); deliberate rewriting is found by `expect`, a sequence and
chain that were kept elsewhere. Blocking; for a worker thread.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from muster.core.invariants import check_invariants
from muster.events.log import Log, LogError, MissingEntryError
from muster.projections.audit_ledger import Ledger
from muster.projections.audit_passes import PassChecker, bases_in
from muster.projections.audit_report import AuditReport
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK, Mirror, MirrorRow
from muster.projections.replay import nearest_fold
from muster.projections.schema import HoleError, StoreError

_EXPECT: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{32})")

Progress = Callable[[int], None]
"""Told the sequence reached, now and then; what it raises ends the audit."""


class Source(Protocol):
    """Where entries come from: a `Mirror`, or a `LogSource`, whose rows have no chain (b"")."""

    def position(self) -> int:
        """The last entry's sequence."""
        ...

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Entries in chunks, in sequence. Raises HoleError."""
        ...


class LogSource:
    """The log itself as a source, for a thread beside the event loop `loop` that the log lives on."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop

    def position(self) -> int:
        """The last entry's sequence, as the leader has it."""
        return asyncio.run_coroutine_threadsafe(self._log.last_sequence(), self._loop).result()

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Entries in chunks, without chains. Raises HoleError at an entry that cannot be read, LogError."""
        while first <= last:
            reading = self._log.read(first, min(CHUNK, last - first + 1))
            try:
                entries = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
            except MissingEntryError as error:
                raise HoleError(str(error), error.sequence) from error
            if not entries:
                raise LogError(f"the log gave no entry {first}")
            yield [MirrorRow(*entry, b"") for entry in entries]
            first = entries[-1].sequence + 1


def audit(
    source: Source, first: int = 1, last: int | None = None, *, expect: str = "", progress: Progress | None = None
) -> AuditReport:
    """Audit entries `first` to `last` (to the end where it is None). With `first` > 1, a mirror is entered at a
    snapshot from which every pass in the range can be decided again; the log is always folded from its start.
    `expect` is "SEQUENCE:CHAIN". Raises ValueError for a wrong range or `expect`, LogError."""
    position = source.position()
    last = position if last is None else last
    if not 1 <= first <= last + 1 <= position + 1:
        raise ValueError(f"entries {first} to {last} are not in the log, which ends at entry {position}")
    expected = _EXPECT.fullmatch(expect)
    if expect and expected is None:
        raise ValueError(f"{expect[:64]!r} is not written as SEQUENCE:CHAIN")
    started = time.perf_counter()
    try:
        fold, bases = _enter(source, first, last)
    except StoreError as error:
        report = AuditReport(first, last)
        _find_hole(report, first, error)
        return report
    auditor = _Auditor(source, fold, bases, last, (int(expected[1]), expected[2]) if expected else None)
    auditor.run(progress)
    auditor.report.seconds = time.perf_counter() - started
    return auditor.report


def _enter(source: Source, first: int, last: int) -> tuple[Fold, set[int]]:
    """The fold to begin with: a snapshot at or before `first` - 1 and every basis in the range, which stands in the
    middle of no pass; and the bases."""
    if not isinstance(source, Mirror):
        return Fold.empty(), _bases(source, 1, last)
    bases = _bases(source, first, last)
    start = min(first - 1, min(bases, default=first))
    while True:
        fold = nearest_fold(source, start)
        entered = fold.cluster.state.sequence
        between = _bases(source, entered + 1, first - 1)
        start = min(between, default=entered)
        if start >= entered:
            return fold, bases | between


def _bases(source: Source, first: int, last: int) -> set[int]:
    bases: set[int] = set()
    for rows in source.rows(first, last):
        bases |= bases_in(row.entry for row in rows)
    return bases


def _find_hole(report: AuditReport, after: int, error: StoreError) -> None:
    """An entry at or after `after` could not be read."""
    sequence = error.sequence if isinstance(error, HoleError) else after
    report.find(sequence, "sequence", "every entry up to the last", str(error))


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
        self._refused_before = state.refused_count
        self._until_check = 0

    def run(self, progress: Progress | None) -> None:
        state = self._fold.cluster.state
        try:
            for rows in self._source.rows(state.sequence + 1, self.report.last):
                for row in rows:
                    self._check(row)
                if progress is not None:
                    progress(state.sequence)
        except StoreError as error:
            _find_hole(self.report, state.sequence + 1, error)
        else:
            self._passes.finish()
        self._check_invariants()
        self._finish()

    def _check(self, row: MirrorRow) -> None:
        fold = self._fold
        entry = row.entry
        self._passes.before(entry)
        fold.apply(entry)
        self._check_chain(row)
        if fold.touched:
            problem = self._ledger.note(fold.touched)
            fold.touched.clear()
            if problem:
                self._find(row.sequence, "holding", "devices held within what they have, given back once", problem)
        self._passes.after(row.sequence)
        self.report.entries += 1
        self._until_check -= 1
        if self._until_check <= 0:
            self._check_invariants()

    def _check_chain(self, row: MirrorRow) -> None:
        """Each row's chain follows from the one before it; after a difference the audit goes on from the row's own,
        so that every damage is found where it is."""
        state = self._fold.cluster.state
        if row.chain and row.chain != state.chain:
            self._find(row.sequence, "chain", f"chain {state.chain.hex()}", f"chain {row.chain.hex()} in the mirror")
            state.chain = row.chain
        if self._expect is not None and self._expect[0] == row.sequence and self._expect[1] != state.chain.hex():
            self._find(row.sequence, "expect", f"chain {self._expect[1]}", f"chain {state.chain.hex()}")

    def _check_invariants(self) -> None:
        """Checked again once as many entries have been folded as the state has members, so that the whole audit
        stays linear in the log."""
        state = self._fold.cluster.state
        self._until_check = len(state.jobs) + len(state.nodes)
        try:
            check_invariants(self._fold.cluster)
        except (AssertionError, LookupError) as error:
            self._find(state.sequence, "invariant", "the invariants of the state", str(error) or repr(error))

    def _finish(self) -> None:
        state = self._fold.cluster.state
        report = self.report
        report.passes = self._passes.counts
        report.refused = state.refused_count - self._refused_before
        report.chain = state.chain.hex()
        if self._expect is not None and not report.first <= self._expect[0] <= state.sequence:
            expected = f"chain {self._expect[1]} after entry {self._expect[0]}"
            self._find(self._expect[0], "expect", expected, f"entries {report.first} to {state.sequence} only")
