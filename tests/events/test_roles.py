"""Each role can do what it must, and no more."""

import asyncio
import contextlib
from contextlib import aclosing

import msgspec
import pytest
from log_cases import COMMAND, DECISION, SUBMISSION, Connect, decision, fact, follow

from muster.events.agent_link import NatsAgentLink, commands
from muster.events.beats import NatsBeats
from muster.events.broker import Broker, BrokerCluster
from muster.events.connection import NOT_PERMITTED, ApiError, Connection
from muster.events.jetstream import JetStreamLog
from muster.events.lease import NatsLease
from muster.events.log import Ack, DuplicateConflictError, Entry, LogError, Message
from muster.events.telemetry import GpuSampled, Heartbeat

RUNNING = ("api", "scheduler", "reader", "agent-node-1")
SUBJECTS = {
    "api": {
        SUBMISSION,
        "muster.job.default.job-cancel-requested",
        "muster.admin.node-cordoned",
        "muster.admin.device-cordoned",
    },
    "scheduler": {DECISION, COMMAND, "muster.decision._cluster.device-readmitted"},
    "reader": set[str](),
    "agent-node-1": {
        "muster.node.node-1.worker-started",
        "muster.node.node-1.device-faulted",
        "muster.node.node-1.device-recovered",
        "muster.node.node-1.foreign-usage-changed",
        "muster.node.node-1.node-degraded",
        "muster.node.node-1.node-restored",
        "muster.heartbeat.node-1",
        "muster.gpu.node-1",
    },
}
FOREIGN = {
    "muster.node.node-2.worker-started",
    "muster.node.node-2.device-faulted",
    "muster.heartbeat.node-2",
    "muster.gpu.node-2",
    "muster.node.node-1.made-up",  # each distinct subject costs the server memory for ever
}
EVERY = set[str]().union(*SUBJECTS.values(), FOREIGN)


class Question(msgspec.Struct):
    """Nothing is asked here."""


async def is_refused(connection: Connection, subject: str, payload: bytes = b"{}") -> bool:
    """Whether the broker says that this user may not publish the subject."""
    try:
        await connection.request(subject, payload, timeout_s=20)
    except ApiError as error:
        return error.code == NOT_PERMITTED
    return False


@pytest.mark.parametrize("role", RUNNING)
async def test_a_role_writes_its_own_subjects_only(role: str, connect: Connect) -> None:
    connection = await connect(role)
    for subject in sorted(EVERY):
        assert await is_refused(connection, subject) == (subject not in SUBJECTS[role]), subject


@pytest.mark.parametrize("role", [*RUNNING, "operator"])
async def test_nobody_who_runs_can_delete_purge_or_change_a_stream(role: str, connect: Connect) -> None:
    writer = await JetStreamLog.open(await connect("operator"))
    await writer.append(fact(1))
    connection = await connect(role)
    config = (await writer.connection.api("STREAM.INFO.MUSTER_LOG"))["config"]
    for request, body in (
        ("STREAM.DELETE.MUSTER_LOG", {}),
        ("STREAM.PURGE.MUSTER_LOG", {}),
        ("STREAM.MSG.DELETE.MUSTER_LOG", {"seq": 1}),
        ("STREAM.UPDATE.MUSTER_LOG", {**config, "max_msgs": 1}),
        ("STREAM.RESTORE.OTHER", {"config": config}),
    ):
        assert await is_refused(connection, f"$JS.API.{request}", msgspec.json.encode(body)), request
    assert await writer.last_sequence() == 1
    assert len(await writer.read(1)) == 1


@pytest.mark.parametrize("role", RUNNING)
async def test_only_the_operator_creates_streams(role: str, connect: Connect) -> None:
    body = msgspec.json.encode({"name": "OTHER", "subjects": ["other"]})
    assert await is_refused(await connect(role), "$JS.API.STREAM.CREATE.OTHER", body)


