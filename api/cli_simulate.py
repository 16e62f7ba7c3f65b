"""`muster simulate`: the product's core on a trace of another cluster, in virtual time, on this machine alone."""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from muster.api.cli_base import CommandError, Exit, Whole, examples
from muster.api.table import fields, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from muster.events.types import Inventory
    from muster.projections.simulation import Figures, Summary
    from muster.projections.traces import Trace
    from muster.projections.virtual import Run

# A client command starts quickly: what computes is imported where it is needed.

FOLDER: Final = "MUSTER_TRACES"
ENDINGS: Final = ("", ".csv", ".csv.xz", ".csv.gz", ".swf", ".swf.gz", ".swf.xz")
STEP: Final = 500
"""After so many arrivals the progress bar moves."""


@click.command(
    epilog=examples(
        "muster simulate --trace jobs.csv.xz --nodes 80 --policy easy",
        'muster simulate --trace philly --nodes 55 --since "2017-11-01 00:00:00" --until "2017-11-30 23:59:59"',
        "muster simulate --trace pods.csv --node-file nodes.csv --json",
    )
)
@click.option("--trace", "name", metavar="FILE", required=True, help=f"The jobs; also by name in the folder {FOLDER}.")
@click.option("--nodes", metavar="COUNT", type=Whole(1, 100_000), help="So many equal nodes.")
@click.option(
    "--gpus-per-node", metavar="COUNT", type=Whole(1, 1024), default=8, show_default=True, help="GPUs of each of them."
)
@click.option("--node-file", metavar="FILE", type=click.Path(path_type=Path), help="Nodes as a file lists them.")
@click.option("--policy", type=click.Choice(["fifo", "easy"]), default="fifo", show_default=True, help="Who starts.")
@click.option("--since", metavar="WHEN", default="", help="Only jobs submitted from then on.")
@click.option("--until", metavar="WHEN", default="", help="Only jobs submitted until then.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def simulate(
    *,
    name: str,
    nodes: int | None,
    gpus_per_node: int,
    node_file: Path | None,
    policy: str,
    since: str,
    until: str,
    as_json: bool,
) -> None:
    """Run a trace's jobs through the scheduler in virtual time: how long they wait, and how well the GPUs are used.

    A trace is a CSV file with the columns of Philly's, ITP's, Muri's, Tiresias' or openb's, or one in SWF. Times are
    what the trace says: seconds from its beginning, or a date and time.
    """
    from muster.projections.simulation import POLICIES, summarize  # noqa: PLC0415
    from muster.projections.traces import TraceError, read_trace  # noqa: PLC0415

    if (nodes is None) == (node_file is None):
        raise CommandError("say what the cluster is", Exit.USAGE, "--nodes COUNT, or --node-file FILE")
    try:
        trace = read_trace(_found(name)).between(since, until)
        inventories = _cluster(nodes, gpus_per_node, node_file)
    except TraceError as error:
        raise CommandError(str(error), Exit.USAGE) from error
    begun = time.perf_counter()
    run = _run(trace, inventories, policy, equal=node_file is None)
    summary = summarize(run)
    wall_s = time.perf_counter() - begun
    if as_json:
        click.echo(json.dumps(_answer(name, policy, POLICIES[policy].placement, trace, summary, wall_s), indent=2))
    else:
        click.echo(_text(trace, run, summary, wall_s))


def _found(name: str) -> Path:
    """The file of that name, there or in the traces' folder. Raises CommandError."""
    folder = os.environ.get(FOLDER, "")
    places = [Path(name)]
    if folder:
        places += [Path(folder, path + ending) for path in (name, f"{name}/{name}") for ending in ENDINGS]
    for place in places:
        if place.is_file():
            return place
    inside = sorted(each.name for place in places if place.is_dir() for each in place.iterdir() if each.is_file())
    step = f"it is a folder of {', '.join(inside)[:300]}" if inside else f"names are looked up in the folder {FOLDER}"
    raise CommandError(f"no trace {name[:200]}", Exit.NOT_FOUND, step)


