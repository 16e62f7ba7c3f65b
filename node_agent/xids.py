"""What the driver's error numbers (Xids) mean, and what follows from each.

By NVIDIA's catalogue of Xids, and where that says nothing by what DCGM's health checks make of them. The driver's own
recovery action comes on top of this table, see `health`.
"""

from typing import Final, Literal, NamedTuple

XidClass = Literal["app", "contained", "follows", "note", "count", "remap", "reset", "quarantine", "nvlink", "reboot"]
"""What follows:

- app: a mistake of the program's, so that its job fails; the device goes on
- contained: the device's memory failed under one job; it fails through no fault of its own, and the device goes on
- follows: only says that something else happened before, or that a process was killed
- note: nothing follows · count: nothing yet; several make the device suspect
- remap: a row of memory awaits its replacement: no new work until a reset
- reset: the device is of no use until a reset, and neither is what runs there
- quarantine: the device is to be replaced
- nvlink: work of several devices must not use it
- reboot: the device is gone or cannot be trusted until the machine has been restarted
"""


class Xid(NamedTuple):
    """One error number."""

    kind: XidClass
    name: str


_NVLINK_5: Final = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}

XIDS: Final[dict[int, Xid]] = {
    11: Xid("app", "invalid or corrupted push buffer stream"),
    13: Xid("app", "graphics engine exception"),
    25: Xid("app", "invalid or illegal push buffer stream"),
    31: Xid("app", "memory page fault"),
    32: Xid("app", "invalid or corrupted push buffer stream (PBDMA)"),
    38: Xid("count", "driver firmware error"),
    43: Xid("follows", "channel reset, stopped processing"),
    45: Xid("follows", "preemptive cleanup after earlier errors"),
    46: Xid("reset", "stopped processing, timeout"),
    48: Xid("reset", "double bit ECC error"),
    61: Xid("count", "internal micro-controller breakpoint or warning"),
    62: Xid("reset", "internal micro-controller halt"),
    63: Xid("remap", "row remap or page retirement recorded"),
    64: Xid("quarantine", "row remap or page retirement failed"),
    68: Xid("app", "video decoder exception"),
    74: Xid("nvlink", "NVLink error"),
    79: Xid("reboot", "has fallen off the bus"),
    92: Xid("note", "high rate of single bit ECC errors"),
    94: Xid("contained", "contained memory error"),
    95: Xid("reset", "uncontained memory error"),
    109: Xid("reset", "context switch timeout"),
    110: Xid("reset", "security fault"),
    119: Xid("reset", "GSP does not answer"),
    120: Xid("reset", "GSP error"),
    121: Xid("note", "corrected error of the C2C link"),
    136: Xid("reset", "link training failed"),
    137: Xid("app", "access over NVLink without the right to it"),
    140: Xid("reset", "unrecovered ECC error"),
    143: Xid("reset", "initialisation error"),
    **{number: Xid("nvlink", f"NVLink 5 error ({unit})") for number, unit in _NVLINK_5.items()},
    151: Xid("reboot", "key rotation error"),
    154: Xid("note", "the driver's recovery action has changed"),
    155: Xid("reset", "software-defined NVLink error"),
    156: Xid("reset", "resource retired"),
    157: Xid("quarantine", "resource retirement failed"),
    158: Xid("reset", "fatal timeout"),
    171: Xid("note", "uncorrectable DRAM error, a detail of Xid 48"),
    172: Xid("note", "uncorrectable SRAM error, a detail of Xid 48"),
}


def describe(xid: int) -> str:
    """``Xid 79: has fallen off the bus``."""
    known = XIDS.get(xid)
    return f"Xid {xid}: {known.name}" if known else f"Xid {xid}: not a number that is known here"
