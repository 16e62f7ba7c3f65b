"""What is wrong with a node's devices, as placement sees it, and how faults add up. Pure; ailments are computed from
the state and kept nowhere."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from muster.core.explain_words import span
from muster.core.state import Condition, ConditionAction, Node
from muster.events.types import Device, FaultCause


class Ailments(NamedTuple):
    """Device numbers that take no new work, those that take work of one device only, and what foreign processes hold
    (MiB, by device number)."""

    shut: frozenset[int] = frozenset()
    single: frozenset[int] = frozenset()
    foreign_mib: tuple[tuple[int, int], ...] = ()


SOUND: Final = Ailments()
LASTING: Final[tuple[ConditionAction, ...]] = ("no_gangs", "drain", "reset", "quarantine")
"""Conditions that hold until the device has recovered; the others end by time."""
_SEVERITY: Final[tuple[ConditionAction, ...]] = ("no_gangs", "probation", "suspect", "drain", "reset", "quarantine")
_WORDS: Final[dict[ConditionAction, str]] = {
    "no_gangs": "takes work of one device only",
    "suspect": "suspect",
    "probation": "on probation",
    "drain": "draining",
    "reset": "waiting for a reset",
    "quarantine": "in quarantine",
}
_CAUSES: Final[dict[FaultCause, str]] = {
    "xid": "an Xid",
    "recovery_action": "the driver asks for its recovery",
    "ecc": "memory errors",
    "row_remap": "row remapping",
    "lost": "lost",
    "unreadable": "unreadable",
    "memory_unknown": "nobody knows its memory",
    "mig": "its MIG mode",
    "fabric": "the fabric",
    "driver": "the driver",
}


def ailments_of(node: Node) -> Ailments:
    """The ailments of a node's devices."""
    if not (node.conditions or node.device_cordons or node.foreign_mib):
        return SOUND
    shut, single, foreign_mib = set(), set(), []
    for device in node.inventory.devices:
        condition = node.conditions.get(device.uuid)
        if device.uuid in node.device_cordons or (condition is not None and is_shut(condition)):
            shut.add(device.index)
        elif condition is not None:
            single.add(device.index)
        held_mib = node.foreign_mib.get(device.uuid, 0)
        if held_mib:
            foreign_mib.append((device.index, held_mib))
    return Ailments(frozenset(shut), frozenset(single), tuple(foreign_mib))


def is_shut(condition: Condition) -> bool:
    """Whether a device in this condition takes no new work at all."""
    return condition.action != "no_gangs" or condition.until_at > 0


def worse(old: Condition | None, new: Condition) -> Condition:
    """The condition of a device in which something new is wrong: the worse of the two, the older of equals. What ends
    by time begins anew; of that and `no_gangs` both hold."""
    if old is None:
        return new
    if old.action == "no_gangs" and not _lasts(new):
        return replace(old, until_at=max(old.until_at, new.until_at))
    if new.action == "no_gangs" and not _lasts(old):
        return replace(new, until_at=old.until_at)
    if not _lasts(old) and not _lasts(new):
        return new
    return new if _SEVERITY.index(new.action) > _SEVERITY.index(old.action) else old


def readmit(node: Node, uuid: str) -> None:
    """End what ends by time of a device's condition."""
    condition = node.conditions[uuid]
    if _lasts(condition):
        node.conditions[uuid] = replace(condition, until_at=0)
    else:
        del node.conditions[uuid]


def _lasts(condition: Condition) -> bool:
    return condition.action in LASTING


def in_words(cause: FaultCause, xid: int, detail: str) -> str:
    """What is wrong: "Xid 64: a row could not be remapped"."""
    what = f"Xid {xid}" if xid else _CAUSES[cause]
    if xid and detail and not detail.startswith(what):
        return f"{what}: {detail}"
    return detail or what


def ailing(node: Node, devices: Iterable[int], now_at: int) -> str:
    """What is wrong with some of a node's devices: "device 3: in quarantine (Xid 64: no spare row), device 5:
    on probation for 59m10s more (lost)"; "" = nothing."""
    inventory = node.inventory.devices
    found = ((number, _ailment(node, inventory[number], now_at)) for number in devices if number < len(inventory))
    return ", ".join(f"device {number}: {words}" for number, words in found if words)


def _ailment(node: Node, device: Device, now_at: int) -> str:
    parts = []
    cordon = node.device_cordons.get(device.uuid)
    if cordon:
        parts.append(f"cordoned {cordon}")
    condition = node.conditions.get(device.uuid)
    if condition is not None:
        until = f" for {span(condition.until_at - now_at)} more" if condition.until_at else ""
        if condition.action == "no_gangs" and until:
            until = f", and none{until}"
        what = in_words(condition.cause, condition.xid, condition.detail)
        parts.append(f"{_WORDS[condition.action]}{until} ({what})")
    held_mib = node.foreign_mib.get(device.uuid)
    if held_mib:
        parts.append(f"{held_mib} MiB used by foreign processes")
    return " and ".join(parts)
