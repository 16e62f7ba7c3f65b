"""Commands that follow a job: wait and logs."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from queue import Queue
from typing import Final

import click

from muster.api.cli_base import CommandError, Exit, Number, Session, Whole, client_command, examples, job_id
from muster.api.client import Client, Json, UnreachableError
from muster.api.table import clean

WAIT_POLL_S: Final = 25
WAIT_MARGIN_S: Final = 20
AWAY_S: Final = 60
RETRY_S: Final = 0.5
PLACE_POLL_S: Final = 0.5
CHUNKS_HELD: Final = 64
LONGEST_LINE_BYTES: Final = 1 << 16


def ending(job: int, view: Json) -> str:
    """A job's end in a line."""
    return f"job {job} {view['state']}" + (f": {clean(view['why'])}" if view["why"] else "")


def exit_code(view: Json) -> int:
    """The code that a job's end gives to `run` and `wait`."""
    code = view["exit_code"]
    if view["state"] == "COMPLETED":
        return int(code or 0)
    return int(code) if code and 0 < code < 256 else int(Exit.FAILED)  # noqa: PLR2004 - what an exit status can be


def wait_for(client: Client, job: int, deadline_s: float | None) -> Json:
    """The job once it has ended; it is asked at least once. A server that is away meanwhile is waited for, a minute
    long. Raises CommandError at the deadline (of the monotonic clock; None = never)."""
    answered_s = None
    while True:
        left_s = WAIT_POLL_S if deadline_s is None else min(max(deadline_s - time.monotonic(), 0), WAIT_POLL_S)
        try:
            view = client.get(f"/v1/jobs/{job}/wait", {"timeout": f"{left_s:.3f}"}, timeout_s=left_s + WAIT_MARGIN_S)
        except UnreachableError:
            if answered_s is None or time.monotonic() - answered_s > AWAY_S:
                raise
            time.sleep(RETRY_S)
        else:
            answered_s = time.monotonic()
            if view["ended"]:
                return view
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise CommandError(f"job {job} has not ended in time", Exit.TIMED_OUT)


@click.command(epilog=examples("muster wait 42 43", "muster wait 42 --timeout 600"))
@click.argument("jobs", metavar="JOB...", nargs=-1, type=job_id, required=True)
@click.option("--timeout", metavar="SECONDS", type=Number(min=0), help="Give up after so many (exit code 124).")
@client_command()
def wait(session: Session, jobs: tuple[int, ...], timeout: float | None) -> None:
    """Wait until jobs have ended; the exit code is that of the first one named which did not end with 0."""
    deadline_s = time.monotonic() + timeout if timeout is not None else None
    first_code = 0
    for job in jobs:
        view = wait_for(session.client, job, deadline_s)
        session.show(view, lambda ended, job=job: ending(job, ended))  # type: ignore[misc]
        first_code = first_code or exit_code(view)
    raise SystemExit(first_code)


Chunks = Iterator[tuple[int, bytes]]
"""What workers wrote, by their ranks."""


