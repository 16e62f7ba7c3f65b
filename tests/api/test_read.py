"""Reads: views of the present and of any past moment, each with its sequence; pages and streams of the log."""

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any, Final

import aiohttp
import pytest
from api_harness import FakeOutputs, Harness

from muster.events.log import LogUnavailableError, Message
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec
from muster.events.types import JobSubmitted, NodeCordoned, WorkerRefused

AN_HOUR: Final = LimitsSpec(estimate=3600)


async def _get(http: aiohttp.ClientSession, path: str, **query: Any) -> Any:
    async with http.get(path, params=query) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def _status(http: aiohttp.ClientSession, path: str, **query: Any) -> tuple[int, dict[str, Any]]:
    async with http.get(path, params=query) as answer:
        assert answer.content_type == "application/problem+json"
        return answer.status, await answer.json(content_type=None)


async def _submit(harness: Harness, gpus: int, name: str = "job", user: str = "ada") -> int:
    spec = JobSpec(command=["true"], gpus=gpus, name=name)
    return await harness.append(JobSubmitted(user, spec), "default")


async def _busy(harness: Harness) -> tuple[int, int]:
    """One node of 8; a job of 6 that runs, a job of 4 that waits."""
    await harness.add_node("node-1")
    first, second = await _submit(harness, 6, "first"), await _submit(harness, 4, "second", "bob")
    await harness.decide()
    await harness.start(first)
    return first, second


