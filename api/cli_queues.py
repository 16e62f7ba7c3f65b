"""Commands about sharing and rules: queues, policy."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from muster.api.changes import DURATIONS, flat, policy_line, queue_lines, value_text
from muster.api.cli_base import (
    CommandError,
    Exit,
    FileToRead,
    Session,
    agreed,
    client_command,
    examples,
    segment,
    width,
)
from muster.api.client import Json, RefusedError
from muster.api.configfile import ConfigFile, in_file, read_config
from muster.api.table import fields, render

FILE: Final = click.argument("file", metavar="FILE", type=FileToRead())
_TITLES: Final = (
    "QUEUE", "WEIGHT", "GUARANTEE", "LIMIT", "ORDER", "RUNNING", "PENDING", "HELD", "SHARE", "ENTITLED"
)  # fmt: skip
_DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
_ONLY_SAID: Final = "a dry run: nothing was changed"
_APPLY: Final = examples(*(f"muster queues apply cluster.toml{flag}" for flag in ("", " --dry-run", " --prune")))
_FORM: Final = """\b
The file's queues, in TOML or JSON:
  [[queue]]
  name = "research"            # a queue in another: "research/vision"
  guarantee = "60%"            # or a number of devices
  limit = 12
  user_limit = "50%"           # of the limit, for each user
\b
  [[queue]]
  name = "inference"
  guarantee = "40%"
  priority = "P1"              # of jobs that name none
