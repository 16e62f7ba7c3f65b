"""`muster replay`: the log as a story, as a file, and from a file."""

import gzip
import json
import lzma
import os
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, examples, job_id
from muster.api.cli_cluster import json_lines
from muster.api.cli_serve import run_program
from muster.api.client import Json
from muster.api.table import clean
from muster.api.times import elapsed, moment, today

GAP_S: Final = 60
"""A pause in the log that is told."""
LONG_ENTRIES: Final = 20_000
DEFAULT_LISTEN: Final = "127.0.0.1:7078"
_LISTEN: Final = re.compile(r"(?:(.+):)?([0-9]{1,5})")
_NDJSON: Final = {"Accept": "application/x-ndjson"}


def _until(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,18}", text) else text


@click.command(
    epilog=examples(
        "muster replay",
        "muster replay --from -1h --queue research",
        "muster replay --job 42 --all",
        "muster replay --from 1000 --until-event NodeLost",
        "muster replay --export yesterday.jsonl.xz --from yesterday --to today",
        "muster replay --import yesterday.jsonl.xz",
    )
)
@click.option("--from", "begin", metavar="WHEN", help="Only from that entry on: a moment, as --at takes it elsewhere.")
@click.option("--to", "end", metavar="WHEN", help="Only up to that entry.")
@click.option("--job", metavar="JOB", type=job_id, help="Only what concerns this job.")
@click.option("--user", "-u", metavar="USER", help="Only what this user did, and what became of their jobs.")
@click.option("--queue", "-q", metavar="QUEUE", help="Only what concerns this queue and those below it.")
@click.option("--node", metavar="NODE", help="Only what concerns this node.")
@click.option("--kind", metavar="TYPES", help="Only these types of events: JobAllocated,NodeLost ...")
@click.option("--all", "-a", "everything", is_flag=True, help="Also commands, and time going by.")
@click.option(
    "--until-event", "until", metavar="SEQ|TYPE", callback=_until, help="Stop behind this entry, or one of this type."
)
@click.option("--export", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write the log to a file.")
@click.option(
    "--import", "source", metavar="FILE", type=click.Path(path_type=Path), help="Open such a file, to be read only."
)
@click.option(
    "--listen", metavar="HOST:PORT", help=f"Where an import listens; {DEFAULT_LISTEN} if left out, port 0 = a free one."
)
@client_command()
def replay(
    session: Session,
    begin: str | None,
    end: str | None,
    until: int | str | None,
    target: Path | None,
    source: Path | None,
    listen: str | None,
    *,
    everything: bool,
    **filters: Any,
) -> None:
    """Tell the log as a story, one entry a line; or write it to a file, or open such a file.

    An export has every entry with its sequence, time and chain, in JSON Lines; a name with .gz or .xz compresses
    it, and `muster audit --file` audits it. An import is a server of its own, for every command that reads.
    """
    window, filtered = {"from": begin, "to": end}, {**filters, "all": 1 if everything else None}
    given = [name for name, value in (*filtered.items(), ("until-event", until)) if value is not None]
    if target is not None and source is not None:
        raise CommandError("--export and --import exclude each other", Exit.USAGE)
    if listen is not None and source is None:
        raise CommandError("--listen says where an import listens", Exit.USAGE, "muster replay --import FILE")
    if (target or source) and given:
        raise CommandError(f"a file has every entry: it goes without --{given[0]}", Exit.USAGE)
    if source is not None:
        if begin or end:
            step = "export a window, or give --from and --to to the commands that read the import"
            raise CommandError("an import is opened whole, without --from and --to", Exit.USAGE, step)
        _import(source, listen or DEFAULT_LISTEN, as_json=session.as_json)
    elif target is not None:
        _export(session, window, target)
    else:
        _tell(session, {**window, **filtered}, until)


# -- the story ---------------------------------------------------------------------------------------------------


def _tell(session: Session, parameters: Json, until: int | str | None) -> None:
    day, last_s = today(), None
    chunks = session.client.stream("/v1/replay", parameters, _NDJSON)
    for event in _shown(session, chunks, parameters):
        if isinstance(until, int) and int(event["sequence"]) > until:
            return
        if session.as_json:
            click.echo(json.dumps(event))
        else:
            now_s = datetime.fromisoformat(f"{event['time'][:19]}+00:00").timestamp()
            if last_s is not None and now_s - last_s >= GAP_S:
                click.echo(f"-- {elapsed(round(now_s - last_s) * 1000)} later --")
            last_s = now_s
            click.echo(clean(f"{event['sequence']:>6}  {moment(event['time'], day)}  {event['text']}"))
        if isinstance(until, str) and _same_kind(event["type"], until):
            return


def _same_kind(kind: str, word: str) -> bool:
    return kind.removeprefix("muster.").partition(".")[0].lower() == word.replace("-", "").lower()


def _shown(session: Session, chunks: Iterator[bytes], parameters: Json) -> Iterator[Json]:
    """The events; with a progress bar where they go elsewhere and are many."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield from json_lines(chunks)
        return
    last = int(session.client.get("/v1/state", {"at": parameters["to"]})["sequence"])
    events = json_lines(chunks)
    first = next(events, None)
    if first is None:
        return
    reached = int(first["sequence"])
    with _bar(last - reached, "entries") as bar:
        yield first
        for event in events:
            bar.update(int(event["sequence"]) - reached)
            reached = int(event["sequence"])
            yield event


def _bar(entries: int, label: str) -> Any:
    """A progress bar on a terminal, for what takes long."""
    hidden = not sys.stderr.isatty() or entries < LONG_ENTRIES
    return click.progressbar(length=max(entries, 0), label=label, file=sys.stderr, hidden=hidden)


# -- the file ----------------------------------------------------------------------------------------------------


def _export(session: Session, window: Json, target: Path) -> None:
    if os.path.lexists(target):
        raise _there_already(target)
    chunks = session.client.stream("/v1/export", window, _NDJSON)
    with _written(target) as file:
        head = next(chunks, b"")
        while b"\n" not in head and (chunk := next(chunks, b"")):
            head += chunk
        header = json.loads(head.partition(b"\n")[0])
        first, last = header["first"], header["last"]
        lines = -1
        with _bar(last - first + 1, "entries written") as bar:
            for chunk in chain([head], chunks):
                file.write(chunk)
                count = chunk.count(b"\n")
                lines += count
                bar.update(count)
        if lines != last - first + 1:
            raise CommandError(f"the server ended the export after {lines} entries", Exit.UNREACHABLE, "try again")
    answer = {"file": str(target), "first": first, "last": last, "entries": lines, "bytes": target.stat().st_size}
    session.show(answer, lambda found: f"{found['file']}: entries {first} to {last}, {found['bytes']:,} bytes")


@contextmanager
def _written(target: Path) -> Generator[IO[bytes], None, None]:
    """A file for its owner alone (jobs' variables are in it), that has its name once all of it is written. Raises
    CommandError."""
    temporary = target.with_name(f".{target.name[:64]}.{os.urandom(4).hex()}.part")
    try:
        with (
            open(temporary, "xb", opener=_own) as file,
            _packed(file, target.suffix) as packed,
        ):
            yield packed
        _name(temporary, target)
    except FileExistsError as error:
        raise _there_already(target) from error
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror or error}", Exit.FAILED) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _packed(file: IO[bytes], suffix: str) -> Any:
    if suffix == ".xz":
        return lzma.open(file, "wb", preset=2)
    return gzip.GzipFile("", "wb", 6, file) if suffix == ".gz" else nullcontext(file)


def _name(temporary: Path, target: Path) -> None:
    """Give it its name, which nothing else may have. Raises OSError."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        temporary.replace(target)


def _there_already(target: Path) -> CommandError:
    return CommandError(f"{target} is there already", Exit.CONFLICT, "give another name, or move it away")


def _import(source: Path, listen: str, *, as_json: bool) -> None:
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[2]) > 65535:  # noqa: PLR2004 - the last port
        raise CommandError(f"{listen[:64]!r} is no address to listen on", Exit.USAGE, f"--listen {DEFAULT_LISTEN}")
    from muster.api.imported import ImportOptions, run_import  # noqa: PLC0415 - a server, which few commands need

    host = (match[1] or "127.0.0.1").strip("[]")
    run_program(run_import(ImportOptions(source, host, int(match[2]), as_json)), verbose=False)
