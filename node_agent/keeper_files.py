"""The files of a worker's folder, from the keeper's side; all but the lease are in its working directory.

Rules: standard library only, like the keeper. A job can put anything in the place of these files: what is no regular
file is not read, and nothing here waits for a pipe's other end.
"""
# Importing pathlib would cost a keeper's start milliseconds:
# ruff: noqa: PTH104, PTH105, PTH108, PTH123

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from typing import Any

from muster.node_agent import tree

EXIT_ROOM_BYTES = 4096
SMALL_FILE_BYTES = 16 << 20


def boottime_ns() -> int:
    """The lease's clock: it runs on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def open_regular(path: str) -> int:
    """Open for reading; the descriptor. Raises OSError, also for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


def read_small(path: str) -> bytes:
    """A file of a few KiB, whatever a job has made of it. Raises OSError."""
    descriptor = open_regular(path)
    try:
        return os.read(descriptor, SMALL_FILE_BYTES)
    finally:
        os.close(descriptor)


def read_lease(path: str) -> int | None:
    """The deadline in a lease file, in ns of `boottime_ns`; None if it cannot be read or is of another boot."""
    try:
        boot, first, second = read_small(path).decode().split()
    except (OSError, ValueError):
        return None
    return int(first) if first == second and boot == tree.boot_id() else None


def write_file(path: str, text: str) -> None:
    """Write a small file so that a reader sees all of it or nothing. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}.new")
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(text.encode())
    os.replace(f"{path}.new", path)


def read_stop() -> dict[str, Any] | None:
    """The order in `stop`, if there is one that can be read."""
    try:
        order = json.loads(read_small("stop"))
        return {
            "reason": str(order["reason"]),
            "grace_ms": int(order["grace_ms"]),
            "notice_ms": int(order.get("notice_ms", 0)),
            "signal": str(order.get("signal", "")),
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def reserve_exit() -> int:
    """Take the room for the exit record on the disk; its descriptor."""
    room = os.open("exit.new", os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(room, 0, EXIT_ROOM_BYTES)
    return room


def write_exit(room: int, record: dict[str, Any]) -> None:
    """Record the exit in the room that was taken for it; durable when this returns."""
    text = json.dumps(record).ljust(EXIT_ROOM_BYTES)
    os.pwrite(room, text.encode(), 0)
    os.fsync(room)
    os.rename("exit.new", "exit")
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def lock() -> bool:
    """Be the folder's keeper for the rest of this process; False if another one is."""
    descriptor = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return True


def claim() -> dict[str, Any] | None:
    """Take the ticket, if nobody else did and nobody revoked it."""
    try:
        os.rename("ticket", "claimed")
    except FileNotFoundError:
        return None
    ticket: dict[str, Any] = json.loads(read_small("claimed"))
    return ticket
