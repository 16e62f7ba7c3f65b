"""Logs of each kind, each on its own broker (one takes a twentieth of a second, three a third)."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from log_cases import SMALL, Connect

from muster.events.broker import Broker, BrokerCluster
from muster.events.connection import Connection
from muster.events.jetstream import JetStreamLog
from muster.events.log import Log
from muster.events.memory import MemoryLog
from muster.events.streams import set_up


@asynccontextmanager
async def running(folder: Path, servers: int = 1) -> AsyncIterator[Broker | BrokerCluster]:
    """A broker, or a cluster, with its streams."""
    nodes = ["node-1", "node-2"]
    made = Broker(folder, nodes=nodes) if servers == 1 else BrokerCluster(folder, nodes=nodes, size=servers)
    async with made as started:
        await set_up(started.urls, started.credentials, replicas=started.replicas, limits=SMALL)
        yield started


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "broker") as started:
        assert isinstance(started, Broker)
        yield started


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with running(tmp_path / "cluster", servers=3) as started:
        assert isinstance(started, BrokerCluster)
        yield started


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    """Opens connections of a role; all are closed in the end."""
    async with AsyncExitStack() as stack:

        async def open_as(role: str) -> Connection:
            connection = await Connection.open(broker.urls, broker.credentials[role], role)
            stack.push_async_callback(connection.close)
            return connection

        yield open_as


async def _log(kind: str, folder: Path) -> AsyncIterator[Log]:
    if kind == "memory":
        yield MemoryLog()
        return
    async with running(folder, servers=1 if kind == "jetstream" else 3) as started:
        connection = await Connection.open(started.urls, started.credentials["operator"], "test")
        yield await JetStreamLog.open(connection)
        await connection.close()


@pytest.fixture(params=["memory", "jetstream"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    """A log in memory, and one on a broker. The operator may write every subject of the log."""
    async with asynccontextmanager(_log)(request.param, tmp_path / "broker") as made:
        yield made


@pytest.fixture(params=["memory", "jetstream", "jetstream-r3"])
async def any_log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    """As `log`, and one on three brokers: for what replication could change."""
    async with asynccontextmanager(_log)(request.param, tmp_path / "broker") as made:
        yield made


@pytest.fixture
async def jetstream(connect: Connect) -> JetStreamLog:
    return await JetStreamLog.open(await connect("operator"))
