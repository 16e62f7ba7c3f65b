"""`muster top`: the devices, what they do and for whom, again and again."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final

import click

from muster.api.cli_base import Number, Session, client_command, examples, segment, several, width
from muster.api.client import RefusedError, UnreachableError
from muster.api.keys import until_quit
from muster.api.top_text import Shown, json_of, screen

INTERVAL_S: Final = 2.0
ACTIVE: Final = "CF,R,CG"
JOBS_LIMIT: Final = 1000
HOME: Final = "\x1b[H"
CLEAR: Final = "\x1b[J"
CLEAR_LINE: Final = "\x1b[K"


@click.command(
    epilog=examples(
        "muster top",
        "muster top --node node-1",
        "muster top --user ada --interval 10",
        "muster top --interval 60 >> devices.txt",
        "muster top --once",
        "muster top --at yesterday",
    )
)
@click.option("--node", metavar="NODE", help="Only this node's devices.")
@several("--user", "-u", metavar="USERS", text="Only devices that these users' jobs hold.")
@click.option("--interval", metavar="SECONDS", type=Number(min=0.5), help="How often; every 2 s if left out.")
@click.option("--once", is_flag=True, help="Show it once, and end.")
@client_command(reads=True)
def top(session: Session, node: str | None, user: str | None, interval: float | None, *, once: bool) -> None:
    """Show the devices live: memory, load, temperature, power, and whose jobs hold them. `q` or Ctrl-C ends it. With
    --json, an object a line. Once: with --at, as it was then; of an import, as it ends; and where it goes into a file
    or a pipe, unless --interval says how often."""
    over = "" if session.at is not None else str(session.client.get("/healthz").get("read_only") or "")
    look = partial(_look, session, node, user, over)
    live = sys.stdout.isatty()
    once = once or session.at is not None or bool(over) or not (live or interval)
    with suppress(KeyboardInterrupt):
        if once or session.as_json or not live:
            _print(session, look())
            if not once:
                _go_on_printing(session, look, interval or INTERVAL_S)
        else:
            _live(look, interval or INTERVAL_S)


Look = Callable[[], tuple[Shown, int]]


def _go_on_printing(session: Session, look: Look, interval: float) -> None:
    """Of a server that is away it is told once."""
    told = False
    while True:
        time.sleep(interval)
        try:
            _print(session, _again(look))
            told = False
        except _AwayError as error:
            if not told:
                click.echo(f"muster: {error}; trying again", err=True)
            told = True


def _live(look: Look, interval: float) -> None:
    """Each look in the place of the one before, until a key ends it."""
    looked = look()
    with until_quit() as quits:
        _show(looked, "")
        while not quits(interval):
            note = ""
            try:
                looked = _again(look)
            except _AwayError as error:
                note = f"{error}; trying again, this is as it was at {looked[0].time[11:19]} UTC"
            _show(looked, note)


class _AwayError(Exception):
    """Nobody answers, for now."""


def _again(look: Look) -> tuple[Shown, int]:
    """Another look. Raises _AwayError where there may be an answer later."""
    try:
        return look()
    except UnreachableError as error:
        raise _AwayError(str(error)) from error
    except RefusedError as error:
        if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        raise _AwayError(str(error)) from error


def _look(session: Session, node: str | None, user: str | None, over: str) -> tuple[Shown, int]:
    """What there is now, or was at the moment asked for, and the sequence of the log that it stands for. `over` says
    why nothing goes on here ("" = it does)."""
    if node is None:
        page = session.read("/v1/nodes")
        nodes = page["nodes"]
    else:
        page = session.read(f"/v1/nodes/{segment('node', node)}")
        nodes = [page]
    queue = session.read("/v1/queue", state=ACTIVE, user=user, limit=JOBS_LIMIT)
    state = session.read("/v1/state")
    jobs = state["jobs"]
    waiting = jobs.pop("PENDING", 0)
    shown = Shown(
        time=state["now"] or "",
        nodes=nodes,
        jobs={row["id"]: row for row in queue["running"]},
        running=sum(jobs.get(phase, 0) for phase in ("STARTING", "RUNNING", "STOPPING")),
        waiting=waiting,
        user=user,
        is_past=session.at is not None or bool(over),
        unsampled=page["unsampled"],
        over=over,
    )
    return shown, int(page["sequence"])


def _print(session: Session, looked: tuple[Shown, int]) -> None:
    """One look: as a JSON object, or as text."""
    shown, sequence = looked
    notes = (shown.over, f"as it was after entry {sequence}", shown.unsampled) if shown.is_past else ()
    past = "; ".join(filter(None, notes))
    click.echo(json.dumps(json_of(shown, sequence)) if session.as_json else screen(shown, width(), 0, past))


def _show(looked: tuple[Shown, int], note: str) -> None:
    """One look in the place of the one before."""
    height = shutil.get_terminal_size((0, 0)).lines
    lines = screen(looked[0], width(), max(height - 1, 0), note).split("\n")
    click.echo(HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in lines) + CLEAR, nl=False)
