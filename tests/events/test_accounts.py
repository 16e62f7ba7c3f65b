"""An agent in its own account: nothing that it asks for is answered elsewhere, all that it must do works on one broker
and on three, and a node can be added to brokers that run."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_cases import COMMAND, SMALL, decision, fact

from muster.events.agent_link import NatsAgentLink
from muster.events.asks import FRAME_BYTES, WINDOW, AskError, NatsAsks
from muster.events.beats import NatsBeats
from muster.events.broker import Broker, BrokerCluster
from muster.events.connection import Connection, NoAnswerError
from muster.events.credentials import make_credentials, read_credentials
from muster.events.jetstream import JetStreamLog
from muster.events.log import Ack, DuplicateConflictError, Message
from muster.events.streams import set_up
from muster.events.telemetry import GpuSampled, Heartbeat

STARTED = "muster.node.node-1.worker-started"
OWN = (
    STARTED,
    "muster.heartbeat.node-1",
    "muster.answer.node-1.token",
    "MUSTER.API.CONSUMER.DELETE.MUSTER_LOG.commands-node-1",
)
FOREIGN = (
    "muster.decision.default.job-allocated",  # moves the fence
    "muster.command.node-1",
    "muster.submission.default",
    "muster.node.node-2.worker-started",
    "muster.heartbeat.node-2",
    "$KV.MUSTER_LEASE.leader",
    "$JS.API.STREAM.PURGE.MUSTER_LOG",
)
CONSUMERS = (
    ("commands-node-1", "muster.command.node-1"),
    ("readback-node-1", "muster.node.node-1.>"),
    ("registrations-node-1", "muster.node.node-1.node-registered"),
)


class Question(msgspec.Struct):
    """How many parts the answer has."""

    parts: int


async def answer(question: Question) -> AsyncIterator[bytes]:
    for number in range(question.parts):
        yield b"%07d\n" % number * 1000


class Place:
    """One broker or three, with their streams, and connections to them."""

    def __init__(self, made: Broker | BrokerCluster, stack: AsyncExitStack) -> None:
        self._made = made
        self._stack = stack
        self.brokers = [made] if isinstance(made, Broker) else made.brokers

    async def connect(self, role: str, number: int = 0) -> Connection:
        """A connection to one of the brokers, as soon as it knows the role: while it reads a new configuration it knows
        nobody."""
        async with asyncio.timeout(20):
            while True:
                try:
                    connection = await Connection.open(
                        [self.brokers[number].url], self.brokers[number].credentials[role], role
                    )
                except NoAnswerError:
                    await asyncio.sleep(0.01)
                else:
                    self._stack.push_async_callback(connection.close)
                    return connection

    async def link(self, node: str, number: int = 0) -> NatsAgentLink[Question]:
        return NatsAgentLink(await self.connect(f"agent-{node}", number), node, Question)

    def configure(self, *nodes: str) -> None:
        """Write a new configuration, with more nodes, beside the brokers that run."""
        credentials = make_credentials(
            [*self.brokers[0].credentials, *(f"agent-{node}" for node in nodes)], self.brokers[0].credentials
        )
        for broker in self.brokers:
            broker._given_credentials = credentials
            broker._prepare()

    def reload(self) -> None:
        for broker in self.brokers:
            broker.signal(signal.SIGHUP)


@pytest.fixture(params=[1, 3])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    nodes = ["node-1", "node-2"]
    made = Broker(tmp_path, nodes=nodes) if request.param == 1 else BrokerCluster(tmp_path, nodes=nodes)
    async with made, AsyncExitStack() as stack:
        await set_up(made.urls, made.credentials, replicas=made.replicas, limits=SMALL)
        yield Place(made, stack)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110  what is waited for is the broker's
            await asyncio.sleep(0.01)


async def stored(operator: Connection) -> dict[str, int]:
    """How many entries each stream has, and where the fence is."""
    counts = {
        name: (await operator.api(f"STREAM.INFO.{name}"))["state"]["messages"]
        for name in ("MUSTER_LOG", "MUSTER_TELEMETRY", "KV_MUSTER_LEASE")
    }
    return counts | {"fence": await (await JetStreamLog.open(operator)).last_fenced_sequence()}


async def consumer_info(operator: Connection, consumer: str) -> dict[str, Any]:
    """What the log says of a consumer, asked again where nobody answers: only the broker that leads a consumer answers
    for it, and one made a moment ago, on brokers that have just read a new configuration, may have no leader yet."""
    async with asyncio.timeout(20):
        while True:
            with suppress(NoAnswerError):
                return await operator.api(f"CONSUMER.INFO.MUSTER_LOG.{consumer}", timeout_s=1.0)


async def have_delivered(agent: Connection, operator: Connection, consumer: str, subject: str, reply: str) -> None:
    """Have a consumer of the agent's give all that it has to a reply subject: surely, where its account knows that."""
    config: dict[str, Any] = {"name": consumer, "filter_subject": subject, "ack_policy": "none", "num_replicas": 1}
    body = msgspec.json.encode({"stream_name": "MUSTER_LOG", "config": config})
    create = f"{agent.api_prefix}.CONSUMER.CREATE.MUSTER_LOG.{consumer}.{subject}"
    await agent.publish(create, body, reply=reply)
    await agent.request(create, body)

    async def is_given() -> bool:
        await agent.publish(
            f"{agent.api_prefix}.CONSUMER.MSG.NEXT.MUSTER_LOG.{consumer}", b'{"batch":10,"no_wait":true}', reply=reply
        )
        info = await consumer_info(operator, consumer)
        return bool(info["num_pending"] == 0 and info["delivered"]["consumer_seq"] > 0)

    if reply in OWN:
        await until(is_given)
    else:
        await is_given()
    await agent.api(f"CONSUMER.DELETE.MUSTER_LOG.{consumer}")


