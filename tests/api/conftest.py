"""Fixtures: the API over a log in memory, for clients that wait and for clients that block."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from api_harness import Background, Harness, background, serving, session_of


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with serving(tmp_path) as harness:
        yield harness


@pytest.fixture
async def http(harness: Harness) -> AsyncIterator[aiohttp.ClientSession]:
    async with session_of(harness) as session:
        yield session


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Background]:
    with background(tmp_path) as running:
        yield running
