"""The embedded broker: its folder, its lock, its files, its end."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from log_cases import SMALL, fact

from muster.events.broker import Broker, BrokerError
from muster.events.broker_process import find_server, free_ports
from muster.events.connection import Connection
from muster.events.credentials import read_credentials
from muster.events.jetstream import JetStreamLog
from muster.events.streams import set_up


async def test_it_keeps_its_data_its_port_and_its_credentials(tmp_path: Path) -> None:
    first = Broker(tmp_path, nodes=["node-1"])
    async with first:
        await set_up(first.urls, first.credentials, limits=SMALL)
        connection = await Connection.open(first.urls, first.credentials["operator"])
        await (await JetStreamLog.open(connection)).append(fact(1))
        await connection.close()
    second = Broker(tmp_path, nodes=["node-2"])
    async with second:
        assert second.url == first.url
        assert second.credentials["agent-node-1"] == first.credentials["agent-node-1"]
        assert "agent-node-2" in second.credentials
        connection = await Connection.open(second.urls, second.credentials["agent-node-2"])
        await connection.close()
        connection = await Connection.open(second.urls, second.credentials["reader"])
        assert await (await JetStreamLog.open(connection)).last_sequence() == 1
        await connection.close()


async def test_two_brokers_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.events.broker.LOCK_TIMEOUT_S", 0.2)
    async with Broker(tmp_path) as first:
        with pytest.raises(BrokerError, match="another broker uses the data folder"):
            await Broker(tmp_path).start()
        await first.kill9()
        with pytest.raises(BrokerError, match="another broker uses the data folder"):
            await Broker(tmp_path).start()
    async with Broker(tmp_path):
        pass


async def test_its_files_are_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with Broker(folder):
        for name in ("credentials.json", "nats-server.conf", "nats-server.log", "lock"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        passwords = {credential.password for credential in read_credentials(folder / "credentials.json").values()}
        assert len(passwords) == 5
        log = (folder / "nats-server.log").read_text()
        assert not any(password in log for password in passwords)


async def test_a_port_that_is_taken_is_a_clear_error(tmp_path: Path) -> None:
    async with Broker(tmp_path / "one") as first:
        with pytest.raises(BrokerError, match="address already in use"):
            await Broker(tmp_path / "two", port=first.ports.client).start()


async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        assert broker.pid is not None
        listening = listening_addresses(broker.pid)
        numbers = {broker.ports.client, broker.ports.monitor}
        found = {address for address in listening if int(address.split(":")[1], 16) in numbers}
        assert {address.split(":")[0] for address in found} == {"0100007F"}
        assert len(found) == 2


def listening_addresses(pid: int) -> set[str]:
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {words[1] for words in lines if words[3] == "0A"}


PARENT = """
import asyncio, sys
from pathlib import Path
from muster.events.broker import Broker

async def main():
    broker = Broker(Path(sys.argv[1]))
    await broker.start()
    print(broker.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(tmp_path), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    end = os.pidfd_open(server)
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_reader(end, is_over.set)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await asyncio.wait_for(is_over.wait(), 20)
    asyncio.get_running_loop().remove_reader(end)
    os.close(end)
    async with Broker(tmp_path):
        pass


def test_the_server_is_the_one_that_was_installed() -> None:
    version = subprocess.run([find_server(), "--version"], capture_output=True, text=True, check=True).stdout
    assert version.strip() == "nats-server: v2.15.1"


def test_servers_get_no_port_of_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(30)
    assert len(set(ports)) == 30
    assert max(ports) < first_outgoing
