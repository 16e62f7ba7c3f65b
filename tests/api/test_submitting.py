"""The writer of submissions: everyone is answered, and one's trouble is nobody else's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from muster.api.submitting import Submitter
from muster.events.log import Ack, DuplicateConflictError, LogUnavailableError, Message
from muster.events.memory import MemoryLog


def message(number: int, text: str = "") -> Message:
    return Message("muster.submission.default", (text or f"body {number}").encode(), f"id-{number}")


class SlowLog(MemoryLog):
    """Appends when let, and counts how often it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()
        self.asked = asyncio.Event()
        self.groups: list[int] = []
        self.error: Exception | None = None

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        self.groups.append(len(messages))
        self.asked.set()
        await self.let.wait()
        if self.error is not None:
            raise self.error
        return await super().append_batch(messages, timeout_s)


@asynccontextmanager
async def running(log: MemoryLog) -> AsyncIterator[Submitter]:
    submitter = Submitter(log)
    task = asyncio.create_task(submitter.run())
    try:
        yield submitter
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_what_comes_in_during_an_append_is_the_next_one() -> None:
    log = SlowLog()
    async with running(log) as submitter:
        first = asyncio.create_task(submitter.submit(message(0)))
        await log.asked.wait()
        others = [asyncio.create_task(submitter.submit(message(number))) for number in range(1, 51)]
        await asyncio.sleep(0)
        log.let.set()
        acks = await asyncio.gather(first, *others)
    assert log.groups == [1, 50]
    assert [ack.sequence for ack in acks] == list(range(1, 52))


async def test_a_conflict_in_a_group_is_its_own_alone() -> None:
    log = SlowLog()
    await log.append(message(5, "another body"))
    async with running(log) as submitter:
        first = asyncio.create_task(submitter.submit(message(0)))
        await log.asked.wait()
        others = [asyncio.create_task(submitter.submit(message(number))) for number in range(1, 10)]
        await asyncio.sleep(0)
        log.let.set()
        await first
        answers = await asyncio.gather(*others, return_exceptions=True)
    assert [number for number, found in enumerate(answers, 1) if isinstance(found, DuplicateConflictError)] == [5]
    stored = {entry.payload for entry in log.entries}
    assert {f"body {number}".encode() for number in range(10) if number != 5} <= stored
    assert len(log.entries) == 10


async def test_a_log_that_does_not_answer_is_told_to_everyone_and_tried_again() -> None:
    log = SlowLog()
    log.error = LogUnavailableError("away")
    log.let.set()
    async with running(log) as submitter:
        answers = await asyncio.gather(*(submitter.submit(message(n)) for n in range(5)), return_exceptions=True)
        assert all(isinstance(found, LogUnavailableError) for found in answers)
        log.error = None
        assert (await submitter.submit(message(0))).sequence == 1


async def test_a_client_that_left_before_the_append_leaves_nothing() -> None:
    log = SlowLog()
    async with running(log) as submitter:
        first = asyncio.create_task(submitter.submit(message(0)))
        await log.asked.wait()
        gone = asyncio.create_task(submitter.submit(message(1)))
        await asyncio.sleep(0)
        gone.cancel()
        log.let.set()
        await first
        with pytest.raises(asyncio.CancelledError):
            await gone
        await submitter.submit(message(2))
    assert [entry.payload for entry in log.entries] == [b"body 0", b"body 2"]


async def test_whoever_waits_at_the_end_is_not_left_waiting() -> None:
    log = SlowLog()
    async with running(log) as submitter:
        waiting = [asyncio.create_task(submitter.submit(message(number))) for number in range(3)]
        await log.asked.wait()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(found, asyncio.CancelledError) for found in answers)
