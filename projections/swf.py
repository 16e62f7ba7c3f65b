"""The Standard Workload Format of the Parallel Workloads Archive, version 2.2: 18 numbers a line, times in seconds, -1
for what nobody knows; lines that begin with a semicolon are about the whole log.

A processor counts as a GPU, the user's number is the user, and the time asked for is the estimate. Jobs that ran for no
time or on no processors that are known never started: they are left out.
"""

from typing import Final, NamedTuple, TextIO

from muster.projections.traces import COUNT_MOST, SECOND_NS, TIME_MOST_S, Cell, Place, Trace, TraceJob, in_order

FIELDS: Final = 18


class Field(NamedTuple):
    """A number of each line, by place (from 1), as the format's definition calls it."""

    number: int
    name: str


JOB: Final = Field(1, "job number")
SUBMITTED: Final = Field(2, "submit time")
RUN: Final = Field(4, "run time")
ALLOCATED: Final = Field(5, "allocated processors")
ASKED: Final = Field(8, "requested processors")
ASKED_TIME: Final = Field(9, "requested time")
USER: Final = Field(12, "user id")


def read_swf(path: str, file: TextIO) -> Trace:
    """The jobs of a log. Its times count from `UnixStartTime` where its head has that. Raises TraceError."""
    jobs: list[TraceJob] = []
    left_out = start_ns = 0
    for number, line in enumerate(file, start=1):
        text = line.strip()
        place = Place(path, number)
        if text.startswith(";"):
            name, _, value = text.strip("; \t").partition(":")
            if name.strip() == "UnixStartTime" and value.split():
                start_ns = Cell(place, "UnixStartTime", value.split()[0]).number(SECOND_NS, most=2 * TIME_MOST_S)
        elif text:
            job = _job(place, text.split(), start_ns)
            if job is None:
                left_out += 1
            else:
                jobs.append(job)
    return Trace("swf", in_order(jobs), bool(start_ns), left_out)


def _job(place: Place, fields: list[str], start_ns: int) -> TraceJob | None:
    def read(field: Field, unit: int = 1, most: int = COUNT_MOST) -> int:
        text = fields[field.number - 1] if field.number <= len(fields) else ""
        if not text:
            raise Cell(place, f"{field.number} ({field.name})", "").error(f"is missing: a line has {FIELDS} numbers")
        return Cell(place, f"{field.number} ({field.name})", text).number(unit, -unit, most)

    asked, allocated = read(ASKED), read(ALLOCATED)
    gpus = asked if asked > 0 else allocated
    duration_ns = read(RUN, SECOND_NS, TIME_MOST_S)
    if gpus <= 0 or duration_ns < 0:
        return None
    return TraceJob(
        str(read(JOB, most=COUNT_MOST * COUNT_MOST)),
        start_ns + max(0, read(SUBMITTED, SECOND_NS, TIME_MOST_S)),
        duration_ns,
        gpus,
        str(read(USER)) if read(USER) >= 0 else "",
        estimate_s=max(0, read(ASKED_TIME, most=TIME_MOST_S)),
    )
