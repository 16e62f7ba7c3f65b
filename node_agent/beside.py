"""What an agent does beside its lives, each for ever: limiting outputs, deleting old folders, answering questions; and
which processes are whose.

Nothing here may end the agent: what fails is tried again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from muster.events.log import LogError
from muster.node_agent import tree
from muster.node_agent.launch import MARKER
from muster.node_agent.link import AgentLink, LogAsk
from muster.node_agent.output import drop_oldest, read_output
from muster.node_agent.readings import Worktree
from muster.node_agent.worker import Worker
from muster.node_agent.workers import Workers

logger = logging.getLogger(__name__)

CLEAN_EVERY_S: Final = 60.0
OUTPUT_LOOK_S: Final = 1.0
RETRY_S: Final = 0.5


def worktrees(workers: Sequence[Worker]) -> list[Worktree]:
    """What the workers hold now. Reads /proc; for a thread."""
    among = tree.processes()
    contained = any(worker.ticket.cleanup for worker in workers)
    marked = tree.carriers(MARKER.encode(), among) if contained else {}
    return [
        worktree(worker, _pids(worker, marked.get(worker.ticket.token.encode(), set()), among)) for worker in workers
    ]


def worktree(worker: Worker, pids: frozenset[int] = frozenset()) -> Worktree:
    """What one holds. `pids`: its processes, where any are left."""
    return Worktree(worker.key.job, worker.key.attempt, worker.ticket.claims_mib, pids)


def _pids(worker: Worker, marked: set[int], among: dict[int, tree.ProcessStat]) -> frozenset[int]:
    """A worker's processes. Those of a container are below its engine, but have the worker's marker."""
    roots = marked if worker.ticket.cleanup else set()
    keeper = {worker.keeper_pid} if worker.keeper_pid else set()
    return frozenset(tree.with_descendants(roots | keeper, among))


async def clean_folders(workers: Workers, keep_s: float, keep_count: int) -> None:
    """Delete the folders of workers long over. See `Workers.clean`."""
    while True:
        try:
            await asyncio.to_thread(workers.clean, keep_s, keep_count, time.time())
        except OSError as error:
            logger.warning("old folders cannot be deleted: %s", error)
        await asyncio.sleep(CLEAN_EVERY_S)


async def limit_outputs(workers: Workers, limit_bytes: int) -> None:
    """Drop the oldest output of workers that have written more than that. See `drop_oldest`."""
    before: set[str] = set()
    while True:
        now = {str(worker.folder.output) for worker in workers.running()}
        await asyncio.to_thread(_drop_oldest, sorted(now | before), limit_bytes)
        before = now
        await asyncio.sleep(OUTPUT_LOOK_S)


def _drop_oldest(paths: list[str], limit_bytes: int) -> None:
    for path in paths:
        try:
            drop_oldest(path, limit_bytes)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("the output in %s cannot be limited: %s", path, error)


async def serve_asks(link: AgentLink, node: str, workers: Workers) -> None:
    """Answer questions for workers' output."""

    def answer(ask: LogAsk) -> AsyncIterator[bytes]:
        return read_output(workers, ask)

    while True:
        try:
            await link.serve_asks(node, answer)
        except (LogError, OSError, TimeoutError) as error:
            logger.warning("questions cannot be answered: %s", error)
        await asyncio.sleep(RETRY_S)
