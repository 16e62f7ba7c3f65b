"""`muster audit`: the proof that the log is what was written and that every decision follows from it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, examples
from muster.api.client import Json
from muster.api.progress_bar import Bar, last_line
from muster.api.table import clean
from muster.projections.moments import MomentError, Named, nothing_between, parse_moment

if TYPE_CHECKING:
    from muster.projections.exports import ExportSource

# A client command starts quickly: what computes is imported where it is needed.

LABEL: Final = "entries audited"
_SERVERS_ONLY: Final = "--file audits a file, without a server"


def _checked_expect(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9]{1,18}:[0-9a-f]{32}", text):
        detail = f"{text[:64]!r} is no SEQ:CHAIN: a sequence, and the chain after it, which is 32 hexadecimal digits"
        raise click.BadParameter(f"{detail} (`muster state` shows both)")
    return text


@click.command(
    epilog=examples(
        "muster audit",
        "muster audit --from -1d",
        "muster audit --mirror --from 100000 --to 200000",
        "muster audit --expect 64:0123456789abcdef0123456789abcdef",
        "muster audit --file yesterday.jsonl.xz",
    )
)
@click.option("--from", "begin", metavar="WHEN", help="Only from there on: a moment, as --at takes it elsewhere.")
@click.option("--to", "end", metavar="WHEN", help="Only until then.")
@click.option(
    "--expect", metavar="SEQ:CHAIN", callback=_checked_expect, help="A chain hash kept elsewhere, to compare with."
)
@click.option("--mirror", is_flag=True, help="Audit the server's copy instead of the log itself.")
@click.option("--file", "path", metavar="EXPORT", type=click.Path(path_type=Path), help="Audit an export, here.")
@client_command()
def audit(
    session: Session, begin: str | None, end: str | None, expect: str | None, path: Path | None, *, mirror: bool
) -> None:
    """Fold the log again from its first entry and decide every decision again; exit code 1 if anything differs.

    With --from, the audit begins at a snapshot before that moment and says what it took on trust.
    """
    if path is not None:
        if mirror:
            raise CommandError(f"{_SERVERS_ONLY}: it goes without --mirror", Exit.USAGE)
        report = _of_file(path, begin, end, expect or "")
    else:
        report = _of_server(session, begin, end, expect, mirror=mirror)
    session.show(report, _text)
    if not report["ok"]:
        raise SystemExit(Exit.FAILED)


def _text(report: Json) -> str:
    return "\n".join(clean(line) for line in report["text"])


def _of_server(session: Session, begin: str | None, end: str | None, expect: str | None, *, mirror: bool) -> Json:
    source = "mirror" if mirror else None
    parameters = {"from": begin, "to": end, "expect": expect, "source": source}
    chunks = session.client.stream("/v1/audit", parameters, {"Accept": "application/x-ndjson"})
    return last_line(chunks, LABEL)


def _of_file(path: Path, begin: str | None, end: str | None, expect: str) -> Json:
    import msgspec  # noqa: PLC0415

    from muster.api.log_views import AuditView, audit_view  # noqa: PLC0415
    from muster.projections.audit import audit as audited  # noqa: PLC0415
    from muster.projections.audit_report import AuditReport  # noqa: PLC0415
    from muster.projections.exports import ExportSource  # noqa: PLC0415
    from muster.projections.replay import collector_at_rest  # noqa: PLC0415
    from muster.projections.schema import StoreError  # noqa: PLC0415

    if not path.exists():
        raise CommandError(f"{path}: no such file", Exit.NOT_FOUND)
    try:
        source = ExportSource(path)
        first, last = _range(source, begin, end)
        if last == first - 1 and (begin or end) and not expect:
            text = [f"{nothing_between(begin, end)}: there is nothing to audit"]
            empty = AuditView(True, f"export {path.name}", AuditReport(first, last), text)  # noqa: FBT003
            return dict(msgspec.to_builtins(empty))
        with Bar(LABEL) as bar, collector_at_rest():
            progress = lambda reached: bar.show(reached, last)  # noqa: E731 - its name says what it is
            report = audited(source, first, last, expect=expect, progress=progress, may_be_cut=True)
    except (StoreError, ValueError) as error:
        raise CommandError(str(error), Exit.USAGE) from error
    view: Json = msgspec.to_builtins(audit_view(report, f"export {path.name}"))
    return view


def _range(source: "ExportSource", begin: str | None, end: str | None) -> tuple[int, int]:
    """The first and the last entry of the file from one moment to another; the last is before the first where nothing
    is in between. Raises CommandError."""
    began, until = _named("--from", begin), _named("--to", end)
    first, last = source.first, source.position()
    if began is not None:
        first = began.sequence if began.sequence is not None else _first_at(source, began.first_ns)
    if until is not None:
        last = until.sequence if until.sequence is not None else _first_at(source, until.time_ns + 1) - 1
    if began is not None and until is not None and last < first:
        are_times = began.sequence is None and until.sequence is None
        if not are_times or until.time_ns < began.first_ns:
            raise CommandError(f"--to: {end} is before {begin}, at which it begins", Exit.USAGE)
    return first, last


def _named(option: str, text: str | None) -> "Named | None":
    import time  # noqa: PLC0415

    try:
        return None if text is None else parse_moment(text, time.time_ns())
    except MomentError as error:
        raise CommandError(f"{option}: {error}", Exit.USAGE) from error


def _first_at(source: "ExportSource", time_ns: int) -> int:
    """The first entry of the file at or after a time; the one behind its last where there is none."""
    for rows in source.rows(source.first, source.position()):
        for row in rows:
            if row.timestamp_ns >= time_ns:
                return row.sequence
    return source.position() + 1
