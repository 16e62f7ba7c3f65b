"""The SQLite file's layout, and how a connection to it is opened.

The file is a mirror and can be made again from the log, so a layout of another version is refused: whoever runs Muster
moves the file away. Where an older layout had the same entries and snapshots, only the tables that follow from them are
made anew. One process writes a file; any number of connections read it.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SCHEMA_VERSION: Final = 2
SAME_ENTRIES: Final = (1,)
"""Older layouts whose entries and snapshots are as they are now."""
APPLICATION_ID: Final = 0x4D535452
BUSY_TIMEOUT_S: Final = 10.0

DDL: Final = """
CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY, timestamp_ns INTEGER NOT NULL, subject TEXT NOT NULL,
    payload BLOB NOT NULL, chain BLOB NOT NULL);
CREATE TABLE snapshots (
    sequence INTEGER PRIMARY KEY, fold_version INTEGER NOT NULL, chain BLOB NOT NULL,
    timestamp_ns INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE job_entries (job INTEGER, sequence INTEGER, PRIMARY KEY (job, sequence)) WITHOUT ROWID;
"""
MODELS_DDL: Final = """
CREATE TABLE origin (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, chain BLOB NOT NULL);
CREATE TABLE models (
    one INTEGER PRIMARY KEY CHECK (one = 1), fold_version INTEGER NOT NULL, accounts_version INTEGER NOT NULL);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, user TEXT NOT NULL, queue TEXT NOT NULL, name TEXT NOT NULL, phase TEXT NOT NULL,
    submitted_ns INTEGER NOT NULL, started_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL,
    exit_code INTEGER, reason TEXT NOT NULL, gpus INTEGER NOT NULL, attempts INTEGER NOT NULL,
    preemptions INTEGER NOT NULL, waited_ms INTEGER NOT NULL, ran_ms INTEGER NOT NULL, device_ms INTEGER NOT NULL,
    lost_ms INTEGER NOT NULL, job BLOB NOT NULL);
CREATE INDEX jobs_by_user ON jobs (user, id);
CREATE INDEX jobs_by_queue ON jobs (queue, id);
CREATE INDEX jobs_by_phase ON jobs (phase, id);
"""
"""`models` has the versions of the fold and of the accounts that made the rows of `jobs` (0 = none has yet). `origin`
is the entry before the first that the file has, with its chain: 0, unless the file has a window of a log."""

_logger: Final = logging.getLogger(__name__)


class StoreError(Exception):
    """The store cannot be used as it is; the message says why and what to do."""


class HoleError(StoreError):
    """Entry `sequence` is not there."""

    def __init__(self, message: str, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence


class StoreFullError(StoreError):
    """The store could not be written now: the disk is full or does not answer, or another program holds the file."""


_PASSING: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY)
_PRIMARY_CODE: Final = 0xFF


def write_error(path: Path, error: sqlite3.Error) -> StoreError:
    """What a failed write is to the store's users."""
    passing = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _PASSING
    return (StoreFullError if passing else StoreError)(f"{path} could not be written: {error}")


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raises StoreError for a file that is damaged, or that this program may not use."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be used ({error}); move it away and it is made again") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror}") from error


def connect(path: Path, *, writable: bool = False) -> sqlite3.Connection:
    """A connection to an existing store, which any one thread at a time may use. Without `writable` it only reads.
    Raises StoreError where there is no file, or no database in it."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist")
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        if not writable:
            connection.execute("PRAGMA query_only = ON")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreError(f"{path} cannot be used ({error}); move it away and it is made again") from error
    return connection


def prepare(path: Path) -> None:
    """Make the file where there is none (mode 0600, its folder must exist), or check that it is a store of this
    version. Raises StoreError."""
    with usable(path):
        path.touch(mode=0o600)
        connection = connect(path, writable=True)
        try:
            _prepare(connection, path)
        except StoreError as error:
            raise StoreError(f"{path} {error}; move it away and it is made again") from None
        finally:
            connection.close()
        _sync_folder(path.parent)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not empty and application != APPLICATION_ID:
        raise StoreError("is a database of another program")
    if not empty and version not in (SCHEMA_VERSION, *SAME_ENTRIES):
        raise StoreError(f"has layout {version}, this program reads layout {SCHEMA_VERSION}")
    if empty:
        _execute(connection, DDL)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    elif version != SCHEMA_VERSION:
        _logger.warning("%s has layout %d: its tables of jobs are made anew, from its own entries", path, version)
        connection.execute("DROP TABLE jobs")
        connection.execute("DROP TABLE models")
    if version != SCHEMA_VERSION:
        _execute(connection, MODELS_DDL)
        connection.execute("INSERT INTO models VALUES (1, 0, 0)")
        connection.execute("INSERT INTO origin VALUES (1, 0, zeroblob(16))")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _execute(connection: sqlite3.Connection, statements: str) -> None:
    for statement in statements.strip().split(";\n"):
        connection.execute(statement)


def _sync_folder(folder: Path) -> None:
    """A new file's name is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
