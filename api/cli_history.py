"""`muster history`: jobs of all times, and what they took."""

from typing import Any, Final

import click

from muster.api.cli_base import Session, client_command, examples, job_id, paged, several, width
from muster.api.client import Json
from muster.api.table import render
from muster.api.times import elapsed, moment, today

_HOUR_MS: Final = 3_600_000
_ACCOUNTS: Final = ("GPU_HOURS", "LOST_HOURS", "PREEMPTED")


@click.command(
    epilog=examples(
        "muster history 42 43",
        "muster history -u ada,bob --since yesterday",
        "muster history -t failed,timeout --limit 20",
        "muster history --by user --since 2026-01-01 --until 2026-02-01",
        "muster history --by week --ended",
    )
)
@click.argument("jobs", metavar="[JOB]...", nargs=-1, type=job_id)
@several("--user", "-u", metavar="USERS", text="Only of these users: ada,bob ...")
@several("--queue", "-q", metavar="QUEUES", text="Only of these queues.")
@several("--state", "-t", metavar="STATES", text="Only in these states, names or codes: CD, failed ...")
@click.option("--name", "-n", metavar="TEXT", help="Only with this in their name.")
@click.option("--since", metavar="WHEN", help="Only submitted from then on: a moment, as --at takes it.")
@click.option("--until", metavar="WHEN", help="Only submitted until then.")
@click.option(
    "--ended",
    is_flag=True,
    help="Only those that have ended, and --since, --until and --by day, week, month by their end.",
)
@click.option(
    "--by", type=click.Choice(["user", "queue", "state", "day", "week", "month"]), help="Sums instead of jobs."
)
@paged
@client_command(reads=True)
def history(session: Session, jobs: tuple[int, ...], *, ended: bool, **filters: Any) -> None:
    """List jobs of all times, newest first, or these, with what they took: waiting, running, GPU-hours, work lost."""
    ids = list(map(str, jobs))
    found = session.read("/v1/history", jobs=",".join(ids) or None, ended=1 if ended else None, **filters)
    session.show(found, _sums_text if filters["by"] else _jobs_text)
    session.say_past(found)
    session.say_more(found, ["muster", "history", *ids, *(["--ended"] if ended else [])], filters)


def _jobs_text(found: Json) -> str:
    day = today()
    titles = (
        "JOBID",
        "USER",
        "QUEUE",
        "NAME",
        "STATE",
        "SUBMITTED",
        "WAITED",
        "RAN",
        "GPUS",
        *_ACCOUNTS,
        "TRIES",
        "EXIT",
    )
    rows = [
        (
            job["id"], job["user"], job["queue"], job["name"], f"{job['state']}({job['code']})",
            moment(job["submitted"], day), elapsed(job["waited_ms"]), elapsed(job["ran_ms"]), job["gpus"],
            *_accounts(job), job["attempts"], job["exit_code"],
        )
        for job in found["jobs"]
    ]  # fmt: skip
    table = render(titles, rows, width=width(), spare=("TRIES", "QUEUE", "PREEMPTED", "NAME"), least=4)
    return f"{table}\n\n{_total(found['total'])}"


def _sums_text(found: Json) -> str:
    titles = (found["by"].upper(), "JOBS", "ENDED", "WAITED", "MEAN_WAIT", "RAN", *_ACCOUNTS, "TRIES")
    rows = [
        (
            row["key"], row["jobs"], row["ended"], elapsed(row["waited_ms"]), elapsed(row["waited_ms"] // row["jobs"]),
            elapsed(row["ran_ms"]), *_accounts(row), row["attempts"],
        )
        for row in found["sums"]
    ]  # fmt: skip
    return f"{render(titles, rows, width=width())}\n\n{_total(found['total'])}"


def _accounts(row: Json) -> tuple[object, ...]:
    return _hours(row["device_ms"]), _hours(row["lost_ms"]), row["preemptions"]


def _hours(device_ms: int) -> float:
    return round(device_ms / _HOUR_MS, 2)


def _total(total: Json) -> str:
    lost = f", {_hours(total['lost_ms']):,.2f} of them lost" if total["lost_ms"] else ""
    waited = elapsed(total["waited_ms"] // total["jobs"]) if total["jobs"] else "-"
    hours = f"{_hours(total['device_ms']):,.2f} GPU-hours{lost}"
    jobs = "1 job" if total["jobs"] == 1 else f"{total['jobs']:,} jobs"
    return f"{jobs}, {total['ended']:,} ended; {hours}; mean wait {waited}"
