"""Queues and policy over HTTP: made, changed, shown and removed; whatever cannot be is refused with its field."""

import io
from typing import Any

import aiohttp
import pytest
from api_harness import Harness

from muster.events import types as t
from muster.events.log import LogUnavailableError, Message
from muster.events.policy import Policy, QueueSpec
from muster.events.spec import GpuSpec, JobSpec

RESEARCH = {"name": "research", "guarantee": "60%", "limit": "75%", "weight": 3}
VISION = {"name": "research/vision", "order": "fair", "priority": "P1"}


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
    async with http.request(method, path, json=body, params=query, headers={"Muster-User": "ada"}) as answer:
        return answer.status, await answer.json(content_type=None)


async def good(http: aiohttp.ClientSession, method: str, path: str, body: Any = None, **query: Any) -> Any:
    status, answer = await ask(http, method, path, body, **query)
    assert status == 200, answer
    return answer


async def pointers(http: aiohttp.ClientSession, method: str, path: str, body: Any, status: int = 422) -> dict[str, str]:
    found, problem = await ask(http, method, path, body)
    assert found == status, problem
    assert problem["title"]
    return {error["pointer"]: error["detail"] for error in problem["errors"]}


async def submit(harness: Harness, queue: str, gpus: int = 1, **fields: Any) -> int:
    spec = JobSpec(command=["true"], queue=queue, gpus=gpus, **fields)
    return await harness.append(t.JobSubmitted("ada", spec), queue.rpartition("/")[2])


def changes(answer: Any) -> dict[str, list[str]]:
    return {word: answer[word] for word in ("made", "changed", "unchanged", "removed") if answer[word]}


