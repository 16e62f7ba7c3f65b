"""Commands about jobs: submit, run, jobs, show, explain, logs, cancel, wait."""

import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, width
from muster.api.client import Client, Json, RefusedError, UnreachableError
from muster.api.jobfile import Spec, pairs, read_job
from muster.api.table import clean, fields, render
from muster.api.times import elapsed, mib

WAIT_POLL_S: Final = 25
WAIT_MARGIN_S: Final = 20
AWAY_S: Final = 60
RETRY_S: Final = 0.5
SERVICE_UNAVAILABLE: Final = 503
JOB = click.IntRange(min=1)

_SPEC_OPTIONS: Final = [
    click.option("--name", help="What to call it."),
    click.option("--queue", help="The queue to wait in."),
    click.option("--gpus", type=int, help="Devices, over all nodes."),
    click.option("--nodes", help="any, fewest, or an exact count."),
    click.option("--cpus", type=int, help="CPUs for each device, or in all where there is none."),
    click.option("--memory", help="Host memory, likewise: 64GiB."),
    click.option("--gpu-memory", help="Memory of each device; the whole device if left out."),
    click.option("--gpu-compute", type=float, help="Share of each device's SMs; exclusive if left out."),
    click.option("--gpu-model", multiple=True, help="Any of these models."),
    click.option("--interconnect", help="any (all nodes on one fabric, the default) or none."),
    click.option("--node", multiple=True, help="Only on one of these nodes."),
    click.option("--where", multiple=True, metavar="LABEL=VALUE", help="Only on nodes with this label."),
    click.option("--label", multiple=True, metavar="NAME=VALUE", help="A label that describes the job."),
    click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set, or pass on, an environment variable."),
    click.option("--workdir", help="Where the workers start; here if left out."),
    click.option("--max-attempts", type=int, help="How often it is tried."),
    click.option("--retry-on", multiple=True, help="What is tried again: node_fail, device_fault, failed."),
]
_SUBMIT_OPTIONS: Final = [
    click.option("--wait-for-capacity", is_flag=True, help="Take it even if no node could ever run it today."),
    click.option("--key", help="Idempotency-Key: the same key and job make one job, however often sent."),
    click.argument("command", nargs=-1, type=click.UNPROCESSED),
]


def _options(function: Callable[..., None]) -> Callable[..., None]:
    return reduce(lambda wrapped, option: option(wrapped), reversed([*_SPEC_OPTIONS, *_SUBMIT_OPTIONS]), function)


def _environment(words: tuple[str, ...]) -> dict[str, str]:
    named = {word: os.environ.get(word, "") for word in words if "=" not in word}
    return named | pairs(tuple(word for word in words if "=" in word), "--env")


def _part(spec: Spec, name: str) -> Spec:
    part = spec.setdefault(name, {})
    if not isinstance(part, dict):
        raise CommandError(f"{name} must be a table", Exit.USAGE)
    return part


def build_spec(command: tuple[str, ...], flags: dict[str, Any]) -> Spec:
    """The specification of a file, script or command, with what the flags say on top."""
    spec = read_job(command)
    for name in ("name", "queue", "gpus", "cpus", "memory", "workdir"):
        if flags[name] is not None:
            spec[name] = flags[name]
    if flags["nodes"] is not None:
        spec["nodes"] = int(flags["nodes"]) if flags["nodes"].isdecimal() else flags["nodes"]
    for flag, part, name in (
        ("gpu_memory", "gpu", "memory"),
        ("gpu_compute", "gpu", "compute"),
        ("gpu_model", "gpu", "model"),
        ("interconnect", "gpu", "interconnect"),
        ("node", "where", "nodes"),
        ("max_attempts", "retry", "max_attempts"),
        ("retry_on", "retry", "on"),
    ):
        if flags[flag] not in (None, ()):
            value = flags[flag]
            _part(spec, part)[name] = list(value) if isinstance(value, tuple) else value
    if flags["where"]:
        _part(_part(spec, "where"), "labels").update(pairs(flags["where"], "--where"))
    if flags["label"]:
        _part(spec, "labels").update(pairs(flags["label"], "--label"))
    if flags["env"]:
        _part(spec, "env").update(_environment(flags["env"]))
    spec["workdir"] = os.path.abspath(spec.get("workdir", "."))  # noqa: PTH100 - text, and links are left alone
    return spec


