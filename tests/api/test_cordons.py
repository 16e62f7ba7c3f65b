"""Cordons, over HTTP and on the command line: what is said is so, and nothing is written twice."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from api_harness import Background, Harness
from click.testing import Result

from muster.events import types as t

Http = aiohttp.ClientSession
Muster = Callable[..., Result]


async def _post(http: Http, path: str, reason: str | None = None, user: str = "ada") -> tuple[int, dict[str, Any]]:
    body = {} if reason is None else {"reason": reason}
    async with http.post(f"/v1/nodes/{path}", json=body, headers={"Muster-User": user}) as answer:
        return answer.status, await answer.json(content_type=None)


async def _cordoned(http: Http) -> list[str]:
    async with http.get("/v1/nodes/node-1") as answer:
        node = await answer.json()
        return [node["cordoned"], *(device["cordoned"] for device in node["devices"])]


async def _wrong(harness: Harness, cause: t.FaultCause, action: t.FaultAction, detail: str = "") -> None:
    fault = t.DeviceFault(0, "GPU-node-1-0", cause, action, detail=detail)
    await harness.append(t.DeviceFaulted("node-1", "node-1-life", fault))


@pytest.mark.parametrize(("path", "device"), [("node-1", None), ("node-1/devices/0", 0)])
async def test_a_cordon_is_written_once_and_keeps_its_reason(
    harness: Harness, http: Http, path: str, device: int | None
) -> None:
    await harness.add_node("node-1", devices=1)
    said = {"node": "node-1", "device": device, "still": ""}
    assert await _post(http, f"{path}/cordon", "its fan: loud") == (200, {"sequence": 2, "already": False, **said})
    for reason in ("its fan: loud", "", None):
        assert await _post(http, f"{path}/cordon", reason, "bob") == (200, {"sequence": 2, "already": True, **said})
    assert "by ada: its fan: loud" in await _cordoned(http)
    assert await _post(http, f"{path}/cordon", "smoke", "bob") == (200, {"sequence": 3, "already": False, **said})
    assert "by bob: smoke" in await _cordoned(http)
    assert (await _post(http, f"{path}/uncordon"))[1] == {"sequence": 4, "already": False, **said}
    assert await _cordoned(http) == ["", ""]


async def test_cordons_at_the_same_time_are_one(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    found = await asyncio.gather(*(_post(http, "node-1/cordon", "fan") for _ in range(8)))
    assert sorted(body["already"] for _, body in found) == [False] + [True] * 7
    assert len(harness.log.entries) == 2


async def test_a_cordon_of_the_agent_s_own_keeps_its_words(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    await harness.append(t.StopFailed("node-1", "node-1-life", 7, 1, 0, "in state D"))
    assert (await _post(http, "node-1/cordon"))[1]["already"] is True
    assert (await _cordoned(http))[0] == "worker 7.1.0 could not be stopped"


async def test_what_is_not_cordoned_is_not_uncordoned(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    status, problem = await _post(http, "node-1/uncordon")
    assert (status, problem["code"], problem["title"]) == (409, "nothing_to_lift", "node-1 is not cordoned")
    assert "detail" not in problem
    await harness.append(t.NodeDegraded("node-1", "node-1-life", "reboot", "Xid 79 on device 0"))
    ill = "degraded: reboot: Xid 79 on device 0"
    status, problem = await _post(http, "node-1/uncordon")
    assert (status, problem["detail"]) == (409, f"it takes no work all the same: {ill}")
    status, problem = await _post(http, "node-1/devices/0/uncordon")
    assert (status, problem["title"], problem["detail"]) == (
        409,
        "device 0 of node-1 is not cordoned",
        f"nothing is known to be wrong with it; it takes no work all the same: node-1 is {ill}",
    )
    assert len(harness.log.entries) == 2


async def test_an_answer_says_what_still_keeps_work_away(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    await _post(http, "node-1/devices/0/cordon")
    await _post(http, "node-1/cordon", "fan")
    assert (await _post(http, "node-1/devices/0/uncordon"))[1]["still"] == "node-1 is cordoned by ada: fan"
    await harness.append(t.NodeDegraded("node-1", "node-1-life", "driver_mismatch", "550 is not 560"))
    assert (await _post(http, "node-1/uncordon"))[1]["still"] == "degraded: driver_mismatch: 550 is not 560"


@pytest.mark.parametrize(
    ("cause", "action", "detail", "words"),
    [
        ("lost", "quarantine", "it is not there any more", "it is not there any more"),
        ("unreadable", "quarantine", "", "unreadable"),
        ("mig", "drain", "it is in MIG mode", "it is in MIG mode"),
        ("memory_unknown", "drain", "", "nobody knows its memory"),
    ],
)
async def test_nobody_vouches_for_what_can_be_read_as_wrong(
    harness: Harness, http: Http, cause: t.FaultCause, action: t.FaultAction, detail: str, words: str
) -> None:
    await harness.add_node("node-1", devices=1)
    await _wrong(harness, cause, action, detail)
    status, problem = await _post(http, "node-1/devices/0/uncordon")
    assert (status, problem["code"], problem["detail"]) == (409, "still_wrong", words)
    assert "takes work" in problem["next_step"]
    assert len(harness.log.entries) == 2


async def test_a_device_that_is_back_can_be_vouched_for(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    await _wrong(harness, "lost", "quarantine")
    await harness.append(t.DeviceRecovered("node-1", "node-1-life", 0, "GPU-node-1-0", "it is back"))
    assert (await _post(http, "node-1/devices/0/uncordon"))[0] == 200


async def test_a_reason_is_a_line(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    for path in ("node-1/cordon", "node-1/devices/0/cordon"):
        status, problem = await _post(http, path, "x" * 201)
        assert (status, problem["errors"][0]["pointer"]) == (422, "/reason")
        assert (await _post(http, path, "x" * 200))[0] == 200


# -- on the command line --------------------------------------------------------------------------------------------


def test_a_cordon_is_told_as_what_it_is(muster: Muster, server: Background) -> None:
    assert muster("cordon", "node-1", "--reason", "fan").output == "node-1 is cordoned\n"
    assert muster("cordon", "node-1").output == "node-1 is cordoned already\n"
    server.do(lambda harness: harness.append(t.NodeDegraded("node-1", "node-1-life", "reboot", "Xid 79")))
    assert muster("uncordon", "node-1").output == (
        "node-1 is not cordoned any more, but takes no work: degraded: reboot: Xid 79\n"
    )
    again = muster("uncordon", "node-1")
    assert (again.exit_code, again.stdout) == (4, "")
    assert again.stderr == (
        "muster: node-1 is not cordoned: it takes no work all the same: degraded: reboot: Xid 79\n"
        "  muster nodes node-1 says more\n"
    )


def test_several_devices_are_named_at_once(muster: Muster) -> None:
    assert muster("cordon", "node-1", "--device", "0,4-6", "--reason", "fan").output == (
        "device 0 of node-1 is cordoned\ndevice 4 of node-1 is cordoned\n"
        "device 5 of node-1 is cordoned\ndevice 6 of node-1 is cordoned\n"
    )
    assert "0,4-6 cordoned" in muster("nodes").output
    lifted = muster("uncordon", "node-1", "--device", "3-5")
    assert lifted.exit_code == 4  # the third was not cordoned
    assert "device 3 of node-1 is not cordoned" in lifted.stderr
    assert lifted.stdout == "device 4 of node-1 takes work\ndevice 5 of node-1 takes work\n"
    assert json.loads(muster("uncordon", "node-1", "--device", "0", "--json").stdout)["device"] == 0
    assert "6 cordoned" in muster("nodes").output


@pytest.mark.parametrize("text", ["", "one", "-1", "1-", "5-3", "0-4000", "1,,2"])
def test_what_names_no_devices_is_a_wrong_command(muster: Muster, text: str) -> None:
    assert muster("cordon", "node-1", "--device", text).exit_code == 2
    assert "cordoned" not in muster("nodes").output


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("cordon", "node-1", "--device", "99999999999999999999999"), 3, "no device 99999999999999999999999 of node-1"),
        (("cordon", "node-1", "--device", "8"), 3, "no device 8 of node-1"),
        (("cordon", ""), 2, "a node's name is needed"),
        (("uncordon", "", "--device", "1"), 2, "a node's name is needed"),
        (("nodes", ""), 2, "a node's name is needed"),
        (("nodes", ".."), 3, "no node .."),
        (("nodes", "a/b"), 3, "no node a/b"),
        (("top", "--once", "--node", ""), 2, "a node's name is needed"),
        (("queues", "show", ""), 2, "a queue's name is needed"),
        (("queues", "remove", "", "--json"), 2, "a queue's name is needed"),
        (("queues", "show", "a//b"), 3, "no queue a//b"),
        (("cordon", "node-1", "--reason", "x" * 3000), 2, "/reason"),
        (("cancel", "7", "--reason", "x" * 3000), 2, "/reason"),
    ],
)
def test_errors_speak_of_what_was_named(muster: Muster, words: tuple[str, ...], code: int, text: str) -> None:
    refused = muster(*words)
    assert (refused.exit_code, text in refused.stderr) == (code, True), refused.stderr
    assert "/v1/" not in refused.stderr


async def test_a_number_that_no_job_has_is_no_job(http: Http) -> None:
    async with http.get(f"/v1/jobs/{'9' * 5000}") as answer:
        assert answer.status == 404
        assert (await answer.json(content_type=None))["title"] == f"no job {'9' * 40}"
