"""A start against streams or servers that were made otherwise is refused, with each difference named."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from log_cases import SMALL, Connect

from muster.events.broker import Broker, BrokerCluster
from muster.events.broker_config import render
from muster.events.connection import Connection
from muster.events.jetstream import JetStreamLog
from muster.events.log import StreamMismatchError
from muster.events.streams import (
    StreamLimits,
    check_sync,
    differences_of,
    ensure_streams,
    limits_for,
    log_config,
    set_up,
)


async def test_a_second_start_finds_everything_as_it_was(broker: Broker) -> None:
    await set_up(broker.urls, broker.credentials, limits=SMALL)
    await set_up(broker.urls, broker.credentials)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"discard": "old"}, "discard is 'old', must be 'new'"),
        ({"deny_delete": False}, "deny_delete is False, must be True"),
        ({"deny_purge": False}, "deny_purge is False, must be True"),
        ({"max_age": 3_600_000_000_000}, "max_age is 3600000000000, must be 0"),
        ({"max_msgs": 10}, "max_msgs is 10, must be -1"),
        ({"allow_atomic": False}, "allow_atomic is False, must be True"),
        ({"storage": "memory"}, "storage is 'memory', must be 'file'"),
        ({"subjects": ["muster.submission.>"]}, "subjects are ['muster.submission.>']"),
        ({"duplicate_window": 1_000_000_000}, "duplicate_window is 1000000000"),
        ({"max_bytes": -1}, "max_bytes is not limited"),
    ],
)
async def test_a_log_made_otherwise_is_refused(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    async with Broker(tmp_path) as broker:
        operator = await Connection.open(broker.urls, broker.credentials["operator"])
        await operator.api("STREAM.CREATE.MUSTER_LOG", {**log_config("muster", 1, 1 << 20), **changed})
        with pytest.raises(StreamMismatchError) as mismatch:
            await set_up(broker.urls, broker.credentials)
        assert f"stream MUSTER_LOG: {named}" in str(mismatch.value)
        assert str(mismatch.value).count("MUSTER_LOG") == 1
        with pytest.raises(StreamMismatchError):
            await JetStreamLog.open(operator)
        await operator.close()


async def test_another_size_than_asked_for_is_refused(broker: Broker) -> None:
    with pytest.raises(StreamMismatchError, match="max_bytes is 268435456, must be 1000"):
        await set_up(broker.urls, broker.credentials, limits=StreamLimits(log_max_bytes=1000))
    operator = await Connection.open(broker.urls, broker.credentials["operator"])
    info = await operator.api("STREAM.INFO.MUSTER_LOG")
    await operator.close()
    assert differences_of(log_config("muster", 3, None), info["config"]) == [
        "stream MUSTER_LOG: num_replicas is 1, must be 3"
    ]


async def test_a_log_that_nobody_made_is_refused(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        reader = await Connection.open(broker.urls, broker.credentials["reader"])
        with pytest.raises(StreamMismatchError, match="there is no stream MUSTER_LOG"):
            await JetStreamLog.open(reader)
        await reader.close()


async def test_a_server_that_does_not_sync_each_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "muster.events.broker.render",
        lambda config: render(config).replace("sync_interval: always", "sync_interval: 1m"),
    )
    async with Broker(tmp_path) as broker:
        with pytest.raises(StreamMismatchError, match="sync_interval is not `always` on muster-1"):
            await set_up(broker.urls, broker.credentials)


async def test_all_three_servers_are_asked_whether_they_sync(cluster: BrokerCluster) -> None:
    system = await Connection.open(cluster.urls, cluster.credentials["system"])
    await check_sync(system, 3)
    await system.close()


async def test_two_programs_that_set_up_at_once_agree(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        await asyncio.gather(*(set_up(broker.urls, broker.credentials, limits=SMALL) for _ in range(4)))


async def test_another_prefix_is_another_log(tmp_path: Path) -> None:
    async with Broker(tmp_path, prefix="lab") as broker:
        await set_up(broker.urls, broker.credentials, prefix="lab", limits=SMALL)
        connection = await Connection.open(broker.urls, broker.credentials["reader"])
        log = await JetStreamLog.open(connection, prefix="lab")
        assert await log.last_sequence() == 0
        await connection.close()


async def test_the_operator_sees_what_is_missing(connect: Connect) -> None:
    operator, system = await connect("operator"), await connect("system")
    await ensure_streams(operator, system, limits=SMALL)
    info = await operator.api("STREAM.INFO.KV_MUSTER_LEASE")
    assert info["config"]["max_age"] == 10_000_000_000


async def test_a_new_log_fits_its_volume_and_an_old_one_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(tmp_path) as broker:
        for free in (1_000_000_000, 5_000_000_000):
            monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
            await set_up(broker.urls, broker.credentials, limits=limits_for(tmp_path))
            operator = await Connection.open(broker.urls, broker.credentials["operator"])
            sizes = [
                (await operator.api(f"STREAM.INFO.{name}"))["config"]["max_bytes"]
                for name in ("MUSTER_LOG", "MUSTER_TELEMETRY")
            ]
            await operator.close()
            assert sizes == [600_000_000, 50_000_000]
