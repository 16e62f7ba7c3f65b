"""The lease, telemetry and questions, on the broker and in memory: one meaning."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from log_cases import SMALL, Connect

from muster.events.asks import FRAME_BYTES, WINDOW, AskError, Asks, MemoryAsks, NatsAsks
from muster.events.beats import Beat, MemoryTelemetry, NatsBeats, NatsSamples, NatsTelemetry, Samples, Telemetry
from muster.events.broker import Broker
from muster.events.connection import Connection
from muster.events.lease import Lease, MemoryLeases, NatsLease
from muster.events.log import LogUnavailableError
from muster.events.streams import set_up
from muster.events.telemetry import DeviceSample, GpuSampled, Heartbeat


class Sampling(NamedTuple):
    agents: Mapping[str, Telemetry]
    samples: Samples


class Question(msgspec.Struct):
    text: str
    size: int = 0


@pytest.fixture(params=["memory", "nats"])
async def leases(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Lease, Lease]]:
    if request.param == "memory":
        shared = MemoryLeases(ttl_s=1.0)
        yield shared.of("a"), shared.of("b")
        return
    async with Broker(tmp_path) as broker:
        await set_up(broker.urls, broker.credentials, limits=msgspec.structs.replace(SMALL, lease_ttl_s=1.0))
        connection = await Connection.open(broker.urls, broker.credentials["scheduler"])
        yield NatsLease(connection, "a", ttl_s=1.0), NatsLease(connection, "b", ttl_s=1.0)
        await connection.close()


async def test_one_holds_the_lease_until_it_gives_it_up(leases: tuple[Lease, Lease]) -> None:
    first, second = leases
    assert await first.try_acquire()
    assert not await second.try_acquire()
    assert not await second.renew()
    assert await first.renew()
    assert await first.renew()
    assert await first.try_acquire()
    await second.release()
    assert not await second.try_acquire()
    await first.release()
    assert not await first.renew()
    assert await second.try_acquire()
    assert not await first.try_acquire()


async def test_a_lease_that_is_not_renewed_runs_out(leases: tuple[Lease, Lease]) -> None:
    first, second = leases
    assert await first.try_acquire()
    async with asyncio.timeout(20):
        while not await second.try_acquire():  # noqa: ASYNC110  nothing tells when a value vanishes
            await asyncio.sleep(0.05)
    assert not await first.renew()
    assert not await first.try_acquire()
    await first.release()
    assert await second.renew()


async def test_beats_arrive_and_the_last_of_each_node_is_kept(connect: Connect) -> None:
    scheduler = NatsBeats(await connect("scheduler"))
    assert await scheduler.last() == []
    arriving = scheduler.arriving()
    first = asyncio.ensure_future(anext(arriving))
    one = NatsTelemetry(await connect("agent-node-1"))
    two = NatsTelemetry(await connect("agent-node-2"))
    while not first.done():
        assert await one.beat(Heartbeat("node-1", "life-1", 1))
    assert await first == Beat("node-1", "life-1", 0)
    await arriving.aclose()  # type: ignore[attr-defined]
    await two.beat(Heartbeat("node-2", "life-2", 1))
    await one.beat(Heartbeat("node-1", "life-3", 1))
    last = await scheduler.last()
    assert [(beat.node, beat.incarnation) for beat in last] == [("node-1", "life-3"), ("node-2", "life-2")]
    assert 1_600_000_000_000_000_000 < last[1].timestamp_ns <= last[0].timestamp_ns
    await one.sample(GpuSampled("node-1", "life-3", [DeviceSample(0, "GPU-0", memory_used_mib=5)]))


async def test_a_beat_that_speaks_for_another_node_is_not_heard(connect: Connect) -> None:
    scheduler = NatsBeats(await connect("scheduler"))
    agent = await connect("agent-node-1")
    arriving = scheduler.arriving()
    first = asyncio.ensure_future(anext(arriving))
    while not first.done():
        for node in ("node-2", "node-1"):
            await agent.request("muster.heartbeat.node-1", msgspec.json.encode(Heartbeat(node, "life", 1)))
    assert (await first).node == "node-1"
    await arriving.aclose()  # type: ignore[attr-defined]
    await agent.request("muster.heartbeat.node-1", msgspec.json.encode(Heartbeat("node-2", "life", 1)))
    assert await scheduler.last() == []


async def test_a_beat_that_no_broker_takes_is_not_acknowledged(broker: Broker, connect: Connect) -> None:
    telemetry = NatsTelemetry(await connect("agent-node-1"))
    await broker.kill9()
    assert not await telemetry.beat(Heartbeat("node-1", "life-1", 1))
    await broker.start()


async def test_telemetry_in_memory_means_the_same() -> None:
    telemetry = MemoryTelemetry(clock=lambda: 77)
    arriving = telemetry.arriving()
    first = asyncio.ensure_future(anext(arriving))
    await asyncio.sleep(0)
    assert await telemetry.beat(Heartbeat("node-1", "life-1", 1))
    assert await first == ("node-1", "life-1", 0)
    assert await telemetry.last() == [("node-1", "life-1", 77)]
    await telemetry.sample(GpuSampled("node-1", "life-1", []))
    assert list(telemetry.samples) == ["node-1"]


@pytest.fixture(params=["memory", "nats"])
async def sampling(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sampling]:
    """Where node-1's and node-2's agents send their samples, and where they are followed."""
    nodes = ["node-1", "node-2"]
    if request.param == "memory":
        memory = MemoryTelemetry()
        yield Sampling(dict.fromkeys(nodes, memory), memory)
        return
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(tmp_path, nodes=nodes))
        await set_up(broker.urls, broker.credentials, limits=SMALL)
        found = []
        for role in ("agent-node-1", "agent-node-2", "api"):
            connection = await Connection.open(broker.urls, broker.credentials[role])
            stack.push_async_callback(connection.close)
            found.append(connection)
        agents = [NatsTelemetry(connection) for connection in found[:2]]
        yield Sampling(dict(zip(nodes, agents, strict=True)), NatsSamples(found[2]))


async def test_the_last_sample_of_each_node_comes_first_and_then_what_comes(sampling: Sampling) -> None:
    one, two = sampling.agents["node-1"], sampling.agents["node-2"]
    for used_mib in (1, 2):
        await one.sample(GpuSampled("node-1", "life-1", [DeviceSample(0, "GPU-0", memory_used_mib=used_mib)]))
    await two.sample(GpuSampled("node-2", "life-2", []))
    async with asyncio.timeout(20), aclosing(sampling.samples.follow()) as found:  # type: ignore[type-var]
        first, second = await anext(found), await anext(found)
        assert first.sample == GpuSampled("node-1", "life-1", [DeviceSample(0, "GPU-0", memory_used_mib=2)])
        assert second.sample == GpuSampled("node-2", "life-2", [])
        assert 1_600_000_000_000_000_000 < first.timestamp_ns <= second.timestamp_ns
        await one.sample(GpuSampled("node-1", "life-3", []))
        assert (await anext(found)).sample == GpuSampled("node-1", "life-3", [])


async def test_the_last_samples_by_a_past_moment_are_found_again(sampling: Sampling) -> None:
    assert await sampling.samples.at(["node-1"], 10**18) == ({}, None)
    one, two = sampling.agents["node-1"], sampling.agents["node-2"]
    times = []
    async with asyncio.timeout(20), aclosing(sampling.samples.follow()) as found:  # type: ignore[type-var]
        for agent, node, life in ((one, "node-1", "a"), (two, "node-2", "b"), (one, "node-1", "c")):
            await agent.sample(GpuSampled(node, life, []))
            times.append((await anext(found)).timestamp_ns)

    async def at(time_ns: int, *nodes: str) -> dict[str, str]:
        kept = await sampling.samples.at(nodes, time_ns)
        assert kept.since_ns == times[0]
        return {node: sampled.sample.incarnation for node, sampled in kept.by_node.items()}

    assert await at(times[0] - 1, "node-1", "node-2") == {}, "it is after none"
    assert await at(times[0], "node-1", "node-2") == {"node-1": "a"}, "and not after this one"
    assert await at(times[1], "node-1", "node-2", "node-3") == {"node-1": "a", "node-2": "b"}
    assert await at(times[2], "node-1", "node-2") == {"node-1": "c", "node-2": "b"}
    assert await at(times[2] + 10**12, "node-2") == {"node-2": "b"}


async def test_of_more_nodes_than_the_broker_looks_for_at_once_all_are_found(connect: Connect) -> None:
    agent = NatsTelemetry(await connect("agent-node-1"))
    await agent.sample(GpuSampled("node-1", "life-1", []))
    samples = NatsSamples(await connect("api"))
    kept = await samples.at([f"gone-{number}" for number in range(1100)] + ["node-1"], 2 * 10**18)
    assert list(kept.by_node) == ["node-1"]


async def test_samples_are_followed_through_a_restart_of_the_broker(broker: Broker, connect: Connect) -> None:
    agent = NatsTelemetry(await connect("agent-node-1"))
    async with asyncio.timeout(30), aclosing(NatsSamples(await connect("api")).follow()) as found:  # type: ignore[type-var]
        await agent.sample(GpuSampled("node-1", "life-1", []))
        assert (await anext(found)).sample.incarnation == "life-1"
        seen: list[str] = []

        async def hear() -> None:
            async for sampled in found:
                seen.append(sampled.sample.incarnation)
                if seen[-1] == "life-2":
                    return

        hearing = asyncio.ensure_future(hear())
        await broker.kill9()
        await broker.start()
        while not hearing.done():  # one that is sent while the connection is away is lost
            with contextlib.suppress(LogUnavailableError):
                await agent.sample(GpuSampled("node-1", "life-2", []))
            await asyncio.wait({hearing}, timeout=0.05)
        await hearing
        assert seen in (["life-2"], ["life-1", "life-2"])


async def test_a_sample_that_is_none_or_speaks_for_another_node_is_not_heard(connect: Connect) -> None:
    agent = await connect("agent-node-1")
    forged = msgspec.json.encode(GpuSampled("node-2", "life-1", []))
    for payload in (b"nothing", b'{"type":"Heartbeat.1"}', forged, msgspec.json.encode(GpuSampled("node-1", "a", []))):
        await agent.request("muster.gpu.node-1", payload)
    await NatsTelemetry(await connect("agent-node-2")).sample(GpuSampled("node-2", "b", []))
    async with asyncio.timeout(20), aclosing(NatsSamples(await connect("api")).follow()) as found:  # type: ignore[type-var]
        assert [(await anext(found)).sample.incarnation for _ in range(2)] == ["a", "b"]
        await agent.request("muster.gpu.node-1", forged)
        await NatsTelemetry(agent).sample(GpuSampled("node-1", "c", []))
        assert (await anext(found)).sample.incarnation == "c"


@pytest.mark.parametrize(
    ("reading", "value"),
    [
        ("memory_total_mib", b"9" * 400),
        ("memory_used_mib", b"-1"),
        ("sm_percent", b"18446744073709551616"),
        ("temperature_c", b"-170141183460469231731687303715884105728"),
        ("power_w", b"1e308"),
        ("ecc_corrected", b"-1"),
    ],
)
async def test_a_sample_with_a_number_that_nothing_has_is_not_heard(
    connect: Connect, reading: str, value: bytes
) -> None:
    agent = await connect("agent-node-1")
    sound = msgspec.json.encode(GpuSampled("node-1", "life", [DeviceSample(0, "GPU-0")]))
    await agent.request("muster.gpu.node-1", sound.replace(b'"GPU-0"', b'"GPU-0","%s":%s' % (reading.encode(), value)))
    await NatsTelemetry(await connect("agent-node-2")).sample(GpuSampled("node-2", "b", []))
    async with asyncio.timeout(20), aclosing(NatsSamples(await connect("api")).follow()) as found:  # type: ignore[type-var]
        assert (await anext(found)).sample.node == "node-2"


async def answer(question: Question) -> AsyncIterator[bytes]:
    if question.text == "nothing":
        return
    if question.text == "lookup":
        raise LookupError("there is no such worker")
    if question.text == "bug":
        yield b"some"
        raise RuntimeError("a secret path")
    if question.text == "much":
        for number in range(question.size):
            yield b"%07d\n" % number * 1000
    else:
        yield question.text.encode()
        yield b"."


@pytest.fixture(params=["memory", "nats"])
async def asks(request: pytest.FixtureRequest) -> AsyncIterator[Asks]:
    """An asker; an agent of node-1 answers."""
    if request.param == "memory":
        memory = MemoryAsks()
        serving = asyncio.create_task(memory.serve("node-1", Question, answer))
        await asyncio.sleep(0)
        yield memory
    else:
        broker_folder = request.getfixturevalue("tmp_path")
        async with Broker(broker_folder, nodes=["node-1"]) as broker:
            api = await Connection.open(broker.urls, broker.credentials["api"])
            agent = await Connection.open(broker.urls, broker.credentials["agent-node-1"])
            serving = asyncio.create_task(NatsAsks(agent).serve("node-1", Question, answer))
            await wait_until_served(NatsAsks(api))
            yield NatsAsks(api)
            serving.cancel()
            await asyncio.wait({serving})
            await api.close()
            await agent.close()
    serving.cancel()
    await asyncio.wait({serving})


async def wait_until_served(asks: Asks) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await ask(asks, Question("nothing"))
            except AskError:
                await asyncio.sleep(0.01)
            else:
                return


async def ask(asks: Asks, question: Question, node: str = "node-1") -> bytes:
    async with asyncio.timeout(20), aclosing(asks.ask(node, question)) as parts:
        return b"".join([part async for part in parts])


async def test_a_question_is_answered(asks: Asks) -> None:
    assert await ask(asks, Question("hello")) == b"hello."
    assert await ask(asks, Question("nothing")) == b""


async def test_a_long_answer_comes_whole_and_in_order(asks: Asks) -> None:
    parts = 2 * WINDOW * FRAME_BYTES // 8000
    whole = await ask(asks, Question("much", parts))
    assert whole == b"".join(b"%07d\n" % number * 1000 for number in range(parts))


async def test_what_is_not_there_is_said(asks: Asks) -> None:
    with pytest.raises(AskError, match="there is no such worker"):
        await ask(asks, Question("lookup"))


async def test_nobody_there_is_said_at_once(asks: Asks) -> None:
    with pytest.raises(AskError, match="no agent of node node-9"):
        await ask(asks, Question("hello"), node="node-9")


async def test_many_ask_at_once(asks: Asks) -> None:
    answers = await asyncio.gather(*(ask(asks, Question(f"{number}")) for number in range(30)))
    assert answers == [f"{number}.".encode() for number in range(30)]


class Agent:
    """An agent whose answers a test can watch."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = asyncio.Event()
        self.stuck = asyncio.Event()

    async def answer(self, question: Question) -> AsyncIterator[bytes]:
        try:
            for _ in range(10_000):
                if self.sent == WINDOW + question.size:
                    self.stuck.set()
                self.sent += 1
                yield b"x"
        finally:
            self.ended.set()


