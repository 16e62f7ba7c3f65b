"""Commands that list, show and cancel jobs: queue, jobs, show, explain, cancel."""

import shlex
from typing import Any, Final

import click

from muster.api.cli_base import (
    CommandError,
    Exit,
    Session,
    agreed,
    client_command,
    examples,
    job_id,
    paged,
    several,
    width,
)
from muster.api.client import Json, RefusedError
from muster.api.table import clean, fields, render
from muster.api.times import elapsed, mib, moment, to_ms, today

PAGE: Final = 1000
CONFLICT: Final = 409
LIVE: Final = "PENDING,STARTING,RUNNING,STOPPING"
_JOB_TITLES: Final = (
    "JOBID", "STATE", "USER", "QUEUE", "NAME", "GPUS", "PRIORITY", "SUBMITTED", "ELAPSED", "NODES", "REASON", "WHY"
)  # fmt: skip
_LEFT_OUT: Final = {"PRIORITY": 60, "QUEUE": 60, "SUBMITTED": 40, "NODES": 0, "ELAPSED": 0}
"""Columns that a narrow terminal does not show, one after another, where WHY would have fewer letters than that."""
_STATE_HELP: Final = "Only in these states, names or codes: PENDING, R, pd,cf ..."
_USER: Final = several("--user", "-u", metavar="USERS", text="Only of these users: ada,bob ...")
_STATE: Final = several("--state", "-t", metavar="STATES", text=_STATE_HELP)
_QUEUE: Final = several("--queue", "-q", metavar="QUEUES", text="Only of these queues.")


def _job_line(job: Json, day: str) -> tuple[object, ...]:
    return (
        job["id"], f"{job['state']}({job['code']})", job["user"], job["queue"], job["name"], job["gpus"],
        job["priority"], moment(job["submitted"], day), elapsed(job["elapsed_ms"]), ",".join(job["nodes"]),
        job["reason"] or "", job["why"] or "",
    )  # fmt: skip


def _job_table(jobs: list[Json], *, start: bool = False) -> str:
    """Jobs as squeue would list them; with `start` also when those that wait are expected to. Where a line would not
    hold all of it, why a job waits is told in a word or two before it is told in a line that is cut."""
    day, letters = today(), width()
    columns = {title: [_job_line(job, day)[place] for job in jobs] for place, title in enumerate(_JOB_TITLES)}
    if start:
        columns["EXPECTED START"] = [_expected_start(job, day) for job in jobs]
    shown = [*_JOB_TITLES[:-3], *(["EXPECTED START"] if start else []), *_JOB_TITLES[-3:]]
    widths = {title: max(len(str(cell)) for cell in (title, *columns[title])) + 2 for title in shown}
    if not letters or sum(widths.values()) - widths["REASON"] <= letters + 2:
        shown.remove("REASON")
    for title, least in _LEFT_OUT.items():
        others = sum(widths[title] for title in shown[:-1])
        if letters and others + min(least, widths["WHY"] - 2) > letters:
            shown.remove(title)
    return render(shown, list(zip(*(columns[title] for title in shown), strict=True)), width=letters)


def _expected_start(job: Json, day: str) -> str:
    if job["state"] != "PENDING":
        return "-"
    return moment(job["expected_start"], day) if job["expected_start"] is not None else "unknown"


@click.command(epilog=examples("muster queue", "muster queue -u ada -t pd --start", "muster queue -q research/vision"))
@_USER
@_STATE
@_QUEUE
@click.option("--start", is_flag=True, help="Also when those that wait are expected to start.")
@client_command(reads=True)
def queue(session: Session, *, start: bool, **filters: Any) -> None:
    """Show what runs, and what waits in the order it is considered."""
    view = session.read("/v1/queue", start=1 if start else None, **filters)
    session.show(view, lambda found: _job_table(found["running"] + found["pending"], start=start))
    session.say_past(view)


@click.command(epilog=examples("muster jobs -u ada -t failed,timeout", "muster jobs --limit 20 --after 121"))
@_STATE
@_USER
@_QUEUE
@paged
@client_command(reads=True)
def jobs(session: Session, **filters: Any) -> None:
    """List jobs, ended ones too, newest first."""
    page = session.read("/v1/jobs", **filters)
    session.show(page, lambda found: _job_table(found["jobs"]))
    session.say_past(page)
    session.say_more(page, ["muster", "jobs"], filters)


@click.command(epilog=examples("muster show 42", "muster show 42 --at -10m --json"))
@click.argument("job", metavar="JOB", type=job_id)
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
            ("priority", job["priority"]),
            ("command", _command_text(job["spec"]["command"])),
            ("gpus", job["gpus"]),
            *((name, _wish(name, job["spec"][name])) for name in _WISHES if name in job["spec"]),
            ("submitted", to_ms(job["submitted"])),
            ("started", _started(job)),
            ("ended", to_ms(job["ended"])),
            ("elapsed", elapsed(job["elapsed_ms"])),
            ("exit code", job["exit_code"]),
            ("attempts", job["attempts"]),
            ("preemptions", job["preemptions"] or None),
            ("expected", _expected(job)),
            ("excluded", ", ".join(job["excluded_nodes"])),
        ]
    )
    workers = [
        (w["rank"], w["node"], ",".join(map(str, w["devices"])), w["phase"], w["pid"] or None, _exit_text(w["exit"]))
        for w in job["workers"]
    ]
    return f"{text}\n\n{render(('RANK', 'NODE', 'DEVICES', 'PHASE', 'PID', 'EXIT'), workers)}" if workers else text


