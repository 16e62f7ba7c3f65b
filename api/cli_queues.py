"""Commands about sharing and rules: queues, policy."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, width
from muster.api.client import Json, RefusedError
from muster.api.configfile import ConfigFile, in_file, read_config
from muster.api.table import render

FILE: Final = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_TITLES: Final = (
    "QUEUE", "WEIGHT", "GUARANTEE", "LIMIT", "ORDER", "RUNNING", "PENDING", "HELD", "SHARE", "ENTITLED"
)  # fmt: skip
_FORM: Final = """\b
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


@click.group(invoke_without_command=True)
@client_command(reads=True)
@click.pass_context
def queues(context: click.Context, session: Session) -> None:
    r"""List the queues as a tree, with what each holds; apply a file, or remove one.

    HELD counts devices, SHARE is the largest share of the cluster's devices, device memory, CPUs or host memory, and
    ENTITLED what it would be if everybody asked.

    \b
    muster queues
    muster queues apply cluster.toml --prune
    muster queues remove research/vision
    """
    if context.invoked_subcommand is None:
        session.show(session.read("/v1/queues"), lambda page: _table(page["queues"]))
    else:
        _refuse_past(session)


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


@queues.command("apply", epilog=f"The file's queues, in TOML or JSON:\n\n{_FORM}")
@FILE
@click.option("--prune", is_flag=True, help="Remove the queues that the file does not name.")
@client_command()
def apply_queues(session: Session, file: Path, *, prune: bool) -> None:
    r"""Make or change the queues of FILE, all of them or none. Other queues stay as they are.

    \b
    muster queues apply cluster.toml
    muster queues apply cluster.toml --prune
    """
    config = read_config(file)
    if config.queues is None:
        raise CommandError(f"{file} has no queues", Exit.USAGE, "write a [[queue]] table for each")
    wanted = {"queues": config.queues}
    answer = _told(lambda: session.client.put("/v1/queues", wanted, {"prune": 1 if prune else None}), config)
    session.show(answer, lambda found: "\n".join(_changes(found)))


def _changes(answer: Json) -> Iterator[str]:
    words = {name: word for word in ("made", "changed", "unchanged", "removed") for name in answer[word]}
    for name in sorted(words, key=lambda name: name.split("/")):
        yield f"queue {name}: {words[name]}"


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


@queues.command("remove")
@click.argument("name")
@client_command()
def remove_queue(session: Session, name: str) -> None:
    r"""Remove a queue that has no jobs and no queues in it.

    \b
    muster queues remove research/vision
    """
    from urllib.parse import quote  # noqa: PLC0415 - few commands need it, and every command waits for imports

    session.show(session.client.delete(f"/v1/queues/{quote(name)}"), lambda found: "\n".join(_changes(found)))


@click.group(invoke_without_command=True)
@client_command(reads=True)
@click.pass_context
def policy(context: click.Context, session: Session) -> None:
    r"""Show the rules that the cluster decides by, as a file that can be applied again; or apply one.

    \b
    muster policy
    muster policy > policy.toml
    muster policy apply policy.toml
    """
    if context.invoked_subcommand is None:
        session.show(session.read("/v1/policy"), _policy_text)
    else:
        _refuse_past(session)


def _policy_text(view: Json) -> str:
    default = dict(_flat("policy", view["default"]))
    lines = []
    for name, value in _flat("policy", view["policy"]):
        text = f"{name.removeprefix('policy.')} = {json.dumps(value)}"
        note = "the default" if value == default.get(name) else f"the default is {json.dumps(default.get(name))}"
        lines.append(f"{text:<40}  # {note}")
    lanes = [
        "\n[[policy.lanes]]\n"
        + "\n".join(f"{name} = {json.dumps(value)}" for name, value in lane.items() if value is not None)
        for lane in view["policy"]["lanes"]
    ]
    return "\n".join(
        ["[policy]", *lines, *lanes, *([] if lanes else ["# no lanes: no devices are kept for small jobs"])]
    )


def _flat(name: str, table: Json) -> Iterator[tuple[str, Any]]:
    """The fields of a table and of those in it, by dotted names; lanes are tables of their own."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{name}.{key}", value)
        elif key != "lanes":
            yield f"{name}.{key}", value


@policy.command("apply")
@FILE
@client_command()
def apply_policy(session: Session, file: Path) -> None:
    r"""Decide by the [policy] of FILE from now on. What it leaves out is the default.

    \b
    muster policy apply cluster.toml
    """
    config = read_config(file)
    if config.policy is None:
        raise CommandError(f"{file} has no policy", Exit.USAGE, "write a [policy] table")
    wanted = config.policy
    answer = _told(lambda: session.client.put("/v1/policy", wanted), config, "/policy")
    session.show(answer, lambda found: f"policy: {'unchanged' if found['already'] else 'changed'}")
