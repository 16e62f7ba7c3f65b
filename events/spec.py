"""What a job asks for: one Struct, whichever way it was written (TOML, JSON, script lines, flags).

Sizes may be written as text (``"40GiB"``) or as whole MiB, durations as text (``"1h30m"``) or whole seconds;
`muster.core.spec_check` turns text into MiB and seconds, priorities into numbers, and names the field of whatever
cannot be right before anything reaches the log, so entries carry numbers.
"""

from typing import Annotated, Literal

import msgspec

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$(?!\n)"
"""Some languages' `$` lets a line's end follow: hence what comes after it."""
LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$"

SIGNAL_PATTERN = r"^[A-Z][A-Z0-9]{1,7}(@[0-9]{1,5})?$(?!\n)"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\n)"
QUEUE_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,7}$(?!\n)"
ShortText = Annotated[str, msgspec.Meta(max_length=256)]
Argument = Annotated[str, msgspec.Meta(max_length=131_072)]
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
QueuePath = Annotated[str, msgspec.Meta(pattern=QUEUE_PATTERN)]
"""A queue's place in the tree: the names from the top, joined by slashes."""
LabelText = Annotated[str, msgspec.Meta(max_length=128)]
Labels = Annotated[dict[LabelText, LabelText], msgspec.Meta(max_length=64)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | Annotated[str, msgspec.Meta(max_length=32)]
Duration = Annotated[int, msgspec.Meta(ge=0, le=3_155_760_000)] | Annotated[str, msgspec.Meta(max_length=32)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=1000)] | Literal["P0", "P1", "P2", "P3"]
"""Greater is more urgent; P0 = 900, P1 = 600, P2 = 300, P3 = 0. Entries carry the number."""
Framework = Literal["pytorch", "tensorflow", "mindspore", "jax", "none"]
RetryCause = Literal["node_fail", "device_fault", "failed"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A part of a job's specification: unknown fields are refused, fields left at their default are not written."""


class GpuSpec(_Part, frozen=True):
    """What each device must offer. `memory` left out is the whole device; `compute` left out is exclusive use."""

    memory: Size | None = None
    compute: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    model: Annotated[list[ShortText], msgspec.Meta(min_length=1, max_length=32)] | None = None
    interconnect: Literal["any", "none"] = "any"


class WhereSpec(_Part, frozen=True):
    """Constraints on nodes: any of these names, and all of these labels."""

    nodes: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=1024)] | None = None
    labels: Labels = msgspec.field(default_factory=dict)


class RetrySpec(_Part, frozen=True):
    """How often, and after what, a job is tried again. Tries that never started a worker do not count."""

    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    on: Annotated[list[RetryCause], msgspec.Meta(max_length=8)] = msgspec.field(
        default_factory=lambda: ["node_fail", "device_fault"]
    )


class LimitsSpec(_Part, frozen=True):
    """How long an attempt may run, and how long it is expected to. On expiry it is stopped as for a preemption, and
    then requeued behind those that wait, or ended."""

    time_limit: Duration | None = None
    estimate: Duration | None = None
    on_timeout: Literal["requeue", "kill"] = "kill"


class PreemptionSpec(_Part, frozen=True):
    """Whether the job may be preempted, and how it is told: `signal` (``"USR2@120"``: that signal, and up to 120 s to
    write a checkpoint and end) comes first, then TERM, then after `grace` the whole tree is killed."""

    allowed: bool = True
    signal: Annotated[str, msgspec.Meta(pattern=SIGNAL_PATTERN)] | None = None
    grace: Duration | None = None


class JobSpec(_Part, frozen=True):
    """A job as submitted. `gpus` counts devices over all nodes; `cpus` and `memory` (host) are per device, or in
    all where there is no device. A `name` left out is the program's, or the script's that it runs."""

    command: (
        Annotated[str, msgspec.Meta(min_length=1, max_length=131_072)]
        | Annotated[list[Argument], msgspec.Meta(min_length=1, max_length=4096)]
    )
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] = "job"
    queue: QueuePath = "default"
    priority: Priority | None = None
    gpus: Count = 0
    nodes: Literal["any", "fewest"] | Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    cpus: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None
    memory: Size | None = None
    gpu: GpuSpec = GpuSpec()
    where: WhereSpec = WhereSpec()
    limits: LimitsSpec = LimitsSpec()
    preemption: PreemptionSpec = PreemptionSpec()
    retry: RetrySpec = RetrySpec()
    env: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern=VARIABLE_PATTERN)], Argument],
        msgspec.Meta(max_length=1024),
    ] = msgspec.field(default_factory=dict)
    workdir: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    framework: Framework = "none"
    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)] | None = None
    labels: Labels = msgspec.field(default_factory=dict)
