"""Traces of other clusters: jobs with the times at which they came and how long they ran.

A trace is a CSV file with a line of column names, by which its kind is known, or a file in the Standard Workload Format
(`muster.projections.swf`); compressed (.xz, .gz) or not. Other columns, and empty lines, are passed over.

- `philly`: timestamp (wall clock), duration (s), num_gpus, cluster (the virtual cluster, taken as the user; may be
  missing)
- `itp`: submission_time (s), duration (s), num_gpu
- `muri`: submit_time (ms), duration (ms), num_gpu, iteration_time
- `tiresias`: submit_time (s), duration (s), num_gpu
- `openb`: name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each), creation_time (s), deletion_time (s), gpu_spec
  (models that will do, with | between them; may be missing)
"""

import csv
import gzip
import lzma
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import msgspec

SECOND_NS: Final = 1_000_000_000
MILLISECOND_NS: Final = 1_000_000
TIME_MOST_S: Final = 3_155_760_000
COUNT_MOST: Final = 1_000_000
WHOLE: Final = 1000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TraceError(ValueError):
    """What cannot be read of a trace: which file, line and column."""


class TraceJob(msgspec.Struct, frozen=True, gc=False):
    """A job as it was. `submitted_ns` counts from 1970 where the trace has wall-clock times (as if in UTC), else from
    the trace's own beginning. `cpus` (rounded up) and `memory_mib` are per GPU, or in all where there is none;
    `compute` is thousandths of each GPU; `models` empty = any; `estimate_s` is how long it was expected to run
    (0 = nobody said)."""

    name: str
    submitted_ns: int
    duration_ns: int
    gpus: int
    user: str = ""
    cpus: int = 0
    memory_mib: int = 0
    compute: int = WHOLE
    models: tuple[str, ...] = ()
    estimate_s: int = 0


class Trace(msgspec.Struct, frozen=True):
    """The jobs in the order in which they came, those of one moment as the file has them. `left_out` counts those of
    the file that never ran."""

    kind: str
    jobs: list[TraceJob]
    has_dates: bool = False
    left_out: int = 0

    def between(self, since: str, until: str) -> "Trace":
        """The jobs submitted in a window, both ends in it; "" is no bound. A bound is a date and time where the trace
        has them, else seconds from its beginning. Raises TraceError, also where no job was submitted in it."""
        times = [job.submitted_ns for job in self.jobs]
        first = bisect_left(times, self._bound("since", since)) if since else 0
        last = bisect_right(times, self._bound("until", until)) if until else len(times)
        if not times:
            raise TraceError("the trace has no job that ran")
        if first >= last:
            span = f"from {self._told(times[0])} to {self._told(times[-1])}"
            raise TraceError(f"no job of the trace was submitted then: its {len(times):,} jobs came {span}")
        return msgspec.structs.replace(self, jobs=self.jobs[first:last])

    def _told(self, at_ns: int) -> str:
        """A time in the trace's own terms."""
        if self.has_dates:
            return f"{EPOCH + timedelta(seconds=at_ns // SECOND_NS):%Y-%m-%d %H:%M:%S}"
        return f"{at_ns / SECOND_NS:.0f} s"

    def _bound(self, which: str, text: str) -> int:
        try:
            return wall_clock_ns(text) if self.has_dates else scaled(text, SECOND_NS)
        except ValueError as error:
            words = "a date and time such as 2017-11-01 00:00:00" if self.has_dates else "seconds from its beginning"
            raise TraceError(f"{which} {text[:40]!r}: this trace is cut at {words}") from error


class Cell(NamedTuple):
    """A column of one row, for those who read it."""

    place: "Place"
    column: str
    text: str

    def number(self, unit: int = 1, least: int = 0, most: int = COUNT_MOST) -> int:
        """A number in `unit`s of what is counted, as so many of those; `most` is in the column's own unit."""
        try:
            value = scaled(self.text, unit)
        except ValueError as error:
            raise self.error("is no number") from error
        if not least <= value <= most * unit:
            raise self.error(f"is not between {least} and {most}")
        return value

    def error(self, what: str) -> TraceError:
        """What is wrong with it."""
        return TraceError(f"{self.place}, column {self.column}: {self.text[:40]!r} {what}")


class Place(NamedTuple):
    """A line of a file."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"


Row = Callable[[str], Cell]
"""A row's cells by column; an empty one where the file has no such column."""


def read_trace(path: Path) -> Trace:
    """A trace of any of the kinds. Raises TraceError."""
    from muster.projections.swf import read_swf  # noqa: PLC0415 - it builds on this module

    with reading(path) as file:
        return read_swf(str(path), file) if ".swf" in path.suffixes else _read_csv(str(path), file)


@contextmanager
def reading(path: Path) -> Iterator[TextIO]:
    """A file as text, unpacked. What of it cannot be read raises TraceError."""
    try:
        with opened(path) as file:
            yield file
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not text in UTF-8") from error


