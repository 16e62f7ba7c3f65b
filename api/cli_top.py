"""`muster top`: the devices, what they do and for whom, again and again."""

import json
import shutil
import sys
import time
from datetime import UTC, datetime
from typing import Final

import click

from muster.api.cli_base import Session, client_command, examples, width
from muster.api.cli_nodes import segment
from muster.api.client import UnreachableError
from muster.api.top_text import Shown, json_of, screen

ACTIVE: Final = "CF,R,CG"
JOBS_LIMIT: Final = 1000
HOME: Final = "\x1b[H"
CLEAR: Final = "\x1b[J"
CLEAR_LINE: Final = "\x1b[K"


@click.command(
    epilog=examples(
        "muster top", "muster top --node node-1", "muster top --user ada --interval 10", "muster top --once"
    )
)
@click.option("--node", metavar="NODE", help="Only this node's devices.")
@click.option("--user", "-u", metavar="USER", help="Only devices that this user's jobs hold.")
@click.option(
    "--interval", metavar="SECONDS", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="How often."
)
@click.option("--once", is_flag=True, help="Show it once, and end.")
@client_command()
def top(session: Session, node: str | None, user: str | None, interval: float, *, once: bool) -> None:
    """Show the devices live: memory, load, temperature, power, and whose jobs hold them. Ctrl-C ends it. With --json,
    an object a line."""
    live = not once and sys.stdout.isatty() and not session.as_json
    try:
        _show(session, _look(session, node, user), live=live)
        while not once:
            time.sleep(interval)
            try:
                shown = _look(session, node, user)
            except UnreachableError as error:
                click.echo(f"muster: {error}; trying again", err=True)
            else:
                _show(session, shown, live=live)
    except KeyboardInterrupt:
        click.echo()


def _look(session: Session, node: str | None, user: str | None) -> tuple[Shown, int]:
    """What there is now, and the sequence of the log that it stands for."""
    if node is None:
        page = session.read("/v1/nodes")
        nodes = page["nodes"]
    else:
        page = session.read(f"/v1/nodes/{segment(node)}")
        nodes = [page]
    queue = session.read("/v1/queue", state=ACTIVE, user=user, limit=JOBS_LIMIT)
    jobs = session.read("/v1/state")["jobs"]
    waiting = jobs.pop("PENDING", 0)
    shown = Shown(
        time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        nodes=nodes,
        jobs={row["id"]: row for row in queue["running"]},
        running=sum(jobs.get(phase, 0) for phase in ("STARTING", "RUNNING", "STOPPING")),
        waiting=waiting,
        user=user,
    )
    return shown, int(page["sequence"])


def _show(session: Session, looked: tuple[Shown, int], *, live: bool) -> None:
    """One look: as a JSON object, as text, or in the place of the look before."""
    shown, sequence = looked
    if session.as_json:
        click.echo(json.dumps(json_of(shown, sequence)))
    elif not live:
        click.echo(screen(shown, width(), 0))
    else:
        height = shutil.get_terminal_size((0, 0)).lines
        lines = screen(shown, width(), max(height - 1, 0)).split("\n")
        click.echo(HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in lines) + CLEAR, nl=False)
