"""What agents send to the bounded telemetry stream: beats and device samples. Never an input of decisions."""

import msgspec


class Heartbeat(msgspec.Struct, frozen=True, tag_field="type", tag="Heartbeat.1", omit_defaults=True):
    """An agent is alive. `count` grows by one with each beat of its life."""

    node: str
    incarnation: str
    count: int


class DeviceSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device at one moment. None is unknown, never 0."""

    index: int
    uuid: str
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    sm_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    healthy: bool | None = None


class GpuSampled(msgspec.Struct, frozen=True, tag_field="type", tag="GpuSampled.1", omit_defaults=True):
    """All devices of a node at one moment."""

    node: str
    incarnation: str
    devices: list[DeviceSample]
