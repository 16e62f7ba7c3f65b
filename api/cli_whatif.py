"""`muster whatif`: a window of the log under other rules, and what would become of a job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from muster.api.cli_base import CommandError, Exit, FileToRead, Session, client_command, examples, width
from muster.api.cli_submit import build_spec, check_asks, spec_options
from muster.api.client import Json, RefusedError
from muster.api.configfile import in_file, read_config
from muster.api.pictures import check_picture, write_picture
from muster.api.progress_bar import last_line
from muster.api.table import fields, render
from muster.api.times import elapsed

GROUPED: Final = {
    "WAIT_MEAN_S": ("mean_wait_s", 1),
    "WAIT_P95_S": ("p95_wait_s", 1),
    "JCT_MEAN_S": ("mean_jct_s", 1),
    "GPU_HOURS": ("gpu_hours", 2),
}
"""Of the tables by queue and by user: title, figure, digits."""
WAITS_ON: Final = "> it still waits when the window ends"
_FILE: Final = FileToRead()
_PICTURE: Final = click.Path(dir_okay=False, path_type=Path)


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "muster whatif --policy sjf.toml --from -2h",
        'muster whatif --add-nodes 2x8xH100-80GB --from "yesterday 08:00" --to "yesterday 20:00"',
        "muster whatif --queues cluster.toml --remove-nodes 1 --from 1042 --to 9000 --plot whatif.svg",
        "muster whatif submit --gpus 16 --priority P0",
    ),
)
@click.option("--policy", "policy", metavar="FILE", type=_FILE, help="Decide by the [policy] of this file.")
@click.option("--queues", "queues", metavar="FILE", type=_FILE, help="With the queues of this file.")
@click.option("--add-nodes", metavar="NODESxDEVICESxMODEL", default="", help="With nodes more: 2x8xH100-80GB.")
@click.option("--remove-nodes", metavar="COUNT | NAMES", default="", help="With nodes less: a number, or a,b,c.")
@click.option("--from", "begin", metavar="WHEN", help="Where the window begins: a sequence, a time, or -2h.")
@click.option("--to", "end", metavar="WHEN", default="", help="Where it ends; now if left out.")
@click.option("--plot", metavar="FILE", type=_PICTURE, help="Draw it too, as SVG.")
@client_command()
@click.pass_context
def whatif(
    context: click.Context, /, session: Session, *, begin: str | None, plot: Path | None, **changes: Any
) -> None:
    """What would have been: run a window of the log again under other rules, or on other nodes, and compare.

    Submissions, cancellations and what happened to nodes keep their times, and jobs run for as long as they ran; who
    starts when and where is decided anew. The log is not changed.
    """
    if context.invoked_subcommand is not None:
        _refuse_before(context, context.invoked_subcommand)
        return
    if begin is None:
        raise CommandError("since when?", Exit.USAGE, "--from WHEN, such as --from -2h; `muster whatif --help`")
    if plot is not None:
        check_picture(plot)
    answer = _ask(session, {"from": begin, "to": changes.pop("end")}, **changes)
    if plot is not None:
        write_picture(plot, _picture(answer))
    session.show(answer, _text)


_FOR_ALL: Final = ("server", "as_json")
"""The options that hold for what follows the command too."""


def _refuse_before(context: click.Context, name: str) -> None:
    """What was said of a window is nothing that a job could be asked with. Raises CommandError."""
    for option in context.command.params:
        given = option.name is not None and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        if given and option.name not in _FOR_ALL:
            detail = (
                f"{option.opts[0]} is no option of `whatif {name}`: a job is asked about under a moment's own rules"
            )
            step = f"`muster whatif {name} --at WHEN` names another moment, `muster whatif --policy ...` runs a window"
            raise CommandError(detail, Exit.USAGE, step)


def _ask(
    session: Session, body: Json, *, policy: Path | None, queues: Path | None, add_nodes: str, remove_nodes: str
) -> Json:
    files: dict[str, Path] = {}
    if policy is not None:
        body["policy"], files["/policy"] = read_config(policy).policy, policy
        if body["policy"] is None:
            raise CommandError(f"{policy} has no policy", Exit.USAGE, "write a [policy] table")
    if queues is not None:
        body["queues"], files["/queues"] = read_config(queues).queues, queues
        if body["queues"] is None:
            raise CommandError(f"{queues} has no queues", Exit.USAGE, "write a [[queue]] table for each")
    if add_nodes:
        body["add_nodes"] = add_nodes
    if remove_nodes:
        names = [name.strip() for name in remove_nodes.split(",")]
        body["remove_nodes"] = int(remove_nodes) if remove_nodes.isdecimal() else names
    if len(body) == 2:  # noqa: PLR2004 - the window alone
        step = "--policy FILE, --queues FILE, --add-nodes 2x8xH100-80GB or --remove-nodes COUNT"
        raise CommandError("what if what?", Exit.USAGE, step)
    try:
        chunks = session.client.stream("/v1/whatif", headers={"Accept": "application/x-ndjson"}, body=body)
        return last_line(chunks, "percent of the window")
    except RefusedError as error:
        raise RefusedError(error.status, _by_option(error.problem, files)) from error


_OPTIONS: Final = {"/from": "--from", "/to": "--to", "/add_nodes": "--add-nodes", "/remove_nodes": "--remove-nodes"}


def _by_option(problem: Json, files: dict[str, Path]) -> Json:
    """A problem whose fields are named as they were given: by option, or by file and place in it."""
    errors = []
    for item in problem.get("errors", []):
        pointer = str(item.get("pointer", ""))
        file = next((path for start, path in files.items() if pointer.startswith(start)), None)
        named = f"{file}: {in_file(pointer)}" if file is not None else _OPTIONS.get(pointer, pointer)
        errors.append({**item, "pointer": named})
    return {**problem, "errors": errors}


# -- as text ----------------------------------------------------------------------------------------------------------


def _text(answer: Json) -> str:
    jobs = answer["jobs"]
    alike = f"{answer['same_devices']} of the {answer['placed']} that began had the same devices in both"
    window = f"after entry {answer['first']} to entry {answer['last']}"
    about = [
        ("window", f"{window}, {_clock(answer['begin'])} to {_clock(answer['end'])} UTC"),
        ("jobs", f"{jobs['jobs']} came in it or waited when it began; {alike}"),
        ("not compared", _rejected(answer["rejected"])),
        ("left the record", _left(answer)),
        ("took", f"{answer['wall_s']:.1f} s"),
    ]
    parts = [fields(about), render(("", "RECORDED", "WHAT IF", "CHANGE"), list(_measures(answer)))]
    for title, groups in (("QUEUE", answer["queues"]), ("USER", answer["users"])):
        if len(groups) > 1:
            parts.append(_groups(title, groups))
    for title, movers in (("GAIN MOST", answer["gained"]), ("LOSE MOST", answer["lost"])):
        shown = [each for each in movers if _s(each["recorded_wait_s"]) != _s(each["whatif_wait_s"])]
        if shown:
            parts.append(_movers(title, shown))
    parts.append("\n".join(["assumed", *(f"  {sentence}" for sentence in answer["assumed"])]))
    return "\n\n".join(parts)


def _rejected(count: int) -> str:
    jobs = "1 job" if count == 1 else f"{count} jobs"
    return f"{jobs} whose submission is refused under these rules" if count else ""


def _left(answer: Json) -> str:
    alike = f"{answer['passes_alike']} passes came out the same"
    if answer["left_at"] is None:
        return f"nowhere: {alike}"
    where = "at once" if answer["left_at"] == answer["first"] else f"after entry {answer['left_at']}"
    return where if not answer["passes_alike"] else f"{where}; before, {alike}"


def _measures(answer: Json) -> Iterator[tuple[str, str, str, str]]:
    """Name, recorded, what if, change."""
    before, after = answer["jobs"]["recorded"], answer["jobs"]["whatif"]
    for kind, name in (("wait", "wait"), ("jct", "submission to end")):
        for figure in ("mean", "p50", "p95", "p99"):
            yield measured(f"{name}, {figure}", before[f"{figure}_{kind}_s"], after[f"{figure}_{kind}_s"], " s")
    yield measured("started", before["started"], after["started"])
    yield measured("ended", before["ended"], after["ended"])
    before, after = answer["recorded"], answer["whatif"]
    yield measured("device time used", 100 * before["utilization"], 100 * after["utilization"], " %")
    yield measured("idle and of no use", before["fragmented_pct"], after["fragmented_pct"], " %")
    yield measured("preemptions", before["preemptions"], after["preemptions"])
    yield measured("work lost", before["lost_gpu_hours"], after["lost_gpu_hours"], " GPU hours", digits=2)
    yield measured("fairness", before["fairness"], after["fairness"], digits=3)


def measured(
    name: str, before: float | None, after: float | None, unit: str = "", digits: int = 1
) -> tuple[str, str, str, str]:
    """Name, before, after, and what changes from one to the other as they are shown; of seconds in percent."""

    def told(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:,d}{unit}" if isinstance(value, int) else f"{value:,.{digits}f}{unit}"

    if before is None or after is None:
        change = ""
    elif isinstance(before, int) or unit != " s" or not round(before, digits):
        change = f"{round(after, digits) - round(before, digits):+,.{0 if isinstance(before, int) else digits}f}"
    else:
        change = f"{100 * (after - before) / before if told(after) != told(before) else 0:+.1f} %"
    return name, told(before), told(after), change


def _groups(title: str, groups: list[Json]) -> str:
    titles = (title, "JOBS", *(each for name in GROUPED for each in (name, "WHAT_IF")))
    rows = []
    for group in groups:
        before, after = group["recorded"], group["whatif"]
        cells = [_rounded(side[figure], digits) for figure, digits in GROUPED.values() for side in (before, after)]
        rows.append((group["name"], group["jobs"], *cells))
    return render(titles, rows, width=width())


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _movers(title: str, movers: list[Json]) -> str:
    rows = [
        (each["job"], each["user"], each["queue"], each["name"], each["gpus"], _wait(each, "recorded"),
         _wait(each, "whatif"))
        for each in movers
    ]  # fmt: skip
    titles = ("JOBID", "USER", "QUEUE", "NAME", "GPUS", "WAIT", "WHAT_IF")
    table = f"{title}\n{render(titles, rows, width=width())}"
    waits_on = any(each["recorded_waits_on"] or each["whatif_waits_on"] for each in movers)
    return f"{table}\n{WAITS_ON}" if waits_on else table


def _wait(mover: Json, course: str) -> str:
    more = ">" if mover[f"{course}_waits_on"] else ""
    return more + _s(mover[f"{course}_wait_s"])


def _s(seconds: float) -> str:
    return elapsed(round(seconds * 1000))


def _clock(text: str) -> str:
    return text[:19].replace("T", " ")


def _picture(answer: Json) -> str:
    from muster.api.plot import Panel, Series, draw, unit_of  # noqa: PLC0415 - only where a picture is asked for

    rows = answer["series"]
    unit_s, unit = unit_of(rows[-1][0] if rows else 1)

    def panel(title: str, recorded: int, otherwise: int) -> Panel:
        lines = (("recorded", recorded), ("what if", otherwise))
        return Panel(title, [Series(name, [(row[0] / unit_s, row[place]) for row in rows]) for name, place in lines])

    title = f"{_clock(answer['begin'])} to {_clock(answer['end'])} UTC, as recorded and what if"
    return draw(title, unit, [panel("jobs that wait", 1, 3), panel("devices held", 2, 4)])


# -- a job ------------------------------------------------------------------------------------------------------------


@whatif.command(
    "submit",
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "muster whatif submit --gpus 16",
        "muster whatif submit --priority P0 job.toml",
        'muster whatif submit --at "yesterday 14:05" --gpus 8 --time-limit 2h',
    ),
)
@client_command(reads=True)
@spec_options
def submit(session: Session, command: tuple[str, ...], *, wait_for_capacity: bool, **flags: Any) -> None:
    """What would become of a job if it were submitted: when it would start, where, and who would be stopped for it.

    It is described as for `muster submit`, where a command may be left out. Nothing is submitted.
    """
    spec = {"command": "true"} | build_spec(command, flags)
    check_asks(spec)
    parameters = {"at": session.at, "wait_for_capacity": 1 if wait_for_capacity else None}
    session.show(session.client.post("/v1/whatif/submit", spec, parameters), _submitted)


def _submitted(answer: Json) -> str:
    workers = [
        f"{each['node']}, devices {', '.join(map(str, each['devices'])) or 'none'}" for each in answer["workers"]
    ]
    starts = "nobody knows when"
    if answer["starts"] is not None:
        wait_ms = answer["starts_in_ms"]
        starts = "at once" if wait_ms <= 0 else f"{_clock(answer['starts'])} UTC, in {elapsed(wait_ms)}"
    stopped = [f"job {each['job']}: {each['detail']}" for each in answer["stopped"]]
    about = [("starts", starts), *(("on" if not n else "", each) for n, each in enumerate(workers))]
    about += [("stops" if not number else "", each) for number, each in enumerate(stopped)]
    return "\n".join([fields(about), "", *answer["text"]])
