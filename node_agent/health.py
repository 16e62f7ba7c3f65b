"""What readings of devices and the driver's errors say of their health. Pure.

What lasts is a finding: it is there until a later reading, a reset or a restart of the machine takes it away. What only
happened is an incident. Several findings of one device: the worst is its fault, and the others stand in its detail.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from muster.events.types import DETAIL_LIMIT, DeviceFault, FaultAction, FaultCause
from muster.node_agent.readings import DeviceReading, XidEvent
from muster.node_agent.xids import XIDS, XidClass, describe

LastingAction = Literal["no_gangs", "drain", "reset", "quarantine"]
LASTING: Final = ("no_gangs", "drain", "reset", "quarantine")
_JOIN: Final = "; "
BADNESS: Final[dict[FaultAction, int]] = {
    "note": 0,
    "count": 1,
    "fail_job": 2,
    "no_gangs": 3,
    "suspect": 4,
    "drain": 5,
    "reset": 6,
    "quarantine": 7,
}
"""Which of two actions is the worse one."""

FABRIC_NOT_SUPPORTED: Final = 0
FABRIC_COMPLETED: Final = 3
_FABRIC_STATES: Final = {1: "not started", 2: "in progress"}


class Finding(msgspec.Struct, frozen=True):
    """Something lasting that is wrong with a device. `resettable`: a reset may heal it. `reboot`: only a restart of
    the machine does, and no new work is to go there before. `times`: how often it has happened."""

    action: LastingAction
    cause: FaultCause
    detail: str
    xid: int = 0
    resettable: bool = False
    reboot: bool = False
    times: int = 1

    def text(self) -> str:
        """What it is, in words."""
        return self.detail if self.times == 1 else f"{self.detail} ({self.times} times)"


_RECOVERY: Final[dict[int, Finding]] = {
    1: Finding("reset", "recovery_action", "the driver wants a reset", resettable=True),
    2: Finding("quarantine", "recovery_action", "the driver wants a restart of the machine", reboot=True),
    3: Finding("no_gangs", "recovery_action", "the driver wants no work over links to other devices"),
    4: Finding("drain", "recovery_action", "the driver wants a reset once the work has ended", resettable=True),
    5: Finding("no_gangs", "recovery_action", "the driver wants its IMEX domain recovered"),
    6: Finding("reset", "recovery_action", "the driver wants a reset of its bus", resettable=True),
    7: Finding("quarantine", "recovery_action", "the driver wants a restart of the whole system", reboot=True),
}
"""NVML's field 230, without 0: nothing to be done."""

_LASTING: Final[dict[XidClass, LastingAction]] = {
    "nvlink": "no_gangs",
    "remap": "drain",
    "reset": "reset",
    "quarantine": "quarantine",
    "reboot": "quarantine",
}
_INCIDENTS: Final[dict[XidClass, FaultAction]] = {
    "app": "fail_job",
    "contained": "fail_job",
    "follows": "note",
    "note": "note",
    "count": "count",
}


def findings_of(reading: DeviceReading, uncorrected_before: int | None) -> list[Finding]:
    """What a reading shows. `uncorrected_before` is the count of uncorrected ECC errors at the reading before (None =
    unknown): it tells only of devices that do not replace rows of memory, and then the finding must be kept."""
    found = []
    if reading.recovery_action is not None:
        named = _RECOVERY.get(reading.recovery_action)
        if named is not None:
            found.append(named)
        elif reading.recovery_action:
            number = reading.recovery_action
            found.append(Finding("drain", "recovery_action", f"the driver wants something unknown here, {number}"))
    if reading.remap is not None:
        if reading.remap.failed:
            found.append(Finding("quarantine", "row_remap", "a row of memory could not be replaced"))
        if reading.remap.pending:
            found.append(Finding("drain", "row_remap", "a row of memory awaits its replacement", resettable=True))
    elif reading.ecc_uncorrected is not None and uncorrected_before is not None:
        more = reading.ecc_uncorrected - uncorrected_before
        if more > 0:
            found.append(Finding("reset", "ecc", f"uncorrected ECC errors: {reading.ecc_uncorrected}", resettable=True))
    found.extend(_fabric_findings(reading))
    return found


def _fabric_findings(reading: DeviceReading) -> list[Finding]:
    state = reading.fabric_state
    if state is None or state == FABRIC_NOT_SUPPORTED:
        return []
    if state != FABRIC_COMPLETED:
        return [Finding("drain", "fabric", f"its NVLink fabric is {_FABRIC_STATES.get(state, f'in state {state}')}")]
    if reading.fabric_status:
        return [Finding("drain", "fabric", f"its NVLink fabric has failed with status {reading.fabric_status}")]
    return []


def finding_of(event: XidEvent) -> Finding | None:
    """What an Xid says that lasts; None where it is an incident."""
    known = XIDS.get(event.xid)
    if known is None or known.kind not in _LASTING:
        return None
    return Finding(
        _LASTING[known.kind],
        "xid",
        told(event),
        event.xid,
        resettable=known.kind in ("reset", "remap"),
        reboot=known.kind == "reboot",
    )


def incident_of(event: XidEvent, index: int, uuid: str, owner: tuple[int, int] | None) -> DeviceFault | None:
    """What an Xid says that happened; None where it lasts. `owner` is the job and attempt whose work it was, (0, 0)
    for everybody's there, None for nobody's here."""
    known = XIDS.get(event.xid)
    action = "suspect" if known is None else _INCIDENTS.get(known.kind)
    if action is None:
        return None
    if owner is None and action == "fail_job":
        action = "note"
    job, attempt = owner or (0, 0)
    return DeviceFault(
        index=index,
        uuid=uuid,
        cause="xid",
        action=action,
        xid=event.xid,
        failure="failed" if known is not None and known.kind == "app" else "device_fault",
        job=job,
        attempt=attempt,
        detail=told(event),
    )


def told(event: XidEvent) -> str:
    """An Xid in words, with what the kernel's log adds; in the log's words alone where they say the same."""
    known, text = XIDS.get(event.xid), event.text.removeprefix("name=<unknown>, ")
    if known is not None and known.name.lower() in text.lower():
        return f"Xid {event.xid}: {text}"
    return f"{describe(event.xid)} ({text})" if text else describe(event.xid)


def fault_of(index: int, uuid: str, findings: Sequence[Finding]) -> DeviceFault | None:
    """What is wrong with a device, as one fault: the worst first, and those found first among equals."""
    if not findings:
        return None
    worst, *others = sorted(findings, key=lambda finding: -BADNESS[finding.action])
    details = dict.fromkeys(finding.text() for finding in (worst, *others))
    return DeviceFault(
        index=index,
        uuid=uuid,
        cause=worst.cause,
        action=worst.action,
        xid=worst.xid,
        detail=_JOIN.join(details)[:DETAIL_LIMIT],
    )


def parts_of(fault: DeviceFault) -> list[str]:
    """What a fault says, finding by finding."""
    return fault.detail.split(_JOIN)
