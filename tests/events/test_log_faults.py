"""The broker dies, hangs, fills up and loses its leader; the log goes on and tells the truth."""

import asyncio
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from log_cases import COMMAND, DECISION, SUBMISSION, Tally, decision, fact, follow

from muster.events.broker import Broker, BrokerCluster
from muster.events.connection import Connection, Credential, NoAnswerError
from muster.events.jetstream import JetStreamLog
from muster.events.log import (
    AppendRefusedError,
    Entry,
    LogFullError,
    LogUnavailableError,
    Message,
    MissingEntryError,
)
from muster.events.memory import MemoryLog
from muster.events.pull import Pull
from muster.events.reading import read_direct, read_entry, read_leader
from muster.events.streams import StreamLimits, set_up


async def kill_and_restart(broker: Broker) -> None:
    await broker.kill9()
    await broker.start()


async def test_appends_that_were_in_flight_when_the_broker_was_killed_are_stored_once(
    broker: Broker, jetstream: JetStreamLog
) -> None:
    acks = Tally()

    async def write(writer: int) -> None:
        for number in range(150):
            name = f"{writer}-{number}"
            acks.add(await jetstream.append(Message(SUBMISSION, name.encode(), name)))

    writing = [asyncio.create_task(write(writer)) for writer in range(8)]
    for quantity in (200, 500, 800):
        await acks.reach(quantity)
        await kill_and_restart(broker)
    await asyncio.gather(*writing)
    entries = await jetstream.read(1, 5000)
    assert sorted(entry.payload for entry in entries) == sorted(
        f"{writer}-{number}".encode() for writer in range(8) for number in range(150)
    )
    assert sorted(ack.sequence for ack in acks.items) == list(range(1, 1201))


async def test_fenced_batches_around_kills_are_stored_once_and_in_order(
    broker: Broker, jetstream: JetStreamLog
) -> None:
    done = Tally()

    async def decide() -> None:
        fence = 0
        for number in range(60):
            last = await jetstream.append_fenced(decision(number, commands=2), fence)
            fence = last - 2
            done.add(last)

    deciding = asyncio.create_task(decide())
    for quantity in (10, 25, 40):
        await done.reach(quantity)
        await kill_and_restart(broker)
    await deciding
    entries = await jetstream.read(1)
    assert [entry.payload.decode() for entry in entries] == [
        text for n in range(60) for text in (f"decision {n}", f"command {n}.0", f"command {n}.1")
    ]


async def test_a_fenced_append_whose_answer_was_lost_finds_itself(jetstream: JetStreamLog) -> None:
    batch, single = decision(1, commands=2), decision(2, commands=0)
    assert await jetstream.append_fenced(batch, 0) == 3
    assert await jetstream.append_fenced(batch, 0) == 3
    assert await jetstream.append_fenced(single, 1) == 4
    assert await jetstream.append_fenced(single, 1) == 4
    await jetstream.append(fact(1))
    assert await jetstream.append_fenced(batch, 0) == 3
    assert await jetstream.last_sequence() == 5


async def test_the_same_bytes_from_another_writer_are_not_mistaken_for_ones_own(jetstream: JetStreamLog) -> None:
    mine = decision(1, commands=1)
    theirs = [Message(each.subject, each.payload, f"theirs-{each.message_id}") for each in mine]
    await jetstream.append_fenced(theirs, 0)
    with pytest.raises(AppendRefusedError):
        await jetstream.append_fenced(mine, 0)


async def test_an_append_while_the_broker_is_away_ends_in_time_and_is_not_sent_later(
    broker: Broker, jetstream: JetStreamLog
) -> None:
    await jetstream.append(fact(1))
    await broker.kill9()
    with pytest.raises(LogUnavailableError):
        await jetstream.append(fact(2), timeout_s=0.3)
    with pytest.raises(LogUnavailableError):
        await jetstream.append_fenced(decision(1), 0, timeout_s=0.3)
    await broker.start()
    assert await jetstream.append(fact(3)) == (2, False)
    assert [entry.payload for entry in await jetstream.read(1)] == [b"fact 1", b"fact 3"]


