"""Commands that run Muster: `up` (all of it), and `server`, `scheduler`, `agent` apart.

What runs is loaded only when one of them is called: a client command must not wait for it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from muster.api.cli_base import CommandError, Exit, FileToRead, Number, Whole, examples, user_name
from muster.api.table import clean

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_DATA: Final = Path("muster-data")
_TO: Final = "--connect nats://10.0.0.1:4222 --credentials site"
FOLDER = click.Path(file_okay=False, path_type=Path)

_host = click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="A loopback address to listen on."
)
_port = click.option(
    "--port", metavar="PORT", default=7077, show_default=True, type=Whole(0, 65535), help="0 = a free one."
)
_data = click.option(
    "--data", metavar="FOLDER", type=FOLDER, default=DEFAULT_DATA, show_default=True, help="The data folder."
)
_ports = click.option(
    "--ports", metavar="FROM-TO", default="21000-21999", show_default=True, help="Ports that a job's workers meet on."
)
_verbose = click.option("--verbose", "-v", is_flag=True, help="Log what goes on to stderr.")
_lease = click.option(
    "--lease", "lease_s", metavar="SECONDS", type=Number(min=0), default=120.0, show_default=True,
    help="Seconds after which an agent without a broker stops what may run elsewhere; 0 = never.",
)  # fmt: skip

_output = click.option(
    "--output-limit", "output_limit_mib", metavar="MIB", type=Whole(1, 1 << 30), default=1024,
    show_default=True, help="Output kept of a worker, in MiB; the oldest is dropped first.",
)  # fmt: skip

_visible = click.option(
    "--visible-devices", type=click.Choice(["index", "uuid"]),
    help="How CUDA_VISIBLE_DEVICES names devices; uuid for real ones if left out.",
)  # fmt: skip

_containers = click.option(
    "--container-runtime", type=click.Choice(["auto", "docker", "podman", "none"]), default="auto",
    show_default=True, help="What runs jobs with an image; auto = podman, or else docker.",
)  # fmt: skip


def _health(function: F) -> F:
    """How devices are looked after."""
    for option in reversed((
        click.option("--sample", "sample_s", metavar="SECONDS", type=Number(min=0.1), default=5.0,
                     show_default=True, help="How often devices are looked at."),
        click.option("--kernel-log", metavar="FILE", type=click.Path(path_type=Path), default=Path("/dev/kmsg"),
                     show_default=True, help="Where the driver tells of errors."),
        click.option("--nvidia-smi", metavar="PROGRAM", default="nvidia-smi", show_default=True,
                     help="What resets devices."),
        click.option("--reset-devices/--no-reset-devices", default=True, show_default=True,
                     help="Reset idle devices that need it; only root can."),
        click.option("--forget-faults", is_flag=True,
                     help="Vouch for the devices: what errors said of them before this start counts no more."),
    )):  # fmt: skip
        function = option(function)
    return function


_config = click.option(
    "--config", metavar="FILE", type=FileToRead(),
    help="Queues and policy to apply at the start: [[queue]] tables and a [policy].",
)  # fmt: skip


def _connected(function: F) -> F:
    """The options of a part that runs apart from the others."""
    for option in (
        click.option("--connect", metavar="URLS", required=True, envvar="MUSTER_NATS", show_envvar=True,
                     help="nats://HOST:PORT, several with commas."),
        click.option(
            "--credentials",
            metavar="FILE",
            required=True,
            type=FileToRead(),
            help="The credentials file.",
            envvar="MUSTER_CREDENTIALS",
            show_envvar=True,
        ),
        click.option("--prefix", metavar="NAME", default="muster", show_default=True, help="Of subjects and streams."),
        _verbose,
    ):  # fmt: skip
        function = option(function)
    return function


def _read_config(path: Path | None) -> Any:
    """A configuration file, checked before anything starts."""
    from muster.api.jobfile import JobFileError  # noqa: PLC0415 - see the module
    from muster.api.startconfig import read_start_config  # noqa: PLC0415 - see the module

    try:
        return None if path is None else read_start_config(path, user_name())
    except JobFileError as error:
        raise CommandError("\n".join(map(clean, str(error).splitlines())), Exit.USAGE) from error


def run_program(main: Any, *, verbose: bool) -> None:
    """Run a program's coroutine until it ends or is told to."""
    from muster.api import process  # noqa: PLC0415 - see the module

    try:
        process.run(main, verbose=verbose)
    except process.StartError as error:
        code = Exit.USAGE if error.is_usage else Exit.UNREACHABLE if error.is_unreachable else Exit.FAILED
        raise CommandError(str(error), code, error.next_step) from error


