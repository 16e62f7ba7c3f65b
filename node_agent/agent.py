"""The agent: lives one after the other on one data folder, each begun by a registration and ended by its lease.

The order of things at a start keeps every crash harmless: lock, adopt, send what was not reported, register, beat,
then obey commands later than the registration. A life whose lease has run out ends its leased workers, then registers
anew; nothing of the old life can renew the lease after that. Where another agent has registered this node, everything
here ends at once: the log says that it does not run.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import msgspec

import muster
from muster.events import codec
from muster.events.binding import VisibleDevices
from muster.events.log import Entry, LogError
from muster.events.telemetry import Heartbeat
from muster.events.types import (
    ExitStatus,
    Inventory,
    NodeFact,
    NodeRegistered,
    StartWorker,
    StopWorker,
    WorkerExited,
)
from muster.node_agent.beside import clean_folders, limit_outputs, serve_asks, worktree, worktrees
from muster.node_agent.cgroups import worker_cgroups
from muster.node_agent.devices import DeviceSource
from muster.node_agent.journal import Journal
from muster.node_agent.keeper_files import boottime_ns
from muster.node_agent.keepers import Keepers
from muster.node_agent.lease import NS_PER_MS, Lease
from muster.node_agent.link import AgentLink
from muster.node_agent.outbox import Outbox
from muster.node_agent.prepare import LaunchSettings
from muster.node_agent.readings import Worktree
from muster.node_agent.refusal import RefusalError
from muster.node_agent.reporter import Reporter
from muster.node_agent.rivals import NameTakenError, Rivals
from muster.node_agent.runtime import ContainerRuntime, find_engine
from muster.node_agent.watch import DeviceWatch, Survey
from muster.node_agent.worker import Key, Worker
from muster.node_agent.worker_folder import StopOrder
from muster.node_agent.workers import Workers

logger = logging.getLogger(__name__)

BEAT_TIMEOUT_MS: Final = 5_000
FLUSH_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.5


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent works. `lease_ms` 0 = no lease. `cgroups` False: process trees are held without cgroups.
    Folders of ended workers are kept `keep_s`, and at most `keep_count` of them; of a worker's output, at most about
    `output_limit_bytes`. Jobs run as the account `run_as` ("" = the agent's own, `accounts.SAME` = that named like the
    job's user), as root only if `allow_root`; a worker has at most `max_processes` (0 = no limit)."""

    node: str
    data: Path
    lease_ms: int = 120_000
    beat_ms: int = 2_000
    sample_ms: int = 5_000
    stop_grace_ms: int = 10_000
    visible: VisibleDevices = "index"
    cgroups: bool = True
    keep_s: float = 7 * 86_400.0
    keep_count: int = 1_000
    output_limit_bytes: int = 1 << 30
    run_as: str = ""
    allow_root: bool = False
    container_runtime: ContainerRuntime = "auto"
    max_processes: int = 0