def _cluster(nodes: int | None, gpus: int, node_file: Path | None) -> "Mapping[str, Inventory]":
    from muster.projections.trace_nodes import read_nodes, uniform  # noqa: PLC0415

    if node_file is not None:
        return read_nodes(node_file)
    assert nodes is not None
    return uniform(nodes, gpus)


def _run(trace: "Trace", inventories: "Mapping[str, Inventory]", policy: str, *, equal: bool) -> "Run":
    from muster.projections.simulation import POLICIES, gpus_only  # noqa: PLC0415
    from muster.projections.virtual import VirtualCluster  # noqa: PLC0415

    jobs = gpus_only(trace.jobs) if equal else trace.jobs
    cluster = VirtualCluster(inventories, POLICIES[policy])
    if not sys.stderr.isatty():
        return cluster.run(jobs)
    with click.progressbar(length=len(jobs), label="jobs that have come", file=sys.stderr) as bar:
        run = cluster.run(jobs, _steps(bar.update))
        bar.update(len(jobs))
    return run


def _steps(update: "Callable[[int], None]") -> "Callable[[int], None]":
    shown = 0

    def told(come: int) -> None:
        nonlocal shown
        if come >= shown + STEP:
            update(come - shown)
            shown = come

    return told


def _answer(
    name: str, policy: str, placement: str, trace: "Trace", summary: "Summary", wall_s: float
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "trace": name,
        "policy": policy,
        "placement": placement,
        **_figures(summary.figures),
        "makespan_s": summary.makespan_s,
        "utilization": summary.utilization,
        "preemptions": 0,
        "never_started": summary.never_started,
        "left_out": trace.left_out,
        "reservations": summary.reservations,
        "broken_reservations": summary.broken_reservations,
        "wall_s": wall_s,
    }
    return answer | {"users": {user: _figures(figures) for user, figures in summary.users.items()}}


def _figures(figures: "Figures") -> dict[str, Any]:
    spreads = {"wait": figures.wait, "jct": figures.jct}
    times = {
        f"{which}_{kind}_s": value
        for kind, spread in spreads.items()
        for which, value in (
            ("mean", spread.mean_s),
            ("p50", spread.p50_s),
            ("p95", spread.p95_s),
            ("p99", spread.p99_s),
        )
    }
    return {"jobs": figures.jobs, **times, "gpu_hours": figures.gpu_hours}


def _text(trace: "Trace", run: "Run", summary: "Summary", wall_s: float) -> str:
    rows = [_row("all", summary.figures)]
    if len(summary.users) > 1:
        rows += [_row(user or "-", figures) for user, figures in summary.users.items()]
    titles = ("USER", "JOBS", "GPU_HOURS", "WAIT_S", "WAIT_P50", "WAIT_P95", "WAIT_P99", "JCT_S", "JCT_P99")
    kept = f"{summary.reservations}, {summary.broken_reservations} of them broken" if summary.reservations else ""
    about = [
        ("makespan", f"{summary.makespan_s:,.0f} s"),
        ("utilization", f"{100 * summary.utilization:.2f} % of {run.gpus} GPUs"),
        ("reservations", kept),
        (
            "never started",
            f"{summary.never_started} jobs: the cluster cannot hold them" if summary.never_started else "",
        ),
        ("left out", f"{trace.left_out} jobs of the trace that never ran" if trace.left_out else ""),
        ("took", f"{wall_s:.1f} s"),
    ]
    return f"{render(titles, rows)}\n\n{fields(about)}"


def _row(user: str, figures: "Figures") -> tuple[object, ...]:
    wait, jct = figures.wait, figures.jct
    times = (wait.mean_s, wait.p50_s, wait.p95_s, wait.p99_s, jct.mean_s, jct.p99_s)
    return user, figures.jobs, round(figures.gpu_hours), *(round(value) for value in times)
