"""What agents send to the bounded telemetry stream: beats and device samples. Never an input of decisions."""

import msgspec


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
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    sm_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    healthy: bool | None = None
    memory_reserved_mib: int | None = None
    foreign_mib: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class GpuSampled(msgspec.Struct, frozen=True, tag_field="type", tag="GpuSampled.1", omit_defaults=True):
    """All devices of a node at one moment."""

    node: str
    incarnation: str
    devices: list[DeviceSample]
