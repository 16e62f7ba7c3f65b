"""Commands that make a job: submit and run."""

import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, examples
from muster.api.cli_follow import ending, exit_code, wait_for
from muster.api.client import Client, Json, RefusedError, UnreachableError
from muster.api.jobfile import Spec, pairs, read_job
from muster.api.table import clean
from muster.api.telling import say

SERVICE_UNAVAILABLE: Final = 503
WAITING_TOLD_S: Final = 1.0
WAITING_AGAIN_S: Final = 15.0

_SPEC_OPTIONS: Final = [
    click.option("--name", metavar="NAME", help="What to call it."),
    click.option("--queue", metavar="QUEUE", help="The queue to wait in, by its path: research/vision."),
    click.option(
        "--priority", metavar="PRIORITY", help="P0 (most urgent) to P3, or 0 to 1000; the queue's if left out."
    ),
    click.option("--time-limit", metavar="TIME", help="How long each try may run: 12h, 1h30m, 90s, 1:30:00."),
    click.option(
        "--estimate", metavar="TIME", help="How long it is expected to run; learned from earlier runs if left out."
    ),
    click.option(
        "--on-timeout",
        metavar="WHAT",
        help="When its time is up: kill (the default), or requeue behind those that wait.",
    ),
    click.option("--no-preempt", is_flag=True, help="Never stop it for others."),
    click.option(
        "--signal", metavar="SIGNAL[@SECONDS]", help="Sent before it is stopped, and seconds to act on it: USR2@120."
    ),
    click.option("--grace", metavar="TIME", help="Time between TERM and the end of the whole tree: 30s."),
    click.option("--gpus", metavar="COUNT", type=int, help="Devices, over all nodes."),
    click.option("--nodes", metavar="NODES", help="any, fewest, or an exact count."),
    click.option("--cpus", metavar="COUNT", type=int, help="CPUs for each device, or in all where there is none."),
    click.option("--memory", metavar="SIZE", help="Host memory, likewise: 64GiB."),
    click.option("--gpu-memory", metavar="SIZE", help="Memory of each device: 40GiB; the whole device if left out."),
    click.option(
        "--gpu-compute", metavar="SHARE", type=float, help="Share of each device's SMs: 0.5; exclusive if left out."
    ),
    click.option("--gpu-model", metavar="MODEL", multiple=True, help="Any of these models."),
    click.option("--interconnect", metavar="KIND", help="any (all nodes on one fabric, the default) or none."),
    click.option("--node", metavar="NODE", multiple=True, help="Only on one of these nodes."),
    click.option("--where", multiple=True, metavar="LABEL=VALUE", help="Only on nodes with this label."),
    click.option("--label", multiple=True, metavar="NAME=VALUE", help="A label that describes the job."),
    click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set, or pass on, an environment variable."),
    click.option("--workdir", metavar="FOLDER", help="Where the workers start; here if left out."),
    click.option(
        "--framework", metavar="NAME", help="Set what its launcher reads: pytorch, tensorflow, mindspore or jax."
    ),
    click.option("--image", metavar="IMAGE", help="Run in a container of this image."),
    click.option("--max-attempts", metavar="COUNT", type=int, help="How often it is tried."),
    click.option(
        "--retry-on", metavar="CAUSE", multiple=True, help="What is tried again: node_fail, device_fault, failed."
    ),
]
_WAIT_FOR_CAPACITY: Final = click.option(
    "--wait-for-capacity", is_flag=True, help="Take it even if no node could ever run it today."
)
_COMMAND: Final = click.argument(
    "command", metavar="FILE | SCRIPT [ARGS]... | -- COMMAND...", nargs=-1, type=click.UNPROCESSED
)
_KEY: Final = click.option(
    "--key", metavar="TEXT", help="Idempotency-Key: the same key and job make one job, however often sent."
)


