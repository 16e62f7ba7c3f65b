"""Commands about the past: at, diff."""

from typing import Final

import click

from muster.api.cli_base import CommandError, Exit, Session, Whole, client_command, examples, width
from muster.api.client import RefusedError
from muster.api.times import today
from muster.projections.moments import take_moment

_TIMELESS: Final = {
    "logs": "a worker's output is kept as a whole, without times: `muster logs` shows all of it",
    "wait": "what is past has happened: `muster show` says how it stood",
    "audit": "it looks at all of the log, or from a moment to another: `muster audit --from ... --to ...`",
    "whatif": "it takes its window itself: `muster whatif --from ... --to ...`, or `muster whatif submit --at WHEN`",
    "diff": "it takes its two moments itself: `muster diff T1 T2`",
}


_AS_GIVEN: Final = {"from is wrong": "T1 is wrong", "to is wrong": "T2 is wrong"}


class _Momentary(click.Command):
    """A command whose arguments begin with moments, which may look like options: -2h is no -h."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        """As click does, with -h alone as --help."""
        return super().parse_args(context, ["--help"] if words[:1] == ["-h"] else words)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, and -h is told of."""
        options = [each for each in self.get_params(context) if isinstance(each, click.Option)]
        records = [found for each in options if (found := each.get_help_record(context)) is not None]
        with formatter.section("Options"):
            formatter.write_dl([("-h, --help" if names == "--help" else names, text) for names, text in records])


_WORDS_AS_THEY_ARE: Final = {"ignore_unknown_options": True, "help_option_names": ["--help"]}


def _reads(command: click.Command) -> bool:
    return any(parameter.name == "at" for parameter in command.params)


def _reading(group: click.Group) -> str:
    return ", ".join(name for name, command in sorted(group.commands.items()) if _reads(command))


@click.command(
    cls=_Momentary,
    context_settings={**_WORDS_AS_THEY_ARE, "allow_interspersed_args": False},
    epilog=examples(
        "muster at 1042 queue",
        "muster at -10m show 7",
        "muster at -1h30m top",
        "muster at 14:05:00 queues                 # the last 14:05:00 UTC that has come",
        "muster at yesterday 14:05 queue",
        "muster at 2026-01-31 14:05:00 explain 7",
    ),
)
@click.argument("words", metavar="WHEN COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def at(context: click.Context, words: tuple[str, ...]) -> None:
    """Run a reading COMMAND as of WHEN: a sequence, a time (UTC where it names no zone), yesterday 14:05, or -10m."""
    assert context.parent is not None
    group = context.parent.command
    assert isinstance(group, click.Group)
    when, command = take_moment(list(words))
    if not command:
        raise CommandError(f"what is to be run as of {when}?", Exit.USAGE, f"a command: {_reading(group)}")
    name, *rest = command
    chosen = group.get_command(context, name)
    if chosen is None:
        step = f"muster --help lists them; {when!r} is taken as the moment, and one of more words is quoted"
        raise CommandError(f"no command {name!r}", Exit.USAGE, step)
    if not _reads(chosen):
        why = _TIMELESS.get(name, f"the reading commands can: {_reading(group)}")
        raise CommandError(f"{name} cannot be run in the past", Exit.USAGE, why)
    if any(word.partition("=")[0] == "--at" for word in rest):
        raise CommandError(
            f"at {when} and --at are two moments", Exit.USAGE, f"muster at WHEN {name}, or {name} --at WHEN"
        )
    with chosen.make_context(name, [f"--at={when}", *rest], parent=context.parent) as inner:
        chosen.invoke(inner)


@click.command(
    cls=_Momentary,
    context_settings=_WORDS_AS_THEY_ARE,
    epilog=examples(
        "muster diff -10m",
        "muster diff 1042 1100",
        "muster diff yesterday 14:00 yesterday 15:00",
        "muster diff 14:05:00 now --json",
    ),
)
@click.argument("words", metavar="T1 [T2]", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--limit", metavar="COUNT", type=Whole(1, 1000), default=100, show_default=True, help="Jobs at most.")
@client_command()
def diff(session: Session, words: tuple[str, ...], *, limit: int) -> None:
    """Show what changed from T1 to T2, or to now: jobs, nodes and devices, queues and rules. Each is a moment, as
    `muster at` takes it."""
    from muster.api.diff_text import diff_text  # noqa: PLC0415 - every command waits for imports

    first, rest = take_moment(list(words))
    second, more = take_moment(rest) if rest else ("now", [])
    if more:
        raise CommandError(f"{' '.join(more)!r} is left over", Exit.USAGE, "muster diff T1 T2: two moments")
    try:
        found = session.client.get("/v1/diff", {"from": first, "to": second, "limit": limit})
    except RefusedError as error:
        title = _AS_GIVEN.get(str(error.problem.get("title")), error.problem.get("title"))
        raise RefusedError(error.status, {**error.problem, "title": title}) from error
    session.show(found, lambda found: diff_text(found, today(), width()))