@pytest.mark.parametrize("role", ["api", "scheduler", "reader"])
async def test_those_who_read_can_open_read_and_follow_the_log(role: str, connect: Connect) -> None:
    writer = await JetStreamLog.open(await connect("operator"))
    await writer.append_batch([fact(1), fact(2)])
    log = await JetStreamLog.open(await connect(role))
    assert len(await log.read(1)) == 2
    assert len(await follow(log, 1, 2)) == 2
    assert await log.sequence_at(0) == 0
    assert await log.last_sequence() == 2
    assert await log.last_fenced_sequence() == 0


async def test_a_scheduler_appends_decisions_holds_the_lease_and_hears_beats(connect: Connect) -> None:
    scheduler = await connect("scheduler")
    log = await JetStreamLog.open(scheduler)
    assert await log.append_fenced(decision(1, commands=2), 0) == 3
    lease = NatsLease(scheduler, "scheduler-1")
    assert await lease.try_acquire()
    assert await lease.renew()
    await lease.release()
    agent = NatsAgentLink(await connect("agent-node-1"), "node-1", Question)
    assert await agent.beat(Heartbeat("node-1", "life-1", 1))
    assert [(beat.node, beat.incarnation) for beat in await NatsBeats(scheduler).last()] == [("node-1", "life-1")]


async def test_an_agent_reports_reads_its_commands_and_shows_life(connect: Connect) -> None:
    scheduler = await JetStreamLog.open(await connect("scheduler"))
    agent = NatsAgentLink(await connect("agent-node-1"), "node-1", Question)
    report = Message("muster.node.node-1.node-registered", b"registered", "report-1")
    other = Message("muster.node.node-1.worker-started", b"started", "report-2")
    assert await agent.append_batch([report, other]) == [Ack(1, duplicate=False), Ack(2, duplicate=False)]
    assert await agent.append_batch([report]) == [Ack(1, duplicate=True)]
    with pytest.raises(DuplicateConflictError):
        await agent.append_batch([Message(report.subject, b"something else", "report-1")])
    await agent.sample(GpuSampled("node-1", "life-1", []))
    foreign = Message("muster.command.node-2", b"not yours", "foreign-1")
    await scheduler.append_fenced([*decision(1, commands=2), foreign], 0)
    entries = await take_commands(agent, 1, 2)
    assert [(entry.sequence, entry.payload) for entry in entries] == [(4, b"command 1.0"), (5, b"command 1.1")]
    assert [entry.sequence for entry in await take_commands(agent, 4, 1)] == [5]


async def test_an_agent_learns_who_else_is_the_agent_of_its_node(connect: Connect) -> None:
    one, other = NatsAgentLink(await connect("agent-node-1"), "node-1", Question), await connect("agent-node-1")
    assert await one.last_registration("node-1") is None
    await other.request("muster.node.node-1.worker-started", b"{}")
    for body in (b"first", b"second"):
        await other.request("muster.node.node-1.node-registered", body)
    last = await one.last_registration("node-1")
    assert last is not None
    assert (last.sequence, last.payload) == (3, b"second")
    async with asyncio.timeout(20), aclosing(one.registrations("node-1", 1)) as found:  # type: ignore[type-var]
        assert (await anext(found))[0].payload == b"first"
    beats = one.beats("node-1")
    heard = asyncio.ensure_future(anext(beats))
    foreign = await connect("agent-node-2")
    while not heard.done():
        await foreign.request("muster.heartbeat.node-2", msgspec.json.encode(Heartbeat("node-2", "life", 1)))
        await other.request("muster.heartbeat.node-1", msgspec.json.encode(Heartbeat("node-1", "other", 1)))
    assert (await heard).incarnation == "other"
    await beats.aclose()  # type: ignore[attr-defined]


async def test_an_agent_hears_no_other_node(connect: Connect) -> None:
    agent, foreign = await connect("agent-node-1"), await connect("agent-node-2")
    heard: list[bytes] = []
    for subject in ("muster.heartbeat.node-2", "muster.heartbeat.*", "muster.node.node-2.node-registered"):
        await agent.subscribe(subject, lambda _s, _r, _h, payload: heard.append(payload))
    for subject in ("muster.heartbeat.node-2", "muster.node.node-2.node-registered"):
        await foreign.request(subject, b"{}")
    await agent.request("muster.heartbeat.node-1", b"{}")
    assert heard == []