def opened(path: Path) -> TextIO:
    """A file as text, unpacked."""
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def rows(path: str, file: Iterable[str]) -> tuple[list[str], Iterator[Row]]:
    """The names of a CSV file's columns, and its rows. Raises TraceError."""
    reader = csv.reader(file)
    try:
        columns = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise TraceError(f"{path}, line 1: {error}") from error

    def every() -> Iterator[Row]:
        try:
            for cells in reader:
                place = Place(path, reader.line_num)
                if cells and len(cells) < len(columns):
                    raise TraceError(f"{place}, column {columns[len(cells)]}: missing")
                if cells:
                    yield _row(dict(zip(columns, cells, strict=False)), place)
        except csv.Error as error:
            raise TraceError(f"{path}, line {reader.line_num}: {error}") from error

    return columns, every()


def _row(cells: dict[str, str], place: Place) -> Row:
    def cell(column: str) -> Cell:
        return Cell(place, column, cells.get(column, "").strip())

    return cell


def in_order(jobs: list[TraceJob]) -> list[TraceJob]:
    """By the time at which they came; those of one moment as they are."""
    return sorted(jobs, key=lambda job: job.submitted_ns)


def scaled(text: str, unit: int) -> int:
    """A decimal number of units in whole parts of one. Raises ValueError."""
    if text.isdecimal() and text.isascii():
        return int(text) * unit
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(text) from error
    if not value.is_finite() or abs(value) > COUNT_MOST * COUNT_MOST:
        raise ValueError(text)
    return round(value * unit)


def wall_clock_ns(text: str) -> int:
    """A date and time, as if in UTC where it does not say, since 1970. Raises ValueError."""
    time = datetime.fromisoformat(text)
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


# -- the kinds --------------------------------------------------------------------------------------------------------


def _read_csv(path: str, file: TextIO) -> Trace:
    columns, every = rows(path, file)
    kind = next((kind for kind, (needed, _) in KINDS.items() if needed <= set(columns)), None)
    if kind is None:
        wanted = "; ".join(f"{kind}: {', '.join(sorted(needed))}" for kind, (needed, _) in KINDS.items())
        raise TraceError(
            f"{path}, line 1: no kind of trace has the columns {', '.join(columns)[:200]}; known: {wanted}"
        )
    job_of = KINDS[kind][1]
    jobs: list[TraceJob] = []
    left_out = 0
    for row in every:
        job = job_of(row)
        if job is None:
            left_out += 1
        else:
            jobs.append(job)
    return Trace(kind, in_order(jobs), kind == "philly", left_out)


def _philly(row: Row) -> TraceJob:
    timestamp = row("timestamp")
    try:
        submitted_ns = wall_clock_ns(timestamp.text)
    except ValueError as error:
        raise timestamp.error("is no date and time") from error
    return TraceJob("", submitted_ns, _seconds(row("duration")), row("num_gpus").number(), row("cluster").text)


def _itp(row: Row) -> TraceJob:
    times = _seconds(row("submission_time")), _seconds(row("duration"))
    return TraceJob(row("job_id").text, *times, row("num_gpu").number())


def _muri(row: Row) -> TraceJob:
    cells = row("submit_time"), row("duration")
    submitted_ns, duration_ns = (cell.number(MILLISECOND_NS, most=1000 * TIME_MOST_S) for cell in cells)
    return TraceJob(row("job_id").text, submitted_ns, duration_ns, row("num_gpu").number())


def _tiresias(row: Row) -> TraceJob:
    times = _seconds(row("submit_time")), _seconds(row("duration"))
    return TraceJob(row("job_id").text, *times, row("num_gpu").number())


def _openb(row: Row) -> TraceJob | None:
    begun, ended = row("creation_time"), row("deletion_time")
    if not ended.text:
        return None
    gpus = row("num_gpu").number()
    begun_ns = _seconds(begun)
    duration_ns = _seconds(ended) - begun_ns
    if duration_ns < 0:
        raise ended.error(f"is before creation_time {begun.text}")
    return TraceJob(
        row("name").text,
        begun_ns,
        duration_ns,
        gpus,
        cpus=-(-row("cpu_milli").number(most=1000 * COUNT_MOST) // (1000 * max(gpus, 1))),
        memory_mib=-(-row("memory_mib").number(most=1000 * COUNT_MOST) // max(gpus, 1)),
        compute=row("gpu_milli").number(least=1, most=WHOLE) if gpus == 1 else WHOLE,
        models=tuple(filter(None, row("gpu_spec").text.split("|"))),
    )


def _seconds(cell: Cell) -> int:
    return cell.number(SECOND_NS, most=TIME_MOST_S)


KINDS: Final[dict[str, tuple[frozenset[str], Callable[[Row], TraceJob | None]]]] = {
    "philly": (frozenset(("timestamp", "duration", "num_gpus")), _philly),
    "itp": (frozenset(("job_id", "submission_time", "duration", "num_gpu")), _itp),
    "muri": (frozenset(("job_id", "num_gpu", "submit_time", "duration", "iteration_time")), _muri),
    "tiresias": (frozenset(("job_id", "num_gpu", "submit_time", "duration")), _tiresias),
    "openb": (
        frozenset(("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time")),
        _openb,
    ),
}
"""Which columns a kind needs, and how a row is read; the first kind whose columns are there."""
