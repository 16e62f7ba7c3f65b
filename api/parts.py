"""The parts that a program of Muster is made of, each on a connection of its own role.

Rules: a part is an asynchronous context: entering it opens what it needs, leaving it closes that in order. A task of a
part that ends by itself has failed, and `Tasks` makes that the program's failure.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.api.http import AddressError, HttpServer
from muster.api.process import StartError, waiting
from muster.api.samples import LastSamples
from muster.api.service import OutputError, Service
from muster.api.startconfig import StartConfig, apply_start_config
from muster.api.submitting import Submitter
from muster.events.agent_link import NatsAgentLink
from muster.events.asks import AskError, NatsAsks
from muster.events.beats import NatsBeats, NatsSamples
from muster.events.broker import BrokerError
from muster.events.connection import Connection, Credential, NoAnswerError
from muster.events.credentials import API, SCHEDULER, agent_role, read_credentials
from muster.events.jetstream import JetStreamLog
from muster.events.lease import NatsLease
from muster.events.log import LogError, LogUnavailableError
from muster.node_agent.agent import Agent, AgentSettings
from muster.node_agent.devices import DeviceSource
from muster.node_agent.journal import AgentLockedError
from muster.node_agent.link import LogAsk
from muster.node_agent.rivals import NameTakenError
from muster.node_agent.runtime import ContainerRuntime, find_engine
from muster.projections.follower import Follower
from muster.projections.scheduler import Scheduler
from muster.projections.schema import StoreError
from muster.projections.store import Store
from muster.projections.timetravel import TimeTravel

STOP_S: Final = 10.0


@dataclass(frozen=True)
class Place:
    """Where the log is, and who may do what there."""

    servers: Sequence[str]
    credentials: Mapping[str, Credential]
    prefix: str

    def credential(self, role: str) -> Credential:
        """The credential of a role. Raises StartError where there is none."""
        try:
            return self.credentials[role]
        except KeyError:
            raise StartError(f"the credentials file has no role {role!r}") from None


def read_place(connect: str, credentials: Path, prefix: str) -> Place:
    """The place that a program's options name. Raises StartError."""
    try:
        return Place(connect.split(","), read_credentials(credentials), prefix)
    except (OSError, msgspec.MsgspecError) as error:
        raise StartError(f"{credentials} is no credentials file: {error}", is_usage=True) from error


class Tasks:
    """The tasks of a program. `failed` ends when one of them does: none of them is to end by itself."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work`; a failure of it is reported by `failed`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def failed(self) -> None:
        """Wait until a task has ended. Raises what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            raise StartError(f"{task.get_name()} ended by itself")


