"""Submissions: what is accepted, what is refused and how, and that a refusal appends nothing."""

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest
from api_harness import Harness, serving, session_of

from muster.events.codec import decode
from muster.events.types import JobSubmitted

JOB: dict[str, Any] = {"command": ["true"], "gpus": 1}


async def _problem(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    assert answer.content_type == "application/problem+json"
    body: dict[str, Any] = await answer.json(content_type=None)
    assert body["status"] == answer.status
    assert body["title"]
    return body


async def test_a_job_is_accepted_with_its_place_in_the_log(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    async with http.post("/v1/jobs", json=JOB | {"name": "first"}, headers={"Muster-User": "ada"}) as answer:
        assert answer.status == 201
        assert await answer.json() == {"sequence": 2, "id": 2, "already": False}
        assert answer.headers["Location"] == "/v1/jobs/2"
        assert answer.headers["Muster-Seq"] == "2"
    entry = harness.log.entries[1]
    assert entry.subject == "muster.submission.default"
    event = decode(entry.payload)
    assert isinstance(event, JobSubmitted)
    assert (event.user, event.spec.name, event.spec.gpus) == ("ada", "first", 1)


async def test_toml_is_taken_like_json(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    body = 'command = "echo hi"\ngpus = 2\n[gpu]\nmemory = "40GiB"\n'
    async with http.post("/v1/jobs", data=body, headers={"Content-Type": "application/toml"}) as answer:
        assert answer.status == 201
    event = decode(harness.log.entries[-1].payload)
    assert isinstance(event, JobSubmitted)
    assert event.spec.gpu.memory == 40 * 1024


async def test_dots_in_text_are_no_long_key_and_toml_has_a_limit(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    dots = ".x" * 50
    body = f'gpus = 1\nlabels.\'a{dots}\' = \'1\'\ncommand = """a{dots} # a{dots}\n""" # a{dots}\n'
    for text, status in ((body, 201), (body + "#" * 262_144, 413)):
        async with http.post("/v1/jobs", data=text, headers={"Content-Type": "application/toml"}) as answer:
            assert answer.status == status


@pytest.mark.parametrize(
    ("body", "pointer", "word"),
    [
        (JOB | {"gpu_count": 2}, "/gpu_count", "unknown field"),
        (JOB | {"env": {"A\n": "1"}}, "/env", "a variable's name is letters, digits and _"),
        (JOB | {"gpu": {"memroy": 1}}, "/gpu/memroy", "unknown field"),
        (JOB | {"gpus": -1}, "/gpus", "0"),
        ({"command": ["true"]}, "/gpus", "neither"),
        ({"command": ["true"], "gpus": 0, "cpus": 0}, "/gpus", "neither"),
        ({"gpus": 1}, "/command", "required"),
        (JOB | {"gpus": 17}, "/gpus", "16"),
        (JOB | {"gpus": 9, "nodes": 1}, "/gpus", "8"),
        (JOB | {"gpu": {"memory": "96GiB"}}, "/gpu/memory", "80 GiB"),
        (JOB | {"memory": "2TiB"}, "/memory", "1024 GiB"),
        (JOB | {"gpu": {"model": ["H800"]}}, "/gpu/model", "A100-80GB"),
        (JOB | {"name": "x" * 200}, "/name", "128"),
        (JOB | {"queue": "nowhere"}, "/queue", "nowhere"),
        (JOB | {"memory": "lots"}, "/memory", "lots"),
        ([1, 2], "", ""),
    ],
)
async def test_a_wrong_field_is_pointed_at(
    harness: Harness, http: aiohttp.ClientSession, body: Any, pointer: str, word: str
) -> None:
    await harness.add_node("node-1", fabric="ib")
    await harness.add_node("node-2", fabric="ib")
    async with http.post("/v1/jobs", json=body) as answer:
        assert answer.status == 422
        problem = await _problem(answer)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert word in problem["errors"][0]["detail"]
    assert problem["next_step"]
    assert len(harness.log.entries) == 2


async def test_what_no_node_could_ever_hold_may_wait_for_capacity(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    await harness.add_node("node-1")
    async with http.post("/v1/jobs", json=JOB | {"gpus": 64}) as answer:
        assert answer.status == 422
        assert (await _problem(answer))["code"] == "never_fits"
    async with http.post("/v1/jobs", params={"wait_for_capacity": 1}, json=JOB | {"gpus": 64}) as answer:
        assert answer.status == 201


@pytest.mark.parametrize(
    ("body", "content_type", "place"),
    [
        (b'{"command": ["true"],\n "gpus": }', "application/json", "line 2, column 10"),
        (b"{", "application/json", "line 1, column 2"),
        (b'command = "true"\ngpus = = 1\n', "application/toml", "line 2, column 8"),
        (b"\xff\xfe", "application/toml", "utf-8"),
        (b" . ".join([b"a", b'"b"'] * 10_000) + b" = 1", "application/toml", "more than 16 parts"),
        (b'command = "' + b'\\"' * 100_000, "application/toml", "Unterminated string"),
        (b'{"a": "\xff"}', "application/json", "utf-8"),
        (b"[" * 100_000, "application/json", ""),
        (b"", "application/json", "line 1, column 1"),
    ],
)
async def test_a_broken_body_is_told_with_its_place(
    harness: Harness, http: aiohttp.ClientSession, body: bytes, content_type: str, place: str
) -> None:
    async with http.post("/v1/jobs", data=body, headers={"Content-Type": content_type}) as answer:
        assert answer.status == 400
        problem = await _problem(answer)
    assert place in problem["detail"]
    assert harness.log.entries == []


async def test_a_name_of_ten_megabytes_is_too_large(harness: Harness, http: aiohttp.ClientSession) -> None:
    body = io.BytesIO(json.dumps(JOB | {"name": "x" * 10_000_000}).encode())
    async with http.post("/v1/jobs", data=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 413
        await _problem(answer)
    assert harness.log.entries == []


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
async def test_another_content_type_is_refused(
    harness: Harness, http: aiohttp.ClientSession, content_type: str
) -> None:
    async with http.post("/v1/jobs", data=b"{}", headers={"Content-Type": content_type}) as answer:
        assert answer.status == 415
        assert "application/toml" in (await _problem(answer))["next_step"]
    assert harness.log.entries == []


@pytest.mark.parametrize("host", ["muster.example.org", "127.0.0.1.evil.example", "10.0.0.1:7077", "[::2]:80", "a b"])
async def test_another_host_is_refused(harness: Harness, http: aiohttp.ClientSession, host: str) -> None:
    async with http.post("/v1/jobs", json=JOB, headers={"Host": host}) as answer:
        assert answer.status == 421
        await _problem(answer)
    assert harness.log.entries == []


@pytest.mark.parametrize("host", ["localhost", "localhost:7077", "127.0.0.1", "[::1]:7077"])
async def test_loopback_names_are_answered(http: aiohttp.ClientSession, host: str) -> None:
    async with http.get("/healthz", headers={"Host": host}) as answer:
        assert answer.status == 200


async def test_a_page_of_another_site_is_refused(harness: Harness, http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/state", headers={"Sec-Fetch-Site": "cross-site"}) as answer:
        assert answer.status == 403
    async with http.post("/v1/jobs", json=JOB, headers={"Origin": "https://evil.example"}) as answer:
        assert answer.status == 403
        await _problem(answer)
    assert harness.log.entries == []


async def test_the_same_key_makes_one_job(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    headers = {"Idempotency-Key": "k1", "Muster-User": "ada"}
    ids = []
    for status in (201, 200, 200):
        async with http.post("/v1/jobs", json=JOB, headers=headers) as answer:
            assert answer.status == status
            ids.append((await answer.json())["id"])
    assert ids == [2, 2, 2]
    async with http.post("/v1/jobs", json=JOB | {"gpus": 2}, headers=headers) as answer:
        assert answer.status == 422
        problem = await _problem(answer)
        assert problem["code"] == "key_reused"
        assert problem["errors"][0]["pointer"] == "Idempotency-Key"
        assert "job 2" in problem["detail"]
    assert len(harness.log.entries) == 2
    async with http.post("/v1/jobs", json=JOB, headers=headers | {"Muster-User": "bob"}) as answer:
        assert answer.status == 201


async def test_a_key_counts_also_where_the_log_has_forgotten_it(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    headers = {"Idempotency-Key": "k1"}
    async with http.post("/v1/jobs", json=JOB, headers=headers) as answer:
        assert answer.status == 201
    await harness.follower.wait_for(2, 5)
    harness.log._sequence_of.clear()
    async with http.post("/v1/jobs", json=JOB, headers=headers) as answer:
        assert (answer.status, (await answer.json())["id"]) == (200, 2)
    async with http.post("/v1/jobs", json=JOB | {"gpus": 3}, headers=headers) as answer:
        assert answer.status == 422
    assert len(harness.log.entries) == 2


async def test_the_same_key_at_the_same_time_makes_one_job(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")

    async def submit(gpus: int) -> tuple[int, int | None]:
        async with http.post("/v1/jobs", json=JOB | {"gpus": gpus}, headers={"Idempotency-Key": "k"}) as answer:
            return answer.status, (await answer.json(content_type=None)).get("id")

    answers = await asyncio.gather(*(submit(1) for _ in range(20)), submit(2))
    statuses = sorted(status for status, _ in answers)
    jobs = [
        event for event in (decode(entry.payload) for entry in harness.log.entries) if isinstance(event, JobSubmitted)
    ]
    assert len(jobs) == 1
    assert statuses.count(201) == 1
    assert 422 in statuses


async def test_many_at_once_are_all_answered_with_their_own_job(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")

    async def submit(number: int) -> int:
        async with http.post("/v1/jobs", json=JOB | {"name": f"job-{number}"}) as answer:
            assert answer.status == 201
            return int((await answer.json())["id"])

    ids = await asyncio.gather(*(submit(number) for number in range(200)))
    assert sorted(ids) == list(range(2, 202))
    for number, job in enumerate(ids):
        event = decode(harness.log.entries[job - 1].payload)
        assert isinstance(event, JobSubmitted)
        assert event.spec.name == f"job-{number}"


async def test_a_nearly_full_log_takes_no_more_jobs_and_still_takes_reports(tmp_path: Any) -> None:
    async with serving(tmp_path, limit_bytes=20_000) as harness, session_of(harness) as http:
        await harness.add_node("node-1")
        accepted = 0
        while True:
            harness.service.submitter._checked_s = float("-inf")
            async with http.post("/v1/jobs", json=JOB) as answer:
                if answer.status != 201:
                    break
                accepted += 1
        assert accepted > 10
        assert answer.status == 507
        before = len(harness.log.entries)
        async with http.post("/v1/jobs/2/cancel") as answer:
            assert answer.status == 202
        assert len(harness.log.entries) == before + 1
