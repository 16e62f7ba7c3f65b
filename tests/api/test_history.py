"""History with accounts: jobs of all times, in the state or long gone from it, and the sums worked out by hand."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_harness import Background, Harness, background, serving, session_of
from click.testing import CliRunner, Result
from cluster_script import SECOND

from muster.api.cli import main
from muster.events import types as t
from muster.events.spec import JobSpec, RetrySpec

NOON_NS = 1_790_000_000 // 86_400 * 86_400 * SECOND + 12 * 3600 * SECOND
HOUR_MS = 3_600_000


class Story:
    """Jobs of known lengths, by the log's clock, on one node of 8 devices from noon of one day to the next."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.at(0)

    def at(self, hours: float) -> None:
        now_ns = NOON_NS + round(hours * 3600) * SECOND
        self.harness.log._clock = lambda: now_ns

    async def submit(self, user: str, gpus: int, **fields: Any) -> int:
        spec = JobSpec(command="true", gpus=gpus, **fields)
        return await self.harness.append(t.JobSubmitted(user, spec), "default")

    async def tell(self) -> list[int]:
        """`long` of ada runs 4 h on 8 devices; `late` of bob waits 4 h for that, fails after 1 h on 2 devices, runs
        again for 2 h and completes; `gone` of ada waits an hour and is cancelled; `last` of bob runs from hour 7 on."""
        harness = self.harness
        await harness.add_node("node-1")
        long = await self.submit("ada", 8, name="long")
        await harness.decide()
        await harness.start(long)
        late = await self.submit("bob", 2, name="late", retry=RetrySpec(max_attempts=2, on=["failed"]))
        gone = await self.submit("ada", 8, name="gone")
        self.at(1)
        await harness.append(t.JobCancelRequested(gone, "ada"))
        self.at(4)
        await harness.end(long)
        await harness.decide()
        await harness.start(late)
        self.at(5)
        await harness.end(late, 1)
        await harness.decide()  # it waits again
        await harness.decide()  # and is placed
        await self._second(late, started=True)
        self.at(7)
        await self._second(late, started=False)
        last = await self.submit("bob", 4, name="last")
        await harness.decide()
        await harness.start(last)
        return [long, late, gone, last]

    async def _second(self, job: int, *, started: bool) -> None:
        attempt = self.harness.follower.fold.cluster.state.jobs[job].attempt
        assert attempt is not None
        worker = attempt.workers[0]
        who = (worker.node, worker.incarnation, job, 2, 0)
        status = t.ExitStatus("exited", 0)
        await self.harness.append(t.WorkerStarted(*who, 1) if started else t.WorkerExited(*who, status))

    async def forget(self) -> None:
        """Two logical hours go by, after which what has ended is in the state no more."""
        for minute in range(130):
            self.at(7 + minute / 60)
            await self.harness.append(t.ClockAdvanced())


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[tuple[Story, aiohttp.ClientSession, list[int]]]:
    async with serving(tmp_path) as harness, session_of(harness) as http:
        told = Story(harness)
        yield told, http, await told.tell()


async def read(http: aiohttp.ClientSession, **parameters: Any) -> dict[str, Any]:
    async with http.get("/v1/history", params=parameters) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 200, found
        return found


def hours(row: dict[str, Any]) -> tuple[float, ...]:
    """Hours waited and run, device hours, device hours lost, preemptions, attempts."""
    times = (row[name] / HOUR_MS for name in ("waited_ms", "ran_ms", "device_ms", "lost_ms"))
    return (*times, row["preemptions"], row["attempts"])


EXPECTED = {
    "long": (0, 4, 32, 0, 0, 1),
    "late": (4, 3, 6, 2, 0, 2),
    "gone": (1, 0, 0, 0, 0, 0),
    "last": (0, 0, 0, 0, 0, 1),
}


@pytest.mark.parametrize("forgotten", [False, True])
async def test_the_accounts_are_those_worked_out_by_hand(
    story: tuple[Story, aiohttp.ClientSession, list[int]],
    forgotten: bool,  # noqa: FBT001
) -> None:
    told, http, [long, late, gone, last] = story
    end = len(told.harness.log.entries)
    if forgotten:
        await told.forget()
        held = told.harness.follower.fold.cluster.state.jobs
        assert list(held) == [last], "the others have left the state"
    found = await read(http, at=end)
    assert {job["name"]: hours(job) for job in found["jobs"]} == EXPECTED
    assert [job["id"] for job in found["jobs"]] == [last, gone, late, long]
    assert [job["state"] for job in found["jobs"]] == ["RUNNING", "CANCELLED", "COMPLETED", "COMPLETED"]
    assert (found["total"]["jobs"], found["total"]["ended"], *hours(found["total"])) == (4, 3, 5, 7, 38, 2, 0, 4)
    sums = {by: (await read(http, at=end, by=by))["sums"] for by in ("user", "queue", "state", "day")}
    assert {row["key"]: (row["jobs"], row["ended"], *hours(row)) for row in sums["user"]} == {
        "ada": (2, 2, 1, 4, 32, 0, 0, 1),
        "bob": (2, 1, 4, 3, 6, 2, 0, 3),
    }
    assert {row["key"]: row["jobs"] for row in sums["state"]} == {"CANCELLED": 1, "COMPLETED": 2, "RUNNING": 1}
    assert {row["key"]: row["jobs"] for row in sums["queue"]} == {"default": 4}
    assert len(sums["day"]) == 1


