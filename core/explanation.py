"""What an explanation says, as Structs: the answer of `muster.core.explain`.

Amounts of devices are in thousandths of one, memory is in MiB. An `at` is a logical time in ns, for whoever computes
with it, and is called so in JSON; every text says the same in words.
"""

from typing import Final, Literal

import msgspec

from muster.events.types import PreemptionCause

ReasonKind = Literal[
    "capacity",  # the cluster's nodes could not hold it with nothing running
    "order",  # the rules of order or backfill hold it back
    "ahead",  # others are offered what becomes free before it
    "queue_limit",
    "user_limit",
    "urgent_limit",
    "job_limit",
    "lane",
    "kept",  # what queues keep for themselves
    "room",  # what is free is not enough
    "fabric",  # what is free is enough, but not linked
    "reservation",  # what is free is kept for others that are to start
    "cordon",
    "silent",
    "degraded",  # something is wrong with the node as a whole
    "devices",  # devices that take no work, or none of this job
    "strays",  # a worker of an earlier attempt still runs there
    "excluded",  # it refused to start the job a while ago
    "port",
]
LOGICAL: Final = {"at": "logical_ns"}
Resource = Literal["devices", "device_memory", "cpus", "memory"]


class Amount(msgspec.Struct, frozen=True):
    """Of a bounded resource: what is held, what may be held, and what the job adds."""

    resource: Resource
    held: int
    bound: int
    adds: int


class Reason(msgspec.Struct, frozen=True, rename=LOGICAL):
    """One check that a waiting job does not pass. `jobs` are those that stand in its way, the first of them where
    there are many (`jobs_count` in all), `nodes` likewise; `name` is a queue's or a lane's; `at` is until when it
    holds (None = nobody knows)."""

    kind: ReasonKind
    detail: str
    name: str = ""
    jobs: list[int] = []
    jobs_count: int = 0
    nodes: list[str] = []
    amounts: list[Amount] = []
    at: int | None = None


class Check(msgspec.Struct, frozen=True):
    """One reason, how many nodes it shuts out, and some of them."""

    reason: str
    nodes: int
    examples: list[str]


class FilterStep(msgspec.Struct, frozen=True):
    """Of `nodes` nodes, `candidates` could hold a worker now; `refused` says why the others cannot."""

    nodes: int
    candidates: list[str]
    refused: list[Check]


class OrderStep(msgspec.Struct, frozen=True):
    """The job's place (from 1) among all `waiting` and among those of its queue; `ahead` are the first of those that
    are considered before it; `held_back_by` is the one that it may not pass (0 = none); `policy` is the order of its
    queue, the backfill and the placement. A place is looked for among the first 1,000 only (0 = behind those)."""

    policy: str
    place: int
    waiting: int
    ahead: list[int]
    held_back_by: int
    queue: str = ""
    queue_place: int = 0
    queue_waiting: int = 0


class WorkerPlace(msgspec.Struct, frozen=True):
    """One worker's node and devices."""

    rank: int
    node: str
    devices: list[int]


class AllocationStep(msgspec.Struct, frozen=True):
    """What it holds, or would get now if it were its turn; `free_devices` have the room asked of each; `why` in words,
    with numbers."""

    fits: bool
    asked_devices: int
    free_devices: int
    workers: list[WorkerPlace]
    why: str


class WorkerEnvironment(msgspec.Struct, frozen=True):
    """The variables that carry one worker's devices, who and where it is in its gang, and what its framework reads. An
    agent adds those of its machine, and may name the devices by their uuids."""

    rank: int
    node: str
    variables: dict[str, str]


class ExpectedStart(msgspec.Struct, frozen=True, rename=LOGICAL):
    """When a waiting job is expected to start where everything runs for as long as expected and nothing new comes:
    `at`, which is `in_ms` from the explanation's moment. None of both where nobody knows; `why` then says why not.
    Where it is now, `why` says whose stop it awaits; where it is later than the reservation that backfill makes for the
    job, of that."""

    at: int | None
    in_ms: int | None
    why: str


class Awaited(msgspec.Struct, frozen=True):
    """An attempt that is being stopped and holds a room reserved for another; `told` says whether its workers have
    been. From then on they have `stop_takes_ms` at most."""

    job: int
    attempt: int
    told: bool
    gone: bool
    stop_takes_ms: int = 0


class ReservedRoom(msgspec.Struct, frozen=True):
    """The room that a waiting job will have: where, reserved by which entry, and whose end it awaits."""

    reserved: int
    workers: list[WorkerPlace]
    awaits: list[Awaited]
    why: str


class Victim(msgspec.Struct, frozen=True):
    """A job that is stopped, or was, so that another gets its room: `work_lost_ms` of a whole device's time, or of a
    CPU's where it has none (None = not told any more), and in `detail` by what right it is this one."""

    job: int
    cause: PreemptionCause
    work_lost_ms: int | None
    detail: str


class Past(msgspec.Struct, frozen=True):
    """What became of a job so far. `backfilled_past` is the head that its present attempt passed (0 = none),
    `made_room` the jobs that were stopped for it, `stopped_for` the one that it was stopped for itself (0 = none)."""

    attempts: int
    tries: int
    preemptions: int
    timeouts: int
    backfilled_past: int
    made_room: list[int]
    stopped_for: int


class Explanation(msgspec.Struct, frozen=True):
    """The answer, at `sequence`. `filter` and `order` are None for a job that does not wait. `reasons` is every check
    that a waiting job does not pass, `needs` what would have to happen for it to start (all of it), `unstopped` why
    nobody is stopped for it, `victims` who is, or was."""

    job: int
    phase: str
    sequence: int
    summary: str
    filter: FilterStep | None
    order: OrderStep | None
    allocation: AllocationStep
    environment: list[WorkerEnvironment]
    reasons: list[Reason] = []
    needs: list[str] = []
    unstopped: list[str] = []
    victims: list[Victim] = []
    expected: ExpectedStart | None = None
    reservation: ReservedRoom | None = None
    past: Past | None = None
