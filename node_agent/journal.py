"""The agent's journal: which lives are its own, which commands it has taken, which reports the log does not have yet.

One agent at a time: the data folder is locked. A command is durable here before it is acted on; reports are kept with
their message ids, so that one sent twice is stored once. Writes run on a thread of their own.
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from muster.events.log import Message

OWN_LIVES_LIMIT: Final = 10_000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS life (only INTEGER PRIMARY KEY CHECK (only = 1), incarnation TEXT, taken INTEGER);
CREATE TABLE IF NOT EXISTS own_life (number INTEGER PRIMARY KEY, incarnation TEXT NOT NULL UNIQUE);
INSERT OR IGNORE INTO own_life (incarnation) SELECT incarnation FROM life;
CREATE TABLE IF NOT EXISTS report (
    number INTEGER PRIMARY KEY, subject TEXT NOT NULL, payload BLOB NOT NULL, message_id TEXT NOT NULL UNIQUE
);
"""


class AgentLockedError(Exception):
    """Another agent runs on this data folder."""


class Journal:
    """The open journal of the only agent on `folder`. Raises AgentLockedError, OSError, sqlite3.Error."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise AgentLockedError(f"another agent runs on {folder}") from None
        os.close(os.open(folder / "journal.sqlite", os.O_WRONLY | os.O_CREAT, 0o600))  # commands have secrets, perhaps
        self._database = sqlite3.connect(folder / "journal.sqlite", check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_SCHEMA)
        self._own_lives = {row[0] for row in self._database.execute("SELECT incarnation FROM own_life")}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._database.close()
        os.close(self._lock)

    def last_life(self) -> tuple[str, int]:
        """The incarnation of the life before, and up to which sequence it had taken commands; ("", 0) = none."""
        row: tuple[str, int] | None = self._database.execute("SELECT incarnation, taken FROM life").fetchone()
        return row or ("", 0)

    def is_own(self, incarnation: str) -> bool:
        """Whether a life is or was one of the agents on this folder (as far as its last lives go back)."""
        return incarnation in self._own_lives

    def unreported(self) -> list[Message]:
        """Reports of earlier lives that the log may not have, in their order."""
        rows = self._database.execute("SELECT subject, payload, message_id FROM report ORDER BY number")
        return [Message(*row) for row in rows]

    async def begin_life(self, incarnation: str) -> None:
        """A new life: no command of it has been taken. It is one's own even where this cannot be written."""
        self._own_lives.add(incarnation)

        def begin(database: sqlite3.Connection) -> None:
            database.execute("INSERT OR REPLACE INTO life VALUES (1, ?, 0)", (incarnation,))
            database.execute("INSERT OR IGNORE INTO own_life (incarnation) VALUES (?)", (incarnation,))
            database.execute(
                "DELETE FROM own_life WHERE number <= (SELECT max(number) FROM own_life) - ?", (OWN_LIVES_LIMIT,)
            )

        await self._write("FULL", begin)

    async def take(self, sequence: int) -> None:
        """Commands up to `sequence` are about to be obeyed: never again."""
        await self._write("FULL", lambda db: db.execute("UPDATE life SET taken = ?", (sequence,)))

    async def keep(self, reports: Sequence[Message]) -> None:
        """Keep reports until they are dropped. They outlive this process, and need not outlive the machine's power:
        after that no worker runs, and the next registration says so."""
        await self._write(
            "NORMAL",
            lambda db: db.executemany(
                "INSERT OR IGNORE INTO report (subject, payload, message_id) VALUES (?, ?, ?)", reports
            ),
        )

    async def drop(self, reports: Sequence[Message]) -> None:
        """The log has these."""
        await self._write(
            "NORMAL",
            lambda db: db.executemany(
                "DELETE FROM report WHERE message_id = ?", [(report.message_id,) for report in reports]
            ),
        )

    async def _write(self, durability: str, change: Callable[[sqlite3.Connection], object]) -> None:
        def write() -> None:
            self._database.execute(f"PRAGMA synchronous = {durability}")
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                change(self._database)

        await asyncio.get_running_loop().run_in_executor(self._thread, write)