async def try_every_reply(agent: Connection, operator: Connection, targets: tuple[str, ...]) -> None:
    for target in targets:
        for consumer, subject in CONSUMERS:
            await have_delivered(agent, operator, consumer, subject, target)


async def lay_out(place: Place) -> Connection:
    """An agent of node-1 that has two commands and two reports, without ids that would make repeats duplicates."""
    scheduler = await place.connect("scheduler")
    agent = await place.connect("agent-node-1", -1)
    for _ in range(2):
        await stored_request(scheduler, COMMAND, b"command")
        await stored_request(agent, "muster.node.node-1.node-registered", b"registered")
    return agent


async def stored_request(connection: Connection, subject: str, payload: bytes) -> None:
    """Have an entry stored: again where nobody answers, since a stream made a moment ago may have no leader yet."""
    async with asyncio.timeout(20):
        while True:
            with suppress(NoAnswerError):
                await connection.request(subject, payload)
                return
            await asyncio.sleep(0.01)


async def test_what_an_agent_asks_for_is_answered_to_nobody_else(place: Place) -> None:
    agent, operator = await lay_out(place), await place.connect("operator")
    await (await JetStreamLog.open(operator)).append_fenced(decision(1), 0)
    before = await stored(operator)
    await try_every_reply(agent, operator, (*FOREIGN, *OWN))
    await operator.request("muster.submission.default", b"a last entry")
    assert await stored(operator) == before | {"MUSTER_LOG": before["MUSTER_LOG"] + 1}


async def test_an_acknowledgement_goes_to_nobody_else(place: Place) -> None:
    agent, operator = await place.connect("agent-node-1", -1), await place.connect("operator")
    before = await stored(operator)
    for target in (*FOREIGN, *OWN[1:]):
        for subject in (STARTED, "muster.heartbeat.node-1", "muster.answer.node-1.token"):
            await agent.publish(subject, b"{}", reply=target)
    for subject in (STARTED, "muster.heartbeat.node-1"):
        await agent.request(subject, b"{}")
    count = len(FOREIGN) + len(OWN[1:]) + 1
    assert await stored(operator) == before | {"MUSTER_LOG": count, "MUSTER_TELEMETRY": count}


async def test_agents_do_not_reach_each_other(place: Place) -> None:
    agent, other = await place.connect("agent-node-1"), await place.connect("agent-node-2", -1)
    operator = await place.connect("operator")
    heard = set[bytes]()
    for subject in ("muster.ask.node-2", "muster.ask.node-2.*", "muster.heartbeat.node-2"):
        await other.subscribe(subject, lambda _s, _r, _h, payload: heard.add(payload))

    async def is_heard(payload: bytes) -> bool:
        await operator.publish("muster.ask.node-2", payload)
        return payload in heard

    await until(lambda: is_heard(b"first"))
    for target in ("muster.ask.node-2", "muster.ask.node-2.token", "muster.heartbeat.node-2"):
        await agent.publish(target, b"intruder")
        await agent.publish(STARTED, b"intruder", reply=target)
    await agent.request(STARTED, b"{}")
    await until(lambda: is_heard(b"last"))
    assert heard == {b"first", b"last"}