async def test_the_queue_shows_what_runs_and_what_waits_and_why(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    queue = await _get(http, "/v1/queue")
    [running], [waiting] = queue["running"], queue["pending"]
    assert (running["id"], running["state"], running["code"], running["nodes"]) == (first, "RUNNING", "R", ["node-1"])
    assert (waiting["id"], waiting["state"], waiting["code"], waiting["nodes"]) == (second, "PENDING", "PD", [])
    assert "2 are idle" in waiting["why"]
    assert waiting["elapsed_ms"] is None


async def test_why_is_worked_out_for_those_next_in_line_and_null_behind_them(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    first, _ = await _busy(harness)
    for _ in range(25):
        await _submit(harness, 4)
    pending = (await _get(http, "/v1/queue"))["pending"]
    assert [bool(row["why"] and row["reason"]) for row in pending] == [True] * 25 + [False]
    assert (pending[25]["why"], pending[25]["reason"]) == (None, None)
    jobs = {row["id"]: row for row in (await _get(http, "/v1/jobs"))["jobs"]}
    assert (jobs[pending[0]["id"]]["why"], jobs[first]["why"], jobs[first]["reason"]) == (None, "", "")


async def test_a_node_shows_how_full_a_shared_device_is(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1", devices=2)
    shares = [GpuSpec(memory=20 * 1024, compute=0.5), GpuSpec(memory=40 * 1024, compute=0.125)]
    jobs = [
        await harness.append(JobSubmitted("ada", JobSpec(command=["true"], gpus=1, gpu=share)), "default")
        for share in shares
    ]
    await harness.decide()
    [shared, idle] = (await _get(http, "/v1/nodes/node-1"))["devices"]
    assert (shared["jobs"], shared["compute_held_milli"], shared["memory_held_mib"]) == (jobs, 625, 60_750)  # of 81,000
    assert (idle["jobs"], idle["compute_held_milli"], idle["memory_held_mib"]) == ([], 0, 0)
    assert (await _get(http, "/v1/nodes"))["nodes"][0]["devices"] == [shared, idle]


async def test_the_queue_shows_when_those_that_wait_are_expected_to_start(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    await harness.add_node("node-1")
    first = await harness.append(JobSubmitted("ada", JobSpec(command=["true"], gpus=8, limits=AN_HOUR)), "default")
    second, third = await _submit(harness, 8, "second"), await _submit(harness, 8, "third")
    await harness.decide()
    await harness.start(first)
    [running] = (await _get(http, "/v1/queue"))["running"]
    started = datetime.fromisoformat(running["started"][:26])

    [next_, last] = (await _get(http, "/v1/queue", start=1))["pending"]

    assert (next_["id"], last["id"]) == (second, third)
    expected = datetime.fromisoformat(next_["expected_start"][:26])
    assert abs(expected - started - timedelta(hours=1)) < timedelta(milliseconds=1)
    assert last["expected_start"] is None  # nobody knows how long the second will run
    assert [row["expected_start"] for row in (await _get(http, "/v1/queue"))["pending"]] == [None, None]
    then = await _get(http, "/v1/queue", start=1, at=second)
    assert [row["id"] for row in then["pending"]] == [first, second]
    assert then["pending"][0]["expected_start"] == then["time"]


async def test_what_is_to_come_counts_from_now_and_in_the_past_from_then(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.add_node("node-1")
    first = await harness.append(JobSubmitted("ada", JobSpec(command=["true"], gpus=8, limits=AN_HOUR)), "default")
    second = await _submit(harness, 8, "second")
    await harness.decide()
    await harness.start(first)
    state = harness.service.state
    before, now_ns = state.time_at, state.timestamp_ns + 600 * 10**9
    monkeypatch.setattr("muster.api.service.time.time_ns", lambda: now_ns)

    path = f"/v1/jobs/{second}/explain"
    assert (await _get(http, path))["explanation"]["expected"]["in_ms"] == 3_000_000
    assert (await _get(http, path, at=state.sequence))["explanation"]["expected"]["in_ms"] == 3_600_000
    then, now = [(await _get(http, "/v1/queue", start=1, **at)) for at in ({"at": state.sequence}, {})]
    assert then["pending"][0]["expected_start"] == now["pending"][0]["expected_start"]
    assert (then["running"][0]["elapsed_ms"], now["running"][0]["elapsed_ms"]) == (0, 600_000)
    assert state.time_at == before


async def test_the_queue_counts_all_that_wait_and_shows_a_page(harness: Harness, http: aiohttp.ClientSession) -> None:
    jobs = [await _submit(harness, 1, user=user) for user in ("ada", "bob", "ada")]
    page = await _get(http, "/v1/queue", limit=1)
    assert ([row["id"] for row in page["pending"]], page["pending_count"]) == (jobs[:1], 3)
    mine = await _get(http, "/v1/queue", limit=1, user="bob")
    assert ([row["id"] for row in mine["pending"]], mine["pending_count"]) == ([jobs[1]], 1)


async def test_a_job_shows_its_workers(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, _ = await _busy(harness)
    job = await _get(http, f"/v1/jobs/{first}")
    assert job["spec"]["gpus"] == 6
    assert job["workers"] == [
        {"rank": 0, "node": "node-1", "devices": [0, 1, 2, 3, 4, 5], "phase": "running", "pid": 4242, "exit": None}
    ]


async def test_a_read_in_the_past_shows_what_was(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    await harness.end(first, 3)
    assert (await _get(http, f"/v1/jobs/{first}"))["exit_code"] == 3
    then = await _get(http, "/v1/queue", at=second)
    assert [job["id"] for job in then["pending"]] == [first, second]
    assert then["running"] == []
    assert then["sequence"] == second
    async with http.get(f"/v1/jobs/{first}", params={"at": second}) as answer:
        assert answer.headers["Muster-Seq"] == str(second)
        assert (await answer.json())["state"] == "PENDING"
    status, problem = await _status(http, f"/v1/jobs/{second}", at=first)
    assert (status, problem["code"]) == (404, "not_found")


@pytest.mark.parametrize("at", ["0", "9999", "yesterday", "2999-01-01T00:00:00Z", "-9999d", ""])
async def test_a_moment_that_is_none_is_refused(harness: Harness, http: aiohttp.ClientSession, at: str) -> None:
    await harness.add_node("node-1")
    status, problem = await _status(http, "/v1/queue", at=at)
    assert status == 400
    assert problem["errors"][0]["pointer"] == "at"


async def test_a_time_names_the_last_entry_not_after_it(harness: Harness, http: aiohttp.ClientSession) -> None:
    await _busy(harness)
    entry = harness.log.entries[1]
    event = (await _get(http, "/v1/events", after=1, limit=1))["events"][0]
    assert event["sequence"] == str(entry.sequence) == "2"
    assert (await _get(http, "/v1/state", at=event["time"]))["sequence"] == 2


async def test_a_read_waits_for_the_entry_it_must_see(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    read = asyncio.create_task(_get(http, "/v1/jobs/2", min_seq=2))
    assert await _submit(harness, 1) == 2
    assert (await read)["id"] == 2


async def test_nodes_show_who_holds_what(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, _ = await _busy(harness)
    page = await _get(http, "/v1/nodes")
    assert [(node["name"], node["devices_held"], node["jobs"]) for node in page["nodes"]] == [("node-1", 6, [first])]
    node = await _get(http, "/v1/nodes/node-1")
    assert [device["jobs"] for device in node["devices"]] == [[first]] * 6 + [[]] * 2
    assert (await _status(http, "/v1/nodes/node-9"))[0] == 404


async def test_cordon_and_uncordon(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    async with http.post("/v1/nodes/node-1/cordon", json={"reason": "fan"}) as answer:
        assert answer.status == 200
        sequence = (await answer.json())["sequence"]
    assert (await _get(http, "/v1/nodes/node-1", min_seq=sequence))["cordoned"] == "by anonymous: fan"
    async with http.post("/v1/nodes/node-1/uncordon") as answer:
        sequence = (await answer.json())["sequence"]
    assert (await _get(http, "/v1/nodes/node-1", min_seq=sequence))["cordoned"] == ""
    async with http.post("/v1/nodes/node-9/cordon", json={}) as answer:
        assert answer.status == 404
    async with http.post("/v1/nodes/node-1/cordon", json={"why": "fan"}) as answer:
        assert answer.status == 422
        assert (await answer.json(content_type=None))["errors"][0]["pointer"] == "/why"


async def test_cancel(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    async with http.post(f"/v1/jobs/{second}/cancel", json={"reason": "typo"}) as answer:
        assert answer.status == 202
        sequence = (await answer.json())["sequence"]
    assert (await _get(http, f"/v1/jobs/{second}", min_seq=sequence))["state"] == "CANCELLED"
    async with http.post(f"/v1/jobs/{second}/cancel") as answer:
        assert (answer.status, (await answer.json())["already"]) == (200, True)
    await harness.end(first)
    async with http.post(f"/v1/jobs/{first}/cancel") as answer:
        assert answer.status == 409
    async with http.post("/v1/jobs/77/cancel") as answer:
        assert answer.status == 404


async def test_jobs_are_listed_by_filters_and_pages(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    third = await _submit(harness, 1, "third", "bob")

    async def ids(**query: Any) -> list[int]:
        return [job["id"] for job in (await _get(http, "/v1/jobs", **query))["jobs"]]

    assert await ids() == [third, second, first]
    assert await ids(user="bob") == [third, second]
    assert await ids(state="R") == [first]
    assert await ids(state="pending,running", user="ada") == [first]
    page = await _get(http, "/v1/jobs", limit=2)
    assert page["next"] == second
    assert await ids(limit=2, after=page["next"]) == [first]
    assert (await _status(http, "/v1/jobs", state="ASLEEP"))[0] == 400
    assert (await _status(http, "/v1/jobs", limit=100_000))[0] == 400


async def test_wait_answers_when_the_job_ends(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, _ = await _busy(harness)
    assert (await _get(http, f"/v1/jobs/{first}/wait", timeout=0))["ended"] is None
    waiting = asyncio.create_task(_get(http, f"/v1/jobs/{first}/wait", timeout=20))
    await harness.end(first, 7)
    job = await waiting
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)


async def test_explain_names_the_steps(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    waiting = await _get(http, f"/v1/jobs/{second}/explain")
    assert waiting["explanation"]["allocation"]["fits"] is False
    assert [line.split()[0] for line in waiting["text"] if line[0].isdigit()] == ["1", "2", "3", "4"]
    placed = await _get(http, f"/v1/jobs/{first}/explain")
    assert placed["explanation"]["environment"][0]["variables"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    before = await _get(http, f"/v1/jobs/{first}/explain", at=first)
    assert before["explanation"]["allocation"]["fits"] is True


async def test_logs_are_the_workers_output(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    assert isinstance(harness.outputs, FakeOutputs)
    assert (await _status(http, f"/v1/jobs/{first}/logs"))[0] == 503
    harness.outputs.texts[first, 1, 0] = b"hello\n"
    async with http.get(f"/v1/jobs/{first}/logs") as answer:
        assert await answer.read() == b"hello\n"
    assert (await _status(http, f"/v1/jobs/{first}/logs", rank=1))[0] == 404
    async with http.get(f"/v1/jobs/{second}/logs") as answer:
        assert await answer.read() == b""


async def test_following_logs_begins_before_the_job_does(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    job = await _submit(harness, 1)
    assert isinstance(harness.outputs, FakeOutputs)
    harness.outputs.texts[job, 1, 0] = b"done\n"
    async with http.get(f"/v1/jobs/{job}/logs", params={"follow": 1}) as answer:
        assert answer.status == 200
        await harness.decide()
        await harness.start(job)
        await harness.end(job)
        assert await answer.read() == b"done\n"


async def test_events_come_in_pages(harness: Harness, http: aiohttp.ClientSession) -> None:
    await _busy(harness)
    total = len(harness.log.entries)
    page = await _get(http, "/v1/events", after=0, limit=2)
    assert [event["sequence"] for event in page["events"]] == ["1", "2"]
    assert page["next"] == 2
    event = page["events"][0]
    assert event["specversion"] == "1.0"
    assert event["type"] == "muster.NodeRegistered.1"
    assert event["subject"] == "muster.node.node-1.node-registered"
    assert event["data"]["node"] == "node-1"
    newest = await _get(http, "/v1/events", limit=3)
    assert [int(event["sequence"]) for event in newest["events"]] == [total - 2, total - 1, total]
    assert len((await _get(http, "/v1/events", after=0, at=2))["events"]) == 2


async def test_a_jobs_events_are_those_that_name_it(harness: Harness, http: aiohttp.ClientSession) -> None:
    first, second = await _busy(harness)
    events = (await _get(http, f"/v1/jobs/{first}/events"))["events"]
    assert [event["type"].split(".")[1] for event in events] == [
        "JobSubmitted", "JobAllocated", "StartWorker", "WorkerStarted",
    ]  # fmt: skip
    assert [event["data"]["job"] for event in events[1:]] == [first] * 3
    assert len((await _get(http, f"/v1/jobs/{second}/events"))["events"]) == 1


async def test_ndjson_ends_where_the_log_does(harness: Harness, http: aiohttp.ClientSession) -> None:
    await _busy(harness)
    async with http.get("/v1/events", headers={"Accept": "application/x-ndjson"}) as answer:
        assert answer.content_type == "application/x-ndjson"
        lines = (await answer.text()).splitlines()
    assert [int(json.loads(line)["sequence"]) for line in lines] == list(range(1, len(harness.log.entries) + 1))


async def _sse(answer: aiohttp.ClientResponse, count: int) -> list[tuple[int, str, Any]]:
    found: list[tuple[int, str, Any]] = []
    while len(found) < count:
        block = (await answer.content.readuntil(b"\n\n")).decode()
        fields = dict(line.split(": ", 1) for line in block.strip().splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


async def test_server_sent_events_resume_after_the_last_one_seen(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    await harness.add_node("node-2")
    headers = {"Accept": "text/event-stream"}
    async with http.get("/v1/events", headers=headers) as answer:
        assert answer.content_type == "text/event-stream"
        assert [sequence for sequence, _, _ in await _sse(answer, 2)] == [1, 2]
        await harness.append(NodeCordoned("node-1", "ada", "fan"))
        [(sequence, kind, event)] = await _sse(answer, 1)
        assert (sequence, kind, event["data"]["reason"]) == (3, "muster.NodeCordoned.1", "fan")
    await harness.append(NodeCordoned("node-2", "ada", "fan"))
    async with http.get("/v1/events", headers=headers | {"Last-Event-ID": "2"}) as answer:
        assert [sequence for sequence, _, _ in await _sse(answer, 2)] == [3, 4]
    async with http.get("/v1/events", headers=headers | {"Last-Event-ID": "two"}) as answer:
        assert answer.status == 400


async def test_what_is_no_event_is_shown_as_such(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.log.append(Message("muster.admin.odd", b'{"type": "x\\nid: 9"}', "odd"))
    await harness.follower.wait_for(1, 10)
    [event] = (await _get(http, "/v1/events"))["events"]
    assert (event["type"], event["data"]) == ("muster.unreadable", None)


async def test_the_audit_of_a_sound_log_is_clean(harness: Harness, http: aiohttp.ClientSession) -> None:
    await _busy(harness)
    for source in ("log", "mirror"):
        view = await _get(http, "/v1/audit", source=source)
        assert view["ok"] is True
    chain = (await _get(http, "/v1/state"))["chain"]
    last = len(harness.log.entries)
    assert (await _get(http, "/v1/audit", expect=f"{last}:{chain}"))["ok"] is True
    other = await _get(http, "/v1/audit", expect=f"{last}:{'0' * 32}")
    assert (other["ok"], other["text"][-1]) == (False, "1 finding")
    assert (await _status(http, "/v1/audit", expect="nonsense"))[0] == 400


async def test_the_audit_finds_a_forged_decision(harness: Harness, http: aiohttp.ClientSession) -> None:
    await _busy(harness)
    place = next(i for i, entry in enumerate(harness.log.entries) if entry.subject.endswith(".job-allocated"))
    entry = harness.log.entries[place]
    harness.log.entries[place] = entry._replace(payload=entry.payload.replace(b'"devices":[0,', b'"devices":[7,'))
    assert (await _get(http, "/v1/audit"))["ok"] is False


async def test_a_log_that_is_away_is_told_and_reads_go_on(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.add_node("node-1")

    async def away() -> int:
        raise LogUnavailableError("away")

    monkeypatch.setattr(harness.log, "last_sequence", away)
    assert (await _status(http, "/readyz"))[0] == 503
    assert (await _status(http, "/v1/jobs/999"))[0] == 503
    assert len((await _get(http, "/v1/nodes"))["nodes"]) == 1
    async with http.get("/healthz") as answer:
        assert answer.headers["Muster-Seq"] == "1"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/queue", "/v1/events", "/v1/state", "/v1/audit", "/healthz"])
async def test_an_unknown_parameter_is_refused_with_the_known_ones(http: aiohttp.ClientSession, path: str) -> None:
    status, problem = await _status(http, path, stat="R", usr="ada")
    assert (status, problem["code"]) == (400, "unknown_parameter")
    assert [error["pointer"] for error in problem["errors"]] == ["stat", "usr"]


async def test_a_parameter_that_is_given_twice_is_refused(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/jobs?user=ada&state=R&user=bob") as answer:
        problem = await answer.json()
    assert (answer.status, problem["errors"][0]["pointer"]) == (400, "user")


async def test_an_unknown_parameter_of_a_list_of_jobs(http: aiohttp.ClientSession) -> None:
    _, problem = await _status(http, "/v1/jobs", stat="R")
    assert problem["detail"] == "known here: after, at, limit, min_seq, queue, state, user"


async def test_an_unknown_parameter_changes_nothing(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    async with http.post("/v1/jobs", json={"command": "x", "gpus": 1}, params={"wait": 1}) as answer:
        assert answer.status == 400
    async with http.post("/v1/nodes/node-1/uncordon", params={"force": 1}) as answer:
        assert answer.status == 400
    assert len(harness.log.entries) == 1


async def test_health_and_unknown_paths(http: aiohttp.ClientSession) -> None:
    assert (await _get(http, "/healthz"))["status"] == "ok"
    assert (await _get(http, "/readyz"))["status"] == "ready"
    assert (await _status(http, "/v1/nothing"))[0] == 404
    assert (await _status(http, "/v1/jobs/seven"))[0] == 404
    async with http.delete("/v1/jobs") as answer:
        assert answer.status == 405


async def test_a_job_that_all_have_refused_says_why_once(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    job = await _submit(harness, 1)
    await harness.decide()
    await harness.append(WorkerRefused("node-1", "node-1-life", 1, job, 1, 0, "no space left"))
    await harness.decide()

    [row] = (await _get(http, "/v1/queue"))["pending"]

    assert row["why"].startswith("waits since node-1 refused to start it: no space left; no other node could hold it")
    assert row["why"].count("no space left") == 1
