"""Commands about the cluster and its log: events, state."""

import json
import time
from collections.abc import Iterator
from typing import Final

import click

from muster.api.cli_base import CommandError, Exit, Session, Whole, client_command, examples, job_id
from muster.api.client import Json, UnreachableError
from muster.api.event_text import event_line
from muster.api.table import fields
from muster.api.times import today

RECONNECT_PAUSE_S: Final = 1.0
RECONNECT_TRIES: Final = 30


@click.command(epilog=examples("muster events --job 42", "muster events --after 1000 --limit 20", "muster events -f"))
@click.option("--job", metavar="JOB", type=job_id, help="Only what concerns this job.")
@click.option("--after", metavar="SEQ", type=Whole(min=0), help="Only entries with a greater sequence.")
@click.option("--limit", metavar="COUNT", type=Whole(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes in.")
@client_command(reads=True)
def events(session: Session, job: int | None, after: int | None, limit: int, *, follow: bool) -> None:
    """Show the log's entries, or a job's."""
    path = f"/v1/jobs/{job}/events" if job is not None else "/v1/events"
    if follow and session.at is not None:
        step = "leave one of them out; `muster replay --from WHEN` tells what came since"
        raise CommandError("--follow goes on from the present, and --at is in the past", Exit.USAGE, step)
    if follow:
        if after is None:
            after = max(int(session.read("/v1/state")["sequence"]) - limit, 0) if job is None else 0
        for event in _follow(session, path, after):
            click.echo(json.dumps(event) if session.as_json else event_line(event, today()))
    else:
        page = session.read(path, after=after, limit=limit)
        day = today()
        session.show(page, lambda found: "\n".join(event_line(event, day) for event in found["events"]))


def _follow(session: Session, path: str, after: int) -> Iterator[Json]:
    """Events for ever; a broken connection is taken up again after the last one seen."""
    failures = 0
    while True:
        try:
            parameters = {"after": after, "follow": 1, "at": session.at}
            for event in json_lines(session.client.stream(path, parameters, {"Accept": "application/x-ndjson"})):
                after, failures = int(event["sequence"]), 0
                yield event
        except UnreachableError:
            failures += 1
            if failures > RECONNECT_TRIES:
                raise
            time.sleep(RECONNECT_PAUSE_S)
        else:
            return


def json_lines(chunks: Iterator[bytes]) -> Iterator[Json]:
    """The objects of an NDJSON answer."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())


@click.command()
@client_command(reads=True)
def state(session: Session) -> None:
    """Show the cluster's state in figures, with the chain hash of its log."""
    session.show(session.read("/v1/state"), _state_text)


def _state_text(view: Json) -> str:
    def counts(table: Json) -> str:
        return ", ".join(f"{name} {count}" for name, count in table.items())

    return fields(
        [
            ("sequence", view["sequence"]),
            ("chain", view["chain"]),
            ("time", view["time"]),
            ("leader", view["leader"] or "none"),
            ("nodes", counts(view["nodes"]) or "none"),
            ("devices", f"{view['devices_held']} of {view['devices']} held"),
            ("jobs", counts(view["jobs"]) or "none"),
            ("ended, ever", counts(view["jobs_ended"])),
            ("entries refused", view["refused_count"]),
            ("unknown since", view["unknown_since"] or None),
        ]
    )
