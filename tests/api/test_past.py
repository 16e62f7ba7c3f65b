"""What reads show of a past moment: jobs that had left the state by then, samples of then, and what they cannot."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from api_harness import DEADLINE_S, Harness

from muster.events.beats import MemoryTelemetry
from muster.events.policy import Policy, QueueSpec
from muster.events.spec import JobSpec
from muster.events.telemetry import DeviceSample, GpuSampled
from muster.events.types import ClockAdvanced, JobSubmitted, PolicyChanged, QueueConfigured

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS


async def get(http: aiohttp.ClientSession, path: str, **query: Any) -> Any:
    async with http.get(path, params=query) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def refused(http: aiohttp.ClientSession, path: str, **query: Any) -> tuple[int, str]:
    async with http.get(path, params=query) as answer:
        problem = await answer.json(content_type=None)
        return answer.status, f"{problem['title']}: {problem.get('detail', '')} {problem.get('next_step', '')}"


async def submit(harness: Harness, gpus: int) -> int:
    return await harness.append(JobSubmitted("ada", JobSpec(command=["true"], gpus=gpus)), "default")


async def hours_pass(harness: Harness) -> int:
    """Two hours of logical time, after which jobs that have ended leave the state; gives the last entry."""
    last_ns = harness.log.entries[-1].timestamp_ns
    for minutes in range(1, 121):
        harness.log._clock = lambda minutes=minutes: last_ns + minutes * MINUTE_NS  # type: ignore[misc]
        await harness.append(ClockAdvanced())
    return await mirrored(harness)


async def mirrored(harness: Harness) -> int:
    """The mirror has all entries, the last of which is given: it is written a moment after the fold."""
    async with asyncio.timeout(DEADLINE_S):
        while harness.store.position < len(harness.log.entries):  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0)
    return harness.store.position


async def test_jobs_that_had_left_the_state_are_shown_as_they_ended(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    await harness.add_node("node-1")
    first, second = await submit(harness, 8), await submit(harness, 8)
    await harness.decide()
    await harness.start(first)
    ran = len(harness.log.entries)
    await harness.end(first, 3)
    then = await hours_pass(harness)
    await harness.decide()
    await harness.start(second)
    await harness.end(second)
    third = await submit(harness, 1)
    now = await hours_pass(harness)
    live = harness.follower.fold.cluster.state.jobs
    assert list(live) == [third], "the first two have left the state"

    async def listed(at: int, **query: Any) -> list[tuple[int, str]]:
        return [(job["id"], job["state"]) for job in (await get(http, "/v1/jobs", at=at, **query))["jobs"]]

    assert await listed(ran) == [(second, "PENDING"), (first, "RUNNING")]
    assert await listed(then) == [(second, "PENDING"), (first, "FAILED")]
    assert await listed(now) == [(third, "PENDING"), (second, "COMPLETED"), (first, "FAILED")]
    assert await listed(then, state="COMPLETED") == [], "what it became later is not what it was"
    assert await listed(then, state="FAILED", limit=1) == [(first, "FAILED")]
    assert await listed(then, after=second) == [(first, "FAILED")]
    shown = await get(http, f"/v1/jobs/{first}", at=then)
    assert (shown["state"], shown["exit_code"]) == ("FAILED", 3)
    assert len((await get(http, f"/v1/jobs/{first}/events", at=then))["events"]) >= 4
    status, why = await refused(http, f"/v1/jobs/{third}", at=then)
    assert (status, f"at entry {then}" in why) == (404, True)
    status, why = await refused(http, f"/v1/jobs/{first}/explain", at=then)
    assert (status, "ended long ago" in why) == (409, True)


async def test_a_page_of_the_past_goes_on_past_jobs_that_were_in_the_state_then(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    """They have the state that is asked for only today."""
    await harness.add_node("node-1")
    old = [await submit(harness, 1) for _ in range(3)]
    await harness.decide()
    for job in old:
        await harness.start(job)
        await harness.end(job)
    await hours_pass(harness)
    new = [await submit(harness, 1) for _ in range(4)]
    then = len(harness.log.entries)
    await harness.decide()
    for job in new:
        await harness.start(job)
        await harness.end(job)
    await mirrored(harness)
    found = await get(http, "/v1/jobs", at=then, state="CD", limit=2)
    assert [job["id"] for job in found["jobs"]] == [old[2], old[1]]
    rest = await get(http, "/v1/jobs", at=then, state="CD", limit=2, after=found["next"])
    assert [job["id"] for job in rest["jobs"]] == [old[0]]


async def sampled(harness: Harness, time_ns: int, used_mib: int, incarnation: str = "node-1-life") -> None:
    """node-1's device was sampled at a time."""
    telemetry = harness.service.samples._source
    assert isinstance(telemetry, MemoryTelemetry)
    telemetry._clock = lambda: time_ns
    sample = DeviceSample(0, "GPU-node-1-0", 81_920, used_mib, sm_percent=50)
    await telemetry.sample(GpuSampled("node-1", incarnation, [sample]))