async def test_an_append_waits_for_a_broker_that_comes_back(broker: Broker, jetstream: JetStreamLog) -> None:
    await broker.kill9()
    appending = asyncio.create_task(jetstream.append(fact(1)))
    await broker.start()
    assert (await appending).sequence == 1


async def test_a_tail_survives_the_broker(broker: Broker, jetstream: JetStreamLog) -> None:
    await jetstream.append_batch([fact(number) for number in range(1, 101)])
    seen: list[int] = []
    async with asyncio.timeout(30), aclosing(jetstream.tail(1)) as chunks:  # type: ignore[type-var]
        async for chunk in chunks:
            seen += [entry.sequence for entry in chunk]
            if seen[-1] == 100:
                await kill_and_restart(broker)
                await jetstream.append(fact(101))
            if seen[-1] == 101:
                await broker.stop()
                await broker.start()
                await jetstream.append(fact(102))
            if seen[-1] == 102:
                break
    assert seen == list(range(1, 103))


async def test_a_hung_broker_is_left_and_found_again(broker: Broker, jetstream: JetStreamLog) -> None:
    await jetstream.append(fact(1))
    following = asyncio.create_task(follow(jetstream, 1, 2))
    is_lost = asyncio.Event()
    jetstream.connection.on_loss(is_lost.set)
    broker.signal(signal.SIGSTOP)
    appending = asyncio.create_task(jetstream.append(fact(2)))
    await asyncio.wait_for(is_lost.wait(), 15)
    broker.signal(signal.SIGCONT)
    assert (await appending).sequence == 2
    assert [entry.sequence for entry in await following] == [1, 2]


async def test_a_full_log_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        await set_up(broker.urls, broker.credentials, limits=StreamLimits(log_max_bytes=1 << 20))
        connection = await Connection.open(broker.urls, broker.credentials["operator"])
        log = await JetStreamLog.open(connection)
        await fill(log)
        assert (await log.usage()).used_bytes <= (1 << 20)
        await connection.close()


async def test_a_full_log_in_memory_refuses_and_keeps_what_it_has() -> None:
    await fill(MemoryLog(limit_bytes=1 << 20))


async def fill(log: JetStreamLog | MemoryLog) -> None:
    stored = 0
    with pytest.raises(LogFullError):  # noqa: PT012  the append that fails is one of many
        for number in range(100):
            await log.append(fact(number, f"{number}" + "x" * 30_000))
            stored = number + 1
    assert 20 < stored < 40
    with pytest.raises(LogFullError):
        await log.append_batch([fact(200, "x" * 30_000), fact(201, "x" * 30_000)])
    with pytest.raises(LogFullError):
        await log.append_fenced(
            [Message(each.subject, each.payload + b"x" * 30_000, each.message_id) for each in decision(1)], 0
        )
    assert await log.last_sequence() == stored
    assert len(await log.read(1)) == stored


async def test_a_message_that_is_too_large_is_a_mistake(jetstream: JetStreamLog) -> None:
    with pytest.raises(ValueError, match="larger than the broker takes"):
        await jetstream.append(fact(1, "x" * (3 << 20)))
    with pytest.raises(ValueError, match="larger than the broker takes"):
        await jetstream.append(fact(1, "x" * ((2 << 20) - 10)))
    with pytest.raises(ValueError, match="no message can be sent under"):
        await jetstream.append(Message("muster.submission.two words", b"x", "1"))
    assert await jetstream.append(fact(2, "x" * ((2 << 20) - 1024))) == (1, False)


async def test_an_entry_that_nobody_has_is_named(jetstream: JetStreamLog) -> None:
    with pytest.raises(MissingEntryError) as missing:
        await read_entry(jetstream.connection, "MUSTER_LOG", 7)
    assert missing.value.sequence == 7


