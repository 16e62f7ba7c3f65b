"""Messages for tests of a log, and a tail that ends."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from muster.events.connection import Connection
from muster.events.log import Entry, Log, Message
from muster.events.streams import StreamLimits

SMALL = StreamLimits(log_max_bytes=256 << 20, telemetry_max_bytes=16 << 20)

Connect = Callable[[str], Awaitable[Connection]]

SUBMISSION = "muster.submission.default"
DECISION = "muster.decision.default.job-allocated"
COMMAND = "muster.command.node-1"


def fact(number: int, body: str = "") -> Message:
    return Message(SUBMISSION, (body or f"fact {number}").encode(), f"fact-{number}")


def decision(number: int, commands: int = 1) -> list[Message]:
    return [
        Message(DECISION, f"decision {number}".encode(), f"decision-{number}"),
        *(Message(COMMAND, f"command {number}.{i}".encode(), f"command-{number}-{i}") for i in range(commands)),
    ]


def bodies(entries: list[Entry]) -> list[str]:
    return [entry.payload.decode() for entry in entries]


async def follow(log: Log, first: int, count: int) -> list[Entry]:
    """The next `count` entries from the tail."""
    entries: list[Entry] = []
    async with asyncio.timeout(20), aclosing(log.tail(first)) as chunks:  # type: ignore[type-var]
        async for chunk in chunks:
            entries += chunk
            if len(entries) >= count:
                break
    return entries


class Tally:
    """Collects things, and lets a test wait until there are enough."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._news = asyncio.Event()

    def add(self, item: Any) -> None:
        self.items.append(item)
        self._news.set()

    async def reach(self, quantity: int) -> None:
        async with asyncio.timeout(30):
            while len(self.items) < quantity:
                self._news.clear()
                await self._news.wait()
