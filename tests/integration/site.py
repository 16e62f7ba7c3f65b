"""A whole cluster whose parts (broker, schedulers, API, agents) are processes of their own.

Each has a data folder and a credentials file of its own that holds its role alone. Nothing outlives the site, jobs
included.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from integration.processes import Part, kill_processes, until, until_answer
from integration.user import User

from muster.events.broker import Broker, BrokerCluster
from muster.events.connection import Connection, Credential, raise_for_error
from muster.events.credentials import API, READER, SCHEDULER, agent_role, lease_bucket, write_credentials
from muster.events.streams import StreamLimits, set_up

NODES: Final = ("node-1", "node-2")
GREETING: Final = "muster server at "


def port_range(size: int) -> int:
    """The first of some ports that tests running beside this one do not use, below those that the kernel hands out."""
    return 20_000 + os.getpid() * size % 12_000


class Site(User):
    """A broker or three, schedulers, the API and two agents of simulated A100-80GB, `devices` each."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        schedulers: int = 1,
        lease_s: float = 120.0,
        log_max_bytes: int | None = None,
        fabrics: Sequence[str] = ("lab", "lab"),
        devices: Sequence[int] = (8, 8),
    ) -> None:
        super().__init__(folder)
        self._limits = StreamLimits(log_max_bytes=log_max_bytes)
        one = Broker(folder / "broker", nodes=NODES)
        many = BrokerCluster(folder / "brokers", nodes=NODES) if brokers > 1 else None
        self._cluster = many or one
        self.brokers = many.brokers if many else [one]
        self._lease_s = lease_s
        self._fabrics = fabrics
        self._devices = devices
        self._schedulers = schedulers
        self.parts: dict[str, Part] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._cluster.start()
            await set_up(self._cluster.urls, self._cluster.credentials, replicas=len(self.brokers), limits=self._limits)
            self._make_parts()
            for part in self.parts.values():
                part.start()
            await self.ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for part in self.parts.values():
            part.end()
        await self.close()
        await self._cluster.stop()
        await until(lambda: not kill_processes(self.marker), "the jobs are gone")

    def url(self) -> str:
        """See `User.url`."""
        lines = [line for line in self.parts["server"].text().splitlines() if line.startswith(GREETING)]
        return lines[0].removeprefix(GREETING) if lines else ""

    def reader(self) -> tuple[list[str], Credential]:
        """See `User.reader`."""
        return list(self._cluster.urls), self._cluster.credentials[READER]

    def _make_parts(self) -> None:
        self._add("server", API, "server", "--port", "0")
        for number in range(1, self._schedulers + 1):
            self._add(f"scheduler-{number}", SCHEDULER, "scheduler")
        first = port_range(40)
        for node, fabric, count, port in zip(NODES, self._fabrics, self._devices, (first, first + 20), strict=True):
            where = ["--node", node, "--simulate", f"{count}xA100-80GB", "--fabric", fabric]
            where += ["--ports", f"{port}-{port + 19}"]
            self._add(node, agent_role(node), "agent", *where, "--lease", str(self._lease_s))

    def _add(self, name: str, role: str, *words: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True)
        path = folder / "credentials.json"
        write_credentials(path, {role: self._cluster.credentials[role]})
        place = ["--connect", ",".join(self._cluster.urls), "--credentials", str(path), "--data", str(folder / "data")]
        self.parts[name] = Part(name, [*words, *place, "--verbose"], folder)

    async def ready(self) -> None:
        """Wait until both nodes are there and a scheduler leads."""

        async def look() -> bool:
            state = await self.get("/v1/state")
            return bool(state["leader"]) and state["nodes"].get("ready", 0) == len(NODES)

        await until_answer(look, "the cluster is ready")

    def restart(self, name: str) -> None:
        """Kill -9 a part and start it again at once."""
        self.parts[name].end()
        self.parts[name].start()

    async def leader(self) -> Part:
        """The scheduler that leads, as the log has it."""
        holder = (await self.get("/v1/state"))["leader"]
        named = (self.folder / f"scheduler-{number}" for number in range(1, self._schedulers + 1))
        [leads] = [each.name for each in named if (each / "data" / "scheduler.name").read_text() == holder]
        return self.parts[leads]

    async def drop_lease(self) -> None:
        """Make the lease anybody's; who holds it learns of that when it next renews it."""
        connection = await Connection.open(self._cluster.urls, self._cluster.credentials[SCHEDULER], "thief")
        try:
            raise_for_error((await connection.request(f"$KV.{lease_bucket()}.leader", b"")).payload)
        finally:
            await connection.close()
