"""The files of a worker's folder, from the keeper's side; all but the lease are in its working directory.

Standard library only, like the keeper.
"""
# Importing pathlib would cost a keeper's start milliseconds:
# ruff: noqa: PTH104, PTH105, PTH123

import fcntl
import json
import os
import time
from typing import Any

from muster.node_agent import tree

EXIT_ROOM_BYTES = 4096


def boottime_ns() -> int:
    """The lease's clock: it runs on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_lease(path: str) -> int | None:
    """The deadline in a lease file, in ns of `boottime_ns`; None if it cannot be read or is of another boot."""
    try:
        with open(path, encoding="utf-8") as file:
            boot, first, second = file.read().split()
    except (OSError, ValueError):
        return None
    return int(first) if first == second and boot == tree.boot_id() else None


def write_file(path: str, text: str) -> None:
    """Write a small file so that a reader sees all of it or nothing."""
    with open(f"{path}.new", "wb", buffering=0) as file:
        file.write(text.encode())
    os.replace(f"{path}.new", path)


def read_stop() -> dict[str, Any] | None:
    """The order in `stop`, if there is one."""
    try:
        with open("stop", encoding="utf-8") as file:
            order: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    return order


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
    with open("claimed", encoding="utf-8") as file:
        ticket: dict[str, Any] = json.load(file)
    return ticket
