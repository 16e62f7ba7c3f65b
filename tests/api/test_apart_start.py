"""Parts that cannot start: what they say while they wait, and how they end."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.api import process
from muster.api.apart import SchedulerOptions, ServerOptions, run_scheduler, run_server
from muster.api.cli import main
from muster.api.cli_base import _explain
from muster.api.client import RefusedError
from muster.api.process import StartError
from muster.events.broker import Broker
from muster.events.connection import Connection
from muster.events.credentials import SCHEDULER, make_credentials, write_credentials
from muster.events.streams import set_up


@pytest.fixture(autouse=True)
def _no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOMENT_S", 0.0)


async def test_streams_for_more_brokers_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("muster.events.streams.READY_TIMEOUT_S", 0.1)
    async with Broker(tmp_path / "broker") as broker:
        options = ServerOptions(
            tmp_path / "data", broker.url, broker.credentials_path, "muster", "127.0.0.1", 0, create_streams=3
        )
        with pytest.raises(StartError, match="only 1 of 3 servers answer") as refusal:
            await run_server(options)
        assert refusal.value.is_unreachable
        told = capsys.readouterr().err
        assert told == f"muster: waiting for 3 brokers at {broker.url}, as --create-streams says\n"


async def test_a_log_that_nobody_made_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    async with Broker(tmp_path / "broker") as broker:
        options = SchedulerOptions(tmp_path / "data", broker.url, broker.credentials_path, "muster")
        with pytest.raises(StartError, match="no stream MUSTER_LOG: `muster server --create-streams N`"):
            await run_scheduler(options)


def test_a_broker_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.events.connection.Connection.open.__func__.__defaults__", (None, "muster", 0.5))
    path = tmp_path / "credentials.json"
    write_credentials(path, make_credentials([SCHEDULER], {}))
    words = ["--connect", "nats://127.0.0.1:1", "--credentials", str(path), "--data", str(tmp_path / "data")]
    done = CliRunner().invoke(main, ["scheduler", *words])
    assert done.exit_code == 69
    assert done.stderr.startswith("muster: waiting for a broker at nats://127.0.0.1:1\n")
    assert "no broker at nats://127.0.0.1:1 lets muster follower" in done.stderr


@pytest.mark.parametrize("status", [503, 507])
def test_a_log_that_is_away_or_full_ends_a_command_with_69(status: int) -> None:
    assert _explain(RefusedError(status, {"title": "no"})).exit_code == 69


async def test_a_scheduler_says_when_it_leads_and_when_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOMENT_S", 60.0)
    told = asyncio.Queue[str]()
    monkeypatch.setattr("click.echo", lambda text, **_: told.put_nowait(text.split()[3]))
    async with Broker(tmp_path / "broker") as broker:
        await set_up(broker.urls, broker.credentials)
        options = SchedulerOptions(tmp_path / "data", broker.url, broker.credentials_path, "muster")
        running = asyncio.create_task(run_scheduler(options))
        async with asyncio.timeout(30):
            words = [await told.get(), await told.get()]
            connection = await Connection.open(broker.urls, broker.credentials[SCHEDULER])
            await connection.request("$KV.MUSTER_LEASE.leader", b"another")
            words.append(await told.get())
            await connection.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert words == ["stands", "leads", "stands"]