async def test_a_past_moment_has_the_accounts_of_then(story: tuple[Story, aiohttp.ClientSession, list[int]]) -> None:
    told, http, [long, late, gone, _] = story
    await told.forget()
    cancelled = next(
        entry.sequence for entry in told.harness.log.entries if entry.subject.endswith("job-cancel-requested")
    )
    found = await read(http, at=cancelled)  # an hour after the beginning
    assert {job["id"]: hours(job)[:3] for job in found["jobs"]} == {
        gone: (1, 0, 0),
        late: (1, 0, 0),
        long: (0, 1, 8),
    }
    assert hours(found["total"])[:3] == (2, 1, 8)


async def test_what_goes_on_counts_until_the_moment(story: tuple[Story, aiohttp.ClientSession, list[int]]) -> None:
    told, http, [*_, last] = story
    told.at(9)
    await told.harness.append(t.ClockAdvanced())
    end = len(told.harness.log.entries)
    [row] = (await read(http, at=end, state="R"))["jobs"]
    assert (row["id"], *hours(row)) == (last, 0, 2, 8, 0, 0, 1)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"user": "bob"}, ["last", "late"]),
        ({"state": "cd"}, ["late", "long"]),
        ({"state": "CA,R"}, ["last", "gone"]),
        ({"name": "la"}, ["last", "late"]),
        ({"queue": "default", "user": "ada"}, ["gone", "long"]),
        ({"user": "bob,ada"}, ["last", "gone", "late", "long"]),
        ({"user": "nobody"}, []),
        ({"limit": 2}, ["last", "gone"]),
        ({"since": 7}, ["last"]),
        ({"until": 7}, ["gone", "late", "long"]),
        ({"ended": 1, "since": 4}, ["late", "long"]),
        ({"ended": 1, "until": 3}, ["gone"]),
        ({"ended": 1}, ["gone", "late", "long"]),
    ],
)
async def test_filters(
    story: tuple[Story, aiohttp.ClientSession, list[int]],
    parameters: dict[str, Any],
    names: list[str],
    forgotten: bool,  # noqa: FBT001
) -> None:
    told, http, _ = story
    end = len(told.harness.log.entries)
    if forgotten:
        await told.forget()
    for name in ("since", "until"):
        if name in parameters:  # hours after noon; `until` just before
            seconds = NOON_NS // SECOND + parameters[name] * 3600 - (name == "until")
            parameters = {**parameters, name: _rfc3339(seconds)}
    found = await read(http, at=end, **parameters)
    assert [job["name"] for job in found["jobs"]] == names
    if "limit" not in parameters:
        assert found["total"]["jobs"] == len(names)


def _rfc3339(seconds: int) -> str:
    from muster.api.times import rfc3339  # noqa: PLC0415

    return rfc3339(seconds * SECOND)


async def test_jobs_by_their_ids(story: tuple[Story, aiohttp.ClientSession, list[int]]) -> None:
    told, http, [long, late, gone, last] = story
    await told.forget()
    found = await read(http, jobs=f"{long},{last}")
    assert [job["id"] for job in found["jobs"]] == [last, long]
    assert found["total"]["jobs"] == 2
    assert [row["key"] for row in (await read(http, jobs=f"{long}, {late}", by="user"))["sums"]] == ["ada", "bob"]
    for at in ("", f"{gone}"):  # the last one had not come by then
        parameters = {"jobs": f"{long},{gone},{last + 1 if not at else last}", **({"at": at} if at else {})}
        async with http.get("/v1/history", params=parameters) as answer:
            assert (answer.status, (await answer.json())["title"]) == (404, f"no job {last + 1 if not at else last}")


async def test_a_queue_that_never_was_is_not_found(story: tuple[Story, aiohttp.ClientSession, list[int]]) -> None:
    _, http, _ = story
    for path in ("/v1/history", "/v1/jobs", "/v1/queue"):
        async with http.get(path, params={"queue": "default,nope"}) as answer:
            problem = await answer.json()
        assert (answer.status, problem["title"], problem["detail"]) == (404, "no queue nope", "there are default"), path


