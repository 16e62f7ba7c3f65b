"""`muster replay --import`: an export, opened read-only as a server of its own.

There is no broker, no scheduler and no agent: what is read is a store in a temporary folder, which goes with the
program. Sequences and times are the export's own, and the present is its last entry.
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from muster.api.http import HttpServer, check_address
from muster.api.parts import Tasks, explained, listening, running
from muster.api.samples import LastSamples
from muster.api.service import OutputError, Service
from muster.api.submitting import Submitter
from muster.api.telling import say
from muster.api.times import rfc3339
from muster.events.beats import MemoryTelemetry
from muster.node_agent.link import LogAsk
from muster.projections.exports import ExportSource
from muster.projections.follower import Follower
from muster.projections.imports import ImportedLog, open_import
from muster.projections.timetravel import TimeTravel

_PREFIX: Final = "muster-import-"
_FRESH_S: Final = 60


@dataclass(frozen=True)
class ImportOptions:
    """What `muster replay --import` was asked for. `port` 0 = a free one; `as_json` = say in JSON where it
    listens."""

    file: Path
    host: str
    port: int
    as_json: bool = False


class _NoOutputs:
    """An import has no agents to ask."""

    async def ask(self, node: str, question: LogAsk) -> AsyncGenerator[bytes, None]:  # noqa: ARG002 - the interface
        """Raises OutputError."""
        raise OutputError("this is an import: what workers wrote is not in the log")
        yield b""  # it is a generator


@asynccontextmanager
async def imported(options: ImportOptions, tasks: Tasks) -> AsyncGenerator[tuple[HttpServer, Service], None]:
    """The server of an import. Raises StartError, StoreError."""
    async with AsyncExitStack() as stack:
        check_address(options.host)
        source = ExportSource(options.file)
        folder = stack.enter_context(_folder())
        with _progress(source.position() - source.first + 1) as progress:
            store = await open_import(source, folder / "import.sqlite", progress)
        stack.push_async_callback(store.close)
        log = ImportedLog(store, source.header.prefix)
        follower = Follower(log, store)
        await follower.start()
        await stack.enter_async_context(running(follower.run(), "the follower", tasks))
        service = Service(
            log,
            follower,
            store,
            TimeTravel(store, log),
            _NoOutputs(),
            Submitter(log),
            LastSamples(MemoryTelemetry()),
            read_only=f"this is an import of {options.file.name}",
        )
        server = await stack.enter_async_context(listening(service, options.host, options.port))
        yield server, service


async def run_import(options: ImportOptions) -> None:
    """Serve an import until cancelled. Raises StartError."""
    tasks = Tasks()
    async with explained(), imported(options, tasks) as (server, service):
        _greet(options, server.url, service)
        await tasks.failed()


# -- its folder --------------------------------------------------------------------------------------------------


@contextmanager
def _folder() -> Generator[Path, None, None]:
    """A temporary folder, locked while it is in use; what imports left that were killed goes."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _sweep(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _locked(Path(name)):
        yield Path(name)


def _sweep(folder: Path) -> None:
    """Remove a folder that nobody uses. Raises OSError."""
    if time.time() - folder.lstat().st_mtime > _FRESH_S:  # a younger one may be about to be locked
        with _locked(folder):
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Raises OSError where another process has it."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


# -- what it says ------------------------------------------------------------------------------------------------


@contextmanager
def _progress(entries: int) -> Generator[Callable[[int], None], None, None]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=entries, label="entries read and checked", file=sys.stderr) as bar:
        yield bar.update


def _greet(options: ImportOptions, url: str, service: Service) -> None:
    state, first = service.state, service.store.origin + 1
    if options.as_json:
        present = rfc3339(state.timestamp_ns) if state.timestamp_ns else None
        found = {"file": str(options.file), "first": first, "last": state.sequence, "url": url, "present": present}
        say(json.dumps(found, indent=2))
        return
    before = "" if first == 1 else f"\nIt is a window: what was before entry {first} is not in it."
    say(
        f"{options.file}: entries {first} to {state.sequence}, every one checked; nothing can be written\n"
        f"  api        {url}\n"
        f"  present    {rfc3339(state.timestamp_ns) if state.timestamp_ns else 'none'}, its last entry"
        f"{before}\n"
        "\nNext, in another terminal:\n"
        f"  export MUSTER_SERVER={url}\n"
        "  muster queue\n"
        "  muster replay\n"
        f"  muster at {(first + state.sequence) // 2} nodes\n"
        "\nCtrl-C ends it."
    )
