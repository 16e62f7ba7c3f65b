"""Memory of devices that processes hold which are nobody's work here. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from muster.node_agent.readings import DeviceReading, MachineReading, ProcessReading

STEP_MIB: Final = 256
"""What is reported is rounded up to this, so that not every small change is."""
IGNORED_MIB: Final = 64
"""Less than this is nobody's obstacle: a display server without clients."""


def foreign_mib(reading: DeviceReading, ours: frozenset[int], claimed: bool) -> int | None:  # noqa: FBT001  # a fact
    """What processes that are not `ours` hold of a device; None = unknown. Where the driver has no number for one of
    them, all that is used is theirs if nothing of the device is `claimed` by work here."""
    if reading.processes is None:
        return None
    strangers = [process for process in reading.processes if process.pid not in ours]
    if not claimed and reading.memory is not None and any(process.memory_mib is None for process in strangers):
        return reading.memory.used_mib
    return sum(most.values()) if (most := _most_by_pid(strangers)) else 0


def strangers_in(reading: MachineReading, ours: frozenset[int]) -> frozenset[int]:
    """Processes on any device that are not `ours`."""
    listed = (process.pid for device in reading.devices for process in device.processes or ())
    return frozenset(listed) - ours


def _most_by_pid(processes: Sequence[ProcessReading]) -> Mapping[int, int]:
    """A process with both a compute and a graphics context may be listed twice."""
    most: dict[int, int] = {}
    for process in processes:
        most[process.pid] = max(most.get(process.pid, 0), process.memory_mib or 0)
    return most


def in_steps(held_mib: int) -> int:
    """As it is reported."""
    return 0 if held_mib < IGNORED_MIB else -(-held_mib // STEP_MIB) * STEP_MIB


class Steadied:
    """What two looks in a row agree on, by uuid. The first look of a device counts as it is."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._agreed: dict[str, int] = {}

    def look(self, now: Mapping[str, int]) -> dict[str, int]:
        """The looks' agreement after one more; a device that this look does not know keeps what it had."""
        for uuid, held_mib in now.items():
            if held_mib == self._last.get(uuid, held_mib):
                self._agreed[uuid] = held_mib
            self._last[uuid] = held_mib
        return dict(self._agreed)
