"""The embedded broker: the wheel's nats-server as a child process on a data folder.

Rules: it listens on loopback only. Two brokers never share a data folder: the folder's lock is held by this process
and by the server itself, until both are gone. On Linux the server is told to end when the thread that started it ends;
elsewhere that is best effort (the lock still keeps a second one out). The server is outside the terminal's process
group, so that Ctrl-C reaches Muster first and the broker last.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from muster.events.broker_config import BrokerConfig, ClusterConfig, quoted, render
from muster.events.broker_process import LOOPBACK, BrokerError, Ports, free_ports, is_free, is_healthy, launch
from muster.events.connection import Credential
from muster.events.credentials import (
    READER,
    ROLES,
    agent_role,
    make_credentials,
    new_password,
    read_credentials,
    write_credentials,
    write_private,
)
from muster.events.subjects import DEFAULT_PREFIX

__all__ = ["Broker", "BrokerCluster", "BrokerError"]

START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 20.0
LOCK_TIMEOUT_S: Final = 5.0
PORT_TIMEOUT_S: Final = 3.0
_POLL_S: Final = 0.02


class Broker:
    """One server on `folder`. It can be killed and started again, on the same ports.

    `port` 0 takes the port of the last time, or a free one. `nodes` are those whose agents get a credential; those
    known from earlier starts keep theirs. `cluster` and `ports` are for `BrokerCluster`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Iterable[str] = (),
        port: int = 0,
        prefix: str = DEFAULT_PREFIX,
        name: str = "muster-1",
        cluster: ClusterConfig | None = None,
        credentials: dict[str, Credential] | None = None,
        ports: Ports | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self.prefix = prefix
        self._nodes = tuple(nodes)
        self._wanted_port = port
        self._cluster = cluster
        self._given_credentials = credentials
        self._given_ports = ports
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.ports = Ports(0, 0, 0)
        self.credentials: dict[str, Credential] = {}

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{LOOPBACK}:{self.ports.client}"

    @property
    def urls(self) -> list[str]:
        """As `url`, in the form that `Connection.open` takes."""
        return [self.url]

    @property
    def replicas(self) -> int:
        """How many servers hold each entry."""
        return 1

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def credentials_path(self) -> Path:
        """The file with all roles' credentials (mode 0600); `reader.json` beside it has the read-only one alone."""
        return self.folder / "credentials.json"

    @property
    def log_path(self) -> Path:
        """The server's own log."""
        return self.folder / "nats-server.log"

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server and wait until it serves. Raises BrokerError."""
        if self.pid is not None:
            raise BrokerError(f"the broker on {self.folder} runs already")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._take_lock(timeout_s)
        try:
            self._prepare()
            await self._serve(timeout_s)
        except BaseException:
            await self.kill9()
            self._drop_lock()
            raise

    async def stop(self) -> None:
        """End the server in order (by force when it takes too long) and let go of the folder."""
        await self._end(signal.SIGTERM)
        self._drop_lock()

    async def kill9(self) -> None:
        """End the server as a crash would; `start` brings it back. The folder stays locked."""
        await self._end(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send the server a signal (SIGSTOP and SIGCONT, to see it hang)."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    # -- inside -------------------------------------------------------------------------------------------------

    async def _take_lock(self, timeout_s: float) -> None:
        if self._lock is not None:
            return
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = asyncio.get_running_loop().time() + min(timeout_s, LOCK_TIMEOUT_S)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    os.close(descriptor)
                    raise BrokerError(f"another broker uses the data folder {self.folder}") from None
                await asyncio.sleep(0.1)
            else:
                self._lock = descriptor
                return

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _prepare(self) -> None:
        """Write credentials, ports and configuration; what is there from earlier starts is kept."""
        known = read_credentials(self.credentials_path) if self.credentials_path.exists() else {}
        if self._given_credentials is not None:
            self.credentials = self._given_credentials
        else:
            roles = [*ROLES, *(role for role in known if role not in ROLES), *map(agent_role, self._nodes)]
            self.credentials = make_credentials(dict.fromkeys(roles), known)
        if self.credentials != known:
            write_credentials(self.credentials_path, self.credentials)
        write_credentials(self.folder / "reader.json", {READER: self.credentials[READER]})
        self.ports = self._choose_ports()
        write_private(self.folder / "ports.json", msgspec.json.encode(self.ports).decode())
        config = BrokerConfig(
            name=self.name,
            host=LOOPBACK,
            port=self.ports.client,
            monitor_host=LOOPBACK,
            monitor_port=self.ports.monitor,
            store=str((self.folder / "jetstream").absolute()),
            passwords={role: quoted(credential.password) for role, credential in self.credentials.items()},
            cluster=self._cluster,
            prefix=self.prefix,
        )
        write_private(self.folder / "nats-server.conf", render(config))

    def _choose_ports(self) -> Ports:
        if self._given_ports is not None:
            return self._given_ports
        if self.ports.client:
            return self.ports
        path = self.folder / "ports.json"
        client, monitor, cluster = free_ports(3)
        if path.exists():
            last = msgspec.json.decode(path.read_bytes(), type=Ports)
            client = last.client if is_free(last.client) else client
        return Ports(self._wanted_port or client, monitor, cluster)

    async def _serve(self, timeout_s: float) -> None:
        """Launch the server and wait until it serves; again, for a while, where its port is still held: a server that
        was killed a moment ago may not have let go of it."""
        until = asyncio.get_running_loop().time() + min(timeout_s, PORT_TIMEOUT_S)
        while True:
            await self._launch()
            try:
                await self._wait_until_healthy(timeout_s)
            except BrokerError as error:
                if "address already in use" not in str(error) or asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def _launch(self) -> None:
        assert self._lock is not None
        self._process = await launch(self.folder / "nats-server.conf", self.log_path, self._lock)

    async def _wait_until_healthy(self, timeout_s: float) -> None:
        process = self._process
        assert process is not None
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await is_healthy(self.ports.monitor):
            if process.returncode is not None:
                raise BrokerError(f"nats-server ended with code {process.returncode}: {self._last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                raise BrokerError(f"nats-server is not healthy after {timeout_s:.0f} s: {self._last_words()}")
            await asyncio.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-3:]
        return " | ".join(lines) + f" (see {self.log_path})"

    async def _end(self, number: int) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        self._process = None


class BrokerCluster:
    """Three servers on one machine, one folder each, for tests and for trying out the distributed form."""

    def __init__(self, folder: Path, *, nodes: Iterable[str] = (), prefix: str = DEFAULT_PREFIX, size: int = 3) -> None:
        roles = [*ROLES, *map(agent_role, nodes)]
        path = folder / "credentials.json"
        known = read_credentials(path) if path.exists() else {}
        self.credentials = make_credentials(roles, known)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_credentials(path, self.credentials)
        self.credentials_path = path
        numbers = free_ports(3 * size)
        ports = [Ports(*numbers[3 * i : 3 * i + 3]) for i in range(size)]
        password = new_password()
        routes = ", ".join(f"nats://route:{password}@{LOOPBACK}:{each.cluster}" for each in ports)
        self.brokers = [
            Broker(
                folder / f"muster-{i + 1}",
                name=f"muster-{i + 1}",
                prefix=prefix,
                cluster=ClusterConfig("muster", LOOPBACK, each.cluster, quoted(password), f"[{routes}]"),
                credentials=self.credentials,
                ports=each,
            )
            for i, each in enumerate(ports)
        ]

    @property
    def urls(self) -> Sequence[str]:
        """Where clients connect: any of them."""
        return [broker.url for broker in self.brokers]

    @property
    def replicas(self) -> int:
        """How many servers hold each entry."""
        return len(self.brokers)

    async def start(self) -> None:
        """Start all and wait until each is healthy. Raises BrokerError."""
        try:
            async with asyncio.TaskGroup() as group:
                for broker in self.brokers:
                    group.create_task(broker.start())
        except BaseExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None

    async def stop(self) -> None:
        """End all."""
        await asyncio.gather(*(broker.stop() for broker in self.brokers))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()