async def test_a_cluster_that_nobody_configured_has_one_queue(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    [row] = (await good(http, "GET", "/v1/queues"))["queues"]
    assert (row["name"], row["weight"], row["guarantee"], row["limit"], row["order"]) == (
        "default", 1, None, None, "priority",
    )  # fmt: skip
    assert (row["running"], row["pending"], row["devices_held_milli"], row["share_ppm"]) == (0, 0, 0, 0)
    assert row["takes_jobs"]


async def test_queues_are_made_changed_and_left_alone(harness: Harness, http: aiohttp.ClientSession) -> None:
    first = await good(http, "PUT", "/v1/queues", {"queues": [VISION, RESEARCH]})
    assert changes(first) == {"made": ["research", "research/vision"]}
    assert harness.service.state.queues == {
        "research": QueueSpec("research", guarantee="60%", limit="75%", weight=3),
        "research/vision": QueueSpec("research/vision", order="fair", priority=600),
    }

    again = await good(http, "PUT", "/v1/queues", {"queues": [VISION, RESEARCH]})
    assert changes(again) == {"unchanged": ["research", "research/vision"]}
    assert (again["sequence"], len(harness.log.entries)) == (first["sequence"], 2)

    third = await good(http, "PUT", "/v1/queues", {"queues": [{**RESEARCH, "weight": 4}, {"name": "default"}]})
    assert changes(third) == {"changed": ["research"], "unchanged": ["default"]}
    assert len(harness.log.entries) == 3
    assert [entry.subject for entry in harness.log.entries] == ["muster.admin.queue-configured"] * 3


async def test_one_queue_by_its_path(harness: Harness, http: aiohttp.ClientSession) -> None:
    assert changes(await good(http, "PUT", "/v1/queues/a", {"weight": 2})) == {"made": ["a"]}
    assert changes(await good(http, "PUT", "/v1/queues/a/b", {"name": "a/b"})) == {"made": ["a/b"]}
    assert changes(await good(http, "PUT", "/v1/queues/a%2Fb", {})) == {"unchanged": ["a/b"]}
    row = await good(http, "GET", "/v1/queues/a/b")
    assert (row["name"], row["takes_jobs"], row["sequence"]) == ("a/b", True, 2)
    assert not (await good(http, "GET", "/v1/queues/a"))["takes_jobs"]
    assert (await good(http, "GET", "/v1/queues/a", at="1"))["takes_jobs"]
    assert (await ask(http, "GET", "/v1/queues/nobody"))[0] == 404


async def test_a_guarantee_above_what_the_cluster_has_now_is_a_warning(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    wanted = {"queues": [{"name": "a", "guarantee": 5}]}
    assert (await good(http, "PUT", "/v1/queues", wanted, dry_run="true"))["warnings"] == []  # there is no node yet
    await harness.add_node("node-1", devices=4)
    answer = await good(http, "PUT", "/v1/queues", wanted)
    assert (answer["made"], answer["warnings"]) == (
        ["a"],
        ["queue a is guaranteed 5 devices; the cluster has 4 devices now"],
    )
    lanes = {"lanes": [{"name": "quick", "devices": 6}]}
    answer = await good(http, "PUT", "/v1/policy", lanes)
    assert answer["warnings"] == ["lane quick keeps 6 devices; the cluster has 4 devices now"]
    assert (await good(http, "PUT", "/v1/policy", lanes))["warnings"] == answer["warnings"]
    await harness.add_node("node-2", devices=4)
    assert (await good(http, "PUT", "/v1/policy", lanes))["warnings"] == []


async def test_what_prune_removes(harness: Harness, http: aiohttp.ClientSession) -> None:
    before = {"queues": [RESEARCH, VISION, {"name": "ops"}, {"name": "default", "weight": 7}]}
    await good(http, "PUT", "/v1/queues", before)
    answer = await good(http, "PUT", "/v1/queues", {"queues": [{"name": "ops"}, {"name": "new"}]}, prune=1)
    assert changes(answer) == {
        "made": ["new"],
        "changed": ["default"],
        "unchanged": ["ops"],
        "removed": ["research", "research/vision"],
    }
    assert sorted(harness.service.state.queues) == ["new", "ops"]


async def test_a_queue_is_removed_once_nothing_is_in_it(harness: Harness, http: aiohttp.ClientSession) -> None:
    await good(http, "PUT", "/v1/queues", {"queues": [RESEARCH, VISION]})
    job = await submit(harness, "research/vision")
    for path in ("default", "research", "research/vision"):
        status, problem = await ask(http, "DELETE", f"/v1/queues/{path}")
        assert (status, problem["code"]) == (409, "queue_in_use"), problem
    assert (await ask(http, "PUT", "/v1/queues", {"queues": []}, prune=1))[0] == 409
    assert len(harness.log.entries) == 3

    await harness.append(t.JobCancelRequested(job, "ada"), "vision")
    assert changes(await good(http, "DELETE", "/v1/queues/research/vision")) == {"removed": ["research/vision"]}
    assert changes(await good(http, "DELETE", "/v1/queues/research")) == {"removed": ["research"]}
    assert (await ask(http, "DELETE", "/v1/queues/research"))[0] == 404


async def test_no_queue_comes_below_one_with_jobs(harness: Harness, http: aiohttp.ClientSession) -> None:
    await good(http, "PUT", "/v1/queues/a", {})
    await submit(harness, "a")
    found = await pointers(http, "PUT", "/v1/queues", {"queues": [{"name": "c"}, {"name": "a/b"}]}, 409)
    assert found == {"/queues/1/name": "queue a has 1 job that waits or runs: it cannot have queues below it"}
    assert sorted(harness.service.state.queues) == ["a"]


async def test_each_queue_shows_what_it_holds(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1", devices=8)
    await good(http, "PUT", "/v1/queues", {"queues": [RESEARCH, VISION, {"name": "ops", "guarantee": 2}]})
    running = [
        await submit(harness, "research/vision", 4),
        await submit(harness, "ops", 1, gpu=GpuSpec(memory=40_960, compute=0.5)),
    ]
    await harness.decide()
    for job in running:
        await harness.start(job)
    await submit(harness, "default", 8)
    rows = {row["name"]: row for row in (await good(http, "GET", "/v1/queues"))["queues"]}
    assert list(rows) == ["default", "ops", "research", "research/vision"]
    assert {name: (row["running"], row["pending"]) for name, row in rows.items()} == {
        "default": (0, 1), "ops": (1, 0), "research": (1, 0), "research/vision": (1, 0),
    }  # fmt: skip
    assert [row["devices_held_milli"] for row in rows.values()] == [0, 500, 4000, 4000]
    assert [rows[name]["share_ppm"] for name in ("research", "ops")] == [500_000, 62_500]
    assert (rows["research"]["guarantee_milli"], rows["research"]["limit_milli"]) == (4_800, 6_000)
    assert (rows["ops"]["guarantee"], rows["ops"]["guarantee_milli"]) == (2, 2_000)
    assert rows["research/vision"]["order"] == "fair"


async def test_room_that_is_reserved_is_not_held(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1", devices=8)
    await good(http, "PUT", "/v1/policy", {"preemption": {"min_runtime": 0}})
    first = await submit(harness, "default", 8)
    await harness.decide()
    await harness.start(first)
    await submit(harness, "default", 6, priority=900)
    assert "RoomReserved" in [type(event).__name__ for event in await harness.decide()]

    row = await good(http, "GET", "/v1/queues/default")

    assert (row["running"], row["pending"], row["devices_held_milli"]) == (1, 1, 8_000)
    assert row["users"] == [{"user": "ada", "running": 1, "pending": 1, "devices_held_milli": 8_000}]


async def test_a_dry_run_changes_nothing(harness: Harness, http: aiohttp.ClientSession) -> None:
    await good(http, "PUT", "/v1/queues", {"queues": [{"name": "a", "limit": 2, "weight": 3}, {"name": "b"}]})
    wanted = {"queues": [{"name": "a", "limit": "50%"}, {"name": "c"}]}
    told = await good(http, "PUT", "/v1/queues", wanted, prune=1, dry_run="true")
    assert (told["made"], told["changed"], told["removed"], told["dry_run"]) == (["c"], ["a"], ["b"], True)
    assert told["changes"] == {
        "a": [{"field": "weight", "before": 3, "after": 1}, {"field": "limit", "before": 2, "after": "50%"}]
    }
    policy = {"preemption": {"mode": "none"}, "lanes": [{"name": "small", "devices": 1}]}
    told = await good(http, "PUT", "/v1/policy", policy, dry_run=1)
    assert told["changes"] == [
        {"field": "preemption.mode", "before": "cold", "after": "none"},
        {"field": "lanes.small.devices", "before": None, "after": 1},
        {"field": "lanes.small.max_devices", "before": None, "after": 1},
    ]
    assert (await good(http, "PUT", "/v1/queues/b", {"limit": 1}, dry_run=1))["changed"] == ["b"]
    assert (await pointers(http, "PUT", "/v1/queues/x/y", {}))["/name"].startswith("there is no queue x")
    assert len(harness.log.entries) == 2


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({}, "/queues", "required"),
        (
            {"queues": [{"name": "a"}, {"name": "b", "guarantee": "x"}]},
            "/queues/1/guarantee",
            "a percentage from 0% to 100%",
        ),
        ({"queues": [{"name": "a", "color": 1}]}, "/queues/0/color", "unknown field"),
        ({"queues": [{"name": "b"}, {"name": "a/b"}]}, "/queues/1/name", "there is no queue a"),
        ({"queues": [{"name": "default/b"}]}, "/queues/0/name", "none below it"),
        (
            {"queues": [{"name": "a", "guarantee": "60%"}, {"name": "b", "guarantee": "50%"}]},
            "/queues/1/guarantee",
            "more than 100 %: a 60% + b 50%",
        ),
    ],
)
async def test_queues_that_cannot_be(
    harness: Harness, http: aiohttp.ClientSession, body: Any, pointer: str, words: str
) -> None:
    found = await pointers(http, "PUT", "/v1/queues", body)
    assert words in found[pointer]
    assert harness.log.entries == []


async def test_more_queues_than_one_append_holds(harness: Harness, http: aiohttp.ClientSession) -> None:
    many = [{"name": f"q{number}"} for number in range(901)]
    assert (
        "at most 900 can be changed at once" in (await pointers(http, "PUT", "/v1/queues", {"queues": many}))["/queues"]
    )
    assert len((await good(http, "PUT", "/v1/queues", {"queues": many[:900]}))["made"]) == 900
    assert len((await good(http, "PUT", "/v1/queues", {"queues": many}))["unchanged"]) == 900
    more = [{"name": f"r{number}"} for number in range(100)]
    found = await pointers(http, "PUT", "/v1/queues", {"queues": more})
    assert found == {"/queues": "1001 queues are more than 1000, which is the most"}


async def test_a_new_queue_must_fit_those_that_are_there(harness: Harness, http: aiohttp.ClientSession) -> None:
    await good(http, "PUT", "/v1/queues/z", {"guarantee": "60%"})
    found = await pointers(http, "PUT", "/v1/queues/a", {"guarantee": "40.5%"})
    assert found == {"/guarantee": "the guarantees at the top are more than 100 %: a 40.5% + z 60%"}
    found = await pointers(http, "PUT", "/v1/queues/A", {})
    assert list(found) == ["/name"]


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/a", "/v1/policy"])
async def test_bodies_that_are_none(harness: Harness, http: aiohttp.ClientSession, path: str) -> None:
    json = {"Content-Type": "application/json"}
    for sent, headers, status in (
        (b"{", json, 400),
        (b"", json, 400),
        (b"[" * 5000, json, 400),
        (b"[]", json, 422),
        (b"null", json, 422),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (io.BytesIO(b" " * (1 << 20) + b"{}"), json, 413),
    ):
        async with http.put(path, data=sent, headers=headers) as answer:
            assert answer.status == status, (sent, await answer.text())
            assert answer.content_type == "application/problem+json"
    async with http.put(path) as answer:
        assert answer.status == 415
    async with http.put(path, json={}, headers={"Muster-User": "no one"}) as answer:
        assert answer.status == 400
    assert (await ask(http, "PUT", path, {}, force="1"))[0] == 400
    assert (await ask(http, "POST", path, {}))[0] == 405
    assert harness.log.entries == []


async def test_the_policy_is_shown_whole_and_changed(harness: Harness, http: aiohttp.ClientSession) -> None:
    view = await good(http, "GET", "/v1/policy")
    assert view["policy"] == view["default"]
    assert view["policy"]["preemption"] == {"mode": "cold", "min_runtime": 60, "max_per_job": 3}

    wanted = {"order": "fair", "half_life": "7d", "lanes": [{"name": "small", "devices": 1, "max_time": "1h"}]}
    changed = await good(http, "PUT", "/v1/policy", wanted)
    again = await good(http, "PUT", "/v1/policy", wanted)
    assert (changed["already"], again["already"], len(harness.log.entries)) == (False, True, 1)
    view = await good(http, "GET", "/v1/policy")
    assert (view["policy"]["order"], view["policy"]["half_life"]) == ("fair", 604_800)
    assert view["policy"]["lanes"] == [{"name": "small", "devices": 1, "max_devices": 1, "max_time": 3_600}]
    assert await good(http, "PUT", "/v1/policy", view["policy"]) == again
    assert not (await good(http, "PUT", "/v1/policy", {}))["already"]
    assert harness.service.state.policy == Policy()
    assert (await good(http, "GET", "/v1/policy", at="1"))["policy"]["order"] == "fair"


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({"order": "lifo"}, "/order", "known here: fifo, priority, fair"),
        ({"backfill": {"depth": -1}}, "/backfill/depth", ">= 0"),
        (
            {"lanes": [{"name": "a", "devices": "60%"}, {"name": "b", "devices": "40%"}]},
            "/lanes/1/devices",
            "less than",
        ),
    ],
)
async def test_policies_that_cannot_be(
    harness: Harness, http: aiohttp.ClientSession, body: Any, pointer: str, words: str
) -> None:
    assert words in (await pointers(http, "PUT", "/v1/policy", body))[pointer]
    assert harness.log.entries == []


