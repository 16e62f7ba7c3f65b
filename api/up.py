"""`muster up`: broker, scheduler, API and agents on one machine, in one process and the broker's.

Rules: one `up` a data folder. Ctrl-C stops the scheduler first, so that nothing starts anew; then the agents end their
jobs and report that; then the API and the broker go. Anything worse (a crash, kill -9) leaves the jobs running under
their keepers, and the next `up` on the same data adopts them. A broker that dies is started again.
"""

import asyncio
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster import __version__
from muster.api.http import DEFAULT_PORT, check_address
from muster.api.machines import HealthOptions, all_nodes, equipment, is_simulated, visible_by
from muster.api.parts import (
    Place,
    Tasks,
    agency,
    api_server,
    check_containers,
    explained,
    locked,
    ready,
    running,
    scheduling,
)
from muster.api.process import make_folder
from muster.api.startconfig import StartConfig
from muster.api.telling import say
from muster.core.state import ENDED
from muster.events.binding import VisibleDevices
from muster.events.broker import Broker, BrokerError
from muster.events.streams import limits_for, set_up
from muster.events.subjects import DEFAULT_PREFIX
from muster.events.types import Inventory
from muster.node_agent.agent import Agent, AgentSettings
from muster.node_agent.devices import DeviceSource
from muster.node_agent.runtime import ContainerRuntime
from muster.projections.follower import Follower

READY_S: Final = 60.0
BROKER_LOOK_S: Final = 0.1
BROKER_RETRY_S: Final = 2.0
ANNOUNCEMENT: Final = "up.json"
LEASE_HOLDER: Final = "up"
"""The same at every start: the folder's lock lets only one run, which need not wait for the last one's lease."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpOptions(HealthOptions):
    """What `muster up` was asked for. `ports` are those that jobs meet on."""

    data: Path
    simulate: str | None
    host: str
    port: int
    broker_port: int
    ports: str
    lease_s: float
    output_limit_mib: int = 1024
    container_runtime: ContainerRuntime = "auto"
    visible_devices: VisibleDevices | None = None
    config: StartConfig | None = None


async def run_up(options: UpOptions) -> None:
    """Run until cancelled. Raises StartError."""
    async with explained(), AsyncExitStack() as stack:
        check_address(options.host)
        check_containers(options.container_runtime)
        data = options.data.absolute()
        make_folder(data)
        stack.enter_context(locked(data, "up"))
        (data / ANNOUNCEMENT).unlink(missing_ok=True)  # of a run that was killed
        devices = await all_nodes(options.simulate, options.ports, data / "agents", options)
        tasks = Tasks()
        broker = Broker(data / "broker", nodes=devices, port=options.broker_port)
        await stack.enter_async_context(broker)
        await set_up(broker.urls, broker.credentials, limits=limits_for(data))
        place = Place(broker.urls, broker.credentials, DEFAULT_PREFIX)
        await stack.enter_async_context(running(_keep_up(broker), "the watch over the broker", tasks))
        server, follower = await stack.enter_async_context(
            api_server(place, data / "mirror.sqlite", options.host, options.port, tasks, options.config)
        )
        agents = [
            await stack.enter_async_context(agency(place, _settings(options, data, node, source), source, tasks))
            for node, source in devices.items()
        ]
        await stack.enter_async_context(_ending_jobs(agents, follower))
        scheduler = await stack.enter_async_context(scheduling(place, LEASE_HOLDER, follower, tasks))
        await ready(tasks, scheduler.leading, *(agent.registered for agent in agents), timeout_s=READY_S)
        stack.enter_context(_announced(data, server.url, broker, devices))
        _greet(options, server.url, broker, devices, agents[0].inventory)
        await tasks.failed()


def _settings(options: UpOptions, data: Path, node: str, source: DeviceSource) -> AgentSettings:
    return AgentSettings(
        node=node,
        data=data / "agents" / node,
        lease_ms=round(options.lease_s * 1000),
        sample_ms=round(options.sample_s * 1000),
        visible=visible_by(source, options.visible_devices),
        output_limit_bytes=options.output_limit_mib << 20,
        container_runtime=options.container_runtime,
    )


async def _keep_up(broker: Broker) -> None:
    """Start the broker again whenever it has died."""
    while True:
        await asyncio.sleep(BROKER_LOOK_S)
        if broker.pid is not None:
            continue
        _logger.warning("the broker has died; starting it again")
        try:
            await broker.start()
        except BrokerError as error:
            _logger.error("the broker does not start: %s", error)  # noqa: TRY400 - the message says it all
            await asyncio.sleep(BROKER_RETRY_S)


@asynccontextmanager
async def _ending_jobs(agents: list[Agent], follower: Follower) -> AsyncGenerator[None, None]:
    """When the program is told to end, and only then, its jobs end too."""
    try:
        yield
    except asyncio.CancelledError:
        if any(job.attempt is not None and job.phase not in ENDED for job in follower.fold.cluster.state.jobs.values()):
            say("\nending what runs: it has ten seconds; what waits starts with the next `muster up`", err=True)
        await asyncio.gather(*(agent.stop(kill_jobs=True) for agent in agents))
        raise


@contextmanager
def _announced(data: Path, url: str, broker: Broker, devices: dict[str, DeviceSource]) -> Generator[None, None, None]:
    """`up.json` in the data folder says where everything is, while it runs."""
    path = data / ANNOUNCEMENT
    temporary = data / f"{ANNOUNCEMENT}.new"
    temporary.write_text(
        json.dumps({"url": url, "pid": os.getpid(), "broker": broker.url, "nodes": list(devices)}) + "\n"
    )
    temporary.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _greet(
    options: UpOptions, url: str, broker: Broker, devices: dict[str, DeviceSource], inventory: Inventory
) -> None:
    first = next(iter(devices.values()))
    kind = equipment(inventory)
    note = " (simulated: the jobs on them are real processes)" if is_simulated(first) else ""
    wish = "--gpus 1" if inventory.devices else "--cpus 1"
    venv = "" if shutil.which("muster") else _activation()
    server = "" if url == f"http://127.0.0.1:{DEFAULT_PORT}" else f"  export MUSTER_SERVER={url}\n"
    say(
        f"Muster {__version__} is up, on {options.data}\n"
        f"  api        {url}\n"
        f"  broker     {broker.url} (nats-server, process {broker.pid})\n"
        f"  scheduler  leads\n"
        f"  nodes      {', '.join(devices)}: {kind}{note}\n"
        "\nNext, in another terminal:\n"
        f"{venv}{server}"
        f"  muster run {wish} -- sh -c 'echo devices $CUDA_VISIBLE_DEVICES on $MUSTER_NODE'\n"
        "  muster queue\n"
        "  muster events --follow\n"
        "\nCtrl-C ends everything, jobs too."
    )


def _activation() -> str:
    """The line that puts `muster` into PATH, where it is in a virtual environment that is not activated."""
    script = Path(sys.prefix) / "bin" / "activate"
    return f"  . {shlex.quote(str(script))}\n" if script.exists() else ""