async def test_a_past_moment_shows_what_was_sampled_last_by_then(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1", devices=1)
    [entry] = harness.log.entries
    for seconds, used_mib in ((1, 100), (5, 200), (90, 300)):
        await sampled(harness, entry.timestamp_ns + seconds * SECOND_NS, used_mib)
    harness.log._clock = lambda: entry.timestamp_ns + 7 * SECOND_NS
    assert await harness.append(ClockAdvanced()) == 2
    harness.log._clock = lambda: entry.timestamp_ns + 80 * SECOND_NS
    assert await harness.append(ClockAdvanced()) == 3

    async def seen(path: str, at: int) -> tuple[Any, str]:
        page = await get(http, path, at=at)
        [node] = page.get("nodes", [page])
        sample = node["devices"][0]["sample"]
        return sample and (sample["memory_used_mib"], sample["age_ms"], sample["stale"]), page["unsampled"]

    for path in ("/v1/nodes", "/v1/nodes/node-1"):
        assert await seen(path, 2) == ((200, 2_000, False), "")
        assert await seen(path, 3) == ((None, 75_000, True), ""), "over a minute old then: nothing is known"
        gone, why = await seen(path, 1)
        assert (gone, why.partition(": ")[0]) == (None, "samples of then are no longer kept")


async def test_at_a_time_the_samples_are_those_of_that_time_and_not_of_the_last_entry(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.add_node("node-1", devices=1)
    job = await submit(harness, 1)
    await harness.decide()
    await harness.start(job)
    started_ns = harness.log.entries[-1].timestamp_ns
    for ago in (40, 20):
        await sampled(harness, started_ns - ago * SECOND_NS, ago)
    monkeypatch.setattr(time, "time_ns", lambda: started_ns + 10 * SECOND_NS)
    page = await get(http, "/v1/nodes", at="-3s")
    sample = page["nodes"][0]["devices"][0]["sample"]
    assert (sample["memory_used_mib"], sample["age_ms"]) == (20, 27_000)
    assert (await get(http, f"/v1/jobs/{job}", at="-3s"))["elapsed_ms"] == 7_000


async def test_what_has_no_past_says_why(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    job = await submit(harness, 1)
    for path, why in (("logs", "kept as a whole"), ("wait", "what is past has happened")):
        async with http.get(f"/v1/jobs/{job}/{path}", params={"at": "1"}) as answer:
            [error] = (await answer.json(content_type=None))["errors"]
            assert (answer.status, error["pointer"]) == (400, "at")
            assert why in error["detail"]


# -- diff -----------------------------------------------------------------------------------------------------------


async def test_a_diff_tells_what_became_of_everything(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    first, waits = await submit(harness, 8), await submit(harness, 8)
    before = len(harness.log.entries)
    await harness.decide()
    await harness.start(first)
    await harness.append(QueueConfigured(QueueSpec("research", weight=2), "ada"))
    await harness.append(PolicyChanged(Policy(order="fifo"), "ada"))
    found = await get(http, "/v1/diff", **{"from": before})
    assert (found["before"]["sequence"], found["after"]["sequence"]) == (before, len(harness.log.entries))
    assert found["what"] == {"started": 1}
    [job] = found["jobs"]
    assert (job["id"], job["before"]["state"], job["after"]["state"]) == (first, "PENDING", "RUNNING")
    assert job["after"]["place"] == [{"node": "node-1", "devices": list(range(8))}]
    [devices] = found["devices"]
    assert (devices["devices"], devices["before"]["jobs"], devices["after"]["jobs"]) == (list(range(8)), [], [first])
    default, research = found["queues"]
    assert (default["name"], default["before"]["pending"], default["after"]["pending"]) == ("default", 2, 1)
    assert (default["before"]["devices_held_milli"], default["after"]["devices_held_milli"]) == (0, 8000)
    assert (research["name"], research["before"]) == ("research", None)
    assert found["policy"] == [{"field": "order", "before": "priority", "after": "fifo"}]
    assert waits not in [each["id"] for each in found["jobs"]]
    back = await get(http, "/v1/diff", **{"from": "now", "to": before})
    assert (back["swapped"], back["before"], back["jobs"]) == (True, found["before"], found["jobs"])
    nothing = await get(http, "/v1/diff", **{"from": before, "to": before})
    assert [nothing[kind] for kind in ("jobs", "nodes", "devices", "queues", "policy")] == [[]] * 5


async def test_a_diff_counts_those_that_came_and_left_in_between(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    waited = await submit(harness, 8)
    before = len(harness.log.entries)
    await harness.decide()
    await harness.start(waited)
    await harness.end(waited)
    passing = [await submit(harness, 1) for _ in range(3)]
    await harness.decide()
    for job in passing:
        await harness.start(job)
        await harness.end(job, 1)
    last = await submit(harness, 16)
    await hours_pass(harness)
    found = await get(http, "/v1/diff", **{"from": before, "limit": 2})
    assert found["what"] == {"came": 4, "ended": 4, "started": 4}
    assert found["ended"] == {"COMPLETED": 1, "FAILED": 3}
    assert (found["jobs_changed"], [job["id"] for job in found["jobs"]]) == (5, [last, passing[2]])
    assert found["jobs"][1]["before"] is None
    every = await get(http, "/v1/diff", **{"from": before})
    assert [job["id"] for job in every["jobs"]] == [last, *reversed(passing), waited]


# -- ranges ---------------------------------------------------------------------------------------------------------


async def minutes_apart(harness: Harness) -> None:
    """Entries 1 and 2 in the second 22:20:00, 3 to 5 in 22:21:00, and 6 in 22:23:00."""
    begun_ns = 1_700_000_400 * SECOND_NS  # 2023-11-14 22:20:00
    for offset_ns in (100, 200, 60 * SECOND_NS + 5, 60 * SECOND_NS + 6, 61 * SECOND_NS - 1, 180 * SECOND_NS):
        harness.log._clock = lambda now_ns=begun_ns + offset_ns: now_ns  # type: ignore[misc]
        await harness.append(ClockAdvanced())
    await mirrored(harness)


@pytest.mark.parametrize(
    ("begin", "end", "told"),
    [
        (":20:00", None, [1, 2, 3, 4, 5, 6]),
        (":21:00", None, [3, 4, 5, 6]),
        (":21:00", ":21:00", [3, 4, 5]),
        (":20:30", ":21:00", [3, 4, 5]),
        (":20:01", ":20:59", []),
        (":21:01", ":22:59", []),
        (":21:01", None, [6]),
        (":20:00", ":20:00", [1, 2]),
        (":00:00", ":20:00", [1, 2]),
        (":00:00", ":10:00", []),
        (":23:01", None, []),
        ("4", ":21:00", [4, 5]),
        (":20:00", "2", [1, 2]),
    ],
)
async def test_a_range_of_times_has_the_entries_that_a_list_shows_at_them(
    harness: Harness, http: aiohttp.ClientSession, begin: str, end: str | None, told: list[int]
) -> None:
    await minutes_apart(harness)

    def at(text: str) -> str:
        return f"2023-11-14 22{text}" if text.startswith(":") else text

    window = {"from": at(begin)} | ({"to": at(end)} if end else {})
    async with http.get("/v1/replay", params={**window, "all": "1"}) as answer:
        assert (answer.status, [int(json.loads(line)["sequence"]) async for line in answer.content]) == (200, told)
    async with http.get("/v1/export", params=window) as answer:
        lines = (await answer.text()).splitlines()
    if told:
        header = json.loads(lines[0])
        assert (header["first"], header["last"], len(lines) - 1) == (told[0], told[-1], len(told))
    else:
        happened = f"happened between {at(begin)} and" if end else f"nothing has happened since {at(begin)}"
        assert (answer.status, happened in lines[0]) == (400, True)


async def test_history_since_a_second_has_the_jobs_that_a_list_shows_at_it(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    noon_ns = 1_700_049_600 * SECOND_NS  # 2023-11-15 12:00:00
    for offset_ns in (SECOND_NS // 2, SECOND_NS - 1, SECOND_NS):
        harness.log._clock = lambda now_ns=noon_ns + offset_ns: now_ns  # type: ignore[misc]
        await submit(harness, 1)

    async def listed(**query: str) -> list[int]:
        return [job["id"] for job in (await get(http, "/v1/history", **query))["jobs"]]

    assert await listed(since="2023-11-15 12:00:00") == [3, 2, 1]
    assert await listed(since="2023-11-15 12:00:00", until="2023-11-15 12:00:00") == [2, 1]
    assert await listed(since="2023-11-15 12:00:01") == [3]
    assert await listed(since="2023-11-15 12:00:00.6", until="2023-11-15T12:00:01Z") == [3, 2]


async def test_a_diff_that_begins_before_the_log_begins_with_nothing(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    await harness.add_node("node-1")
    found = await get(http, "/v1/diff", **{"from": "-2h"})
    assert (found["before"]["sequence"], found["after"]["sequence"]) == (0, 1)
    assert [(node["node"], node["before"]) for node in found["nodes"]] == [("node-1", None)]


@pytest.mark.parametrize(
    ("query", "name"), [({}, "from"), ({"from": "tomorrow"}, "from"), ({"from": "1", "to": "0"}, "to")]
)
async def test_a_diff_of_no_moments_says_which(
    harness: Harness, http: aiohttp.ClientSession, query: dict[str, str], name: str
) -> None:
    await harness.add_node("node-1")
    async with http.get("/v1/diff", params=query) as answer:
        assert answer.status == 400
        assert (await answer.json(content_type=None))["errors"][0]["pointer"] == name