async def test_the_leader_of_three_is_killed_under_load(cluster: BrokerCluster) -> None:
    connection = await Connection.open(cluster.urls, cluster.credentials["operator"])
    log = await JetStreamLog.open(connection)
    following = asyncio.create_task(follow(log, 1, 4 * 100 + 3 * 60))
    acks, fences = Tally(), Tally()

    async def write(writer: int) -> None:
        for number in range(100):
            name = f"{writer}-{number}"
            acks.add(await log.append(Message(SUBMISSION, name.encode(), name), timeout_s=60))

    async def decide() -> None:
        fence = 0
        for number in range(60):
            fence = await log.append_fenced(decision(number, commands=2), fence, timeout_s=60) - 2
            fences.add(fence)

    async with asyncio.TaskGroup() as working:
        for writer in range(4):
            working.create_task(write(writer))
        working.create_task(decide())
        await acks.reach(60)
        await fences.reach(10)
        info = await connection.api("STREAM.INFO.MUSTER_LOG")
        leader = next(broker for broker in cluster.brokers if broker.name == info["cluster"]["leader"])
        await leader.kill9()
    await leader.start()
    entries = await following
    assert entries == await log.read(1, 1000)
    assert sorted(entry.payload for entry in entries if entry.subject == SUBMISSION) == sorted(
        f"{writer}-{number}".encode() for writer in range(4) for number in range(100)
    )
    assert [entry.payload.decode() for entry in entries if entry.subject != SUBMISSION] == [
        text for n in range(60) for text in (f"decision {n}", f"command {n}.0", f"command {n}.1")
    ]
    for fence in fences.items:
        assert [entry.subject for entry in entries[fence - 1 : fence + 2]] == [DECISION, COMMAND, COMMAND]
    await connection.close()


async def test_three_brokers_refuse_a_stale_fence_and_know_their_own(cluster: BrokerCluster) -> None:
    connection = await Connection.open(cluster.urls, cluster.credentials["operator"])
    log = await JetStreamLog.open(connection)
    fence = await log.append_fenced(decision(1, commands=0), 0)
    with pytest.raises(AppendRefusedError):
        await log.append_fenced(decision(2), 0)
    assert await log.append_fenced(decision(1, commands=0), 0) == fence
    stored = await read_leader(connection, "MUSTER_LOG", {"seq": fence})
    assert stored is not None
    assert stored.message_id == "decision-1"
    await connection.close()


async def test_nobody_is_let_in_with_a_wrong_password(broker: Broker) -> None:
    with pytest.raises(NoAnswerError, match="Authorization Violation"):
        await Connection.open(broker.urls, Credential("api", "wrong"), timeout_s=60)


async def test_entries_that_a_consumer_skipped_are_read_from_the_leader(
    jetstream: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jetstream.append_batch([fact(number) for number in range(1, 21)])
    take = Pull.take

    async def take_with_holes(pull: Pull) -> list[Entry]:
        return [entry for entry in await take(pull) if entry.sequence not in (1, 7, 8)]

    monkeypatch.setattr(Pull, "take", take_with_holes)
    entries = await follow(jetstream, 1, 20)
    assert [entry.sequence for entry in entries] == list(range(1, 21))
    assert entries == await jetstream.read(1)


async def test_a_replica_that_lags_or_has_holes_does_not_shorten_a_read(
    jetstream: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jetstream.append_batch([fact(number) for number in range(1, 21)])
    whole = await jetstream.read(1)

    async def read_with_holes(connection: Connection, stream: str, query: dict[str, Any], batch: int) -> list[Entry]:
        found = await read_direct(connection, stream, query, batch)
        return [entry for entry in found if entry.sequence not in (1, 7, 8) and entry.sequence < 15]

    monkeypatch.setattr("muster.events.jetstream.read_direct", read_with_holes)
    assert await jetstream.read(1) == whole
    assert await jetstream.read(5, 4) == whole[4:8]
    assert await jetstream.read(16, 2) == whole[15:17]


async def test_an_entry_that_is_lost_everywhere_ends_the_tail(
    jetstream: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jetstream.append_batch([fact(number) for number in range(1, 21)])
    take = Pull.take

    async def take_a_later_log(pull: Pull) -> list[Entry]:
        return [entry._replace(sequence=entry.sequence + 100) for entry in await take(pull)]

    monkeypatch.setattr(Pull, "take", take_a_later_log)
    with pytest.raises(MissingEntryError) as missing:
        await follow(jetstream, 1, 1)
    assert missing.value.sequence == 21