async def take_commands(agent: NatsAgentLink[Question], after: int, count: int) -> list[Entry]:
    entries: list[Entry] = []
    async with asyncio.timeout(20), aclosing(agent.commands("node-1", after)) as chunks:  # type: ignore[type-var]
        async for chunk in chunks:
            entries += chunk
            if len(entries) >= count:
                break
    return entries


async def test_commands_go_on_after_the_broker_was_killed(broker: Broker, connect: Connect) -> None:
    scheduler = await JetStreamLog.open(await connect("scheduler"))
    connection = await connect("agent-node-1")
    seen: list[bytes] = []
    async with asyncio.timeout(20), aclosing(commands(connection, "node-1", 0)) as chunks:  # type: ignore[type-var]
        await scheduler.append_fenced(decision(1), 0)
        async for chunk in chunks:
            seen += [entry.payload for entry in chunk]
            if len(seen) == 3:
                break
            await broker.kill9()
            await broker.start()
            await scheduler.append_fenced(decision(len(seen) + 1), await scheduler.last_fenced_sequence())
    assert seen == [b"command 1.0", b"command 2.0", b"command 3.0"]


async def test_an_agent_reads_nothing_but_its_own(connect: Connect) -> None:
    writer = await JetStreamLog.open(await connect("operator"))
    await writer.append(fact(1))
    connection = await connect("agent-node-1")
    for request, body in (
        ("STREAM.MSG.GET.MUSTER_LOG", {"seq": 1}),
        ("DIRECT.GET.MUSTER_LOG", {"seq": 1}),
        ("STREAM.INFO.MUSTER_LOG", {}),
    ):
        assert await is_refused(connection, f"$JS.API.{request}", msgspec.json.encode(body)), request
    for subject, name in (
        ("", "commands-node-1"),
        ("muster.command.node-2", "commands-node-1"),
        ("muster.command.node-1", "commands-node-2"),
        ("muster.>", "commands-node-1"),
        ("muster.node.node-2.node-registered", "registrations-node-1"),
        ("muster.node.node-1.node-registered", "registrations-node-2"),
        ("muster.>", "registrations-node-1"),
    ):
        assert not await can_pull(connection, subject, name), subject


async def can_pull(connection: Connection, subject: str, name: str) -> bool:
    where = f"CONSUMER.CREATE.MUSTER_LOG.{name}" + (f".{subject}" if subject else "")
    config = {"name": name, "deliver_policy": "all", "ack_policy": "none", "filter_subject": subject}
    try:
        await connection.api(where, {"stream_name": "MUSTER_LOG", "config": config}, timeout_s=20)
    except ApiError as error:
        return error.code != NOT_PERMITTED
    return True


async def test_an_agent_cannot_ask_for_one_subject_in_the_name_of_another(connect: Connect) -> None:
    connection = await connect("agent-node-1")
    config = {"name": "commands-node-1", "deliver_policy": "all", "ack_policy": "none", "filter_subject": "muster.>"}
    body = {"stream_name": "MUSTER_LOG", "config": config}
    with pytest.raises(ApiError):
        await connection.api("CONSUMER.CREATE.MUSTER_LOG.commands-node-1.muster.command.node-1", body)


async def test_a_reader_cannot_listen_to_the_answers_of_others(connect: Connect) -> None:
    reader, api = await connect("reader"), await connect("api")
    heard: list[bytes] = []
    await reader.subscribe("_INBOX.api.>", lambda _s, _r, _h, payload: heard.append(payload))
    await api.api("STREAM.INFO.MUSTER_LOG")
    await reader.api("STREAM.INFO.MUSTER_LOG")
    assert heard == []


