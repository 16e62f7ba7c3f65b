"""The workers of this node: started, adopted, stopped and followed to their end.

A worker is in the table from its command until the log has its exit. Its folder is the truth about it; the table can be
made again from the folders at any time, by another agent.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from muster.events.types import ExitStatus, Inventory, StartWorker, WorkerReport
from muster.node_agent import tree
from muster.node_agent.booking import claims_mib
from muster.node_agent.keepers import KEEPER_CODE, Keepers, keeper_gone
from muster.node_agent.lease import Lease
from muster.node_agent.lookups import Lookups
from muster.node_agent.prepare import LaunchSettings, Planned, planned, prepared
from muster.node_agent.refusal import RefusalError
from muster.node_agent.worker import Key, Reports, Worker
from muster.node_agent.worker_folder import StopOrder, WorkerFolder, lost

logger = logging.getLogger(__name__)

START_TRIES: Final = 2
STUBBORN_MS: Final = 30_000
"""A tree that lives this long after it was killed is reported."""
KEEPER_MS: Final = 5_000
"""A keeper that does not do as it was told for this long is killed, and what it kept with it."""
CONTAINER_MS: Final = 20_000
"""So much longer a keeper may take that has a container to remove."""
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
LEARN_PID_S: Final = 5.0
LOOK_AGAIN_S: Final = 0.02
RETRY_S: Final = 1.0


Settle = Callable[[Worker], Awaitable[None]]


class Workers:
    """The table of workers, each with a task that follows it. `settle` returns once a worker whose tree is gone may be
    reported."""

    def __init__(
        self, folder: Path, keepers: Keepers, reports: Reports, settings: LaunchSettings, settle: Settle
    ) -> None:
        self._folder = folder
        self._keepers = keepers
        self._reports = reports
        self._settings = settings
        self._settle = settle
        self._lookups = Lookups()
        self._workers: dict[Key, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o711 if settings.run_as else 0o700)

    # -- what there is ------------------------------------------------------------------------------------------

    def running(self) -> list[Worker]:
        """Those whose tree is not known to be gone."""
        return [worker for worker in self._workers.values() if worker.exit is None]

    def find(self, key: Key) -> Worker | None:
        """The worker, unless the log has its exit."""
        return self._workers.get(key)

    def folder_of(self, key: Key) -> WorkerFolder:
        """Where its output is, or was."""
        return WorkerFolder(self._folder / "{}.{}.{}".format(*key))

    def listing(self) -> list[WorkerReport]:
        """For a registration: all that the log may not have the end of."""
        return [WorkerReport(*worker.key, pid=worker.pid, exit=worker.exit) for worker in self._workers.values()]

    def acknowledged(self, key: Key) -> None:
        """The log has the worker's exit."""
        worker = self._workers.get(key)
        if worker is not None and worker.exit is not None:
            worker.folder.acknowledge()
            del self._workers[key]

    # -- beginnings ---------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what earlier agents left. Tickets that nobody claimed are revoked first: those never run."""
        for path in sorted(self._folder.iterdir()):
            folder = WorkerFolder(path)
            if folder.acknowledged_s() is not None:
                continue
            ticket = None if folder.revoke() else folder.claimed()
            if ticket is None:
                folder.remove()
                continue
            worker = Worker(ticket, folder, command=0, incarnation="")
            worker.exit = folder.exit()
            started = folder.started()
            worker.pid = started.pid if started is not None else 0
            worker.keeper_pid = folder.keeper_pid() or 0
            self._workers[worker.key] = worker
            if worker.exit is None:
                self._spawn(self._follow(worker))
                order = folder.stop_order()
                if order is not None:  # perhaps the keeper was not woken for it
                    self.stop(worker, order)
            else:
                worker.gone.set()

    async def end_orphans(self) -> None:
        """Return when no keeper of this data folder is left but those adopted. A job can delete its worker's folder,
        move it away, or spoil it: nobody knows of that worker then, and what a registration does not list must not
        run. What an adopted keeper keeps stays: until it has become the program, a first process looks like its keeper.
        """
        while orphans := await asyncio.to_thread(self._orphans):
            for keeper_pid in orphans:
                logger.warning("keeper %d has lost its folder: what it keeps is killed", keeper_pid)
                tree.send(await asyncio.to_thread(tree.descendants, keeper_pid) or [keeper_pid], signal.SIGKILL)
            await asyncio.sleep(LOOK_AGAIN_S)

    def _orphans(self) -> set[int]:
        keepers = tree.working_for(os.path.realpath(self._folder), KEEPER_CODE, os.fsencode(self._keepers.mark))
        keepers.discard(self._keepers.zygote_pid)
        adopted = {worker.keeper_pid for worker in self.running() if worker.keeper_pid}
        return keepers.difference(tree.with_descendants(adopted, tree.processes()))

    async def plan(self, command: StartWorker, inventory: Inventory) -> Planned:
        """What a worker will be; in some seconds, whoever does not answer. Raises RefusalError."""
        folder = self.folder_of(Key(command.job, command.attempt, command.rank))
        try:
            return await self._lookups.ask(lambda: planned(command, folder, inventory, self._settings))
        except TimeoutError:
            raise RefusalError("the node's accounts, or its folders, do not answer") from None
        except OSError as error:
            raise RefusalError(f"it cannot be prepared: {error}") from error

    def start(self, command: StartWorker, plan: Planned, sequence: int, inventory: Inventory, lease: Lease) -> None:
        """Begin a planned worker. Raises RefusalError, having done nothing."""
        key = Key(command.job, command.attempt, command.rank)
        if key in self._workers:
            raise RefusalError("this worker is on the node already")
        claims = claims_mib(command, inventory, [worker.ticket for worker in self.running()])
        folder = self.folder_of(key)
        made = prepared(command, plan, lease, claims, self._settings)
        try:
            if folder.path.exists():
                folder.remove()
            folder.prepare(made.ticket, made.programs, made.variables, made.owner)
        except (OSError, ValueError) as error:
            folder.remove()
            raise RefusalError(f"its folder cannot be made: {error}") from error
        worker = Worker(made.ticket, folder, sequence, command.incarnation)
        self._workers[key] = worker
        self._spawn(self._begin(worker))

    async def _begin(self, worker: Worker) -> None:
        for _ in range(START_TRIES):
            running = await self._keepers.start(worker.folder)
            if running is not None:
                worker.pid, worker.keeper_pid = running
                break
            if not worker.folder.revoke():
                break
            worker.folder.offer_again()
        else:
            if worker.folder.revoke():
                self._forget(worker, "no keeper could be started for it")
                return
        if worker.pid == 0:
            await self._learn_pid(worker)
        if worker.pid:
            self._reports.started(worker)
        await self._follow(worker)

    def _forget(self, worker: Worker, reason: str) -> None:
        del self._workers[worker.key]
        worker.folder.remove()
        worker.end(lost(reason))
        worker.gone.set()
        self._reports.refused(worker, reason)

    async def _learn_pid(self, worker: Worker) -> None:
        """The keeper's answer was lost, or there was none: its folder has it before the program runs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEARN_PID_S):
                while worker.folder.keeper_pid() is not None and worker.folder.exit() is None:
                    started = worker.folder.started()
                    if started is not None:
                        worker.pid, worker.keeper_pid = started.pid, worker.folder.keeper_pid() or 0
                        return
                    await asyncio.sleep(LOOK_AGAIN_S)

    # -- ends ---------------------------------------------------------------------------------------------------

    def stop(self, worker: Worker, order: StopOrder) -> None:
        """Have the worker ended; it is `gone` when nothing of it is left. A later order can only hasten it."""
        if worker.exit is None:
            self._spawn(self._stop(worker, order))

    async def stop_leased(self) -> None:
        """The lease is over: return when no leased worker is left, or when it is no use to wait longer."""
        leased = [worker for worker in self.running() if worker.ticket.leased]
        for worker in leased:
            self.stop(worker, StopOrder("lease_expired", 0))
        await self._all_gone(leased, STUBBORN_MS)

    async def stop_all(self, grace_ms: int) -> None:
        """End every worker, likewise."""
        workers = self.running()
        for worker in workers:
            self.stop(worker, StopOrder("stopped", grace_ms))
        await self._all_gone(workers, grace_ms + STUBBORN_MS)

    async def close(self) -> None:
        """Stop following. The workers go on under their keepers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def clean(self, keep_s: float, keep_count: int, now_s: float) -> None:
        """Delete what workers that are over compiled, the folders of those long over, and the oldest beyond
        `keep_count`. Blocks; for a thread."""
        over = []
        for path in self._folder.iterdir():
            acknowledged_s = WorkerFolder(path).acknowledged_s()
            if acknowledged_s is not None:
                over.append((acknowledged_s, path.name))
                WorkerFolder(path).remove_cache()
        over.sort(reverse=True)
        for position, (acknowledged_s, name) in enumerate(over):
            if position >= keep_count or now_s - acknowledged_s > keep_s:
                WorkerFolder(self._folder / name).remove()

    async def _stop(self, worker: Worker, order: StopOrder) -> None:
        within_ms = order.kill_ms + KEEPER_MS + (CONTAINER_MS if worker.ticket.cleanup else 0)
        while worker.exit is None:
            try:
                worker.folder.order_stop(order)
                break
            except OSError as error:
                logger.warning("the stop of %s cannot be written: %s", worker.folder.path.name, error)
                if error.errno not in _DISK_FULL and worker.keeper_pid:  # its folder is gone, or no folder any more
                    tree.send(tree.descendants(worker.keeper_pid), signal.SIGTERM, signal.SIGCONT)
                    within_ms = order.grace_ms + KEEPER_MS
                    break
                await asyncio.sleep(RETRY_S)
        if await self._all_gone([worker], within_ms):
            return
        keeper_pid = worker.folder.keeper_pid() or worker.keeper_pid
        if keeper_pid:
            tree.send([*await asyncio.to_thread(tree.descendants, keeper_pid), keeper_pid], signal.SIGKILL)
        if not await self._all_gone([worker], STUBBORN_MS - KEEPER_MS):
            self._reports.stop_failed(worker, f"alive {STUBBORN_MS // 1000} s after it was killed")

    async def _all_gone(self, workers: list[Worker], within_ms: int) -> bool:
        try:
            async with asyncio.timeout(within_ms / 1000):
                for worker in workers:
                    await worker.gone.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self, worker: Worker) -> None:
        await keeper_gone(worker.folder, worker.keeper_pid)
        worker.keeper_pid = 0
        status = worker.folder.exit()
        if status is None:
            status = await self._bury(worker)
        await self._settle(worker)
        worker.end(status)
        self._reports.exited(worker)
        worker.gone.set()

    async def _bury(self, worker: Worker) -> ExitStatus:
        """The keeper was killed: what it kept is killed too, whatever it takes."""
        clock = asyncio.get_running_loop().time
        stubborn_at = clock() + STUBBORN_MS / 1000
        while await asyncio.to_thread(worker.folder.kill_remains, worker.ticket):
            if clock() >= stubborn_at:
                stubborn_at = math.inf
                self._reports.stop_failed(worker, "its keeper is gone, and what it kept cannot be killed")
            await asyncio.sleep(RETRY_S if worker.ticket.cleanup else LOOK_AGAIN_S)
        started = worker.folder.started()
        restarted = started is not None and started.boot_id != tree.boot_id()
        status = lost("the machine was restarted" if restarted else "its keeper ended without recording its exit")
        with contextlib.suppress(OSError):
            worker.folder.write_exit(status)
        return status

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a worker is followed no more", exc_info=task.exception())