async def test_an_agent_does_all_it_must_at_any_broker(place: Place) -> None:
    api = NatsAsks(await place.connect("api"))
    scheduler = await place.connect("scheduler")
    log = await JetStreamLog.open(scheduler)
    for number in range(len(place.brokers)):
        agent = await place.link("node-1", number)
        reports = [Message(STARTED, f"{number}.{i}".encode(), f"report-{number}-{i}") for i in range(3)]
        acks = await agent.append_batch(reports)
        assert await agent.append_batch(reports) == [Ack(ack.sequence, duplicate=True) for ack in acks]
        with pytest.raises(DuplicateConflictError):
            await agent.append_batch([Message(STARTED, b"something else", reports[0].message_id)])
        [registered] = await agent.append_batch(
            [Message("muster.node.node-1.node-registered", b"registered", f"registered-{number}")]
        )
        last = await agent.last_registration("node-1")
        assert last is not None
        assert last.sequence == registered.sequence
        assert await agent.beat(Heartbeat("node-1", f"life-{number}", 1))
        await agent.sample(GpuSampled("node-1", f"life-{number}", []))
        await log.append_fenced(decision(number), await log.last_fenced_sequence())
        assert await first_command(agent, registered.sequence) == f"command {number}.0".encode()
        async with served(agent, api):
            parts = 2 * WINDOW * FRAME_BYTES // 8000
            assert await ask(api, parts) == b"".join(b"%07d\n" % part * 1000 for part in range(parts))
        assert [beat.incarnation for beat in await NatsBeats(scheduler).last()] == [f"life-{number}"]


async def first_command(agent: NatsAgentLink[Question], after: int) -> bytes:
    async with asyncio.timeout(20), aclosing(agent.commands("node-1", after)) as chunks:  # type: ignore[type-var]
        return (await anext(chunks))[0].payload


async def ask(api: NatsAsks, parts: int, node: str = "node-1") -> bytes:
    async with asyncio.timeout(20), aclosing(api.ask(node, Question(parts))) as found:
        return b"".join([part async for part in found])


@asynccontextmanager
async def served(agent: NatsAgentLink[Question], api: NatsAsks, node: str = "node-1") -> AsyncIterator[None]:
    """While an agent answers questions."""
    serving = asyncio.create_task(agent.serve_asks(node, answer))

    async def is_served() -> bool:
        try:
            await ask(api, 0, node)
        except AskError:
            return False
        return True

    try:
        await until(is_served)
        yield
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_a_node_is_added_to_brokers_that_run(place: Place) -> None:
    """By two signals: the first one makes the account, the second one opens its ways (the server's order)."""
    log = await JetStreamLog.open(await place.connect("scheduler"))
    api, old = NatsAsks(await place.connect("api")), await place.link("node-1", -1)
    place.configure("node-3")
    place.reload()
    opened = [await place.connect("agent-node-3", number) for number in range(len(place.brokers))]
    place.reload()
    new = NatsAgentLink(opened[-1], "node-3", Question)
    subject = "muster.node.node-3.worker-started"
    reports = [Message(subject, b"1", "new-1"), Message(subject, b"2", "new-2")]
    assert await new.append_batch(reports) == [Ack(1, duplicate=False), Ack(2, duplicate=False)]
    assert await new.append_batch(reports[:1]) == [Ack(1, duplicate=True)]
    await old.append_batch([Message(STARTED, b"3", "old-1")])
    await log.append_fenced(decision(1), 0)
    assert await first_command(old, 0) == b"command 1.0"
    async with served(old, api), served(new, api, "node-3"):
        assert await ask(api, 1, "node-3") == await ask(api, 1) == b"0000000\n" * 1000
    operator, agent = await place.connect("operator"), await lay_out(place)
    before = await stored(operator)
    await try_every_reply(agent, operator, OWN)
    await operator.request(fact(1).subject, b"a last entry")
    assert await stored(operator) == before | {"MUSTER_LOG": before["MUSTER_LOG"] + 1}


def test_a_file_from_before_there_were_accounts_still_serves(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"agent-node-1": {"user": "agent-node-1", "password": "secret"}}')
    credential = read_credentials(path)["agent-node-1"]
    assert (credential.user, credential.password, credential.api) == ("agent-node-1", "secret", "MUSTER.API")
