"""The driver's words in the kernel's log: Xids with their text, and a device that is gone without one.

The log is `/dev/kmsg`, or a file that is written at its end. Only what is newer than the opening counts. It is read in
pieces, so that however much comes at once holds up nobody for long.
"""

import asyncio
import errno
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from muster.node_agent.readings import XidEvent

logger = logging.getLogger(__name__)

KERNEL_LOG: Final = Path("/dev/kmsg")
LOOK_S: Final = 0.1
"""How often a file is looked at; the kernel's own device says when there is something."""
OFF_THE_BUS: Final = 79
_RECORD_BYTES: Final = 8192
_PIECE_RECORDS: Final = 256
_PIECE_BYTES: Final = 1 << 16
LINE_BYTES: Final = 8192
"""Of a longer line only its end counts."""
_DRIVER: Final = "NVRM: "

_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d{1,5})(?:, pid='?(?P<pid>\d{1,10})?[^,]*)?(?P<rest>.*)"
)
_GONE: Final = "fallen off the bus"
_BUS: Final = re.compile(r"\b(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b")
_BUS_PARTS: Final = re.compile(r"(?:PCI:)?(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?")


class BusAddress(NamedTuple):
    """Where a device is on PCI."""

    domain: int
    bus: int
    device: int


def bus_address(text: str) -> BusAddress | None:
    """``PCI:0000:44:00``, ``00000000:44:00.0``, ``44:00.0`` → the same; None for what is none."""
    match = _BUS_PARTS.fullmatch(text)
    return BusAddress(int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)) if match else None


def read_line(line: str) -> XidEvent | None:
    """What a line of the kernel's log tells of a device. A device that is gone is one, with or without its number."""
    match = _XID.search(line)
    if match is not None:
        text = match["rest"].strip(" ,")
        return XidEvent(match["bus"], int(match["xid"]), int(match["pid"] or 0), text)
    words = line.partition(_DRIVER)[2]
    if _GONE not in words:
        return None
    bus = _BUS.search(words)
    return XidEvent(bus[1], OFF_THE_BUS, text="") if bus is not None else None


def record_text(record: bytes) -> str:
    """The text of a record of the kernel's device: `priority,sequence,time,flags;text`, and lines of no interest."""
    return record.decode("utf-8", "replace").partition("\n")[0].partition(";")[2]


class _Source(Protocol):
    def read(self) -> list[str] | None:
        """Lines that have come in since, some at a time; None = there are no more for now. Raises OSError."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class _Kmsg:
    """The kernel's device: a record a read."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self.descriptor, 0, os.SEEK_END)

    def read(self) -> list[str] | None:
        lines: list[str] = []
        for _ in range(_PIECE_RECORDS):
            try:
                record = os.read(self.descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return lines or None
            except OSError as error:
                if error.errno != errno.EPIPE:  # some were overwritten before they were read
                    raise
                continue
            lines.append(record_text(record))
        return lines

    def close(self) -> None:
        os.close(self.descriptor)


class _File:
    """A file that somebody appends to, and may replace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._descriptor, 0, os.SEEK_END)
        self._rest = b""

    def read(self) -> list[str] | None:
        part = os.read(self._descriptor, _PIECE_BYTES)
        if not part and self._begins_anew():
            self._rest = b""
            part = os.read(self._descriptor, _PIECE_BYTES)
        if not part:
            return None
        *lines, rest = (self._rest + part).split(b"\n")
        self._rest = rest[-LINE_BYTES:]
        ours = (line[-LINE_BYTES:] for line in lines if _DRIVER.encode() in line)
        return [line.decode("utf-8", "replace") for line in ours]

    def _begins_anew(self) -> bool:
        """Whether the file was cut or replaced: what is there is read from its beginning."""
        try:
            now, open_file = self._path.stat(), os.fstat(self._descriptor)
            if (now.st_dev, now.st_ino) != (open_file.st_dev, open_file.st_ino):
                replacement = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.close(self._descriptor)
                self._descriptor = replacement
                return True
        except FileNotFoundError:
            return False
        cut = os.lseek(self._descriptor, 0, os.SEEK_CUR) > open_file.st_size
        if cut:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        return cut

    def close(self) -> None:
        os.close(self._descriptor)


class KernelLog:
    """The log from now on. Where it may not be read it is silent, and says so once."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self._source: _Source | None = None
        self._descriptor: int | None = None
        try:
            if stat.S_ISCHR(path.stat().st_mode):
                kmsg = _Kmsg(path)
                self._source, self._descriptor = kmsg, kmsg.descriptor
            else:
                self._source = _File(path)
        except OSError as error:
            logger.warning("the kernel's log cannot be read, so Xids have no text here: %s: %s", path, error.strerror)

    @property
    def readable(self) -> bool:
        """Whether anything can be heard there."""
        return self._source is not None

    def read(self) -> Iterator[list[XidEvent]]:
        """What has come in since it was last read, in pieces that take a few milliseconds each."""
        while self._source is not None:
            try:
                lines = self._source.read()
            except OSError as error:
                logger.warning("the kernel's log cannot be read any more: %s", error)
                self.close()
                return
            if lines is None:
                return
            yield [event for event in map(read_line, lines) if event is not None]

    async def wait(self) -> None:
        """Return when there may be something to read; never where the log cannot be read."""
        if self._source is None:
            await asyncio.Event().wait()
        if self._descriptor is None:
            await asyncio.sleep(LOOK_S)
            return
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            if self._descriptor is not None:  # it was not closed meanwhile
                loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Let go of the log. Who waits then waits for ever."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        if self._source is not None:
            self._source.close()
        self._source = self._descriptor = None