def spec_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command all that describes a job, for `build_spec`, and `--wait-for-capacity`."""
    return reduce(
        lambda wrapped, option: option(wrapped), reversed([*_SPEC_OPTIONS, _WAIT_FOR_CAPACITY, _COMMAND]), function
    )


def _options(function: Callable[..., None]) -> Callable[..., None]:
    return spec_options(_KEY(function))


def _environment(words: tuple[str, ...]) -> dict[str, str]:
    named = {word: os.environ.get(word, "") for word in words if "=" not in word}
    return named | pairs(tuple(word for word in words if "=" in word), "--env")


def _part(spec: Spec, name: str) -> Spec:
    part = spec.setdefault(name, {})
    if not isinstance(part, dict):
        raise CommandError(f"{name} must be a table", Exit.USAGE)
    return part


def _number(word: str) -> int | str:
    return int(word) if re.fullmatch("[0-9]{1,18}", word) else word


def _duration(flag: str, text: str) -> str:
    """A duration with its unit: of a number alone some would say seconds, others minutes."""
    if text.strip().isdecimal():
        option = f"--{flag.replace('_', '-')}"
        step = f"write {option} {text}s for seconds, {text}m for minutes, {text}h for hours, or 1:30:00"
        raise CommandError(f"{option} {text[:20]}: of what?", Exit.USAGE, step)
    return text


def build_spec(command: tuple[str, ...], flags: dict[str, Any]) -> Spec:
    """The specification of a file, script or command, with what the flags say on top."""
    spec = read_job(command)
    for name in ("name", "queue", "gpus", "cpus", "memory", "workdir", "framework", "image"):
        if flags[name] is not None:
            spec[name] = flags[name]
    for name in ("nodes", "priority"):
        if flags[name] is not None:
            spec[name] = _number(flags[name])
    for flag, part in (("time_limit", "limits"), ("estimate", "limits"), ("grace", "preemption")):
        if flags[flag] is not None:
            _part(spec, part)[flag] = _duration(flag, flags[flag])
    if flags["no_preempt"]:
        _part(spec, "preemption")["allowed"] = False
    for flag, part, name in (
        ("gpu_memory", "gpu", "memory"),
        ("gpu_compute", "gpu", "compute"),
        ("gpu_model", "gpu", "model"),
        ("interconnect", "gpu", "interconnect"),
        ("node", "where", "nodes"),
        ("on_timeout", "limits", "on_timeout"),
        ("signal", "preemption", "signal"),
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


def check_asks(spec: Spec) -> None:
    """Refuse a specification that asks for nothing."""
    if "gpus" not in spec and "cpus" not in spec:
        step = "--gpus N, or --cpus N for a job without devices; options stand before the command"
        raise CommandError("neither devices nor CPUs are asked for", Exit.USAGE, step)


def _submit(session: Session, command: tuple[str, ...], flags: dict[str, Any]) -> Json:
    key = flags.pop("key") or secrets.token_hex(16)
    wait = 1 if flags.pop("wait_for_capacity") else None
    spec = build_spec(command, flags)
    if "command" not in spec:
        raise CommandError("nothing to run", Exit.USAGE, "give a job file, a script, or a command after --")
    check_asks(spec)
    try:
        return session.client.post("/v1/jobs", spec, {"wait_for_capacity": wait}, {"Idempotency-Key": key})
    except (UnreachableError, RefusedError) as error:
        may_have_it = error.sent if isinstance(error, UnreachableError) else error.status == SERVICE_UNAVAILABLE
        if not may_have_it:
            raise
        step = f"it may have been accepted: the same command with --key {key} makes no second job"
        raise CommandError(clean(error), Exit.UNREACHABLE, step) from error


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "muster submit job.toml",
        "muster submit --queue research --gpus 8 --time-limit 12h -- python train.py",
        "muster submit --gpus 1 --on-timeout requeue --time-limit 2h --signal USR2@60 train.sh",
    ),
)
@client_command()
@_options
def submit(session: Session, command: tuple[str, ...], **flags: Any) -> None:
    """Submit a job file (TOML, JSON), a script with #MUSTER lines, or a command. Options stand before it."""
    answer = _submit(session, command, flags)
    session.show(answer, lambda accepted: f"job {accepted['id']}")


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples("muster run --gpus 4 -- python train.py", "muster run job.toml"),
)
@client_command()
@_options
def run(session: Session, command: tuple[str, ...], **flags: Any) -> None:
    """Submit, show the output of rank 0, and end with the job's exit code. Ctrl-C cancels the job."""
    accepted = _submit(session, command, flags)
    job, seen = int(accepted["id"]), int(accepted["sequence"])
    say(f"job {job}", err=True)
    try:
        with _telling_why_it_waits(session.client, job):
            _follow(session.client, job, seen)
            view = wait_for(session.client, job, None)
    except KeyboardInterrupt:
        session.client.post(f"/v1/jobs/{job}/cancel", {"reason": "interrupted"})
        say(f"muster: job {job} cancelled", err=True)
        raise SystemExit(Exit.INTERRUPTED) from None
    if session.as_json:
        session.show(view, str)
    elif view["state"] != "COMPLETED":
        click.echo(ending(job, view), err=True)
    raise SystemExit(exit_code(view))


@contextmanager
def _telling_why_it_waits(client: Client, job: int) -> Iterator[None]:
    """Beside what goes on, say on stderr why the job waits, once it has for a moment, and whenever that has changed."""
    over = threading.Event()
    teller = threading.Thread(target=_tell_why_it_waits, args=(client, job, over), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join(WAITING_TOLD_S)


def _tell_why_it_waits(client: Client, job: int, over: threading.Event) -> None:
    told, pause_s = "", WAITING_TOLD_S
    while not over.wait(pause_s):
        pause_s = WAITING_AGAIN_S
        try:
            view = client.get(f"/v1/jobs/{job}")
        except (UnreachableError, RefusedError):
            continue
        why = clean(view["why"] or "")
        if view["state"] == "PENDING" and why != told and not over.is_set():
            say(f"muster: job {job} has not started: {why} (muster explain {job} says more)", err=True)
            told = why


def _follow(client: Client, job: int, seen: int) -> None:
    """Show the output as it comes. Where the stream breaks the job goes on, and so does the waiting for its end."""
    try:
        for chunk in client.stream(f"/v1/jobs/{job}/logs", {"follow": 1, "min_seq": seen}):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except UnreachableError as error:
        click.echo(f"muster: {error}; the job goes on: muster logs {job}", err=True)
