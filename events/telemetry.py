"""What agents send to the bounded telemetry stream: beats and device samples. Never an input of decisions."""

from typing import Annotated

import msgspec

from muster.events.types import Natural

Celsius = Annotated[int, msgspec.Meta(ge=-273, le=1_000_000)]
Watts = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class Heartbeat(msgspec.Struct, frozen=True, tag_field="type", tag="Heartbeat.1", omit_defaults=True):
    """An agent is alive. `count` grows by one with each beat of its life."""

    node: str
    incarnation: str
    count: int


class DeviceSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device at one moment. None is unknown, never 0. `memory_total_mib` is all that the device has, and
    `memory_used_mib` leaves out what the driver reserves, as nvidia-smi has it; `foreign_mib` is what processes hold
    that are nobody's work here."""

    index: int
    uuid: str
    memory_total_mib: Natural | None = None
    memory_used_mib: Natural | None = None
    sm_percent: Natural | None = None
    temperature_c: Celsius | None = None
    power_w: Watts | None = None
    healthy: bool | None = None
    memory_reserved_mib: Natural | None = None
    foreign_mib: Natural | None = None
    sm_clock_mhz: Natural | None = None
    memory_clock_mhz: Natural | None = None
    ecc_corrected: Natural | None = None
    ecc_uncorrected: Natural | None = None


class GpuSampled(msgspec.Struct, frozen=True, tag_field="type", tag="GpuSampled.1", omit_defaults=True):
    """All devices of a node at one moment."""

    node: str
    incarnation: str
    devices: list[DeviceSample]
