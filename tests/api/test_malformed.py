"""Requests that are not HTTP: answered 400 or cut off, and no more than one quiet line in the log."""

import asyncio
import logging
from urllib.parse import urlsplit

import pytest
from api_harness import Harness

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
MALFORMED = {
    "no HTTP at all": b"garbage\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a header without a colon": b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nno header\r\n\r\n",
    "a long path": b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a length below nothing": HEAD + b"Content-Length: -1\r\n\r\n",
    "a chunk without a size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a broken chunk after a good one": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nxyz\r\n",
    "a body that is not compressed as it says": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
}


async def send(harness: Harness, sent: bytes) -> bytes:
    """The answer's first line (b"" = cut off)."""
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(harness.url).port)
        writer.write(sent)
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
    return line


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED.keys())
async def test_what_is_not_http_is_a_quiet_line(
    sent: bytes, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        line = await send(harness, sent)
    assert line.split()[1] == b"400"
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert sum(record.levelno == logging.INFO for record in caplog.records) <= 1
    assert all("\n" not in record.getMessage() and len(record.getMessage()) < 300 for record in caplog.records)
    assert (await send(harness, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
