"""What is wrong with a node's devices, as placement sees it. Pure; computed from the state and kept nowhere."""

from typing import Final, NamedTuple

from muster.core.state import Condition, Node


class Ailments(NamedTuple):
    """Device numbers that take no new work, those that take work of one device only, and what foreign processes hold
    (MiB, by device number)."""

    shut: frozenset[int] = frozenset()
    single: frozenset[int] = frozenset()
    foreign_mib: tuple[tuple[int, int], ...] = ()


SOUND: Final = Ailments()


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
    return condition.action != "no_gangs"