@click.command(epilog=examples("muster logs 42", "muster logs -f 42 --rank 1", "muster logs 42 --attempt 1"))
@click.argument("job", metavar="JOB", type=job_id)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--rank", metavar="RANK", type=Whole(min=0), help="Which worker; 0 if left out.")
@click.option("--all", "-a", "every", is_flag=True, help="All workers, each line behind its rank.")
@click.option(
    "--attempt",
    metavar="NUMBER",
    type=Whole(min=1),
    help="Which attempt of a job that was requeued; the last one if left out. Agents keep the output of their last "
    "1,000 ended workers, for a week.",
)
@client_command()
def logs(
    session: Session, job: int, *, follow: bool, rank: int | None, every: bool, attempt: int | None
) -> None:  # fmt: skip
    """Print what a worker wrote, or all of them. With --json each line is an object: {"rank": 0, "text": "..."}."""
    if every and attempt is not None:
        raise CommandError("--all shows the last attempt: with --attempt, name a --rank", Exit.USAGE)
    if every and rank is not None:
        raise CommandError("--all and --rank exclude each other", Exit.USAGE)
    client = session.client
    if follow:
        _say_if_waiting(job, client.get(f"/v1/jobs/{job}"))
    if not every:
        chunks = _output(client, job, rank or 0, attempt, follow=follow)
    else:
        chunks = _follow_all(client, job) if follow else _all(client, job)
    labelled = every or session.as_json
    written = 0
    for piece in _lines(chunks, as_json=session.as_json) if labelled else (chunk for _, chunk in chunks):
        written += sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    if not written:
        view = client.get(f"/v1/jobs/{job}")
        if not follow:
            _say_if_waiting(job, view)
        if view["ended"] and view["state"] != "COMPLETED" and attempt in (None, view["attempts"]):
            click.echo(f"muster: nothing was written: {ending(job, view)}", err=True)


def _say_if_waiting(job: int, view: Json) -> None:
    if view["state"] == "PENDING":
        click.echo(f"muster: job {job} waits, and has written nothing: {clean(view['why'])}", err=True)


def _output(client: Client, job: int, rank: int, attempt: int | None = None, *, follow: bool) -> Chunks:
    parameters = {"follow": 1 if follow else None, "rank": rank, "attempt": attempt}
    return ((rank, chunk) for chunk in client.stream(f"/v1/jobs/{job}/logs", parameters))


def _ranks(view: Json) -> list[int]:
    return [worker["rank"] for worker in view["workers"]]


def _all(client: Client, job: int) -> Chunks:
    """Each rank's output, one after another."""
    for rank in _ranks(client.get(f"/v1/jobs/{job}")):
        yield from _output(client, job, rank, follow=False)


def _follow_all(client: Client, job: int) -> Chunks:
    """All ranks' output as it comes. Ranks that only a later attempt has are told at the end."""
    view = client.get(f"/v1/jobs/{job}")
    while not view["workers"] and not view["ended"]:
        time.sleep(PLACE_POLL_S)
        view = client.get(f"/v1/jobs/{job}")
    ranks = _ranks(view)
    arrived: Queue[tuple[int, bytes | Exception | None]] = Queue(CHUNKS_HELD)

    def read(rank: int) -> None:
        try:
            for _, chunk in _output(client, job, rank, follow=True):
                arrived.put((rank, chunk))
        except Exception as error:  # noqa: BLE001 - it is raised where the queue is read
            arrived.put((rank, error))
        else:
            arrived.put((rank, None))

    for rank in ranks:
        threading.Thread(target=read, args=(rank,), daemon=True).start()
    reading = len(ranks)
    while reading:
        rank, chunk = arrived.get()
        if isinstance(chunk, Exception):
            raise chunk
        if chunk is None:
            reading -= 1
        else:
            yield rank, chunk
    for rank in _ranks(client.get(f"/v1/jobs/{job}")):
        if rank not in ranks:
            yield from _output(client, job, rank, follow=False)


def _lines(chunks: Chunks, *, as_json: bool) -> Iterator[bytes]:
    """Whole lines, each with its rank; one without an end is given at the end, or once it is very long."""
    rests: dict[int, bytes] = {}
    for rank, chunk in chunks:
        *whole, rest = (rests.get(rank, b"") + chunk).split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            whole, rest = [*whole, rest], b""
        rests[rank] = rest
        for line in whole:
            yield _line(rank, line, as_json=as_json)
    for rank, rest in sorted(rests.items()):
        if rest:
            yield _line(rank, rest, as_json=as_json)


def _line(rank: int, line: bytes, *, as_json: bool) -> bytes:
    if as_json:
        return json.dumps({"rank": rank, "text": line.decode(errors="replace")}).encode() + b"\n"
    return b"%d: %s\n" % (rank, line)