def _started(job: Json) -> str | None:
    """When it first ran and, where it was tried again since, when the present attempt did."""
    first, present = to_ms(job["started"]), to_ms(job["attempt_started"])
    return first if present in (None, first) else f"{first} first, {present} in attempt {job['attempts']}"


def _command_text(command: str | list[str]) -> str:
    """As a shell would take it; of a word with several lines (a script that was taken along) only that it has them."""
    if isinstance(command, str):
        return command
    words = [f"({len(word.splitlines())} lines)" if "\n" in word else shlex.quote(word) for word in command]
    return " ".join(words)


def _expected(job: Json) -> str | None:
    """How long it is expected to run, and from where that is known."""
    seconds, source = job["expected_s"], str(job["expected_from"]).replace("_", " ")
    return None if seconds is None else f"{elapsed(seconds * 1000)} (from its {source})"


_WISHES: Final = (
    "framework", "image", "nodes", "cpus", "memory", "gpu", "where", "limits", "preemption", "retry", "labels",
    "workdir",
)  # fmt: skip


def _wish(name: str, value: Any) -> str:
    """A field of a specification in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_wish(key, each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    if name in ("time_limit", "estimate", "grace") and isinstance(value, int):
        return elapsed(value * 1000)
    return mib(value) if name == "memory" and isinstance(value, int) else str(value)


def _exit_text(status: Json | None) -> str:
    if status is None:
        return ""
    code = status.get("exit_code")
    return f"{status['reason']} {code if code is not None else ''} {status.get('detail', '')}".strip()


@click.command(epilog=examples("muster explain 42", "muster explain 42 --full", "muster at 1042 explain 42"))
@click.argument("job", metavar="JOB", type=job_id)
@click.option("--full", is_flag=True, help="Of a placed job also steps 1 and 2, as they were when it was decided.")
@client_command(reads=True)
def explain(session: Session, job: int, *, full: bool) -> None:
    """Say why a job waits, or why it got the devices it has."""
    answer = session.read(f"/v1/jobs/{job}/explain", full=1 if full else None)
    session.show(answer, lambda found: "\n".join(map(clean, found["text"])))


@click.command(
    epilog=examples("muster cancel 42 43", "muster cancel -u ada -t pending", "muster cancel -n sweep --yes")
)
@click.argument("jobs", metavar="[JOB]...", nargs=-1, type=job_id)
@several("--user", "-u", metavar="USERS", text="All jobs of these users.")
@click.option("--name", "-n", metavar="NAME", help="All jobs of this name.")
@several("--state", "-t", metavar="STATES", text="All jobs in these states, names or codes: pending, r ...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before all jobs that match are cancelled.")
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever reads the log.")
@client_command()
def cancel(
    session: Session, jobs: tuple[int, ...], user: str | None, name: str | None, state: str | None, reason: str,
    *, yes: bool,
) -> None:  # fmt: skip
    """Cancel jobs: those named, or all that have not ended and match every filter. What runs is stopped."""
    filters = {"user": user, "name": name, "state": state}
    chosen = {key: value for key, value in filters.items() if value is not None}
    if bool(jobs) == bool(chosen):
        step = "muster cancel JOB..., or --user, --name, --state"
        raise CommandError("say which jobs: either by their ids or by filters", Exit.USAGE, step)
    if chosen:
        jobs = _confirmed(_matching(session, chosen), yes=yes)
    failed: RefusedError | None = None
    for job in jobs:
        try:
            answer = session.client.post(f"/v1/jobs/{job}/cancel", {"reason": reason})
        except RefusedError as error:
            if chosen and error.status == CONFLICT:
                continue  # it has ended since it was listed
            if len(jobs) > 1:
                click.echo(f"job {job}: {error}", err=True)
            failed = error
        else:
            said = "cancelled already" if answer["already"] else "cancellation asked for"
            session.show(answer, lambda _, line=f"job {job}: {said}": line)  # type: ignore[misc]
    if failed is not None:
        raise failed


def _matching(session: Session, chosen: dict[str, str]) -> tuple[int, ...]:
    """The jobs that have not ended and match, oldest first."""
    name = chosen.get("name")
    query = {"user": chosen.get("user"), "state": chosen.get("state", LIVE), "limit": PAGE}
    found: list[int] = []
    after: int | None = None
    while True:
        page = session.client.get("/v1/jobs", {**query, "after": after})
        found += [row["id"] for row in page["jobs"] if row["ended"] is None and name in (None, row["name"])]
        after = page["next"]
        if after is None:
            return tuple(sorted(found))


def _confirmed(jobs: tuple[int, ...], *, yes: bool) -> tuple[int, ...]:
    """The jobs, once a person or --yes agrees."""
    if not jobs:
        click.echo("nothing to cancel: no job that has not ended matches", err=True)
        return ()
    shown = ", ".join(map(str, jobs[:10])) + (", ..." if len(jobs) > 10 else "")  # noqa: PLR2004 - what fits a line
    agreed(f"cancel {_count(jobs)} ({shown})?", f"this would cancel {_count(jobs)}: {shown}", yes=yes)
    return jobs


def _count(jobs: tuple[int, ...]) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
