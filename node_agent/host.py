"""What this machine has besides devices: CPUs, memory, addresses."""

import fcntl
import os
import re
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1 << 20
_SIOCGIFADDR: Final = 0x8915
_ADDRESS: Final = slice(20, 24)
_TOTAL: Final = re.compile(r"MemTotal:\s+(\d+) kB")
_AVAILABLE: Final = re.compile(r"MemAvailable:\s+(\d+) kB")


class Host(NamedTuple):
    """Where the kernel tells of this machine."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")

    def cpus(self) -> int:
        """Those that this process may run on."""
        return len(os.sched_getaffinity(0))

    def memory_mib(self) -> int:
        """Without NUMA nodes that have no CPUs: a superchip's device memory can show up as such."""
        nodes = sorted((self.sysfs / "devices/system/node").glob("node[0-9]*"))
        devices_kib = sum(_kib(_TOTAL, node / "meminfo") for node in nodes if not _read(node / "cpulist").strip())
        return (_kib(_TOTAL, self.proc / "meminfo") - devices_kib) // 1024

    def meminfo_mib(self) -> tuple[int, int]:
        """All memory there is, and what of it could be had."""
        meminfo = self.proc / "meminfo"
        return _kib(_TOTAL, meminfo) // 1024, _kib(_AVAILABLE, meminfo) // 1024


def addresses(own: str) -> dict[str, str]:
    """The IPv4 address of each interface, without loopback's unless that is the node's `own`."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            address = socket.inet_ntoa(answer[_ADDRESS])
            if not address.startswith("127.") or address == own:
                found[name] = address
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _kib(pattern: re.Pattern[str], path: Path) -> int:
    found = pattern.search(_read(path))
    return int(found[1]) if found else 0
