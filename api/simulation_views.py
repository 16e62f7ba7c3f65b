"""What a simulation comes to, as JSON, as text and as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muster.api.plot import Panel, Point, Series, draw, unit_of
from muster.api.table import Count, fields, render

if TYPE_CHECKING:
    from muster.projections.fillup import Filled
    from muster.projections.simulation import Figures, Summary
    from muster.projections.virtual import Run

SECOND_NS = 1_000_000_000
TITLES = (
    "USER", "JOBS", "GPU_HOURS", "WAIT_MEAN_S", "WAIT_P50_S", "WAIT_P95_S", "WAIT_P99_S", "JCT_MEAN_S", "JCT_P99_S",
)  # fmt: skip


# -- of a trace -------------------------------------------------------------------------------------------------------


def trace_answer(summary: "Summary", left_out: int) -> dict[str, Any]:
    """The figures of a run."""
    answer: dict[str, Any] = {
        **_figures(summary.figures),
        "makespan_s": summary.makespan_s,
        "utilization": summary.utilization,
        "preemptions": summary.preemptions,
        "never_started": summary.never_started,
        "left_out": left_out,
        "reservations": summary.reservations,
        "broken_reservations": summary.broken_reservations,
    }
    return answer | {"users": {user: _figures(figures) for user, figures in summary.users.items()}}


def _figures(figures: "Figures") -> dict[str, Any]:
    times = {
        f"{which}_{kind}_s": value
        for kind, spread in (("wait", figures.wait), ("jct", figures.jct))
        for which, value in (
            ("mean", spread.mean_s),
            ("p50", spread.p50_s),
            ("p95", spread.p95_s),
            ("p99", spread.p99_s),
        )
    }
    return {"jobs": figures.jobs, **times, "gpu_hours": figures.gpu_hours}


def trace_text(run: "Run", summary: "Summary", left_out: int, wall_s: float) -> str:
    """A table of all and of each user, and what else there is to say."""
    rows = [_row("all", summary.figures)]
    if len(summary.users) > 1:
        rows += [_row(user or "-", figures) for user, figures in summary.users.items()]
    kept = f"{summary.reservations:,}, {summary.broken_reservations:,} of them broken" if summary.reservations else ""
    never = f"{summary.never_started:,} jobs: the cluster cannot hold them" if summary.never_started else ""
    about = [
        ("makespan", f"{summary.makespan_s:,.0f} s"),
        ("utilization", f"{100 * summary.utilization:.2f} % of {run.gpus:,} GPUs"),
        ("reservations", kept),
        ("preemptions", f"{summary.preemptions:,}" if summary.preemptions else ""),
        ("never started", never),
        ("left out", f"{left_out:,} jobs of the trace that never ran" if left_out else ""),
        ("took", f"{wall_s:.1f} s"),
    ]
    return f"{render(TITLES, rows)}\n\n{fields(about)}"


def _row(user: str, figures: "Figures") -> tuple[object, ...]:
    wait, jct = figures.wait, figures.jct
    times = (wait.mean_s, wait.p50_s, wait.p95_s, wait.p99_s, jct.mean_s, jct.p99_s)
    return user, *(Count(round(value)) for value in (figures.jobs, figures.gpu_hours, *times))


def trace_plot(title: str, run: "Run") -> str:
    """The jobs that wait and the GPUs in use over time, as SVG."""
    from muster.projections.simulation import moments  # noqa: PLC0415 - a client command starts quickly

    found = moments(run)
    begun_ns = found[0].at_ns if found else 0
    unit_s, unit = unit_of((found[-1].at_ns - begun_ns) / SECOND_NS if found else 0.0)
    times = [(moment.at_ns - begun_ns) / SECOND_NS / unit_s for moment in found]
    waiting = list(zip(times, (float(moment.waiting) for moment in found), strict=True))
    in_use = list(zip(times, (moment.milli / 1000 for moment in found), strict=True))
    panels = [
        Panel("jobs that wait", [Series("waiting", waiting)]),
        Panel(f"GPUs in use, of {run.gpus:,}", [Series("in use", in_use)], run.gpus),
    ]
    return draw(title, f"{unit} since the first job came", panels)


# -- of a filling -----------------------------------------------------------------------------------------------------


def fill_answer(filled: "Filled") -> dict[str, Any]:
    """The shares of the devices, by percent asked for."""
    columns = {str(percent): column for percent, column in filled.columns.items()}
    return {
        "arrivals": filled.arrivals,
        "placed": filled.placed,
        "allocation_pct": {percent: round(column.allocation_pct, 4) for percent, column in columns.items()},
        "fragmented_pct": {percent: round(column.fragmented_pct, 4) for percent, column in columns.items()},
        "end": {
            "allocation_pct": round(filled.end.allocation_pct, 4),
            "fragmented_pct": round(filled.end.fragmented_pct, 4),
        },
    }


def fill_text(filled: "Filled", nodes: int, gpus: int, wall_s: float) -> str:
    """A row for each share asked for."""
    named = [(f"{percent} %", column) for percent, column in filled.columns.items()] + [("all", filled.end)]
    rows = [(name, f"{each.allocation_pct:.2f} %", f"{each.fragmented_pct:.2f} %") for name, each in named]
    about = [
        ("cluster", f"{nodes:,} nodes, {gpus:,} GPUs"),
        ("tasks", f"{filled.placed:,} of {filled.arrivals:,} found room"),
        ("took", f"{wall_s:.1f} s"),
    ]
    return f"{render(('ARRIVED', 'ALLOCATED', 'FRAGMENTED'), rows)}\n\n{fields(about)}"


def fill_plot(title: str, allocated: Sequence[Point], fragmented: Sequence[Point]) -> str:
    """What is in use and what is fragmented as the tasks arrive, as SVG."""
    lines = [Series("in use", allocated), Series("fragmented", fragmented)]
    return draw(title, "GPUs asked for, % of all", [Panel("% of all GPUs", lines, 100.0)])