async def test_pages_go_on_where_the_last_one_ended(story: tuple[Story, aiohttp.ClientSession, list[int]]) -> None:
    told, http, jobs = story
    await told.forget()
    seen: list[int] = []
    after = 0
    while True:
        page = await read(http, limit=1, after=after)
        seen += [job["id"] for job in page["jobs"]]
        assert page["total"]["jobs"] == 4
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == sorted(jobs, reverse=True)


async def test_days_are_those_of_the_submission_or_of_the_end(
    story: tuple[Story, aiohttp.ClientSession, list[int]],
) -> None:
    told, http, [*_, last] = story
    await told.forget()
    told.at(13)
    await told.harness.end(last)
    day = _rfc3339(NOON_NS // SECOND)[:10]
    next_day = _rfc3339(NOON_NS // SECOND + 86_400)[:10]
    assert {row["key"]: row["jobs"] for row in (await read(http, by="day"))["sums"]} == {day: 4}
    assert {row["key"]: row["jobs"] for row in (await read(http, by="day", ended=1))["sums"]} == {day: 3, next_day: 1}


async def test_weeks_and_months_are_sums_of_days(story: tuple[Story, aiohttp.ClientSession, list[int]]) -> None:
    told, http, [*_, last] = story  # it began on Monday, 2026-09-21
    await told.forget()
    told.at(10 * 24)
    await told.harness.end(last)
    ends = {by: (await read(http, by=by, ended=1))["sums"] for by in ("day", "week", "month")}
    assert {row["key"]: row["jobs"] for row in ends["day"]} == {"2026-09-21": 3, "2026-10-01": 1}
    assert {row["key"]: (row["jobs"], row["ended"], row["device_ms"] // HOUR_MS) for row in ends["week"]} == {
        "2026-W39": (3, 3, 38),
        "2026-W40": (1, 1, 4 * 233),
    }
    assert {row["key"]: row["jobs"] for row in ends["month"]} == {"2026-09": 3, "2026-10": 1}


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [({"jobs": "2,x"}, "jobs"), ({"jobs": "0"}, "jobs"),
     ({"by": "colour"}, "by"), ({"since": "rubbish"}, "since"), ({"until": 10**9}, "until"), ({"state": "XX"}, "state"),
     ({"ended": "maybe"}, "ended"), ({"limit": 0}, "limit"),
     ({"since": "2026-01-02", "until": "2026-01-01"}, "until")],
)  # fmt: skip
async def test_what_is_wrong_is_named(
    harness: Harness, http: aiohttp.ClientSession, parameters: Any, pointer: str
) -> None:
    async with http.get("/v1/history", params=parameters) as answer:
        problem = await answer.json()
    assert (answer.status, problem["errors"][0]["pointer"]) == (400, pointer)


def test_the_command_line(tmp_path: Path) -> None:
    with background(tmp_path) as server:
        server.do(lambda harness: Story(harness).tell())
        call = _caller(server)
        table = call("history", "-u", "bob").output.splitlines()
        assert table[0].split() == [
            "JOBID", "USER", "QUEUE", "NAME", "STATE", "SUBMITTED", "WAITED", "RAN", "GPUS", "GPU_HOURS", "LOST_HOURS",
            "PREEMPTED", "TRIES", "EXIT",
        ]  # fmt: skip
        late = table[2].split()
        assert (late[3], late[4], late[-8:-5]) == ("late", "COMPLETED(CD)", ["04:00:00", "03:00:00", "2"])
        assert list(map(float, late[-5:])) == [6, 2, 0, 2, 0]
        sums = call("history", "--by", "user").output.splitlines()
        assert sums[0].split()[:4] == ["USER", "JOBS", "ENDED", "WAITED"]
        ada = sums[1].split()
        assert ada[:6] == ["ada", "2", "2", "01:00:00", "30:00", "04:00:00"]
        assert list(map(float, ada[6:])) == [32, 0, 0, 1]
        one = call("history", table[2].split()[0]).output.splitlines()
        assert (len(one), one[1].split()[3]) == (4, "late")
        assert one[3] == "1 job, 1 ended; 6.00 GPU-hours, 2.00 of them lost; mean wait 04:00:00"
        assert call("history", "-u", "ada,bob").output == call("history", "-u", "ada", "-u", "bob").output
        assert call("history", "-u", "ada,bob").output == call("history").output
        page = call("history", "--limit", "1", "--ended")
        assert page.stderr.startswith("more: muster history --ended --limit=1 --after=")
        sequence = json.loads(call("history", "--json", "--at", "now").output)["sequence"]
        assert f" --at={sequence} " in f"{call('history', '--limit', '1', '--at', 'now').stderr.strip()} "
        assert json.loads(call("history", "--json", "--by", "state").output)["by"] == "state"


def _caller(server: Background) -> Callable[..., Result]:
    def call(*words: str) -> Result:
        env = {"MUSTER_SERVER": server.harness.url, "COLUMNS": None}
        result = CliRunner().invoke(main, list(words), env=env, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    return call