async def test_jobs_go_where_there_is_a_queue_that_can_take_them(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1", devices=4)
    await good(http, "PUT", "/v1/queues", {"queues": [RESEARCH, {**VISION, "max_job_devices": 2}]})
    job = {"command": ["true"], "gpus": 1}

    found = await pointers(http, "POST", "/v1/jobs", {**job, "queue": "reserach"})
    assert "there is no queue 'reserach'; queues: default, research/vision" in found["/queue"]
    found = await pointers(http, "POST", "/v1/jobs", {**job, "queue": "research"})
    assert "do not wait in research itself" in found["/queue"]
    found = await pointers(http, "POST", "/v1/jobs", {**job, "gpus": 3, "queue": "research/vision"})
    assert found == {"/gpus": "asks for 3; queue research/vision takes jobs of at most 2 devices"}

    status, accepted = await ask(http, "POST", "/v1/jobs", {**job, "queue": "research/vision"})
    assert status == 201
    view = await good(http, "GET", f"/v1/jobs/{accepted['id']}", min_seq=accepted["sequence"])
    assert (view["queue"], view["priority"], view["preemptions"]) == ("research/vision", 600, 0)
    assert harness.log.entries[-1].subject == "muster.submission.vision"


async def test_a_lane_is_in_the_sum(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1", devices=4)
    await good(http, "PUT", "/v1/policy", {"lanes": [{"name": "small", "devices": 1}]})
    status, problem = await ask(http, "POST", "/v1/jobs", {"command": ["true"], "gpus": 4})
    assert (status, problem["code"]) == (422, "never_fits")
    assert problem["errors"][0]["detail"].endswith("lane small keeps 1 for jobs of at most 1 device, so 3 are left")
    assert (await ask(http, "POST", "/v1/jobs", {"command": ["true"], "gpus": 4}, wait_for_capacity=1))[0] == 201
    assert (await ask(http, "POST", "/v1/jobs", {"command": ["true"], "gpus": 3}))[0] == 201


async def test_what_a_job_is_expected_to_take(harness: Harness, http: aiohttp.ClientSession) -> None:
    limits = {"time_limit": "2h", "estimate": "90m"}
    await harness.add_node("node-1")
    _, first = await ask(http, "POST", "/v1/jobs", {"command": ["true"], "gpus": 1, "limits": limits})
    _, second = await ask(http, "POST", "/v1/jobs", {"command": ["true"], "gpus": 1})
    view = await good(http, "GET", f"/v1/jobs/{first['id']}", min_seq=second["id"])
    assert (view["time_limit_s"], view["expected_s"], view["expected_from"]) == (7_200, 5_400, "estimate")
    view = await good(http, "GET", f"/v1/jobs/{second['id']}")
    assert (view["time_limit_s"], view["expected_s"], view["expected_from"]) == (None, None, "unknown")


async def test_a_log_that_does_not_answer(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(messages: list[Message], timeout_s: float = 0) -> None:
        raise LogUnavailableError("gone")

    monkeypatch.setattr(harness.log, "append_batch", fail)
    assert (await ask(http, "PUT", "/v1/queues/a", {}))[0] == 503
    assert (await ask(http, "PUT", "/v1/policy", {"ageing": 1}))[0] == 503
    assert (await ask(http, "PUT", "/v1/policy", {}))[0] == 200


async def test_what_the_fold_refused_is_told(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server's job lands between the look and the append."""
    await good(http, "PUT", "/v1/queues/a", {})
    append = harness.log.append_batch

    async def late(messages: list[Message], timeout_s: float = 30) -> Any:
        await submit(harness, "a")
        return await append(messages, timeout_s)

    monkeypatch.setattr(harness.log, "append_batch", late)
    status, problem = await ask(http, "DELETE", "/v1/queues/a")
    assert (status, problem["code"]) == (409, "changed_meanwhile")
    assert "a" in harness.service.state.queues
