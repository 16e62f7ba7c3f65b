"""What people configure: queues and the cluster's policy, one Struct each, whichever way they were written.

A portion is a number of devices, or text such as ``"60%"`` that means so much of every resource: of the parent's
guarantee for a guarantee, of the parent's limit for a limit, of the queue's own guarantee for `borrow` and `lend`, of
the queue's limit for `user_limit`, `urgent_limit` and `max_job_share`, of the cluster for a lane. Durations are whole
seconds or text such as ``"90s"``, ``"1h30m"``; entries carry seconds.
"""

from typing import Annotated, Literal

import msgspec

from muster.events.spec import Duration, LabelText, Name, Priority, QueuePath

PERCENTAGE_PATTERN = r"^(100|[0-9]{1,2})(\.[0-9]{1,2})?%$(?!\n)"
Percentage = Annotated[str, msgspec.Meta(pattern=PERCENTAGE_PATTERN)]
Portion = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | Percentage
OrderName = Literal["fifo", "priority", "fair", "sjf", "srtf", "srsf", "las"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A part of a configuration: unknown fields are refused, fields left at their default are not written."""


class QueueSpec(_Part, frozen=True):
    """A queue. Left out, a guarantee is nothing and the limits are none; `order` is then the policy's."""

    name: QueuePath
    weight: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    guarantee: Portion | None = None
    limit: Portion | None = None
    borrow: Portion | None = None  # most that it holds beyond its guarantee
    lend: Portion | None = None  # most of its guarantee that others hold while it does not ask
    reclaim: Literal["preempt", "wait"] = "preempt"  # how it gets back what it lent
    reclaim_step: Portion | None = None  # most that is being taken back at any time, of its guarantee
    order: OrderName | None = None
    priority: Priority | None = None  # of jobs that name none
    user_limit: Portion | None = None  # most that one user holds
    urgent_from: Priority = 900
    urgent_limit: Portion | None = None  # most that jobs of `urgent_from` and above hold
    max_job_devices: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    max_job_share: Percentage | None = None  # most that one job holds


class Lane(_Part, frozen=True):
    """Devices kept for small jobs: those of at most `max_devices` devices and at most `max_time`. Lent to none."""

    name: Name
    devices: Portion
    max_devices: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    max_time: Duration | None = None


class Backfill(_Part, frozen=True):
    """Whether jobs behind one that does not fit may start: never (`none`), wherever they fit (`greedy`), where its
    start is not put off (`easy`), or where nobody's start is that comes before them (`conservative`). `keep` is what
    the head keeps under `easy`: the nodes and devices on which it is expected to start (`place`), or only that it has
    some place then (`time`). `depth` is how many jobs of each queue are looked at behind its head; under `conservative`
    it is divided among the queues in which jobs wait."""

    mode: Literal["none", "greedy", "easy", "conservative"] = "easy"
    depth: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 100
    keep: Literal["place", "time"] = "place"


class Preemption(_Part, frozen=True):
    """Whether running jobs may be stopped for others (`cold`: stopped and requeued). A job is left alone for its first
    `min_runtime`, and for good once it was preempted `max_per_job` times."""

    mode: Literal["none", "cold"] = "cold"
    min_runtime: Duration = 60
    max_per_job: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3


class Health(_Part, frozen=True):
    """When devices are trusted: `errors` errors of different jobs within `window` make one suspect; a suspect one, and
    one that has recovered, takes no work for `probation`."""

    errors: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    window: Duration = 86_400
    probation: Duration = 3_600


class Policy(_Part, frozen=True):
    """How the cluster decides. `ageing` is how many points of priority a job gains an hour of waiting; `half_life` is
    how fast past use is forgotten under `fair`; `topology` are the node labels that a gang is kept together by,
    tightest first."""

    order: OrderName = "priority"
    ageing: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10
    half_life: Duration = 86_400
    backfill: Backfill = Backfill()
    placement: Literal["best-fit", "fragmentation", "spread", "tight"] = "best-fit"
    topology: Annotated[list[LabelText], msgspec.Meta(max_length=8)] = msgspec.field(
        default_factory=lambda: ["nvlink", "rack"]
    )
    preemption: Preemption = Preemption()
    lanes: Annotated[list[Lane], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    health: Health = Health()
