"""What all client commands share: the options, the way errors end a command, and how answers are shown.

Nothing here, nor in any module that a client command imports, loads asyncio, aiohttp or nats.
"""

import functools
import getpass
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from muster.api.client import DEFAULT_SERVER, Client, Json, RefusedError, UnreachableError
from muster.api.jobfile import JobFileError, NoFileError
from muster.api.table import clean
from muster.api.times import moment as shown_moment
from muster.api.times import today

F = TypeVar("F", bound=Callable[..., Any])
PAGE_DEFAULT: Final = 100
"""So many jobs make a page."""


class Exit(IntEnum):
    """How a command ends."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    NOT_ALLOWED = 5
    NEVER_FITS = 6
    UNREACHABLE = 69
    TIMED_OUT = 124
    INTERRUPTED = 130


_EXIT_OF_STATUS = {
    400: Exit.USAGE,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
    503: Exit.UNREACHABLE,
    507: Exit.UNREACHABLE,
}
_EXIT_OF_CODE = {"never_fits": Exit.NEVER_FITS, "key_reused": Exit.CONFLICT}
_STEPS = {
    "never_fits": "ask for less, or --wait-for-capacity to wait for more",
    "invalid_job": "`muster submit --help` describes every option, docs/jobs.md every field of a job file",
    "invalid_queues": "correct the fields named; docs/policies.md describes all of them",
    "invalid_policy": "correct the fields named; docs/policies.md describes all of them",
    "invalid_whatif": "`muster whatif --help` describes every option, docs/what-if.md what can be asked",
    "key_reused": "submit the first job again, or use another --key",
    "log_unavailable": "try again",
    "behind": "try again",
}
"""What to do next in the command line's words, where the server's are those of HTTP."""


class Whole(click.IntRange):
    """A whole number within bounds, called so where it is none."""

    name = "whole number"


class Number(click.FloatRange):
    """A number within bounds, called so where it is none."""

    name = "number"


def several(*names: str, metavar: str, text: str) -> Callable[[F], F]:
    """An option for a list with commas, which may be given again for more of it. The command gets them all as one such
    list, None where there are none."""

    def joined(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> str | None:
        return ",".join(values) if values else None

    return click.option(*names, metavar=metavar, multiple=True, callback=joined, help=text)


def paged(function: F) -> F:
    """Give a command that lists jobs `--limit` and `--after`."""
    limit = click.option(
        "--limit",
        metavar="COUNT",
        type=Whole(1, 1000),
        default=PAGE_DEFAULT,
        show_default=True,
        help="At most so many jobs.",
    )
    after = click.option("--after", metavar="JOB", type=Whole(0), help="The page after this job.")
    return limit(after(function))


def job_id(text: str) -> int:
    """A job's id as click takes it from a word."""
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) == 0:
        raise click.BadParameter(f"{text[:40]!r} is no job id: a job's id is the number that `muster queue` shows")
    return int(text)


def segment(kind: str, name: str) -> str:
    """The name of a node as a part of a path, or a queue's path. Raises CommandError for what names none."""
    from urllib.parse import quote  # noqa: PLC0415 - few commands need it, and every command waits for imports

    if not name:
        raise CommandError(f"a {kind}'s name is needed", Exit.USAGE, f"muster {kind}s lists them")
    slashes = "/" if kind == "queue" else ""
    if {"", ".", ".."} & set(name.split("/") if slashes else [name]):
        raise CommandError(f"no {kind} {clean(name[:100])}", Exit.NOT_FOUND, f"muster {kind}s lists them")
    return quote(name, safe=slashes)


class CommandError(click.ClickException):
    """An error with its exit code; `next_step` tells what to try."""

    def __init__(self, message: str, code: Exit, next_step: str = "") -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it from the instance
        self.next_step = next_step

    def show(self, file: Any = None) -> None:  # noqa: ARG002 - click's signature; errors always go to stderr
        """Print the error and the next step on stderr."""
        click.echo(f"muster: {self.message}", err=True)
        if self.next_step:
            click.echo(f"  {self.next_step}", err=True)