class Agent:
    """The agent of one node. `run` returns after `stop`, or raises AgentLockedError or NameTakenError; reports go
    through `link`."""

    def __init__(self, settings: AgentSettings, link: AgentLink, devices: DeviceSource) -> None:
        self._settings = msgspec.structs.replace(settings, data=settings.data.absolute())  # workers run elsewhere
        self._link = link
        self._devices = devices
        self._inventory = Inventory([], 0, 0, "")  # as registered last
        self._stop_asked = asyncio.Event()
        self._kill_jobs = False
        self._alone = asyncio.Event()
        self._name_taken: NameTakenError | None = None
        self._stopped = asyncio.Event()
        self._stopped.set()
        self.registered = asyncio.Event()
        """Set once the log has a registration of this process."""

    @property
    def inventory(self) -> Inventory:
        """As it was registered last."""
        return self._inventory

    async def run(self) -> None:
        """Serve until stopped. Raises AgentLockedError, NameTakenError, OSError."""
        self._stopped.clear()
        try:
            with Journal(self._settings.data) as journal:
                await self._run(journal)
        finally:
            self._stopped.set()

    async def stop(self, *, kill_jobs: bool) -> None:
        """End `run`, and wait for it. The workers are ended too, and reported, or left to be adopted."""
        self._kill_jobs = self._kill_jobs or kill_jobs
        self._stop_asked.set()
        await self._stopped.wait()

    async def _run(self, journal: Journal) -> None:
        data, settings = self._settings.data, self._settings
        self._journal = journal
        self._lease = Lease(data / "lease", settings.lease_ms)
        self._keepers = Keepers(data / "keepers.log")
        cgroup, controllers = worker_cgroups() if settings.cgroups else ("", frozenset())
        self._engine = find_engine(settings.container_runtime)
        launching = LaunchSettings(
            own_env=dict(os.environ),
            visible=settings.visible,
            cgroup=cgroup,
            controllers=controllers,
            run_as=settings.run_as,
            allow_root=settings.allow_root,
            engine=self._engine,
            max_processes=settings.max_processes,
        )
        if settings.run_as:
            data.chmod(0o711)  # on the way to what is the workers' own
        self._outbox = Outbox(journal, self._link, secrets.token_hex(8), self._stored)
        self._reporter = Reporter(settings.node, self._outbox)
        self._workers = Workers(data / "workers", self._keepers, self._reporter, launching, self._settle)
        self._watch = DeviceWatch(self._devices, self._work, self._reporter, self._link.sample)
        self._rivals = Rivals(settings.node, settings.beat_ms, self._link, journal)
        try:
            self._keepers.warm()
            self._workers.adopt()
            await self._workers.end_orphans()
            logger.info("before this life, %s had taken commands up to %d", *journal.last_life())
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work)
                    for work in (
                        self._report(),
                        self._live_on(),
                        self._watch_devices(),
                        limit_outputs(self._workers, settings.output_limit_bytes),
                        clean_folders(self._workers, settings.keep_s, settings.keep_count),
                        serve_asks(self._link, settings.node, self._workers),
                    )
                ]
                await self._stop_asked.wait()
                tasks[1].cancel()
                if self._name_taken is not None:
                    tasks[0].cancel()
                    await self._workers.stop_all(0)
                    for worker in self._workers.running():
                        logger.error("%s outlives every signal", worker.folder.path.name)
                elif self._kill_jobs:
                    await self._end_jobs()
                for task in tasks:
                    task.cancel()
        finally:
            await self._workers.close()
            self._keepers.close()
            self._lease.close()
        if self._name_taken is not None:
            raise self._name_taken

    async def _end_jobs(self) -> None:
        await self._workers.stop_all(self._settings.stop_grace_ms)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._outbox.flushed()

    async def _report(self) -> None:
        """What earlier lives could not report is a registration too, perhaps: nothing is sent before it is known that
        no other agent has taken this node."""
        await self._alone.wait()
        await self._outbox.run()

    # -- lives --------------------------------------------------------------------------------------------------

    async def _live_on(self) -> None:
        try:
            await self._lives()
        except NameTakenError as error:
            self._name_taken = error
            self._stop_asked.set()

    async def _lives(self) -> None:
        check = self._rivals.check_start
        while True:
            if self._lease.over():
                await self._workers.stop_leased()
                self._lease.forget()
            await check()
            self._alone.set()
            check = self._rivals.check_again
            survey = self._with_containers(await self._watch.survey())
            incarnation = secrets.token_hex(8)
            try:
                await self._journal.begin_life(incarnation)
            except sqlite3.Error as error:  # a full disk: nothing is started then, but what runs is looked after
                logger.warning("the agent's journal cannot be written: %s", error)
            self._reporter.incarnation = incarnation
            self._inventory = survey.inventory
            stored = self._outbox.put(
                NodeRegistered(
                    node=self._settings.node,
                    incarnation=incarnation,
                    inventory=survey.inventory,
                    workers=self._workers.listing(),
                    lease_ms=self._settings.lease_ms,
                    agent_version=muster.__version__,
                    faults=list(survey.look.faults),
                    foreign=list(survey.look.foreign),
                    degraded=survey.degraded(),
                )
            )
            self._watch.begin(survey)
            sequence = await stored
            self.registered.set()
            await self._live(sequence)
            why = "its lease has run out" if self._lease.over() else "its devices have changed"
            logger.warning("a life of this node ends, and it registers anew: %s", why)

    def _with_containers(self, survey: Survey) -> Survey:
        """Devices can tell whether they can be given to containers, not whether there is an engine."""
        inventory = msgspec.structs.replace(survey.inventory, containers=self._engine is not None)
        return survey._replace(inventory=inventory)

    async def _live(self, registered: int) -> None:
        """Return when the lease has run out, or the devices are others. Raises NameTakenError."""
        beating = asyncio.Event()
        beats = asyncio.create_task(self._beat(self._reporter.incarnation, beating))
        commands = asyncio.create_task(self._obey_all(registered, beating))
        rivals = asyncio.create_task(self._rivals.watch(registered))
        changed = asyncio.create_task(self._devices_changed())
        tasks = (beats, commands, rivals, changed)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self, incarnation: str, beating: asyncio.Event) -> None:
        """Beat until the lease has run out. A beat's sending is noted before it is sent."""
        count = 0
        while True:
            sent_ns = boottime_ns()
            if self._lease.over():
                return
            count += 1
            if await self._acknowledged(Heartbeat(self._settings.node, incarnation, count)):
                if self._lease.over():
                    return
                self._lease.renew(sent_ns)
                beating.set()
            next_ms = self._settings.beat_ms - (boottime_ns() - sent_ns) // NS_PER_MS
            await asyncio.sleep(max(next_ms, 0) / 1000)

    async def _acknowledged(self, beat: Heartbeat) -> bool:
        try:
            async with asyncio.timeout(BEAT_TIMEOUT_MS / 1000):
                return await self._link.beat(beat)
        except (LogError, OSError, TimeoutError) as error:
            logger.warning("a beat was not acknowledged: %s", error)
            return False

    # -- commands -----------------------------------------------------------------------------------------------

    async def _obey_all(self, registered: int, beating: asyncio.Event) -> None:
        await beating.wait()
        taken = registered
        while True:
            chunks = self._link.commands(self._settings.node, taken)
            try:
                async for entries in chunks:
                    fresh = [entry for entry in entries if entry.sequence > taken]
                    if fresh:
                        await self._take(fresh)
                        taken = fresh[-1].sequence
            except (LogError, OSError, TimeoutError) as error:
                logger.warning("commands cannot be read: %s", error)
            finally:
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()
            await asyncio.sleep(RETRY_S)

    async def _take(self, entries: list[Entry]) -> None:
        """Journal, then obey. Where the journal cannot be written nothing is started; stops are obeyed all the same."""
        try:
            await self._journal.take(entries[-1].sequence)
            unwritten = ""
        except sqlite3.Error as error:
            unwritten = f"the agent's journal cannot be written: {error}"
        for entry in entries:
            try:
                command = codec.decode(entry.payload)
            except codec.UnreadableEventError as error:
                logger.error("command %d is not understood: %s", entry.sequence, error)  # noqa: TRY400  # no trace needed
                continue
            match command:
                case StartWorker():
                    await self._start(command, entry.sequence, unwritten)
                case StopWorker():
                    self._stop(command)
                case _:
                    logger.error("entry %d is not a command", entry.sequence)

    async def _start(self, command: StartWorker, sequence: int, unwritten: str) -> None:
        refusal = unwritten or self._no_start(command)
        if not refusal:
            try:
                plan = await self._workers.plan(command, self._inventory)
                refusal = self._no_start(command)  # it may have taken a while
                if not refusal:
                    self._workers.start(command, plan, sequence, self._inventory, self._lease)
            except RefusalError as error:
                refusal = str(error)
        if refusal:
            self._reporter.refuse(sequence, Key(command.job, command.attempt, command.rank), refusal)

    def _no_start(self, command: StartWorker) -> str:
        """Why this agent starts nothing of the kind now ("" = it does)."""
        if command.incarnation != self._reporter.incarnation:
            return f"meant for {command.incarnation}, another life of this node"
        if command.leased and self._lease.over():
            return "the agent's lease has run out"
        return "the agent is ending" if self._stop_asked.is_set() else ""

    def _stop(self, command: StopWorker) -> None:
        """A stop for an earlier life has no answer: the registration was one, and what is still wanted comes again."""
        if command.incarnation != self._reporter.incarnation:
            return
        key = Key(command.job, command.attempt, command.rank)
        worker = self._workers.find(key)
        if worker is not None:
            order = StopOrder("stopped", command.grace_ms, command.signal, command.notice_ms)
            self._workers.stop(worker, order)
            return
        status = self._workers.folder_of(key).exit() or ExitStatus("lost", detail="no such worker is on this node")
        self._reporter.ended(key, status)

    # -- beside -------------------------------------------------------------------------------------------------

    def _stored(self, event: NodeFact) -> None:
        match event:
            case WorkerExited():
                self._workers.acknowledged(Key(event.job, event.attempt, event.rank))
            case NodeRegistered():
                for worker in event.workers:
                    if worker.exit is not None:
                        self._workers.acknowledged(Key(worker.job, worker.attempt, worker.rank))
            case _:
                pass

    async def _watch_devices(self) -> None:
        await self.registered.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.watch(self._settings.sample_ms))
            group.create_task(self._watch.hear())

    async def _devices_changed(self) -> None:
        await self._watch.changed.wait()

    async def _work(self) -> list[Worktree]:
        return await asyncio.to_thread(worktrees, self._workers.running())

    async def _settle(self, worker: Worker) -> None:
        await self._watch.settle(worktree(worker))