async def test_an_agent_sends_no_more_than_the_window_ahead_and_stops_when_told(connect: Connect) -> None:
    agent = Agent()
    serving = asyncio.create_task(NatsAsks(await connect("agent-node-1")).serve("node-1", Question, agent.answer))
    api = NatsAsks(await connect("api"))
    async with asyncio.timeout(20):
        while True:
            async with aclosing(api.ask("node-1", Question("x"))) as parts:
                try:
                    await anext(parts)
                except AskError:
                    continue
                await agent.stuck.wait()
                assert agent.sent <= WINDOW + 2
                break
        await agent.ended.wait()
    serving.cancel()
    await asyncio.wait({serving})


async def test_an_agent_that_goes_ends_its_answers(connect: Connect) -> None:
    agent = Agent()
    serving = asyncio.create_task(NatsAsks(await connect("agent-node-1")).serve("node-1", Question, agent.answer))
    api = NatsAsks(await connect("api"))
    await wait_until_served_by(api, agent)
    with pytest.raises(AskError, match="broke off"):  # noqa: PT012  it fails in the middle
        async with asyncio.timeout(20), aclosing(api.ask("node-1", Question("x"))) as parts:
            async for _ in parts:
                serving.cancel()
                await asyncio.wait({serving})
    await agent.ended.wait()


