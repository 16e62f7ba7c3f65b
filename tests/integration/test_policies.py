"""The policies with real processes: what a team sees that configures its cluster and submits to it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from integration.jobs import go, prepare, work
from integration.processes import until_answer
from integration.whole_up import WholeUp

from muster.api.client import RefusedError

CHECKPOINTING = Path(__file__).parents[2] / "examples" / "checkpointing.py"

Json = dict[str, Any]


async def events(up: WholeUp, *kinds: str) -> list[Json]:
    """The events of these types, in order."""
    found: list[Json] = []
    page = await up.get("/v1/events", {"limit": 1000})
    while page["events"]:
        found += [event for event in page["events"] if event["type"].removeprefix("muster.").split(".")[0] in kinds]
        page = await up.get("/v1/events", {"limit": 1000, "after": page["events"][-1]["sequence"]})
    return found


async def starts(up: WholeUp) -> list[int]:
    """The jobs in the order in which they got their devices."""
    return [event["data"]["job"] for event in await events(up, "JobAllocated")]


async def states(up: WholeUp, jobs: Sequence[int]) -> list[str]:
    return [(await up.job(job))["state"] for job in jobs]


async def all_in(up: WholeUp, jobs: Sequence[int], state: str) -> None:
    for job in jobs:
        await up.job_in(job, state)


async def count_in(up: WholeUp, jobs: Sequence[int], state: str, count: int) -> None:
    """Wait until so many of the jobs are in a state."""

    async def look() -> bool:
        return (await states(up, jobs)).count(state) == count

    await until_answer(look, f"{count} of {jobs} are {state}")


async def test_jobs_behind_a_head_that_does_not_fit(tmp_path: Path) -> None:
    """64 devices are asked for with 32 free: without backfill nobody passes, with it those that end in time do."""
    prepare(tmp_path)
    config = '[policy]\norder = "fifo"\nbackfill = { mode = "none" }\n'
    async with WholeUp(tmp_path, simulate="8x8xA100-80GB", config=config) as up:
        holder = await up.submit(
            work(tmp_path, nap="wait"), "holder", gpus=32, nodes="fewest", limits={"estimate": "1h"}
        )
        await up.job_in(holder, "RUNNING")
        head = await up.submit(work(tmp_path, nap=0.1), "head", gpus=64, nodes="fewest", limits={"estimate": "1h"})
        short = [
            await up.submit(work(tmp_path, nap=0.1), f"short-{n}", gpus=4, limits={"estimate": "5m"}) for n in range(4)
        ]
        long = await up.submit(work(tmp_path, nap=0.1), "long", gpus=4, limits={"estimate": "10h"})
        await up.job_in(head, "PENDING")
        assert await states(up, [head, *short, long]) == ["PENDING"] * 6
        assert f"job {head}" in await up.muster("explain", str(short[0]))

        (tmp_path / "easy.toml").write_text('[policy]\norder = "fifo"\n')
        await up.muster("policy", "apply", str(tmp_path / "easy.toml"))
        await all_in(up, short, "COMPLETED")
        assert await states(up, [head, long]) == ["PENDING", "PENDING"]
        go(tmp_path)
        await up.job_in(long, "COMPLETED")
        assert await starts(up) == [holder, *short, head, long]
        assert "clean" in await up.muster("audit")


TEAMS = """
[policy]
preemption = {{ min_runtime = 0 }}

[[queue]]
name = "a"
guarantee = "60%"
reclaim = "{reclaim}"

