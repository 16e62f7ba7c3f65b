"""Commands about the cluster and its log: events, state, at."""

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


def _reads(command: click.Command) -> bool:
    return any(parameter.name == "at" for parameter in command.params)


def _reading(group: click.Group) -> str:
    return ", ".join(name for name, command in sorted(group.commands.items()) if _reads(command))


class _At(click.Command):
    """A command whose first argument may look like options: -2h is no -h."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        """As click does, with -h alone as --help."""
        return super().parse_args(context, ["--help"] if words[:1] == ["-h"] else words)


@click.command(
    cls=_At,
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
    epilog=examples(
        "muster at 1042 queue",
        "muster at -10m show 7",
        "muster at 14:05:00 queues                 # the last 14:05:00 UTC that has come",
        "muster at '2026-01-31 14:05:00' explain 7",
    ),
)
@click.argument("when")
@click.argument("command", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def at(context: click.Context, when: str, command: tuple[str, ...]) -> None:
    """Run a reading COMMAND as of WHEN: a sequence, an RFC 3339 time, a time as lists print it (UTC), or -10m."""
    assert context.parent is not None
    group = context.parent.command
    assert isinstance(group, click.Group)
    name, *rest = command
    chosen = group.get_command(context, name)
    if chosen is None:
        raise CommandError(f"no command {name!r}", Exit.USAGE, "muster --help lists them")
    if not _reads(chosen):
        raise CommandError(
            f"{name} cannot be run in the past", Exit.USAGE, f"the reading commands can: {_reading(group)}"
        )
    with chosen.make_context(name, [f"--at={when}", *rest], parent=context.parent) as inner:
        chosen.invoke(inner)
