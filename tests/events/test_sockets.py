"""No socket is left open by reconnections whose handshake fails."""

import asyncio
import gc
import warnings

from muster.events.connection import Connection

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"proto":1,"headers":true}\r\n'


async def test_handshakes_that_fail_leave_no_socket_open() -> None:
    """A server that lets the first caller in and hangs up, and then hangs up on everybody."""
    calls = 0
    enough = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            writer.write(INFO)
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            await writer.drain()
            await reader.readuntil(b"SUB ")
        elif calls > 4:
            enough.set()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with warnings.catch_warnings(record=True, action="always") as told:
        connection = await Connection.open([f"nats://127.0.0.1:{port}"])
        await asyncio.wait_for(enough.wait(), 30)
        await connection.close()
        del connection
        gc.collect()
    server.close()
    await server.wait_closed()

    assert [str(each.message) for each in told if issubclass(each.category, ResourceWarning)] == []
