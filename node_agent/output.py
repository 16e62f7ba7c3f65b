"""Workers' output, read in chunks for whoever asks, and kept from filling the disk.

Rules: of an output beyond its limit the oldest part is given back to the disk as a hole, with a line in the file that
says so, so that every later byte keeps its place and the worker notices nothing. Readers pass over holes.
"""

import asyncio
import ctypes
import errno
import os
import stat
from collections.abc import AsyncIterator
from typing import Final

from muster.node_agent.keeper_files import open_regular
from muster.node_agent.link import LogAsk
from muster.node_agent.worker import Key
from muster.node_agent.workers import Workers

CHUNK_BYTES: Final = 65_536
LOOK_AGAIN_S: Final = 0.1
PAGE_BYTES: Final = 4096
BLOCK_BYTES: Final = 512
"""In which the kernel counts the room of a file."""
DROPPED: Final = b"\n[muster: the output before this line was dropped: it had reached its limit]\n"
_PUNCH_HOLE: Final = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_libc: Final = ctypes.CDLL(None, use_errno=True)


def _read(path: str, offset: int) -> tuple[int, bytes]:
    """The next chunk at or after `offset`, and where it ends."""
    descriptor = open_regular(path)
    try:
        start = os.lseek(descriptor, offset, os.SEEK_DATA)
        chunk = os.pread(descriptor, CHUNK_BYTES, start)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return offset, b""  # nothing follows
    finally:
        os.close(descriptor)
    return start + len(chunk), chunk


def drop_oldest(path: str, limit_bytes: int) -> None:
    """Where an output takes more than `limit_bytes` of the disk, keep its last half of that. Blocks. Raises OSError."""
    found = os.lstat(path)
    if found.st_blocks * BLOCK_BYTES <= limit_bytes or not stat.S_ISREG(found.st_mode):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        start = (found.st_size - limit_bytes // 2) // PAGE_BYTES * PAGE_BYTES
        if start <= 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        os.pwrite(descriptor, DROPPED, start)
        if _libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(start)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(descriptor)


async def read_output(workers: Workers, ask: LogAsk) -> AsyncIterator[bytes]:
    """The output from `ask.offset` on. Following ends with the worker. Raises LookupError where there is none."""
    key = Key(ask.job, ask.attempt, ask.rank)
    path = workers.folder_of(key).output
    offset = ask.offset
    while True:
        worker = workers.find(key)
        live = worker is not None and worker.exit is None
        try:
            offset, chunk = await asyncio.to_thread(_read, str(path), offset)
        except FileNotFoundError:
            if worker is None:
                raise LookupError(f"the output of {path.parent.name} is not on this node") from None
            chunk = b""
        except OSError as error:
            raise LookupError(f"the output of {path.parent.name} cannot be read: {error.strerror}") from None
        if chunk:
            yield chunk
        elif live and ask.follow:
            await asyncio.sleep(LOOK_AGAIN_S)
        else:
            return
