"""Bad clients: too many of them, and those that neither send nor take what they began. The others are served."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from api_harness import DEADLINE_S, Harness, serving

from muster.api import clients
from muster.api.clients import Clients
from muster.events.codec import encode
from muster.events.log import Message
from muster.events.types import NodeCordoned

HEALTH = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
EVENTS = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"


class Client:
    """One connection that sends and reads what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, text: str) -> None:
        self.writer.write(text.encode())
        await self.writer.drain()

    async def head(self) -> str:
        """The head of an answer."""
        async with asyncio.timeout(DEADLINE_S):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def status(self, text: str) -> int:
        """Send a request; the status of its answer, whose body is read too."""
        await self.send(text)
        head = await self.head()
        length = [line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
        if length:
            await self.reader.readexactly(int(length[0]))
        return int(head.split()[1])

    async def cut_off(self) -> bool:
        """Whether the server ends the connection."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            return True
        return True

    async def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def client(harness: Harness) -> AsyncGenerator[Client, None]:
    port = int(harness.url.rpartition(":")[2])
    made = Client(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield made
    finally:
        await made.close()


async def status_at_last(harness: Harness, request: str, wanted: int) -> None:
    """Ask, each time on a new connection, until the answer has this status."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with client(harness) as another:
                if await another.status(request) == wanted:
                    return


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "LOOK_S", 0.01)
    monkeypatch.setattr(clients, "PATIENCE_S", 0.1)


async def test_a_connection_too_many_is_told_to_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path, clients=Clients(2)) as harness, client(harness) as first:
        async with client(harness) as second, client(harness) as third:
            assert [await first.status(HEALTH), await second.status(HEALTH)] == [200, 200]
            head = await third.head()
            assert head.startswith("HTTP/1.1 503 ")
            assert "\r\nRetry-After: 5\r\n" in head
            problem = json.loads(await third.reader.read())
            assert (problem["code"], problem["detail"]) == ("too_many", "2 connections are open")
            assert await second.status(HEALTH) == 200
        await status_at_last(harness, HEALTH, 200)


async def test_of_many_connections_at_once_no_more_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path, clients=Clients(10)) as harness, AsyncExitStack() as stack:
        many = await asyncio.gather(*(stack.enter_async_context(client(harness)) for _ in range(100)))

        async def is_served(each: Client) -> bool:
            try:
                return await each.status(HEALTH) == 200
            except (ConnectionError, asyncio.IncompleteReadError):
                return False

        assert sum(await asyncio.gather(*map(is_served, many))) == 10


async def test_streams_leave_room_for_others(tmp_path: Path) -> None:
    async with serving(tmp_path, clients=Clients(4)) as harness:
        await harness.append(NodeCordoned("node-1", "ada"))
        async with client(harness) as first, client(harness) as second, client(harness) as third:
            assert [await each.status(EVENTS) for each in (first, second, third)] == [200, 200, 200]
            await status_at_last(harness, EVENTS, 503)
            await status_at_last(harness, HEALTH, 200)
            await third.close()
            await status_at_last(harness, EVENTS, 200)


@pytest.mark.parametrize("begun", ["", "GET /healthz HT", HEALTH[:-2], HEALTH + "GET"])
async def test_who_does_not_send_a_request_is_cut_off(tmp_path: Path, begun: str, impatient: None) -> None:
    async with serving(tmp_path, clients=Clients(9, patience_s=0.05)) as harness, client(harness) as slow:
        await slow.send(begun)
        assert await slow.cut_off()


async def test_a_body_that_does_not_come_is_answered(tmp_path: Path, impatient: None) -> None:
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    async with serving(tmp_path, clients=Clients(9)) as harness, client(harness) as slow:
        assert await slow.status(head) == 408


async def test_a_stream_that_nobody_takes_is_cut_off(tmp_path: Path, impatient: None) -> None:
    async with serving(tmp_path, clients=Clients(2)) as harness:
        events = [NodeCordoned("node-1", "ada", "x" * 4000) for _ in range(3000)]
        for start in range(0, len(events), 500):
            chunk = events[start : start + 500]
            await harness.log.append_batch(
                [Message("muster.admin.node_cordoned", encode(e), f"{start}-{n}") for n, e in enumerate(chunk)]
            )
        await harness.follower.wait_for(len(events), DEADLINE_S)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", int(harness.url.rpartition(":")[2])))
            deaf.sendall(EVENTS.encode())
            assert await asyncio.to_thread(deaf.recv, 1, socket.MSG_PEEK) == b"H"  # it has the only place
            await status_at_last(harness, EVENTS, 200)