async def ready(tasks: Tasks, *conditions: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until everything works, or something has failed. Raises what failed, or StartError."""

    async def wait() -> None:
        for condition in conditions:
            await condition.wait()

    waits, fails = asyncio.create_task(wait()), asyncio.create_task(tasks.failed())
    try:
        done, _ = await asyncio.wait({waits, fails}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if fails in done:
            fails.result()
        if not done:
            raise StartError(f"not ready after {timeout_s:.0f} s", "--verbose says more")
    finally:
        for task in (waits, fails):
            task.cancel()
        await asyncio.wait({waits, fails})


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any], name: str, tasks: Tasks) -> AsyncGenerator[None, None]:
    """`work` runs inside; it is cancelled, and waited for, at the end."""
    task = tasks.start(work, name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def explained() -> AsyncGenerator[None, None]:
    """What cannot be had at a start, as errors for people."""
    try:
        yield
    except (NoAnswerError, LogUnavailableError) as error:
        raise StartError(str(error), is_unreachable=True) from error
    except NameTakenError as error:
        raise StartError(str(error), "end the other one, or give this one another --node") from error
    except AddressError as error:
        raise StartError(str(error), is_usage=True) from error
    except (BrokerError, LogError, StoreError, AgentLockedError) as error:
        raise StartError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise StartError(f"{where}{error.strerror or error}") from error


@asynccontextmanager
async def connected(place: Place, role: str, name: str) -> AsyncGenerator[Connection, None]:
    """A connection of a role's own."""
    credential = place.credential(role)
    with waiting(f"a broker at {', '.join(place.servers)}"):
        connection = await Connection.open(place.servers, credential, name)
    try:
        yield connection
    finally:
        await connection.close()


async def open_log(connection: Connection, place: Place) -> JetStreamLog:
    """The log. Raises LogError."""
    with waiting(f"the log at {', '.join(place.servers)} to answer"):
        return await JetStreamLog.open(connection, place.prefix)


@asynccontextmanager
async def following(log: JetStreamLog, path: Path, tasks: Tasks) -> AsyncGenerator[tuple[Follower, Store], None]:
    """The live fold of the log, and its mirror in the file at `path`."""
    store = await Store.open(path)
    try:
        follower = Follower(log, store)
        await follower.start()
        async with running(follower.run(), "the follower", tasks):
            yield follower, store
    finally:
        await store.close()


class _Outputs:
    """Workers' outputs, asked of their agents."""

    def __init__(self, asks: NatsAsks) -> None:
        self._asks = asks

    async def ask(self, node: str, question: LogAsk) -> AsyncGenerator[bytes, None]:
        """See `Outputs.ask`."""
        try:
            async with contextlib.aclosing(self._asks.ask(node, question)) as parts:
                async for part in parts:
                    yield part
        except AskError as error:
            raise OutputError(str(error)) from error


@asynccontextmanager
async def listening(service: Service, host: str, port: int) -> AsyncGenerator[HttpServer, None]:
    """A service's HTTP server, at its address."""
    server = HttpServer(service, host, port)
    try:
        await server.start()
    except OSError as error:
        step = "stop what listens there, or give another port (0 = a free one)"
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}", step) from error
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def api_server(
    place: Place, store_path: Path, host: str, port: int, tasks: Tasks, config: StartConfig | None = None
) -> AsyncGenerator[tuple[HttpServer, Follower], None]:
    """The HTTP API, which listens once `config` is in force. Gives the server and the fold it reads from."""
    async with connected(place, API, "muster api") as connection:
        log = await open_log(connection, place)
        submitter = Submitter(log)
        samples = LastSamples(NatsSamples(connection, place.prefix))
        async with (
            following(log, store_path, tasks) as (follower, store),
            running(submitter.run(), "the writer of submissions", tasks),
            running(samples.run(), "the reader of samples", tasks),
        ):
            outputs = _Outputs(NatsAsks(connection, place.prefix))
            service = Service(log, follower, store, TimeTravel(store, log), outputs, submitter, samples)
            if config is not None:
                await apply_start_config(service, config)
            async with listening(service, host, port) as server:
                yield server, follower


@asynccontextmanager
async def scheduling(place: Place, name: str, follower: Follower, tasks: Tasks) -> AsyncGenerator[Scheduler, None]:
    """A scheduler on a fold that somebody else runs."""
    async with connected(place, SCHEDULER, f"muster scheduler {name}") as connection:
        log = await open_log(connection, place)
        lease = NatsLease(connection, name, place.prefix)
        scheduler = Scheduler(name, log, follower, lease, NatsBeats(connection, place.prefix))
        async with running(scheduler.run(), "the scheduler", tasks):
            yield scheduler


@asynccontextmanager
async def agency(place: Place, settings: AgentSettings, devices: DeviceSource, tasks: Tasks) -> AsyncIterator[Agent]:
    """A node's agent. At the end it leaves its jobs running, unless it was stopped before."""
    async with connected(place, agent_role(settings.node), f"muster agent {settings.node}") as connection:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        agent = Agent(settings, NatsAgentLink(connection, settings.node, LogAsk, place.prefix), devices)
        task = tasks.start(agent.run(), f"the agent of {settings.node}")
        try:
            yield agent
        finally:
            if not task.done():
                await agent.stop(kill_jobs=False)
            await asyncio.wait({task})
            await devices.close()


def check_containers(asked: ContainerRuntime) -> None:
    """Raises StartError where the container engine that was asked for is not there."""
    try:
        find_engine(asked)
    except FileNotFoundError as error:
        raise StartError(str(error), "install it, or give another --container-runtime") from error


@contextmanager
def locked(data: Path, part: str) -> Generator[None, None, None]:
    """One process a part and data folder. Raises StartError where another has it."""
    descriptor = os.open(data / f"{part}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"another `muster {part}` runs on {data}", "use that one, or give another folder with --data"
            ) from None
        yield
    finally:
        os.close(descriptor)


def lasting_name(data: Path) -> str:
    """A name among all schedulers, the same at every start on a data folder that is locked: who comes back need not
    wait until the lease of its last life has run out."""
    path = data / "scheduler.name"
    if not path.exists():
        temporary = data / "scheduler.name.new"
        temporary.write_text(f"{socket.gethostname()}-{secrets.token_hex(4)}")
        temporary.replace(path)
    return path.read_text()
