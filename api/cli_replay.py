"""`muster replay`: the log as a story, as a file, and from a file."""

import gzip
import json
import lzma
import os
import re
import shlex
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import click

from muster.api.cli_base import (
    CommandError,
    Exit,
    Session,
    Whole,
    client_command,
    examples,
    job_id,
    segment,
    several,
)
from muster.api.cli_cluster import json_lines
from muster.api.cli_serve import run_program
from muster.api.client import Json
from muster.api.progress_bar import Bar
from muster.api.table import clean
from muster.api.times import elapsed, moment, today
from muster.projections.moments import nothing_between

GAP_S: Final = 60
"""A pause in the log that is told."""
LONG_ENTRIES: Final = 20_000
DEFAULT_LISTEN: Final = "127.0.0.1:7078"
_LISTEN: Final = re.compile(r"(?:(.+):)?([0-9]{1,5})")
_OTHER_PACKERS: Final = (".zip", ".bz2", ".zst", ".7z", ".tar", ".tgz", ".txz", ".lz4", ".lzma", ".rar", ".z")
_NDJSON: Final = {"Accept": "application/x-ndjson"}


@click.command(
    epilog=examples(
        "muster replay",
        "muster replay --from -1h --queue research",
        "muster replay --job 42 --all",
        "muster replay --user ada,bob --limit 20",
        "muster replay --from 1000 --until-event NodeLost",
        "muster replay --export yesterday.jsonl.xz --from yesterday --to today",
        "muster replay --import yesterday.jsonl.xz",
    )
)
@click.option("--from", "begin", metavar="WHEN", help="Only from that entry on: a moment, as --at takes it elsewhere.")
@click.option("--to", "end", metavar="WHEN", help="Only up to that entry.")
@click.option("--job", metavar="JOB", type=job_id, help="Only what concerns this job.")
@several("--user", "-u", metavar="USERS", text="Only what these users did, and what became of their jobs.")
@several("--queue", "-q", metavar="QUEUES", text="Only what concerns these queues and those below them.")
@click.option("--node", metavar="NODE", help="Only what concerns this node.")
@several("--kind", metavar="TYPES", text="Only these types of events: JobAllocated,NodeLost ...")
@click.option("--all", "-a", "everything", is_flag=True, help="Also commands, and time going by.")
@click.option("--until-event", metavar="SEQ|TYPE", help="Stop behind this entry, or the first one of this type.")
@click.option("--limit", metavar="COUNT", type=Whole(min=1), help="At most so many entries.")
@click.option(
    "--export", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write the log to a file; - = stdout."
)
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
    limit: int | None,
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
    given = [name for name, value in (*filtered.items(), ("limit", limit)) if value is not None]
    if target is not None and source is not None:
        raise CommandError("--export and --import exclude each other", Exit.USAGE)
    if listen is not None and source is None:
        raise CommandError("--listen says where an import listens", Exit.USAGE, "muster replay --import FILE")
    if (target or source) and given:
        raise CommandError(f"a file has every entry: it goes without --{given[0].replace('_', '-')}", Exit.USAGE)
    if source is not None:
        if begin or end:
            step = "export a window, or give --from and --to to the commands that read the import"
            raise CommandError("an import is opened whole, without --from and --to", Exit.USAGE, step)
        _import(source, listen or DEFAULT_LISTEN, as_json=session.as_json)
    elif target is not None:
        _export(session, window, target)
    else:
        _tell(session, {**window, **filtered}, limit)


# -- the story ---------------------------------------------------------------------------------------------------


def _tell(session: Session, parameters: Json, limit: int | None) -> None:
    day, last_s, event = today(), None, None
    chunks = session.client.stream("/v1/replay", parameters, _NDJSON)
    for told, event in enumerate(_shown(session, chunks, parameters)):
        if told == limit:
            _say_more(parameters, limit, event["sequence"])
            return
        if session.as_json:
            click.echo(json.dumps(event))
        else:
            now_s = datetime.fromisoformat(f"{event['time'][:19]}+00:00").timestamp()
            if last_s is not None and now_s - last_s >= GAP_S:
                click.echo(f"-- {elapsed(round(now_s - last_s) * 1000)} later --")
            last_s = now_s
            click.echo(clean(f"{event['sequence']:>6}  {moment(event['time'], day)}  {event['text']}"))
    until = parameters["until_event"]
    if event is None:
        _say_nothing(session, parameters)
    if until is not None and not until.isdecimal() and (event is None or not _same_kind(event["type"], until)):
        raise CommandError(f"no {clean(until)} came: this was all of it", Exit.NOT_FOUND)