"""


def _refuse_past(session: Session) -> None:
    if session.at is not None:
        raise CommandError("the past cannot be changed", Exit.USAGE, "leave --at out")


class _Queues(click.Group):
    """The group in which a queue's name shows that queue."""

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with `show` before a word that is no command and has none behind it."""
        if self.get_command(context, words[0]) is None and not [word for word in words[1:2] if word[:1] != "-"]:
            words = ["show", *words]
        return super().resolve_command(context, words)


@click.group(
    cls=_Queues,
    invoke_without_command=True,
    subcommand_metavar="[NAME | COMMAND [ARGS]...]",
    epilog=examples(
        "muster queues",
        "muster queues research/vision",
        "muster queues apply cluster.toml --dry-run",
        "muster queues remove research/vision",
    ),
)
@client_command(reads=True)
@click.pass_context
def queues(context: click.Context, session: Session) -> None:
    """List the queues as a tree, with what each holds; show one in full; apply a file, or remove one.

    HELD counts devices, SHARE is the largest share of the cluster's devices, device memory, CPUs or host memory, and
    ENTITLED what it would be if everybody asked.
    """
    if context.invoked_subcommand is None:
        session.show(session.read("/v1/queues"), lambda page: _table(page["queues"]))
    elif context.invoked_subcommand != "show":
        _refuse_past(session)


@queues.command("show", epilog=examples("muster queues show research/vision", "muster queues research/vision"))
@click.argument("name", metavar="NAME")
@client_command(reads=True)
def show_queue(session: Session, name: str) -> None:
    """Show one queue: all its fields with what they come to in devices, its users, and what each of them holds."""
    session.show(session.read(f"/v1/queues/{segment('queue', name)}"), _queue_text)


_PORTIONS: Final = {
    "guarantee": "nothing", "limit": "all", "borrow": "all", "lend": "all", "reclaim_step": "all at once",
    "user_limit": "none", "urgent_limit": "none", "max_job_share": "none",
}  # fmt: skip
"""Fields that come to devices, with what they are where they are left out."""
_BOUND_OF: Final = {"lend": "kept", "max_job_share": "max_job"}


def _queue_text(row: Json) -> str:
    held = f"{_devices(row['devices_held_milli'])} devices, {_percent(row['share_ppm'])} of the cluster"
    text = fields(
        [
            ("queue", row["name"]),
            ("takes jobs", None if row["takes_jobs"] else "no: they wait in the queues below it"),
            ("running", row["running"]),
            ("pending", row["pending"]),
            ("holds", f"{held} ({_percent(row['entitled_ppm'])} if everybody asked)"),
            *_field_lines(row),
        ]
    )
    users = [
        (each["user"], each["running"], each["pending"], _devices(each["devices_held_milli"])) for each in row["users"]
    ]
    return f"{text}\n\n{render(('USER', 'RUNNING', 'PENDING', 'HELD'), users, width=width())}" if users else text


def _field_lines(row: Json) -> Iterator[tuple[str, object]]:
    """Every field of a queue, those left out with what they are then."""
    spec = {name: value for name, value in row["spec"].items() if name != "name"}
    for name, left_out in _PORTIONS.items():
        told = spec.get(name)
        yield name, left_out if told is None else f"{told}{_comes_to(name, told, row['bounds_milli'])}"
    for name, value in _OTHERS.items():
        yield name, spec.get(name, row["order"] if name == "order" else value)


_OTHERS: Final = {
    "max_job_devices": "none", "weight": 1, "order": "", "priority": "300 (P2)", "reclaim": "preempt",
    "urgent_from": 900,
}  # fmt: skip


def _comes_to(name: str, told: Any, bounds_milli: Json) -> str:
    """What a portion is in devices now."""
    milli = bounds_milli[_BOUND_OF.get(name, name)]
    if milli is None:
        return ""
    if name == "lend":
        return f" (it keeps {_count(milli)})"
    return f" ({_count(milli)})" if isinstance(told, str) else ""


def _count(milli: int) -> str:
    return f"{_devices(milli)} device{'' if milli == 1000 else 's'}"  # noqa: PLR2004 - one device in thousandths


def _table(rows: list[Json]) -> str:
    return render(_TITLES, [_line(row) for row in rows], width=width())


def _line(row: Json) -> tuple[object, ...]:
    *above, leaf = row["name"].split("/")
    return (
        "  " * len(above) + leaf, row["weight"], _bound(row["guarantee"], row["guarantee_milli"]),
        _bound(row["limit"], row["limit_milli"]), row["order"], row["running"], row["pending"],
        _devices(row["devices_held_milli"]), _percent(row["share_ppm"]), _percent(row["entitled_ppm"]),
    )  # fmt: skip


def _bound(portion: Any, milli: int | None) -> str:
    """`8`, or for a percentage also how many devices that is now: `60% (9.6)`."""
    if portion is None:
        return "-"
    return f"{portion} ({_devices(milli or 0)})" if isinstance(portion, str) else str(portion)


def _devices(milli: int) -> str:
    return f"{milli / 1000:g}"


def _percent(ppm: int) -> str:
    return f"{ppm / 10_000:.1f}%"


@queues.command("apply", epilog=f"{_FORM}\n\n{_APPLY}")
@FILE
@click.option("--prune", is_flag=True, help="Remove the queues that the file does not name.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before queues are removed.")
@_DRY_RUN
@client_command()
def apply_queues(session: Session, file: Path, *, prune: bool, yes: bool, dry_run: bool) -> None:
    """Make or change the queues of FILE, all of them or none, and say what that changes. Other queues stay as they are;
    a field that a queue of the file leaves out is reset to its default."""
    config = read_config(file)
    if config.queues is None:
        raise CommandError(f"{file} has no queues", Exit.USAGE, "write a [[queue]] table for each")

    def put(*, dry_run: bool) -> Json:
        wanted, flags = {"queues": config.queues}, {"prune": 1 if prune else None, "dry_run": 1 if dry_run else None}
        return _told(lambda: session.client.put("/v1/queues", wanted, flags), config)

    if prune and not yes and not dry_run and (removed := put(dry_run=True)["removed"]):
        names = f"{', '.join(removed[:10])}{', ...' if len(removed) > 10 else ''}"  # noqa: PLR2004 - what fits a line
        what = f"{len(removed)} queue{'' if len(removed) == 1 else 's'}"
        agreed(f"remove {what} ({names})?", f"this would remove {what}: {names}", yes=False)
    answer = put(dry_run=dry_run)
    session.show(answer, _queues_told)
    _warn(answer)


def _warn(answer: Json) -> None:
    for warning in answer["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def _queues_told(answer: Json) -> str:
    return "\n".join([*queue_lines(answer), *([_ONLY_SAID] if answer["dry_run"] else [])])


def _told(send: Callable[[], Json], config: ConfigFile, under: str = "") -> Json:
    """An answer; what is refused is named by its place in the file, `under` a table of it."""
    try:
        return send()
    except RefusedError as error:
        problem = dict(error.problem)
        problem["title"] = f"{config.path}: {problem.get('title', '')}"
        problem["errors"] = [
            {**item, "pointer": in_file(str(item.get("pointer", "")), under)} for item in problem.get("errors", [])
        ]
        raise RefusedError(error.status, problem) from error


@queues.command("remove", epilog=examples("muster queues remove research/vision"))
@click.argument("name", metavar="NAME")
@client_command()
def remove_queue(session: Session, name: str) -> None:
    """Remove a queue that has no jobs and no queues in it."""
    session.show(session.client.delete(f"/v1/queues/{segment('queue', name)}"), _queues_told)


@click.group(
    invoke_without_command=True,
    epilog=examples("muster policy", "muster policy > policy.toml", "muster policy apply policy.toml --dry-run"),
)
@client_command(reads=True)
@click.pass_context
def policy(context: click.Context, session: Session) -> None:
    """Show the rules that the cluster decides by, as a file that can be applied again; or apply one."""
    if context.invoked_subcommand is None:
        session.show(session.read("/v1/policy"), _policy_text)
    else:
        _refuse_past(session)


def _policy_text(view: Json) -> str:
    policy = {name: value for name, value in view["policy"].items() if name != "lanes"}
    default = dict(flat(view["default"]))
    lines = []
    for name, value in flat(policy):
        text = f"{name} = {_toml(name, value)}"
        note = "the default" if value == default.get(name) else f"the default is {_toml(name, default.get(name))}"
        lines.append(f"{text:<40}  # {note}")
    lanes = [
        "\n[[policy.lanes]]\n"
        + "\n".join(f"{name} = {_toml(name, value)}" for name, value in lane.items() if value is not None)
        for lane in view["policy"]["lanes"]
    ]
    return "\n".join(
        ["[policy]", *lines, *lanes, *([] if lanes else ["# no lanes: no devices are kept for small jobs"])]
    )


def _toml(field: str, value: Any) -> str:
    """A value as TOML has it, a duration as text."""
    is_duration = field.rpartition(".")[2] in DURATIONS
    return json.dumps(value_text(field, value) if is_duration and value is not None else value)


@policy.command(
    "apply", epilog=examples("muster policy apply cluster.toml --dry-run", "muster policy apply cluster.toml")
)
@FILE
@_DRY_RUN
@client_command()
def apply_policy(session: Session, file: Path, *, dry_run: bool) -> None:
    """Decide by the [policy] of FILE from now on, and say what that changes. What it leaves out is the default."""
    config = read_config(file)
    if config.policy is None:
        raise CommandError(f"{file} has no policy", Exit.USAGE, "write a [policy] table")
    wanted, flags = config.policy, {"dry_run": 1 if dry_run else None}
    answer = _told(lambda: session.client.put("/v1/policy", wanted, flags), config, "/policy")
    session.show(answer, lambda found: "\n".join([policy_line(found), *([_ONLY_SAID] if found["dry_run"] else [])]))
    _warn(answer)
