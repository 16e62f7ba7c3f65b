"""`muster server`, `scheduler` and `agent`: the same parts as in `muster up`, each a program of its own.

They meet in the broker that `--connect` names, each with its own role of the credentials file. Ctrl-C ends a part and
leaves every job running: what an agent has started stays under its keepers until the agent is back.
"""

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from muster.api.http import check_address
from muster.api.machines import HealthOptions, equipment, one_node, site, visible_by
from muster.api.parts import (
    Place,
    Tasks,
    agency,
    api_server,
    check_containers,
    connected,
    explained,
    following,
    lasting_name,
    locked,
    open_log,
    read_place,
    ready,
    running,
    scheduling,
)
from muster.api.process import StartError, make_folder, waiting
from muster.api.startconfig import StartConfig
from muster.api.telling import say
from muster.events.binding import VisibleDevices
from muster.events.credentials import SCHEDULER
from muster.events.streams import set_up
from muster.node_agent.agent import AgentSettings
from muster.node_agent.runtime import ContainerRuntime
from muster.projections.scheduler import Scheduler


@dataclass(frozen=True)
class PartOptions:
    """What every part needs."""

    data: Path
    connect: str
    credentials: Path
    prefix: str

    def prepare(self) -> Place:
        """The data folder made, the credentials read. Raises StartError."""
        make_folder(self.data)
        return read_place(self.connect, self.credentials, self.prefix)


@dataclass(frozen=True)
class ServerOptions(PartOptions):
    """What `muster server` was asked for. `create_streams` is the number of replicas of streams that it creates where
    there are none; 0 = it creates none."""

    host: str
    port: int
    create_streams: int
    config: StartConfig | None = None


@dataclass(frozen=True)
class SchedulerOptions(PartOptions):
    """What `muster scheduler` was asked for."""


@dataclass(frozen=True)
class AgentOptions(HealthOptions, PartOptions):
    """What `muster agent` was asked for."""

    node: str
    address: str
    fabric: str
    labels: tuple[str, ...]
    simulate: str | None
    ports: str
    lease_s: float
    output_limit_mib: int = 1024
    run_as: str = ""
    allow_root: bool = False
    max_processes: int = 0
    container_runtime: ContainerRuntime = "auto"
    visible_devices: VisibleDevices | None = None


async def run_server(options: ServerOptions) -> None:
    """Serve the API until cancelled. Raises StartError."""
    tasks = Tasks()
    async with explained(), AsyncExitStack() as stack:
        check_address(options.host)
        place = options.prepare()
        stack.enter_context(locked(options.data, "server"))
        if options.create_streams:
            for role in ("operator", "system"):
                place.credential(role)
            count = options.create_streams
            with waiting(f"{count} broker{'s' * (count > 1)} at {', '.join(place.servers)}, as --create-streams says"):
                await set_up(place.servers, place.credentials, prefix=place.prefix, replicas=count)
        server, _ = await stack.enter_async_context(
            api_server(place, options.data / "server.sqlite", options.host, options.port, tasks, options.config)
        )
        say(f"muster server at {server.url}")
        await tasks.failed()


async def run_scheduler(options: SchedulerOptions) -> None:
    """Stand for leader until cancelled. Raises StartError."""
    tasks = Tasks()
    async with explained(), AsyncExitStack() as stack:
        place = options.prepare()
        stack.enter_context(locked(options.data, "scheduler"))
        name = lasting_name(options.data)
        connection = await stack.enter_async_context(connected(place, SCHEDULER, f"muster follower {name}"))
        log = await open_log(connection, place)
        path = options.data / "scheduler.sqlite"
        follower, _ = await stack.enter_async_context(following(log, path, tasks))
        scheduler = await stack.enter_async_context(scheduling(place, name, follower, tasks))
        await stack.enter_async_context(running(_tell(scheduler), "the word of who leads", tasks))
        await tasks.failed()


async def _tell(scheduler: Scheduler) -> None:
    while True:
        await scheduler.standing_by.wait()
        say(f"muster scheduler {scheduler.name} stands by, and leads when no other does")
        await scheduler.leading.wait()
        say(f"muster scheduler {scheduler.name} leads")


async def run_agent(options: AgentOptions) -> None:
    """Be a node's agent until cancelled. Raises StartError."""
    tasks = Tasks()
    async with explained(), AsyncExitStack() as stack:
        place = options.prepare()
        check_containers(options.container_runtime)
        if options.run_as:
            _let_pass(options.data)
        where = site(options.ports, options.address, options.fabric, options.labels)
        folder = options.data / "agents" / options.node
        devices = one_node(options.node, options.simulate, where, folder, options)
        settings = AgentSettings(
            node=options.node,
            data=folder,
            lease_ms=round(options.lease_s * 1000),
            sample_ms=round(options.sample_s * 1000),
            visible=visible_by(devices, options.visible_devices),
            output_limit_bytes=options.output_limit_mib << 20,
            run_as=options.run_as,
            allow_root=options.allow_root,
            max_processes=options.max_processes,
            container_runtime=options.container_runtime,
        )
        agent = await stack.enter_async_context(agency(place, settings, devices, tasks))
        with waiting(f"{options.node} to be registered in the log"):
            await ready(tasks, agent.registered)
        say(f"muster agent of {options.node}: {equipment(agent.inventory)}")
        await tasks.failed()


def _let_pass(data: Path) -> None:
    """Jobs of other accounts have their folders in here, and are not to read what else there is. Raises StartError."""
    if os.geteuid() != 0:
        raise StartError(
            "only root can run jobs under other accounts", "leave out --run-as, or start the agent as root"
        )
    for folder in (data, data / "agents"):
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)
