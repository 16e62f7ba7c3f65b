"""From a command to all that a keeper needs: how this node launches workers, and what it refuses."""

import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from muster.events.binding import VisibleDevices, worker_name
from muster.events.types import Inventory, StartWorker
from muster.node_agent.accounts import Account, person_for, unreachable
from muster.node_agent.cgroups import limits_of
from muster.node_agent.launch import MARKER, Launch, launch, stand_in
from muster.node_agent.lease import Lease
from muster.node_agent.refusal import RefusalError
from muster.node_agent.runtime import Engine, Limits, Program, container, in_container, own_ulimits, plain
from muster.node_agent.worker_folder import Ticket, WorkerFolder

AGENTS_PATH: Final = "jobs get their agent's PATH: --env PATH passes yours on"


class LaunchSettings(msgspec.Struct, frozen=True):
    """How workers are launched. `cgroup` is where theirs may be made ("" = nowhere), with these `controllers`. `run_as`
    is an account's name, `accounts.SAME`, or "" for the agent's own; without an `engine` no containers are run;
    `max_processes` 0 = no limit."""

    own_env: dict[str, str]
    visible: VisibleDevices
    cgroup: str
    controllers: frozenset[str] = frozenset()
    run_as: str = ""
    allow_root: bool = False
    engine: Engine | None = None
    max_processes: int = 0


class Prepared(NamedTuple):
    """A worker's ticket, and what its folder has besides: programs of ours, a container's variables, an owner."""

    ticket: Ticket
    programs: tuple[str, ...]
    variables: str
    owner: Account | None


class Planned(NamedTuple):
    """What will be executed, and with which programs of ours and marker."""

    program: Program
    programs: tuple[str, ...]
    token: str


def planned(command: StartWorker, folder: WorkerFolder, inventory: Inventory, settings: LaunchSettings) -> Planned:
    """What the worker will be. Makes nothing. Accounts are looked up and folders looked at, which may hang: for a
    thread. Raises RefusalError."""
    plan = _plan(command, folder, inventory, settings)
    program = _program(command, plan, folder, inventory, settings)
    _check_way(command, program, folder)
    return Planned(program, plan.programs, plan.env[MARKER])


def prepared(
    command: StartWorker, plan: Planned, lease: Lease, claims: dict[str, int], settings: LaunchSettings
) -> Prepared:
    """All that the planned worker needs now."""
    ticket = _ticket(command, plan.program, plan.token, lease, claims, settings)
    return Prepared(ticket, plan.programs, plan.program.variables, plan.program.owner)


def _plan(command: StartWorker, folder: WorkerFolder, inventory: Inventory, settings: LaunchSettings) -> Launch:
    ours = [name for name, address in inventory.addresses.items() if address == inventory.address]
    visible = "uuid" if command.image else settings.visible  # a container numbers its devices anew
    interface = ours[0] if ours else ""
    return launch(command, settings.own_env, str(folder.path), secrets.token_hex(8), visible, interface)


def _program(
    command: StartWorker, plan: Launch, folder: WorkerFolder, inventory: Inventory, settings: LaunchSettings
) -> Program:
    person = person_for(settings.run_as, command.user, allow_root=settings.allow_root) if settings.run_as else None
    if not command.image:
        return plain(command, plan, person)
    if settings.engine is not None and command.devices and not inventory.devices_in_containers:
        raise RefusalError("simulated devices cannot be given to a container")
    limits = Limits(settings.max_processes, own_ulimits())
    user = in_container(settings.engine, person, os.geteuid(), os.getegid())
    return container(settings.engine, command, plan, str(folder.path), settings.own_env, user, limits)


def _check_way(command: StartWorker, program: Program, folder: WorkerFolder) -> None:
    """An account must get to its worker's folder, and into a container it brings no folder that it could not enter
    outside."""
    way = folder.path.parent if program.account is not None else Path(command.workdir) if command.workdir else None
    if program.owner is None or way is None:
        return
    try:
        closed = unreachable(way, program.owner)
    except OSError as error:
        raise RefusalError(f"{way}: {error.strerror}") from error
    if closed is not None:
        raise RefusalError(f"{command.user} cannot get to {way} on this node: {closed} is closed to others")


def _ticket(
    command: StartWorker,
    program: Program,
    token: str,
    lease: Lease,
    claims: dict[str, int],
    settings: LaunchSettings,
) -> Ticket:
    leased = command.leased and lease.lease_ms > 0
    limits = limits_of(settings.controllers, command.cpus, command.memory_mib, settings.max_processes)
    return Ticket(
        job=command.job,
        attempt=command.attempt,
        rank=command.rank,
        argv=program.argv,
        env=program.env,
        cwd=program.cwd,
        token=token,
        cgroup=f"{settings.cgroup}/{worker_name(command)}-{stand_in(token)}" if settings.cgroup else "",
        lease_path=str(lease.path) if leased else "",
        lease_deadline_ns=lease.deadline_ns if leased else 0,
        claims_mib=claims,
        compute=command.compute,
        account=program.account,
        limits={} if command.image else limits,  # a container has its own cgroup
        cleanup=program.cleanup,
        hint="" if "PATH" in command.env else AGENTS_PATH,
    )
