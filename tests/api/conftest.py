"""Fixtures: the API over a log in memory, for clients that wait and for clients that block."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from api_harness import Background, Harness, background, serving, session_of
from click.testing import CliRunner, Result

from muster.api.cli import main


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


@pytest.fixture
def muster(server: Background) -> Callable[..., Result]:
    """The command line, against a server with one node of 8 devices."""
    server.do(lambda harness: harness.add_node("node-1"))

    def call(*words: str) -> Result:
        env = {"MUSTER_SERVER": server.harness.url, "COLUMNS": None}
        return CliRunner().invoke(main, list(words), env=env, catch_exceptions=False)

    return call
