"""Workers' output, read in chunks for whoever asks."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

from muster.node_agent.keeper_files import open_regular
from muster.node_agent.link import LogAsk
from muster.node_agent.worker import Key
from muster.node_agent.workers import Workers

CHUNK_BYTES: Final = 65_536
LOOK_AGAIN_S: Final = 0.1


def _read(path: str, offset: int) -> bytes:
    descriptor = open_regular(path)
    try:
        return os.pread(descriptor, CHUNK_BYTES, offset)
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
            chunk = await asyncio.to_thread(_read, str(path), offset)
        except FileNotFoundError:
            if worker is None:
                raise LookupError(f"the output of {path.parent.name} is not on this node") from None
            chunk = b""
        except OSError as error:
            raise LookupError(f"the output of {path.parent.name} cannot be read: {error.strerror}") from None
        if chunk:
            offset += len(chunk)
            yield chunk
        elif live and ask.follow:
            await asyncio.sleep(LOOK_AGAIN_S)
        else:
            return