@pytest.mark.parametrize(
    ("role", "stream", "name", "subject"),
    [
        ("reader", "MUSTER_TELEMETRY", "mine", "muster.heartbeat.*"),
        ("agent-node-1", "MUSTER_LOG", "readback-node-1", "muster.node.node-1.>"),
    ],
)
@pytest.mark.parametrize(
    "target",
    [
        "muster.submission.default",
        "muster.heartbeat.node-2",
        "$KV.MUSTER_LEASE.leader",
        "$JS.API.STREAM.PURGE.MUSTER_LOG",
    ],
)
async def test_what_a_consumer_delivers_never_becomes_an_entry_or_a_request(
    role: str, stream: str, name: str, subject: str, target: str, connect: Connect
) -> None:
    operator, agent, intruder = await connect("operator"), await connect("agent-node-1"), await connect(role)
    await agent.request("muster.node.node-1.worker-started", b"{}")
    await agent.request("muster.heartbeat.node-1", b"{}")
    config = {
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "none",
        "filter_subject": subject,
        "deliver_subject": target,
    }
    with contextlib.suppress(ApiError):
        await intruder.api(f"CONSUMER.CREATE.{stream}.{name}.{subject}", {"stream_name": stream, "config": config})
    await agent.request("muster.node.node-1.worker-started", b"{}")
    await agent.request("muster.heartbeat.node-1", b"{}")
    for kept, messages in (("MUSTER_LOG", 2), ("MUSTER_TELEMETRY", 2), ("KV_MUSTER_LEASE", 0)):
        assert (await operator.api(f"STREAM.INFO.{kept}"))["state"]["messages"] == messages


@pytest.mark.parametrize("target", ["muster.submission.default", "muster.command.node-1", "$KV.MUSTER_LEASE.leader"])
async def test_what_a_reader_asks_for_is_answered_to_nobody_else(target: str, connect: Connect) -> None:
    operator, agent, reader = await connect("operator"), await connect("agent-node-1"), await connect("reader")
    await agent.request("muster.node.node-1.worker-started", b"{}")
    api = reader.api_prefix
    config = {"name": "mine", "deliver_policy": "all", "ack_policy": "none"}
    await reader.api("CONSUMER.CREATE.MUSTER_LOG.mine", {"stream_name": "MUSTER_LOG", "config": config})
    for subject, body in (
        (f"{api}.STREAM.INFO.MUSTER_LOG", b""),
        (f"{api}.STREAM.MSG.GET.MUSTER_LOG", b'{"seq":1}'),
        (f"{api}.DIRECT.GET.MUSTER_LOG", b'{"seq":1}'),
        (f"{api}.CONSUMER.INFO.MUSTER_LOG.mine", b""),
        (f"{api}.CONSUMER.MSG.NEXT.MUSTER_LOG.mine", b'{"batch":1}'),
    ):
        await reader.publish(subject, body, reply=target)
    assert (await reader.api("STREAM.INFO.MUSTER_LOG"))["state"]["messages"] == 1
    for kept, messages in (("MUSTER_LOG", 1), ("KV_MUSTER_LEASE", 0)):
        assert (await operator.api(f"STREAM.INFO.{kept}"))["state"]["messages"] == messages


async def test_an_append_that_is_not_permitted_says_so_at_once(connect: Connect) -> None:
    log = await JetStreamLog.open(await connect("reader"))
    with pytest.raises(LogError, match=f"reader may not publish {SUBMISSION}"):
        await log.append(fact(1), timeout_s=60)
    with pytest.raises(LogError, match="may not publish"):
        await log.append_fenced(decision(1), 0, timeout_s=60)


async def test_a_reader_follows_a_log_on_three_brokers_from_each_of_them(cluster: BrokerCluster) -> None:
    writer = await Connection.open(cluster.urls, cluster.credentials["operator"])
    log = await JetStreamLog.open(writer)
    await log.append_batch([fact(number) for number in range(1, 700)])
    for url in cluster.urls:
        reader = await Connection.open([url], cluster.credentials["reader"])
        outside = await JetStreamLog.open(reader)
        assert len(await outside.read(1, 600)) == 600
        assert len(await follow(outside, 1, 699)) == 699
        await reader.close()
    await writer.close()
