"""Audits on all cores: a long log is cut at snapshots of its mirror, and each part audited in a process of its own.

Nothing stays on trust: the state that a part ends with must be the very bytes that the next one began with. Parts in
none of which anything is found have the report that one process would have. Where anything is found, or one state is
not the other, the whole is audited again in one.
"""

import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from muster.api.audit_program import Audited, Part
from muster.projections.audit import Progress, audit, expectation
from muster.projections.audit_ranges import bounds, cuts, enter
from muster.projections.audit_report import AuditReport, merged
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror

PART_LEAST: Final = 10_000
"""A part of fewer entries is not worth a process."""
PROCESSES_MOST: Final = 8
PART_ENOUGH: Final = 25_000
"""A process is given several parts where each has so many entries, so that all processes end at about one time."""
PARTS_EACH: Final = 4
"""So many parts at most for each process."""
LOOK_S: Final = 0.1


class _DiffersError(Exception):
    """The log is not what the mirror has."""


class Cores(NamedTuple):
    """Between how many processes an audit is divided, and of how many entries a part is at least."""

    processes: int = min(os.cpu_count() or 1, PROCESSES_MOST)
    least: int = PART_LEAST

    def parts(self, entries: int) -> int:
        """In how many parts so many entries are best divided."""
        each = min(max(entries // self.processes // PART_ENOUGH, 1), PARTS_EACH) if self.processes > 1 else 1
        return min(self.processes * each, entries // self.least)


def audit_mirror(
    path: Path,
    first: int | None = None,
    last: int | None = None,
    *,
    expect: str = "",
    progress: Progress = lambda _: None,
    may_be_cut: bool = False,
    cores: Cores = Cores(),  # noqa: B008 - immutable
) -> AuditReport:
    """As `audit`, of a mirror's file: a long one in processes beside this one."""
    begun = time.perf_counter()
    parts = _parts(path, first, last, expect, cores, may_be_cut=may_be_cut)
    report = _clean(parts, progress, cores) if parts else None
    if report is None and len(parts) > 1:
        found = _audited([msgspec.structs.replace(parts[0], last=parts[-1].last, expect=expect)], progress, 1)
        report = found[0].report if found else None
    if report is None:
        with Mirror(path) as mirror:
            return audit(mirror, first, last, expect=expect, progress=progress, may_be_cut=may_be_cut)
    report.seconds = time.perf_counter() - begun
    return report


def audit_log(
    source: LogSource,
    path: Path,
    first: int | None = None,
    last: int | None = None,
    *,
    expect: str = "",
    progress: Progress = lambda _: None,
    may_be_cut: bool = False,
    cores: Cores = Cores(),  # noqa: B008 - immutable
) -> AuditReport:
    """As `audit`, of a log beside which its mirror is, at `path`: where both have the very same entries, what is
    audited is the mirror, in processes."""
    begun = time.perf_counter()
    end = source.position() if last is None else last
    report = None
    if end <= source.mirrored <= source.position():
        parts = _parts(path, first, end, expect, cores, may_be_cut=may_be_cut)
        report = _clean_if_same(source, parts, progress, cores) if parts else None
    if report is None:
        return audit(source, first, last, expect=expect, progress=progress, may_be_cut=may_be_cut)
    report.seconds = time.perf_counter() - begun
    return report


def _parts(
    path: Path, first: int | None, last: int | None, expect: str, cores: Cores, *, may_be_cut: bool
) -> list[Part]:
    """The parts of an audit; none where it is not worth a process. Raises ValueError, StoreError."""
    expected = expectation(expect)
    with Mirror(path) as mirror:
        first, last = bounds(mirror, first, last)
        if last - first + 1 < 2 * cores.least:
            return []
        start = enter(mirror, first, last).cluster.state.sequence
        places = [start, *cuts(mirror, start, last, cores.parts(last - start)), last]
    holder = max((place for place in places[:-1] if expected and place < expected[0]), default=start)
    return [Part(str(path), a, b, expect if a == holder else "", may_be_cut) for a, b in pairwise(places)]


def _clean(parts: Sequence[Part], progress: Progress, cores: Cores) -> AuditReport | None:
    """The report on parts in which nothing is found and which fit together; of one part, its report. None otherwise."""
    found = _audited(parts, progress, cores.processes)
    reports = [each.report for each in found if each.report is not None]
    if len(reports) == len(parts) == 1:
        return reports[0]
    fitting = all(one.ended == other.began for one, other in pairwise(found))
    return merged(reports) if len(reports) == len(parts) and fitting and all(each.ok for each in reports) else None


def _clean_if_same(source: LogSource, parts: Sequence[Part], progress: Progress, cores: Cores) -> AuditReport | None:
    """The report on a log in which nothing is found and which is what its mirror has; None otherwise."""
    ended = threading.Event()
    with ThreadPoolExecutor(1, "comparing") as pool:
        same = pool.submit(_is_mirrored, source, parts, ended)

        def watched(reached: int) -> None:
            progress(reached)
            if same.done() and not same.result():
                raise _DiffersError

        try:
            report = _clean(parts, watched, cores)
            if report is None or not report.ok:
                return None
            while not same.done():
                watched(report.last)
                time.sleep(LOOK_S)
            return report if same.result() and source.mirrored <= source.position() else None
        except _DiffersError:
            return None
        finally:
            ended.set()


def _is_mirrored(source: LogSource, parts: Sequence[Part], ended: threading.Event) -> bool:
    """Whether the log gives the very entries that the mirror has."""
    with Mirror(Path(parts[0].path)) as mirror:
        return source.is_as(mirror, parts[0].start + 1, parts[-1].last, ended.is_set)


# -- the processes ----------------------------------------------------------------------------------------------------


class _Worker:
    """A process, and the part that it is at."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.at: int | None = None
        self._rest = b""

    def ask(self, number: int, part: Part) -> None:
        """Have it audit a part."""
        self.at = number
        assert self.process.stdin is not None
        with suppress(OSError):  # where it is gone, that is read next
            self.process.stdin.write(msgspec.json.encode(part) + b"\n")
            self.process.stdin.flush()

    def lines(self) -> list[Audited]:
        """What it has said since; that it is gone, where it is."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return [Audited(error=f"its process ended with status {self.process.wait()}")]
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Audited) for line in whole]


def _audited(parts: Sequence[Part], progress: Progress, processes: int) -> list[Audited]:
    """What was found in each part; nothing as soon as one cannot be audited, or one of several is not clean. What
    `progress` raises ends the processes."""
    found: dict[int, Audited] = {}
    reached = [part.start for part in parts]
    waiting = deque(sorted(enumerate(parts), key=lambda each: each[1].start - each[1].last))  # the longest first
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(min(processes, len(parts))):
            worker = _Worker(stack.enter_context(_process()))
            selector.register(worker.process.stdout or 0, selectors.EVENT_READ, worker)
            worker.ask(*waiting.popleft())
        while len(found) < len(parts):
            for key, _ in selector.select(LOOK_S):
                worker = key.data
                for line in worker.lines():
                    if line.error or (line.report is not None and len(parts) > 1 and not line.report.ok):
                        return []
                    assert worker.at is not None
                    reached[worker.at] = line.reached
                    if line.report is not None:
                        found[worker.at] = line
                        if waiting:
                            worker.ask(*waiting.popleft())
            progress(parts[0].start + sum(at - part.start for at, part in zip(reached, parts, strict=True)))
    return [found[number] for number in range(len(parts))]


@contextmanager
def _process() -> "Iterator[subprocess.Popen[bytes]]":
    """One that audits parts, for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "muster.api.audit_program"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
