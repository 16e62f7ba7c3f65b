"""Explanations over HTTP and on the command line, beyond what the core's tests say of them."""

import json
from collections.abc import Callable

import aiohttp
from api_harness import Background, Harness
from click.testing import Result

from muster.events import types as t
from muster.events.policy import Policy, Preemption
from muster.events.spec import JobSpec

Muster = Callable[..., Result]


def _spec(gpus: int, priority: int = 300) -> JobSpec:
    return JobSpec(command=["true"], gpus=gpus, priority=priority)


async def _made_room(harness: Harness) -> tuple[int, int, int]:
    """A job that fills a node, a more urgent one that it is stopped for, and the entry before that decision."""
    await harness.append(t.PolicyChanged(Policy(preemption=Preemption(min_runtime=0)), "root"))
    low = await harness.append(t.JobSubmitted("ada", _spec(8), ""))
    await harness.decide()
    await harness.start(low)
    urgent = await harness.append(t.JobSubmitted("bob", _spec(4, 900), ""))
    await harness.decide()
    assert list(harness.follower.fold.cluster.state.rooms) == [urgent]
    return low, urgent, urgent


def test_full_shows_the_steps_at_the_moment_at_which_room_was_reserved(muster: Muster, server: Background) -> None:
    low, urgent, basis = server.do(_made_room)

    def check() -> None:
        full = muster("explain", str(urgent), "--full").output.splitlines()
        assert full[1] == f"steps 1 and 2 as they were after entry {basis}, on which its place was decided"
        assert "1 filter       0 of 1 nodes could hold a worker then" in full
        assert "2 order        place 1 of 1 (1 of 1 in queue default) by priority/easy/best-fit" in full
        [stopped] = [line for line in full if line.startswith("stopped for it")]
        assert stopped.endswith(f"of job {urgent} 900; 0 device-minutes of work lost")
        assert f"job {low} (priority): its priority in queue default is 300, that" in stopped

    check()
    waits = muster("explain", str(urgent)).output
    assert f"stopped for it job {low} (priority)" in waits
    assert "1 filter" not in waits
    server.do(lambda harness: harness.end(low))
    server.do(lambda harness: harness.decide())
    assert json.loads(muster("show", str(urgent), "--json").output)["state"] == "STARTING"
    check()


def test_nodes_stand_before_what_keeps_a_job_from_them(muster: Muster) -> None:
    muster("cordon", "node-1", "--device", "0", "--reason", "bad fan")
    muster("submit", "--gpus", "8", "--", "true")
    found = muster("explain", "3").output.splitlines()
    cordoned = "1 of 8 devices takes no work of it: device 0: cordoned by "
    [check] = [line.strip() for line in found if " cannot " in line]
    assert check.startswith(f"1 cannot (node-1): {cordoned}")
    assert check.endswith(": bad fan")
    [need] = [line for line in found if line.startswith("to start")]
    assert need.endswith("device 0 of node-1 takes work of it again (`muster uncordon node-1 --device 0`)")


async def test_the_expected_start_is_worked_out_beside_the_loop(harness: Harness, http: aiohttp.ClientSession) -> None:
    await harness.add_node("node-1")
    first = await harness.append(t.JobSubmitted("ada", _spec(8), ""))
    await harness.decide()
    await harness.start(first)
    second = await harness.append(t.JobSubmitted("ada", _spec(8), ""))

    async with http.get(f"/v1/jobs/{second}/explain") as response:
        assert response.status == 200
        told = (await response.json())["explanation"]["expected"]

    assert (told["logical_ns"], told["in_ms"]) == (None, None)
    assert told["why"].startswith(f"nobody knows for how long job {first} will run")
