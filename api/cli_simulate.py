"""`muster simulate`: the product's core on a trace of another cluster, in virtual time, on this machine alone."""

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click
from click.core import ParameterSource

from muster.api import trace_files
from muster.api.cli_base import CommandError, Exit, Whole, examples
from muster.api.pictures import check_picture, write_picture
from muster.api.simulation_views import fill_answer, fill_plot, fill_text, trace_answer, trace_plot, trace_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from muster.core.scheme import Rule
    from muster.events.types import Inventory
    from muster.projections import fillup
    from muster.projections.fillup import FillRule

# A client command starts quickly: what computes is imported where it is needed.

STEP: Final = 500
"""After so many arrivals the progress bar moves."""
FREE: Final = ("srtf", "srsf", "las")
POLICIES: Final = ("fifo", "fjf", "easy", "conservative", "sjf", *FREE, "fair")
RULES: Final = ("best-fit", "fragmentation", "tight", "spread")
OF_NODES: Final = ("nodes", "gpus_per_node")
OF_TRACES: Final = ("policy", "preemption", "since", "until")
OF_FILLINGS: Final = ("arrivals", "seed")


@click.command(
    epilog=examples(
        "muster simulate --trace jobs.csv.xz --nodes 80 --policy easy",
        'muster simulate --trace philly --nodes 55 --since "2017-11-01 00:00:00" --until "2017-11-30 23:59:59"',
        "muster simulate --trace itp/cluster06 --nodes 13 --policy srtf --plot srtf.svg",
        "muster simulate --trace openb --node-file openb/openb_node_list_gpu_node --json",
        "muster simulate --tasks openb --node-file openb/openb_node_list_gpu_node --arrivals openb/arrivals/default "
        "--seed 42",
    )
)
@click.option(
    "--trace", metavar="NAME", help=f"Jobs and when they came: a file, or a name in the folder {trace_files.FOLDER}."
)
@click.option("--tasks", metavar="FILE", help="Instead: tasks that never leave fill the cluster.")
@click.option("--nodes", metavar="COUNT", type=Whole(1, 100_000), help="So many equal nodes.")
@click.option(
    "--gpus-per-node", metavar="COUNT", type=Whole(1, 1024), default=8, show_default=True, help="GPUs of each of them."
)
@click.option("--node-file", metavar="FILE", help="Nodes as a file lists them.")
@click.option("--policy", type=click.Choice(POLICIES), default="fifo", show_default=True, help="Who starts.")
@click.option(
    "--preemption",
    type=click.Choice(["free", "none"]),
    help="Under srtf, srsf and las: jobs stop and go on at no cost (free, the default), or nobody is stopped.",
)
@click.option(
    "--placement",
    type=click.Choice([*RULES, "random"]),
    default="best-fit",
    show_default=True,
    help="Where; random for --tasks alone.",
)
@click.option("--since", metavar="WHEN", default="", help="Only jobs submitted from then on.")
@click.option("--until", metavar="WHEN", default="", help="Only jobs submitted until then.")
@click.option("--arrivals", metavar="FILE", help="The orders in which tasks come, by seed, as JSON.")
@click.option("--seed", metavar="NUMBER", type=Whole(0), help="Which of these orders. [default: the first]")
@click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Draw it too, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def simulate(
    *,
    trace: str | None,
    tasks: str | None,
    nodes: int | None,
    gpus_per_node: int,
    node_file: str | None,
    policy: str,
    preemption: Literal["free", "none"] | None,
    placement: "FillRule",
    since: str,
    until: str,
    arrivals: str | None,
    seed: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run a trace's jobs through the scheduler in virtual time: how long they wait, and how well the GPUs are used.

    A trace is a CSV file with the columns of Philly's, ITP's, Muri's, Tiresias' or openb's, or one in SWF. Times are
    what the trace says: seconds from its beginning, or a date and time. With --tasks, a cluster is filled with tasks
    that never leave: how much of it is in use once they have asked for 100 and for 130 percent of it.
    """
    from muster.projections.traces import TraceError  # noqa: PLC0415

    if (trace is None) == (tasks is None):
        raise CommandError("say what is to run", Exit.USAGE, "--trace NAME for jobs, or --tasks FILE to fill a cluster")
    if plot is not None:
        check_picture(plot)
    try:
        if tasks is not None:
            _refuse(OF_NODES, "is for --trace: the cluster that tasks fill is a --node-file")
            _refuse(OF_TRACES, "is for --trace: the tasks of a filling come one by one, and none leaves")
            shown = _fill(tasks, node_file, arrivals, seed, placement)
        else:
            assert trace is not None
            _refuse(OF_FILLINGS, "is for --tasks: the jobs of a trace come when it says")
            cluster = _Cluster(nodes, gpus_per_node, node_file)
            shown = _run(trace, cluster, _Rules(policy, preemption, placement), (since, until))
    except TraceError as error:
        raise CommandError(str(error), Exit.USAGE) from error
    if plot is not None:
        write_picture(plot, shown.picture())
    click.echo(json.dumps(shown.answer, indent=2) if as_json else shown.text)


class _Shown(NamedTuple):
    """What a simulation came to: in JSON, as text, and as a picture where one is wanted."""

    answer: dict[str, Any]
    text: str
    picture: "Callable[[], str]"


def _refuse(options: tuple[str, ...], why: str) -> None:
    """Options that do not belong to what is to be done are no good. Raises CommandError."""
    context = click.get_current_context()
    for option in options:
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            raise CommandError(f"--{option.replace('_', '-')} {why}", Exit.USAGE)


@contextmanager
def _progress(length: int, label: str) -> "Iterator[Callable[[int], object]]":
    """Show how many have come, where somebody looks: to be told so."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:

        def told(come: int) -> None:
            if come >= bar.pos + STEP:
                bar.update(come - bar.pos)

        yield told
        bar.update(length - bar.pos)


# -- traces -----------------------------------------------------------------------------------------------------------


class _Cluster(NamedTuple):
    nodes: int | None
    gpus_per_node: int
    node_file: str | None

    def read(self) -> "Mapping[str, Inventory]":
        """Its nodes by name. Raises CommandError and TraceError."""
        from muster.projections.trace_nodes import read_nodes, uniform  # noqa: PLC0415

        if (self.nodes is None) == (self.node_file is None):
            raise CommandError("say what the cluster is", Exit.USAGE, "--nodes COUNT, or --node-file FILE")
        if self.nodes is not None:
            return uniform(self.nodes, self.gpus_per_node)
        assert self.node_file is not None
        _refuse(("gpus_per_node",), "goes with --nodes: a node file says how many GPUs each node has")
        return read_nodes(trace_files.find("node file", self.node_file)[1])


class _Rules(NamedTuple):
    policy: str
    preemption: str | None
    placement: "FillRule"

    def checked(self) -> "Rule":
        """The placement, where all of it goes together. Raises CommandError."""
        if self.preemption == "free" and self.policy not in FREE:
            why = f"--preemption free: nobody is stopped under {self.policy}"
            raise CommandError(why, Exit.USAGE, f"it goes with {', '.join(FREE)}")
        if self.placement == "random":
            raise CommandError("--placement random is for --tasks", Exit.USAGE, f"one of {', '.join(RULES)}")
        return self.placement


def _run(name: str, cluster: _Cluster, rules: _Rules, window: tuple[str, str]) -> _Shown:
    """A trace in virtual time."""
    from muster.projections import simulation  # noqa: PLC0415
    from muster.projections.traces import read_trace  # noqa: PLC0415

    placement, policy = rules.checked(), rules.policy
    nodes = cluster.read()
    name, path = trace_files.find("trace", name)
    trace = read_trace(path).between(*window)
    jobs = simulation.gpus_only(trace.jobs) if cluster.node_file is None else trace.jobs
    free = rules.preemption != "none"
    begun = time.perf_counter()
    with _progress(len(jobs), "jobs that have come") as told:
        run = simulation.simulate(nodes, jobs, policy, placement, free=free, progress=told)
    summary = simulation.summarize(run)
    wall_s = time.perf_counter() - begun
    about = {"trace": name, "policy": policy, "placement": placement}
    if policy in FREE:
        about["preemption"] = "free" if free else "none"
    return _Shown(
        {**about, **trace_answer(summary, trace.left_out), "wall_s": wall_s},
        trace_text(run, summary, trace.left_out, wall_s),
        lambda: trace_plot(", ".join(about.values()), run),
    )


# -- fillings ---------------------------------------------------------------------------------------------------------


def _fill(name: str, node_file: str | None, orders: str | None, seed: int | None, placement: "FillRule") -> _Shown:
    """A cluster filled with tasks."""
    from muster.projections import fill_lists, fillup  # noqa: PLC0415

    if node_file is None or orders is None:
        needed = "--node-file FILE, the cluster," if node_file is None else "--arrivals FILE, the orders of arrival,"
        raise CommandError(f"{needed} goes with --tasks", Exit.USAGE)
    name, tasks_path = trace_files.find("list of tasks", name)
    nodes_path, orders_path = (
        trace_files.find(what, file)[1] for what, file in (("node file", node_file), ("orders of arrival", orders))
    )
    by_seed = fill_lists.read_orders(orders_path)
    chosen = min(by_seed, default=0) if seed is None else seed
    filling = fill_lists.read_filling(tasks_path, nodes_path)
    tasks = fill_lists.arrivals(filling, by_seed, chosen)
    allocated: list[tuple[float, float]] = []
    fragmented: list[tuple[float, float]] = []
    begun = time.perf_counter()
    with _progress(len(tasks), "tasks that have come") as told:

        def note(step: "fillup.Step", now: "fillup.Column") -> None:
            arrived_pct = 100 * step.arrived / max(filling.milli, 1)
            allocated.append((arrived_pct, now.allocation_pct))
            fragmented.append((arrived_pct, now.fragmented_pct))
            told(len(allocated))

        filled = fillup.run(filling, placement, tasks, chosen, note)
    wall_s = time.perf_counter() - begun
    gpus = filling.milli // 1000
    about = {"tasks": name, "placement": placement, "seed": chosen, "nodes": len(filling.nodes), "gpus": gpus}
    return _Shown(
        {**about, **fill_answer(filled), "wall_s": wall_s},
        f"{name}, {placement}, seed {chosen}\n\n{fill_text(filled, len(filling.nodes), gpus, wall_s)}",
        lambda: fill_plot(f"{name}, {placement}, seed {chosen}", allocated, fragmented),
    )