async def wait_until_served_by(api: NatsAsks, agent: Agent) -> None:
    async with asyncio.timeout(20):
        while True:
            async with aclosing(api.ask("node-1", Question("x"))) as parts:
                try:
                    await anext(parts)
                except AskError:
                    continue
                break
        await agent.ended.wait()
    agent.ended.clear()


async def test_an_asker_whose_broker_dies_is_told(broker: Broker, connect: Connect) -> None:
    agent = Agent()
    serving = asyncio.create_task(NatsAsks(await connect("agent-node-1")).serve("node-1", Question, agent.answer))
    api = NatsAsks(await connect("api"))
    await wait_until_served_by(api, agent)
    with pytest.raises(AskError, match="connection to the broker was lost"):  # noqa: PT012  it fails in the middle
        async with asyncio.timeout(20), aclosing(api.ask("node-1", Question("x"))) as parts:
            async for _ in parts:
                await broker.kill9()
    await agent.ended.wait()
    await broker.start()
    assert not serving.done()
    serving.cancel()
    await asyncio.wait({serving})


async def test_an_agent_ends_the_answer_of_an_asker_that_vanished(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.events.asks.LIFE_S", 0.05)
    monkeypatch.setattr("muster.events.asks.SILENCE_S", 0.2)
    agent = Agent()
    serving = asyncio.create_task(NatsAsks(await connect("agent-node-1")).serve("node-1", Question, agent.answer))
    api = await connect("api")
    await wait_until_served_by(NatsAsks(api), agent)
    await api.publish("muster.ask.node-1", b'{"text":"x"}', reply="muster.answer.node-1.nobody")
    await asyncio.wait_for(agent.ended.wait(), 20)
    serving.cancel()
    await asyncio.wait({serving})


async def test_an_asker_ends_when_the_agent_shows_no_life(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.events.asks.SILENCE_S", 0.2)
    agent = await connect("agent-node-1")
    await agent.subscribe("muster.ask.node-1", lambda *_: None)
    await agent.publish("muster.heartbeat.node-1", b"{}")
    await NatsTelemetry(agent).beat(Heartbeat("node-1", "life-1", 1))
    with pytest.raises(AskError, match="shows no life"):
        await ask(NatsAsks(await connect("api")), Question("x"))


async def test_a_question_that_is_none_is_refused(connect: Connect) -> None:
    class Other(msgspec.Struct):
        number: int

    agent = Agent()
    serving = asyncio.create_task(NatsAsks(await connect("agent-node-1")).serve("node-1", Question, agent.answer))
    api = NatsAsks(await connect("api"))
    await wait_until_served_by(api, agent)
    with pytest.raises(AskError, match="not understood"):
        async with aclosing(api.ask("node-1", Other(1))) as parts:
            await anext(parts)
    serving.cancel()
    await asyncio.wait({serving})


async def test_a_failing_agent_tells_no_secrets(connect: Connect) -> None:
    serving = asyncio.create_task(NatsAsks(await connect("agent-node-1")).serve("node-1", Question, answer))
    api = NatsAsks(await connect("api"))
    await wait_until_served(api)
    with pytest.raises(AskError, match="the agent failed to answer"):
        await ask(api, Question("bug"))
    serving.cancel()
    await asyncio.wait({serving})


async def test_a_lease_survives_a_broker_that_is_away_for_less_than_its_time(broker: Broker, connect: Connect) -> None:
    lease = NatsLease(await connect("scheduler"), "a")
    other = NatsLease(await connect("scheduler"), "b")
    assert await lease.try_acquire()
    await broker.kill9()
    renewing = asyncio.create_task(lease.renew())
    await broker.start()
    assert await renewing
    assert not await other.try_acquire()


async def test_a_lease_that_runs_out_while_the_broker_is_away_is_lost(broker: Broker, connect: Connect) -> None:
    lease = NatsLease(await connect("scheduler"), "a", ttl_s=0.3)
    assert await lease.try_acquire()
    await broker.kill9()
    assert not await lease.renew()
    await broker.start()