class FileToRead(click.Path):
    """A file that is there."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, option: click.Parameter | None, context: click.Context | None) -> Any:
        """As click does. Raises CommandError where it is not there."""
        if not os.path.lexists(value):
            raise CommandError(f"{clean(str(value))}: no such file", Exit.NOT_FOUND)
        return super().convert(value, option, context)


@dataclass(frozen=True)
class Session:
    """A command's server, and the form in which it answers."""

    client: Client
    as_json: bool
    at: str | None = None

    def read(self, path: str, **parameters: Any) -> Json:
        """Read `path`, at the moment asked for."""
        return self.client.get(path, {"at": self.at, **parameters})

    def say_past(self, answer: Json) -> None:
        """Tell people which entry an answer about the past is of."""
        if self.at is not None and not self.as_json:
            sequence = answer["sequence"]
            time = self.client.get("/v1/state", {"at": sequence})["time"]
            click.echo(f"muster: as it was after entry {sequence}, {shown_moment(time, today())} UTC", err=True)

    def say_more(self, page: Json, words: list[str], filters: Mapping[str, Any]) -> None:
        """Tell people the command that lists the page after this one, where there is one."""
        if page["next"] is None or self.as_json:
            return
        at = page["sequence"] if self.at is not None else None  # an age would be another moment by then
        wanted = {**filters, "at": at, "after": page["next"]}
        if wanted["limit"] == PAGE_DEFAULT:
            del wanted["limit"]
        given = [f"--{name}={value}" for name, value in wanted.items() if value is not None]
        click.echo(f"more: {shlex.join([*words, *given])}", err=True)

    def show(self, answer: Json, text: Callable[[Json], str]) -> None:
        """Print an answer: as JSON where asked for, as `text` makes it otherwise."""
        click.echo(json.dumps(answer, indent=2) if self.as_json else text(answer))


def examples(*lines: str) -> str:
    """A command's epilog: its examples, each on a line of its own (which the first line tells click)."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def width() -> int:
    """The letters of a line: COLUMNS, else the terminal's; 0 = the output goes elsewhere, and nothing is cut."""
    return shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 0


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def agreed(question: str, warning: str, *, yes: bool) -> None:
    """Go on only where a person or --yes agrees to it. Raises CommandError where there is nobody to ask."""
    if not yes:
        if not is_terminal():
            raise CommandError(warning, Exit.USAGE, "--yes does so unasked")
        click.confirm(question, abort=True, err=True)


def user_name() -> str:
    """Who calls, in the letters that the server takes for a user's name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid-{os.getuid()}"
    return re.sub(r"^[.@-]|[^A-Za-z0-9._@-]", "_", name)[:64] or "anonymous"


def _explain(error: RefusedError) -> CommandError:
    problem = error.problem
    code = _EXIT_OF_CODE.get(str(problem.get("code", "")), _EXIT_OF_STATUS.get(error.status, Exit.FAILED))
    title, detail = str(problem.get("title") or f"the server answered {error.status}"), str(problem.get("detail", ""))
    lines = [clean(f"{title}: {detail}" if detail else title)]
    lines += [
        "  " + ": ".join(clean(part) for part in (item.get("pointer"), item.get("detail")) if part)
        for item in problem.get("errors", [])
        if item.get("detail") not in (detail, title)
    ]
    step = _STEPS.get(str(problem.get("code", "")), str(problem.get("next_step", "")))
    return CommandError("\n".join(lines), code, clean(step))


def _given_last(name: str, value: Any) -> Any:
    """An option as it was given to the command, or before the command's name; else `value`."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return context.params[name]
        context = context.parent
    return value


def client_command(*, reads: bool = False) -> Callable[[F], F]:
    """Give a command `--server`, `--json` and, where it `reads`, `--at`; its first argument is the Session."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, server: str, as_json: bool, at: str | None = None, **options: Any) -> Any:
            server, as_json = _given_last("server", server), _given_last("as_json", as_json)
            at = _given_last("at", at) if reads else None
            try:
                return function(Session(Client(server, user_name()), as_json, at), *args, **options)
            except RefusedError as error:
                raise _explain(error) from error
            except UnreachableError as error:
                step = "start one with `muster up`, or name it with --server or MUSTER_SERVER"
                raise CommandError(str(error), Exit.UNREACHABLE, step) from error
            except NoFileError as error:
                raise CommandError(str(error), Exit.NOT_FOUND) from error
            except (JobFileError, ValueError) as error:
                raise CommandError(str(error), Exit.USAGE) from error

        options = [
            click.option(
                "--server",
                envvar="MUSTER_SERVER",
                default=DEFAULT_SERVER,
                show_default=True,
                show_envvar=True,
                metavar="URL",
                help="The server's address.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Answer in JSON."),
        ]
        if reads:
            moment = "As it was then: a sequence, a time, 'yesterday 14:05', or -10m."
            options.append(click.option("--at", metavar="WHEN", help=moment))
        return functools.reduce(lambda wrapped, option: option(wrapped), options, run)  # type: ignore[return-value]

    return decorate
