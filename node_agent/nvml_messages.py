"""What the agent and its NVML process say to each other: JSON objects, one a line."""

from typing import Literal, TypeAlias

import msgspec

from muster.node_agent.readings import MachineReading, XidEvent

AskKind = Literal["inventory", "samples"]
TroubleKind = Literal["absent", "driver_mismatch", "nvml_failed"]


class Ask(msgspec.Struct, frozen=True):
    """A question. Devices named in `skip` are not touched: by PCI bus id, or ``#3`` for NVML's index."""

    kind: AskKind
    skip: list[str] = []


class Touching(msgspec.Struct, frozen=True, tag_field="type", tag="touching"):
    """From now on this device is asked ("" = none is): what goes wrong then is its doing. Named as in `Ask.skip`."""

    device: str


class Answer(msgspec.Struct, frozen=True, tag_field="type", tag="answer"):
    """The answer to the question."""

    machine: MachineReading


class Trouble(msgspec.Struct, frozen=True, tag_field="type", tag="trouble"):
    """The answer to the question: NVML cannot be asked. The process ends then."""

    kind: TroubleKind
    detail: str


class Xid(msgspec.Struct, frozen=True, tag_field="type", tag="xid"):
    """An error happened on a device: told without being asked."""

    event: XidEvent


Told: TypeAlias = Touching | Answer | Trouble | Xid