@click.command(epilog=examples("muster up", "muster up --simulate 4x8xH100-80GB --config cluster.toml"))
@_data
@click.option("--simulate", metavar="NxGxMODEL", help="Simulated nodes; 2x8xA100-80GB without an NVIDIA driver.")
@_host
@_port
@click.option(
    "--broker-port",
    metavar="PORT",
    default=0,
    type=Whole(0, 65535),
    help="0 = that of the last time, or a free one.",
)
@_ports
@_lease
@_output
@_visible
@_health
@_containers
@_config
@_verbose
def up(*, verbose: bool, config: Path | None, **options: Any) -> None:
    """Start broker, scheduler, API and agents on this machine. Ctrl-C stops them and the jobs."""
    from muster.api.up import UpOptions, run_up  # noqa: PLC0415 - see the module

    run_program(run_up(UpOptions(config=_read_config(config), **options)), verbose=verbose)


@click.command(epilog=examples(f"muster server {_TO}/server.json --create-streams 3"))
@_data
@_host
@_port
@click.option("--create-streams", metavar="REPLICAS", default=0, help="Create the streams where there are none.")
@_config
@_connected
def server(*, verbose: bool, config: Path | None, **options: Any) -> None:
    """Run the API alone, against a broker that runs elsewhere."""
    from muster.api.apart import ServerOptions, run_server  # noqa: PLC0415 - see the module

    run_program(run_server(ServerOptions(config=_read_config(config), **options)), verbose=verbose)


@click.command(epilog=examples(f"muster scheduler {_TO}/scheduler.json"))
@_data
@_connected
def scheduler(*, verbose: bool, **options: Any) -> None:
    """Run a scheduler alone. Of several, one decides and the others stand by."""
    from muster.api.apart import SchedulerOptions, run_scheduler  # noqa: PLC0415 - see the module

    run_program(run_scheduler(SchedulerOptions(**options)), verbose=verbose)


@click.command(epilog=examples(f"muster agent --node node-2 --fabric ib-1 {_TO}/agent-node-2.json"))
@_data
@click.option("--node", metavar="NODE", required=True, help="The node's name.")
@click.option(
    "--address", metavar="HOST", default="127.0.0.1", show_default=True, help="Where other nodes' workers reach it."
)
@click.option("--fabric", metavar="NAME", default="", help="The fast network that it is on; gangs stay on one.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="What jobs can ask for; can be repeated.")
@click.option("--simulate", metavar="GxMODEL", help="Simulated devices: 8xA100-80GB; this machine's if left out.")
@_ports
@_lease
@_output
@_visible
@_health
@click.option(
    "--run-as",
    metavar="NAME",
    default="",
    help="Account that jobs run as; same = that named like the job's user. Only for root; its own if left out.",
)
@click.option("--allow-root", is_flag=True, help="With --run-as: jobs may be root's.")
@click.option(
    "--max-processes",
    metavar="N",
    type=Whole(0, 1 << 22),
    default=0,
    show_default=True,
    help="Most processes and threads of a worker, where cgroups can limit them; 0 = no limit.",
)
@_containers
@_connected
def agent(*, verbose: bool, **options: Any) -> None:
    """Run a node's agent alone."""
    from muster.api.apart import AgentOptions, run_agent  # noqa: PLC0415 - see the module

    run_program(run_agent(AgentOptions(**options)), verbose=verbose)