def _submit(session: Session, command: tuple[str, ...], flags: dict[str, Any]) -> Json:
    key = flags.pop("key") or secrets.token_hex(16)
    wait = 1 if flags.pop("wait_for_capacity") else None
    spec = build_spec(command, flags)
    if "command" not in spec:
        raise CommandError("nothing to run", Exit.USAGE, "give a job file, a script, or a command after --")
    if "gpus" not in spec and "cpus" not in spec:
        step = "--gpus N, or --cpus N for a job without devices; options stand before the command"
        raise CommandError("neither devices nor CPUs are asked for", Exit.USAGE, step)
    try:
        return session.client.post("/v1/jobs", spec, {"wait_for_capacity": wait}, {"Idempotency-Key": key})
    except (UnreachableError, RefusedError) as error:
        may_have_it = error.sent if isinstance(error, UnreachableError) else error.status == SERVICE_UNAVAILABLE
        if not may_have_it:
            raise
        step = f"it may have been accepted: the same command with --key {key} makes no second job"
        raise CommandError(clean(error), Exit.UNREACHABLE, step) from error


@click.command(context_settings={"allow_interspersed_args": False})
@client_command()
@_options
def submit(session: Session, command: tuple[str, ...], **flags: Any) -> None:
    """Submit a job file (TOML, JSON), a script with #MUSTER lines, or a command."""
    answer = _submit(session, command, flags)
    session.show(answer, lambda accepted: f"job {accepted['id']}")


@click.command(context_settings={"allow_interspersed_args": False})
@client_command()
@_options
def run(session: Session, command: tuple[str, ...], **flags: Any) -> None:
    """Submit, show the output of rank 0, and end with the job's exit code. Ctrl-C cancels the job."""
    accepted = _submit(session, command, flags)
    job, seen = int(accepted["id"]), int(accepted["sequence"])
    click.echo(f"job {job}", err=True)
    try:
        _follow(session.client, job, seen)
        view = _wait(session.client, job, None)
    except KeyboardInterrupt:
        session.client.post(f"/v1/jobs/{job}/cancel", {"reason": "interrupted"})
        click.echo(f"muster: job {job} cancelled", err=True)
        raise SystemExit(Exit.INTERRUPTED) from None
    if session.as_json:
        session.show(view, str)
    elif view["state"] != "COMPLETED":
        click.echo(_ending(job, view), err=True)
    raise SystemExit(exit_code(view))


def _follow(client: Client, job: int, seen: int) -> None:
    """Show the output as it comes. Where the stream breaks the job goes on, and so does the waiting for its end."""
    try:
        for chunk in client.stream(f"/v1/jobs/{job}/logs", {"follow": 1, "min_seq": seen}):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except UnreachableError as error:
        click.echo(f"muster: {error}; the job goes on: muster logs {job}", err=True)


def _ending(job: int, view: Json) -> str:
    return f"job {job} {view['state']}" + (f": {clean(view['why'])}" if view["why"] else "")


def exit_code(view: Json) -> int:
    """The code that a job's end gives to `run` and `wait`."""
    code = view["exit_code"]
    if view["state"] == "COMPLETED":
        return int(code or 0)
    return int(code) if code and 0 < code < 256 else int(Exit.FAILED)  # noqa: PLR2004 - what an exit status can be


def _wait(client: Client, job: int, timeout_s: float | None) -> Json:
    """The job once it has ended. A server that is away meanwhile is waited for, a minute long."""
    deadline_s = time.monotonic() + timeout_s if timeout_s is not None else None
    answered_s = None
    while True:
        left_s = WAIT_POLL_S if deadline_s is None else min(deadline_s - time.monotonic(), WAIT_POLL_S)
        if left_s < 0:
            raise CommandError(f"job {job} has not ended after {timeout_s:g} s", Exit.TIMED_OUT)
        try:
            view = client.get(f"/v1/jobs/{job}/wait", {"timeout": f"{left_s:.3f}"}, timeout_s=left_s + WAIT_MARGIN_S)
        except UnreachableError:
            if answered_s is None or time.monotonic() - answered_s > AWAY_S:
                raise
            time.sleep(RETRY_S)
            continue
        answered_s = time.monotonic()
        if view["ended"]:
            return view


@click.command()
@click.argument("job", type=JOB)
@click.option("--timeout", type=click.FloatRange(min=0), help="Give up after so many seconds (exit code 124).")
@client_command()
def wait(session: Session, job: int, timeout: float | None) -> None:
    """Wait for a job to end, and end with its exit code."""
    view = _wait(session.client, job, timeout)
    session.show(view, lambda ended: _ending(job, ended))
    raise SystemExit(exit_code(view))


_JOB_TITLES: Final = ("JOBID", "STATE", "USER", "QUEUE", "NAME", "GPUS", "ELAPSED", "NODES", "WHY")


