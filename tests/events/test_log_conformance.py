"""What every log promises, asked of each implementation: in memory, on one broker, on three."""

import asyncio

import pytest
from log_cases import SUBMISSION, bodies, decision, fact, follow

from muster.events.log import AppendRefusedError, DuplicateConflictError, Log, Message


async def test_an_append_is_acknowledged_with_its_sequence_and_can_be_read(any_log: Log) -> None:
    assert await any_log.last_sequence() == 0
    assert await any_log.read(1) == []
    assert await any_log.append(fact(1)) == (1, False)
    assert await any_log.append(fact(2)) == (2, False)
    entries = await any_log.read(1)
    assert [(entry.sequence, entry.subject, entry.payload) for entry in entries] == [
        (1, SUBMISSION, b"fact 1"),
        (2, SUBMISSION, b"fact 2"),
    ]
    assert 0 < entries[0].timestamp_ns <= entries[1].timestamp_ns
    assert await any_log.last_sequence() == 2


async def test_the_same_message_twice_is_one_entry(log: Log) -> None:
    await log.append(fact(1))
    await log.append(fact(2))
    assert await log.append(fact(1)) == (1, True)
    assert await log.last_sequence() == 2


async def test_a_used_message_id_with_another_body_is_a_conflict(any_log: Log) -> None:
    await any_log.append(fact(1))
    with pytest.raises(DuplicateConflictError) as conflict:
        await any_log.append(fact(1, "something else"))
    assert conflict.value.sequence == 1
    with pytest.raises(DuplicateConflictError):
        await any_log.append(Message("muster.submission.other", b"fact 1", "fact-1"))
    assert await any_log.last_sequence() == 1


async def test_a_batch_is_stored_in_order(log: Log) -> None:
    acks = await log.append_batch([fact(1), fact(2), fact(3)])
    assert acks == [(1, False), (2, False), (3, False)]
    assert bodies(await log.read(1)) == ["fact 1", "fact 2", "fact 3"]
    assert await log.append_batch([]) == []
    assert await log.append_batch([fact(4)]) == [(4, False)]


async def test_a_batch_with_a_duplicate_stores_the_rest(any_log: Log) -> None:
    await any_log.append_batch([fact(1), fact(2)])
    assert await any_log.append_batch([fact(2), fact(3)]) == [(2, True), (3, False)]
    assert await any_log.append_batch([fact(4), fact(4)]) == [(4, False), (4, True)]
    assert await any_log.last_sequence() == 4


async def test_a_batch_larger_than_one_atomic_append_is_stored_whole(log: Log) -> None:
    acks = await log.append_batch([fact(number) for number in range(1, 1002)])
    assert [ack.sequence for ack in acks] == list(range(1, 1002))
    assert bodies(await log.read(1001)) == ["fact 1001"]


async def test_a_fenced_append_moves_the_fence(log: Log) -> None:
    assert await log.last_fenced_sequence() == 0
    await log.append(fact(1))
    assert await log.append_fenced(decision(1, commands=3), 0) == 5
    assert await log.last_fenced_sequence() == 2
    await log.append(fact(2))
    assert await log.append_fenced(decision(2, commands=0), 2) == 7
    assert await log.last_fenced_sequence() == 7
    assert bodies(await log.read(2, 4)) == ["decision 1", "command 1.0", "command 1.1", "command 1.2"]


async def test_a_stale_fence_is_refused_and_nothing_is_written(any_log: Log) -> None:
    await any_log.append_fenced(decision(1, commands=2), 0)
    for messages in (decision(2, commands=2), decision(3, commands=0)):
        with pytest.raises(AppendRefusedError) as refused:
            await any_log.append_fenced(messages, 0)
        assert (refused.value.expected, refused.value.actual) == (0, 1)
    assert await any_log.last_sequence() == 3


async def test_a_fence_from_the_future_is_refused(log: Log) -> None:
    await log.append_fenced(decision(1), 0)
    with pytest.raises(AppendRefusedError) as refused:
        await log.append_fenced(decision(2), 2)
    assert refused.value.actual == 1


async def test_a_fenced_append_that_cannot_move_the_fence_is_a_mistake(log: Log) -> None:
    with pytest.raises(ValueError, match="decision"):
        await log.append_fenced([fact(1)], 0)
    with pytest.raises(ValueError, match="900"):
        await log.append_fenced(decision(1, commands=900), 0)


async def test_the_largest_fenced_append_is_contiguous(any_log: Log) -> None:
    await any_log.append(fact(1))
    assert await any_log.append_fenced(decision(1, commands=899), 0) == 901
    assert len(await any_log.read(1, 2000)) == 901


async def test_reading_starts_and_ends_where_asked(log: Log) -> None:
    await log.append_batch([fact(number) for number in range(1, 8)])
    assert bodies(await log.read(3, 2)) == ["fact 3", "fact 4"]
    assert bodies(await log.read(6, 100)) == ["fact 6", "fact 7"]
    assert await log.read(8) == []
    assert await log.read(800) == []
    assert bodies(await log.read(0, 1)) == ["fact 1"]


async def test_a_tail_gives_what_was_there_and_what_comes(any_log: Log) -> None:
    await any_log.append_batch([fact(number) for number in range(1, 1501)])
    following = asyncio.create_task(follow(any_log, 11, 1492))
    await any_log.append(fact(1501))
    await any_log.append(fact(1502))
    entries = await following
    assert [entry.sequence for entry in entries] == list(range(11, 1503))
    assert entries == await any_log.read(11, 2000)


async def test_a_tail_waits_for_entries_that_do_not_exist_yet(log: Log) -> None:
    following = asyncio.create_task(follow(log, 3, 1))
    await log.append_batch([fact(1), fact(2), fact(3)])
    assert bodies(await following) == ["fact 3"]


async def test_the_sequence_at_a_time_is_the_last_entry_not_after_it(any_log: Log) -> None:
    assert await any_log.sequence_at(1) == 0
    for number in (1, 2, 3):
        await any_log.append(fact(number))
    first, second, third = (entry.timestamp_ns for entry in await any_log.read(1))
    assert first < second < third
    assert await any_log.sequence_at(first - 1) == 0
    assert await any_log.sequence_at(first) == 1
    assert await any_log.sequence_at(second - 1) == 1
    assert await any_log.sequence_at(second) == 2
    assert await any_log.sequence_at(third) == 3
    assert await any_log.sequence_at(third + 10**15) == 3


async def test_usage_grows_with_what_is_stored(log: Log) -> None:
    before = await log.usage()
    await log.append(fact(1, "x" * 10_000))
    after = await log.usage()
    assert after.limit_bytes == before.limit_bytes
    assert after.used_bytes > before.used_bytes


async def test_writers_at_the_same_time_lose_and_repeat_nothing(any_log: Log) -> None:
    acks = await asyncio.gather(*(any_log.append(fact(number)) for number in range(200)))
    assert sorted(ack.sequence for ack in acks) == list(range(1, 201))
    for number, ack in enumerate(acks):
        assert bodies(await any_log.read(ack.sequence, 1)) == [f"fact {number}"]
