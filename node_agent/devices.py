"""Where an agent learns of its machine's devices, and of what is wrong with them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from muster.events.telemetry import DeviceSample
from muster.events.types import DegradedCause, DeviceFault, ForeignUse, Inventory
from muster.node_agent.readings import MachineReading, Worktree, XidEvent

Work = Callable[[], Awaitable[Sequence[Worktree]]]
"""Tells what runs here at the time of the call."""


class Degraded(NamedTuple):
    """What is wrong with the node as a whole."""

    cause: DegradedCause
    detail: str


class Look(NamedTuple):
    """The devices at one moment. `faults`, `foreign` and `degraded` are all there is now, so that what is missing is
    over; `changed`: they are not those of the last inventory, and the agent must register anew."""

    samples: list[DeviceSample]
    faults: Sequence[DeviceFault] = ()
    foreign: Sequence[ForeignUse] = ()
    degraded: Degraded | None = None
    changed: bool = False


class DeviceSource(Protocol):
    """A machine's devices. Nothing here blocks the event loop, and each call ends within its own deadline."""

    async def inventory(self) -> Inventory:
        """What the node has, for a registration: with the devices that it had before and that are only missing now."""
        ...

    async def look(self, work: Work) -> Look:
        """What the devices are doing, and what is wrong with them. May reset a device that needs it and that nobody
        uses."""
        ...

    async def next_fault(self, work: Work) -> DeviceFault:
        """Wait for the next error that happens on a device, whether it lasts or not. One that lasts is in every look
        from then on, until it is over. To ask for the next one is to have dealt with the one before."""
        ...

    async def settle(self, tree: Worktree) -> None:
        """Return once all errors that have happened so far have been had from `next_fault` and dealt with, and NVML
        lists none of the tree's processes on its devices any more, or after some seconds."""
        ...

    async def close(self) -> None:
        """Let go of the devices."""
        ...


class RawDevices(Protocol):
    """A machine's devices as NVML shows them, before anybody judges. Its looks have the faults that NVML's silence
    tells of (lost, unreadable, unknown memory, MIG mode) and the node's own troubles with NVML, and nothing foreign."""

    @property
    def reading(self) -> MachineReading | None:
        """What the last inventory or look was made of; None where NVML could not be asked then."""
        ...

    @property
    def own_pids(self) -> frozenset[int]:
        """Processes of the agent's own that NVML may list."""
        ...

    async def inventory(self) -> Inventory:
        """See `DeviceSource.inventory`."""
        ...

    async def look(self, work: Sequence[Worktree]) -> Look:
        """See `DeviceSource.look`."""
        ...

    async def next_xid(self) -> XidEvent:
        """Wait for the next Xid that NVML tells of."""
        ...

    async def close(self) -> None:
        """Let go of the devices: nothing of the agent's holds them until the next look."""
        ...
