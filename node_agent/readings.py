"""What NVML says of a machine, as data: made by the NVML process, judged by the agent. None is unknown, never 0.

Memory is in MiB, power in W, clocks in MHz, temperatures in °C. A device is known by its uuid; where not even that can
be read, by its PCI bus id.
"""

from typing import Literal, NamedTuple

import msgspec

Trouble = Literal["lost", "unreadable", "not_supported"]
"""Why something of a device is unknown: the device is gone, the call failed, or it has no such thing."""


class MemoryReading(msgspec.Struct, frozen=True):
    """`reserved_mib` is what the driver keeps for itself (0 where an old driver does not tell)."""

    total_mib: int
    reserved_mib: int
    used_mib: int


class ProcessReading(msgspec.Struct, frozen=True):
    """A process with something on a device. `pid` is in the namespace that NVML reports in."""

    pid: int
    memory_mib: int | None = None


class RemapReading(msgspec.Struct, frozen=True):
    """Rows of memory that were replaced."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """One device, in NVML's order. `trouble` tells that the handle itself cannot be had or used; `memory_trouble`
    likewise of its memory. `recovery_action` is the driver's own number (see `health`)."""

    nvml_index: int
    uuid: str = ""
    pci_bus_id: str = ""
    trouble: Trouble | None = None
    name: str = ""
    minor: int | None = None
    capability: str = ""
    numa: int | None = None
    mig: bool | None = None
    memory: MemoryReading | None = None
    memory_trouble: Trouble | None = None
    recovery_action: int | None = None
    remap: RemapReading | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    domain: str = ""
    nvlink_to: list[str] = []  # per active link: the remote's PCI bus id, or "switch"
    sm_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    processes: list[ProcessReading] | None = None


class MachineReading(msgspec.Struct, frozen=True, kw_only=True):
    """All devices at one moment. `paths` are NVML's common ancestors by two positions in `devices` (10 PIX, 20 PXB,
    30 PHB, 40 NODE, 50 SYS; None unknown), read with the inventory only. `kernel_driver` is what the loaded module says
    of itself."""

    driver: str = ""
    kernel_driver: str = ""
    devices: list[DeviceReading] = []
    paths: list[list[int | None]] = []


class XidEvent(msgspec.Struct, frozen=True):
    """An Xid, told by NVML or by the kernel's log. `pid` 0 = not told; `text` is the log's line."""

    pci_bus_id: str
    xid: int
    pid: int = 0
    text: str = ""


class NvmlTroubleError(Exception):
    """NVML cannot be asked. `kind` says how, for the node's condition."""

    def __init__(self, kind: Literal["absent", "driver_mismatch", "nvml_hung", "nvml_failed"], detail: str) -> None:
        super().__init__(detail)
        self.kind: Literal["absent", "driver_mismatch", "nvml_hung", "nvml_failed"] = kind


class Worktree(NamedTuple):
    """What one worker holds, for telling ours from foreign: its job and attempt, the uuids of its devices, what it
    claims of each (MiB), and the pids of its tree now."""

    job: int
    attempt: int
    claims_mib: dict[str, int]
    pids: frozenset[int]