def _same_kind(kind: str, word: str) -> bool:
    return kind.removeprefix("muster.").partition(".")[0].lower() == word.replace("-", "").lower()


def _say_more(parameters: Json, limit: int, sequence: str) -> None:
    """The command that goes on."""
    given = {**parameters, "from": sequence, "all": None, "limit": limit}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    click.echo(f"more: {shlex.join(['muster', 'replay', *(['--all'] if parameters['all'] else []), *words])}", err=True)


def _say_nothing(session: Session, parameters: Json) -> None:
    """Raises RefusedError for a queue or node that is not there."""
    for queue in filter(None, (parameters["queue"] or "").split(",")):
        session.client.get(f"/v1/queues/{segment('queue', queue)}")
    if parameters["node"]:
        session.client.get(f"/v1/nodes/{segment('node', parameters['node'])}")
    filters = [name for name in ("job", "user", "queue", "node", "kind") if parameters[name] is not None]
    if filters:
        given = " ".join(f"--{name} {parameters[name]}" for name in filters)
        click.echo(clean(f"muster: nothing here is told with {given}"), err=True)
    elif parameters["from"] or parameters["to"]:
        step = "" if parameters["all"] else " (--all tells commands and time going by too)"
        click.echo(clean(f"muster: {nothing_between(parameters['from'], parameters['to'])}{step}"), err=True)


def _shown(session: Session, chunks: Iterator[bytes], parameters: Json) -> Iterator[Json]:
    """The events; with a progress bar where they go elsewhere and are many."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield from json_lines(chunks)
        return
    events = json_lines(chunks)
    first = next(events, None)
    if first is None:
        return
    last = int(session.client.get("/v1/state", {"at": parameters["to"]})["sequence"])
    begin = int(first["sequence"])
    with Bar("entries", LONG_ENTRIES) as bar:
        for event in chain([first], events):
            bar.show(int(event["sequence"]) - begin, last - begin)
            yield event


# -- the file ----------------------------------------------------------------------------------------------------


def _export(session: Session, window: Json, target: Path) -> None:
    piped = str(target) == "-"
    if not piped and target.suffix.lower() in _OTHER_PACKERS:
        step = "a name that ends in .gz or .xz compresses it"
        raise CommandError(f"an export is JSON Lines, and no {target.suffix} file", Exit.USAGE, step)
    if not piped and os.path.lexists(target):
        raise _there_already(target)
    chunks = session.client.stream("/v1/export", window, _NDJSON)
    with nullcontext(sys.stdout.buffer) if piped else _written(target) as file:
        head = next(chunks, b"")
        while b"\n" not in head and (chunk := next(chunks, b"")):
            head += chunk
        header = json.loads(head.partition(b"\n")[0])
        first, last = header["first"], header["last"]
        lines = -1
        with Bar("entries written", LONG_ENTRIES) as bar:
            for chunk in chain([head], chunks):
                file.write(chunk)
                lines += chunk.count(b"\n")
                bar.show(lines, last - first + 1)
        if lines != last - first + 1:
            raise CommandError(f"the server ended the export after {lines} entries", Exit.UNREACHABLE, "try again")
    asked = int(session.client.get("/v1/state", {"at": window["to"]})["sequence"]) if window["to"] else last
    further = f"; entry {asked} is inside a pass, which ends with entry {last}" if last > asked else ""
    if piped:
        click.echo(f"muster: entries {first} to {last} are written{further}", err=True)
        return
    answer = {"file": str(target), "first": first, "last": last, "entries": lines, "bytes": target.stat().st_size}
    session.show(answer, lambda found: f"{found['file']}: entries {first} to {last}, {found['bytes']:,} bytes{further}")


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
    if suffix.lower() == ".xz":
        return lzma.open(file, "wb", preset=2)
    return gzip.GzipFile("", "wb", 6, file) if suffix.lower() == ".gz" else nullcontext(file)


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
    if not source.exists():
        raise CommandError(f"{source}: no such file", Exit.NOT_FOUND)
    from muster.api.imported import ImportOptions, run_import  # noqa: PLC0415 - a server, which few commands need

    host = (match[1] or "127.0.0.1").strip("[]")
    run_program(run_import(ImportOptions(source, host, int(match[2]), as_json)), verbose=False)