def job_line(job: Json) -> tuple[object, ...]:
    """A job's cells under `JOBID STATE USER QUEUE NAME GPUS ELAPSED NODES WHY`."""
    code = f"{job['state']}({job['code']})"
    time_text = elapsed(job["elapsed_ms"])
    return (
        job["id"], code, job["user"], job["queue"], job["name"], job["gpus"], time_text,
        ",".join(job["nodes"]), job["why"],
    )  # fmt: skip


def job_table(jobs: list[Json]) -> str:
    """Jobs as squeue would list them."""
    return render(_JOB_TITLES, [job_line(job) for job in jobs], width=width())


@click.command()
@click.option("--state", help="Only in this state: PENDING, RUNNING, FAILED ...")
@click.option("--user", help="Only of this user.")
@click.option("--queue", help="Only of this queue.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option("--after", type=click.IntRange(0), help="The page after this job.")
@client_command(reads=True)
def jobs(session: Session, **filters: Any) -> None:
    """List jobs, ended ones too, newest first."""
    page = session.read("/v1/jobs", **filters)
    session.show(page, lambda found: job_table(found["jobs"]))
    if page["next"] is not None and not session.as_json:
        click.echo(f"more: muster jobs --after {page['next']}", err=True)


@click.command()
@click.argument("job", type=JOB)
@client_command(reads=True)
def show(session: Session, job: int) -> None:
    """Show one job."""
    session.show(session.read(f"/v1/jobs/{job}"), _job_text)


def _job_text(job: Json) -> str:
    text = fields(
        [
            ("job", job["id"]),
            ("name", job["name"]),
            ("state", f"{job['state']} ({job['code']})"),
            ("why", job["why"]),
            ("user", job["user"]),
            ("queue", job["queue"]),
            ("command", _command_text(job["spec"]["command"])),
            ("gpus", job["gpus"]),
            *((name, _wish(name, job["spec"][name])) for name in _WISHES if name in job["spec"]),
            ("submitted", job["submitted"]),
            ("started", job["started"]),
            ("ended", job["ended"]),
            ("elapsed", elapsed(job["elapsed_ms"])),
            ("exit code", job["exit_code"]),
            ("attempts", job["attempts"]),
            ("excluded", ", ".join(job["excluded_nodes"])),
        ]
    )
    workers = [
        (w["rank"], w["node"], ",".join(map(str, w["devices"])), w["phase"], w["pid"] or None, _exit_text(w["exit"]))
        for w in job["workers"]
    ]
    return f"{text}\n\n{render(('RANK', 'NODE', 'DEVICES', 'PHASE', 'PID', 'EXIT'), workers)}" if workers else text


def _command_text(command: str | list[str]) -> str:
    """As a shell would take it; of a word with several lines (a script that was taken along) only that it has them."""
    if isinstance(command, str):
        return command
    words = [f"({len(word.splitlines())} lines)" if "\n" in word else shlex.quote(word) for word in command]
    return " ".join(words)


_WISHES: Final = ("nodes", "cpus", "memory", "gpu", "where", "retry", "labels", "workdir")


def _wish(name: str, value: Any) -> str:
    """A field of a specification in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_wish(key, each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return mib(value) if name == "memory" and isinstance(value, int) else str(value)


def _exit_text(status: Json | None) -> str:
    if status is None:
        return ""
    code = status.get("exit_code")
    return f"{status['reason']} {code if code is not None else ''} {status.get('detail', '')}".strip()


@click.command()
@click.argument("job", type=JOB)
@client_command(reads=True)
def explain(session: Session, job: int) -> None:
    """Say why a job waits, or why it got the devices it has."""
    session.show(session.read(f"/v1/jobs/{job}/explain"), lambda answer: "\n".join(map(clean, answer["text"])))


@click.command()
@click.argument("job", type=JOB)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which worker.")
@client_command()
def logs(session: Session, job: int, *, follow: bool, rank: int) -> None:
    """Print what a worker wrote."""
    parameters = {"follow": 1 if follow else None, "rank": rank}
    for chunk in session.client.stream(f"/v1/jobs/{job}/logs", parameters):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


@click.command()
@click.argument("job", nargs=-1, type=JOB, required=True)
@click.option("--reason", default="", help="Why, for whoever reads the log.")
@client_command()
def cancel(session: Session, job: tuple[int, ...], reason: str) -> None:
    """Cancel jobs: what runs is stopped."""
    failed: RefusedError | UnreachableError | None = None
    for each in job:
        try:
            answer = session.client.post(f"/v1/jobs/{each}/cancel", {"reason": reason})
        except RefusedError as error:
            if len(job) > 1:
                click.echo(f"job {each}: {error}", err=True)
            failed = error
        else:
            said = "cancelled already" if answer["already"] else "cancellation asked for"
            session.show(answer, lambda _, line=f"job {each}: {said}": line)  # type: ignore[misc]
    if failed is not None:
        raise failed