[[queue]]
name = "b"
guarantee = "40%"
"""


async def test_two_teams_and_what_was_lent_is_taken_back_at_once(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with WholeUp(tmp_path, simulate="1x10xA100-80GB", config=TEAMS.format(reclaim="preempt")) as up:
        b = [await up.submit(work(tmp_path, nap="wait"), f"b-{n}", queue="b", gpus=1) for n in range(10)]
        await all_in(up, b, "RUNNING")
        a = [await up.submit(work(tmp_path, nap="wait"), f"a-{n}", queue="a", gpus=1) for n in range(8)]
        await count_in(up, a, "RUNNING", 6)
        await count_in(up, b, "RUNNING", 4)

        preempted = await events(up, "JobPreempted")
        assert len(preempted) == 6
        assert {event["data"]["job"] for event in preempted} <= set(b)
        assert {event["data"]["beneficiary"] for event in preempted} == set(a[:6])
        assert {event["data"]["cause"] for event in preempted} == {"reclaim"}
        assert await states(up, a[6:]) == ["PENDING", "PENDING"]
        queues = {queue["name"]: queue for queue in (await up.get("/v1/queues"))["queues"]}
        assert (queues["a"]["devices_held_milli"], queues["b"]["devices_held_milli"]) == (6000, 4000)
        go(tmp_path)
        await all_in(up, [*a, *b], "COMPLETED")
        assert "clean" in await up.muster("audit")


async def test_two_teams_and_what_was_lent_comes_back_as_jobs_end(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with WholeUp(tmp_path, simulate="1x10xA100-80GB", config=TEAMS.format(reclaim="wait")) as up:
        b = [
            await up.submit(work(tmp_path, nap="wait"), f"b-{n}", queue="b", gpus=1, env={"GO": f"go-{n}"})
            for n in range(14)
        ]
        await all_in(up, b[:10], "RUNNING")
        a = [await up.submit(work(tmp_path, nap="wait"), f"a-{n}", queue="a", gpus=1) for n in range(8)]
        for ended in range(1, 7):
            go(tmp_path, f"go-{ended - 1}")
            await count_in(up, a, "RUNNING", ended)
        assert (await states(up, b)).count("RUNNING") == 4
        go(tmp_path, "go-6")
        await count_in(up, b, "RUNNING", 4)
        assert (await states(up, a)).count("RUNNING") == 6
        assert await events(up, "JobPreempted") == []
        for number in range(7, 14):
            go(tmp_path, f"go-{number}")
        go(tmp_path)
        await all_in(up, [*a, *b], "COMPLETED")


INFERENCE = """
[policy]
preemption = { min_runtime = 0 }

[[queue]]
name = "inference"
guarantee = "80%"
priority = "P0"

[[queue]]
name = "training"
"""


async def test_a_burst_of_inference_beside_training(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with WholeUp(tmp_path, simulate="1x10xA100-80GB", config=INFERENCE) as up:
        training = [await up.submit(work(tmp_path, nap="wait"), f"t-{n}", queue="training", gpus=2) for n in range(5)]
        await all_in(up, training, "RUNNING")
        burst = [await up.submit(work(tmp_path, nap="wait"), f"i-{n}", queue="inference", gpus=1) for n in range(8)]
        await all_in(up, burst, "RUNNING")
        await count_in(up, training, "RUNNING", 1)
        assert len(await events(up, "JobPreempted")) == 4
        go(tmp_path)
        await all_in(up, [*training, *burst], "COMPLETED")


async def test_a_server_of_four_devices_and_five_users(tmp_path: Path) -> None:
    """At its limit the large job is requeued behind those that waited, and goes on from its checkpoint."""
    prepare(tmp_path)
    async with WholeUp(tmp_path, simulate="1x4xA100-80GB") as up:
        large = await up.submit(
            [sys.executable, str(CHECKPOINTING), str(tmp_path / "progress"), "--steps", "120", "--step-ms", "50"],
            "large",
            gpus=4,
            limits={"time_limit": "2s", "on_timeout": "requeue"},
            preemption={"signal": "USR2@30"},
        )
        await up.job_in(large, "RUNNING")
        small = [await up.submit(work(tmp_path, nap=0.2), f"small-{n}", gpus=1) for n in range(4)]
        await all_in(up, small, "COMPLETED")
        shown = await up.job_in(large, "COMPLETED")
        assert shown["attempts"] >= 2
        order = await starts(up)
        assert order[:5] == [large, *small]
        assert order[5:] == [large] * (shown["attempts"] - 1)
        assert (tmp_path / "progress").read_text() == "120\n"
        timeouts = [event["data"] for event in await events(up, "JobTimedOut")]
        assert {timeout["action"] for timeout in timeouts} == {"requeue"}
        earlier = [timeout["attempt"] for timeout in timeouts if timeout["attempt"] < shown["attempts"]]
        assert earlier == list(range(1, shown["attempts"]))  # the last attempt may end just when its time is over
        assert "clean" in await up.muster("audit")


async def test_a_lane_on_a_server_of_four_devices(tmp_path: Path) -> None:
    """One device is kept for jobs of one device: four at once can never be had, and the refusal says the sum."""
    prepare(tmp_path)
    config = '[policy]\nlanes = [{ name = "quick", devices = 1, max_devices = 1 }]\n'
    async with WholeUp(tmp_path, simulate="1x4xA100-80GB", config=config) as up:
        with pytest.raises(RefusedError) as refused:
            await up.submit(work(tmp_path), "four", gpus=4)
        assert "so 3 are left" in str(refused.value.problem)
        three = await up.submit(work(tmp_path, nap="wait"), "three", gpus=3)
        await up.job_in(three, "RUNNING")
        one = await up.submit(work(tmp_path, nap=0.1), "one", gpus=1)
        await up.job_in(one, "COMPLETED")
        two = await up.submit(work(tmp_path, nap=0.1), "two", gpus=2)
        await up.job_in(two, "PENDING")
        go(tmp_path)
        await all_in(up, [three, two], "COMPLETED")
