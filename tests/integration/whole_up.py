"""`muster up` as one part: everything in one process, on a data folder."""

import json
from pathlib import Path
from typing import Any, Self

from integration.processes import Part, kill_processes, until
from integration.site import port_range
from integration.user import User

from muster.events.connection import Credential
from muster.events.credentials import READER, read_credentials


class WholeUp(User):
    """`muster up` on a data folder, with what is written in `config` applied at its start."""

    def __init__(self, folder: Path, *, simulate: str = "2x8xA100-80GB", config: str = "") -> None:
        super().__init__(folder)
        self.data = folder / "data"
        first = port_range(40)
        words = ["up", "--data", str(self.data), "--port", "0", "--simulate", simulate, "--verbose"]
        if config:
            (folder / "cluster.toml").write_text(config)
            words += ["--config", str(folder / "cluster.toml")]
        self.part = Part("up", [*words, "--ports", f"{first}-{first + 39}"], folder / "up")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.part.end()
        await self.close()
        await until(lambda: not kill_processes(self.marker), "the jobs are gone")

    async def start(self) -> None:
        """Start it, and wait until it says that it is up."""
        self.part.start()
        await until(self._announced, "`muster up` is up")

    async def kill(self) -> None:
        """Kill -9; its broker goes with it."""
        self.part.end()
        await self.close()

    def _announced(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.data / "up.json").read_text())
        except FileNotFoundError:
            return {}
        return told if told["pid"] == self.part.pid else {}

    def url(self) -> str:
        return str(self._announced().get("url", ""))

    def reader(self) -> tuple[list[str], Credential]:
        return [self._announced()["broker"]], read_credentials(self.data / "broker" / "reader.json")[READER]
