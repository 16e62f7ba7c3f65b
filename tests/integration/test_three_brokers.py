"""The same on three brokers: the stream's leader, or any of them, may be killed under load."""

import signal
from pathlib import Path

import pytest
from integration.chaos import play
from integration.evidence import Expected, prove
from integration.jobs import prepare, trace, work
from integration.processes import until, until_answer
from integration.site import Site

from muster.events.broker import Broker
from muster.events.connection import ApiError, NoAnswerError


async def stream_leader(site: Site) -> Broker:
    """The broker that leads the log's stream."""

    async def look() -> Broker | None:
        try:
            info = await (await site.connection()).api("STREAM.INFO.MUSTER_LOG")
        except (ApiError, NoAnswerError):
            return None
        return next((broker for broker in site.brokers if broker.name == info["cluster"].get("leader")), None)

    return await until_answer(look, "the stream has a leader")


@pytest.mark.parametrize("harm", ["killed", "hung"])
async def test_the_leader_of_the_stream_is_lost_under_load(tmp_path: Path, harm: str) -> None:
    prepare(tmp_path)
    async with Site(tmp_path, brokers=3) as site:
        expected: list[Expected] = []

        async def submit(count: int) -> None:
            for number in range(len(expected), len(expected) + count):
                job = await site.submit(work(tmp_path, number, 0.1), f"job-{number}", gpus=1 + number % 3)
                expected.append(Expected(f"job-{number}", job, number))

        await submit(30)
        await until(lambda: len(trace(tmp_path)) >= 10, "jobs run")
        lost = await stream_leader(site)
        if harm == "killed":
            await lost.kill9()
        else:
            lost.signal(signal.SIGSTOP)
        await submit(30)
        await site.all_ended(60)
        assert await stream_leader(site) is not lost
        if harm == "killed":
            await lost.start()
        else:
            lost.signal(signal.SIGCONT)
        await submit(30)
        await site.all_ended(90)
        await prove(site, expected)


async def test_a_round_with_kills_of_any_broker(tmp_path: Path) -> None:
    await play(tmp_path, 3, brokers=3)
