"""The cluster's state: data only, in the form that snapshots and `state_bytes` write.

Everything here follows from the log and nothing else. What can be computed from it (free room, the pending order,
who runs where) is not stored: `muster.core.cluster.Cluster` keeps such indexes beside it.

Times: `*_ns` are the server's timestamps, for people; `*_at` are logical time in ns, for decisions.
"""

from typing import Final, Literal

import msgspec

from muster.events.policy import Policy, QueueSpec
from muster.events.spec import JobSpec
from muster.events.types import (
    AllocationRef,
    Endpoint,
    ExitStatus,
    FaultCause,
    Inventory,
    Placement,
    RequeueCause,
    StopCause,
)

JobPhase = Literal[
    "PENDING", "STARTING", "RUNNING", "STOPPING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "REJECTED"
]

PHASE_CODES: Final[dict[JobPhase, str]] = {
    "PENDING": "PD",
    "STARTING": "CF",
    "RUNNING": "R",
    "STOPPING": "CG",
    "COMPLETED": "CD",
    "FAILED": "F",
    "CANCELLED": "CA",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "REJECTED": "RJ",
}
"""Each phase with the short code that Slurm's users know."""

TRANSITIONS: Final[dict[JobPhase, tuple[JobPhase, ...]]] = {
    "PENDING": ("STARTING", "CANCELLED", "STOPPING"),  # the last: its agent's life ended before the allocation landed
    "STARTING": ("RUNNING", "STOPPING", "PENDING", "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"),
    "RUNNING": ("STOPPING", "PENDING", "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"),
    "STOPPING": ("PENDING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
    "COMPLETED": (),
    "FAILED": (),
    "CANCELLED": ("STOPPING",),  # an allocation that landed after the cancellation is undone
    "TIMEOUT": (),
    "NODE_FAIL": (),
    "REJECTED": (),
}
"""The whole life of a job. A requeue is the way back to PENDING, with a new attempt to come."""

ENDED: Final = frozenset(phase for phase, then in TRANSITIONS.items() if not then or phase == "CANCELLED")

WorkerPhase = Literal["placed", "running", "gone"]
NodeStatus = Literal["ready", "suspect", "lost"]
ConditionAction = Literal["no_gangs", "suspect", "probation", "drain", "reset", "quarantine"]


class Worker(msgspec.Struct, gc=False):
    """One worker of an attempt. It holds `devices` (numbers in the node's inventory) until it is `gone`."""

    rank: int
    node: str
    incarnation: str
    devices: list[int]
    phase: WorkerPhase = "placed"
    pid: int = 0
    exit: ExitStatus | None = None
    held: int = 0  # thousandths of devices, for the accounts


class Attempt(msgspec.Struct, gc=False):
    """One try at running a job. It is over when every worker is gone."""

    number: int
    allocated: int  # sequence of the JobAllocated
    allocated_ns: int
    allocated_at: int
    workers: list[Worker]
    master_address: str
    master_port: int
    start_by_at: int  # an attempt with a worker not reported by then is given up
    expected_s: int = 0  # how long it is expected to run; 0 = nobody knows
    why: str = ""  # the rule that chose its place
    started_ns: int = 0  # when the first worker ran; 0 = none has
    started_at: int = 0  # likewise
    stop: StopCause | None = None  # why the attempt must end; its workers are to be stopped
    stop_ordered: bool = False  # every worker not gone has been told in its present incarnation
    failure: RequeueCause | None = None  # what made it fail first; None = nothing has
    counted: bool = True  # whether the try counts against the limit
    exit_code: int | None = None  # of the worker that failed first
    over: bool = False  # every worker is gone and the cause may be retried: a pass decides
    made_room: list[AllocationRef] = []  # the attempts that were stopped so that it got its place
    stopped_for: int = 0  # the job for which it was stopped; 0 = for none
    endpoints: list[Endpoint] = []  # by rank, where each worker has a port of its own
    worked_ms: int = 0  # the device time that workers which are gone ran for

    def ports(self) -> list[Endpoint]:
        """All that its workers are met at: held until it is over."""
        return self.endpoints or [Endpoint(self.master_address, self.master_port)]

    def awaits_start(self) -> bool:
        """Whether a worker has not been reported yet."""
        for worker in self.workers:  # noqa: SIM110  a generator costs three times as much, at every entry
            if worker.phase == "placed":
                return True
        return False

    def has_workers(self) -> bool:
        """Whether a worker is not gone yet."""
        for worker in self.workers:  # noqa: SIM110  as above
            if worker.phase != "gone":
                return True
        return False


class Account(msgspec.Struct, array_like=True, gc=False):
    """What a job took so far, by the server's timestamps: of its waits, runs and workers that are over. Device time is
    in a whole device's milliseconds. `waits_since_ns` is since when it waits (0 = it does not)."""

    waits_since_ns: int = 0
    waited_ms: int = 0
    ran_ms: int = 0  # from the start of an attempt's first worker to the end of its last
    device_ms: int = 0  # held, from the allocation to the end of each worker
    lost_ms: int = 0  # what attempts had worked for whose job began anew


class Job(msgspec.Struct, gc=False):
    """One submission. `attempts` counts all tries, `tries` those that count against the limit, `preemptions` those
    that had to make room, `timeouts` those that ran for their whole time. `since` and `since_at` are since when it
    waits, for its place in the queue: a job whose time ran out waits anew, one stopped for others or by a failure
    keeps its place. For that place too: `expected_s` is for how long it was expected to run when it began to wait (0 =
    nobody knew), `done_ms` for how long its attempts ran as far as they could save what they did, `served_ms` the time
    of whole devices that they took."""

    id: int
    user: str
    spec: JobSpec
    submitted_ns: int
    priority: int = 300
    since: int = 0  # a sequence
    since_at: int = 0
    phase: JobPhase = "PENDING"
    attempts: int = 0
    tries: int = 0
    preemptions: int = 0
    timeouts: int = 0
    attempt: Attempt | None = None  # the live one, or the last one where the job has ended
    exit_code: int | None = None
    reason: str = ""  # why it ended or waits, in words
    started_ns: int = 0  # first worker of the first attempt
    ended_ns: int = 0
    cancelled_by: str = ""
    cancel_reason: str = ""
    excluded: dict[str, int] = {}  # node → logical time until which the job is not placed there
    expected_s: int = 0
    done_ms: int = 0
    served_ms: int = 0
    account: Account = msgspec.field(default_factory=Account)


class Stray(msgspec.Struct, frozen=True, gc=False):
    """A worker that runs on a node although its attempt is over: it is to be stopped."""

    job: int
    attempt: int
    rank: int


class Condition(msgspec.Struct, frozen=True, gc=False):
    """What is wrong with a device, the worst of it. `until_at` is the logical time at which a device that is suspect or
    on probation takes work again (0 = when it has recovered); one of `no_gangs` may be suspect beside, and takes none
    until then."""

    action: ConditionAction
    cause: FaultCause
    xid: int
    detail: str
    sequence: int
    since_ns: int
    until_at: int = 0


class CountedError(msgspec.Struct, frozen=True, gc=False):
    """An error that a device is not yet blamed for: the third one, of different jobs, makes it suspect."""

    job: int  # 0 = no job's
    xid: int
    at: int  # logical


class Node(msgspec.Struct, gc=False):
    """One machine under an agent. A silent one is suspect and keeps what it holds; `lost_at` is the logical time at
    which its lease has run out on both sides (0 = not running). What is known of devices is kept by uuid."""

    name: str
    incarnation: str
    inventory: Inventory
    lease_ms: int
    registered_ns: int
    status: NodeStatus = "ready"
    cordoned: str = ""  # why no new work goes there; "" = it takes work
    lost_at: int = 0
    last_beat_ns: int = 0  # of a silent node: its last beat
    strays: list[Stray] = []  # no new work goes there while there are any
    strays_told: int = 0  # how many of them, from the first on, have been told to stop
    degraded: str = ""  # what its agent says is wrong with it as a whole; "" = nothing
    conditions: dict[str, Condition] = {}
    device_cordons: dict[str, str] = {}  # who shut the device, and why
    device_errors: dict[str, list[CountedError]] = {}
    device_vouched: dict[str, str] = {}  # what somebody has vouched for: what the agent said was wrong, and still may
    foreign_mib: dict[str, int] = {}  # what foreign processes hold
    absent: list[str] = []  # devices that the inventory lacks and work holds, or something is known of: numbered behind

    def uuids(self) -> list[str]:
        """The devices by number: those of the inventory, then those that are absent."""
        return [*(device.uuid for device in self.inventory.devices), *self.absent]

    @property
    def available(self) -> bool:
        """Whether new work may go there."""
        return self.status == "ready" and not (self.cordoned or self.strays or self.degraded)


class Room(msgspec.Struct, frozen=True, gc=False):
    """Room reserved for a waiting job, and the attempts that were stopped for it."""

    job: int
    reserved: int  # sequence of the RoomReserved
    placements: list[Placement]
    victims: list[AllocationRef]
    why: str


class PastUse(msgspec.Struct, gc=False):
    """What a user took of a queue, fading: `device_ms` (a whole device's milliseconds) as of `settled_at` (logical),
    and the thousandths of devices held since then."""

    device_ms: int = 0
    settled_at: int = 0
    held: int = 0


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """An entry that was not applied, and why."""

    sequence: int
    reason: str


class Key(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key in use: the job it made, and when it may be forgotten (logical)."""

    user: str
    key: str
    job: int
    forget_at: int


class State(msgspec.Struct):
    """The whole of it, after `sequence`."""

    sequence: int = 0
    chain: bytes = bytes(16)
    timestamp_ns: int = 0
    time_at: int = 0  # logical: grows by the timestamps' difference, at least 0 and at most 60 s an entry
    fence: int = 0  # last sequence under the decision subjects
    leader: str = ""
    jobs: dict[int, Job] = {}
    nodes: dict[str, Node] = {}
    ended: list[tuple[int, int]] = []  # (logical time of the end, job), in order, to be forgotten
    keys: list[Key] = []  # in order of `forget_at`
    queues: dict[str, QueueSpec] = {}  # by path; "default" is there although nobody made it
    policy: Policy = Policy()
    rooms: dict[int, Room] = {}  # by the job that may use it
    learned: dict[str, list[int]] = {}  # "user\nname" → how long its last attempts took that completed, in s
    past_use: dict[str, PastUse] = {}  # "queue\nuser"
    mix: dict[str, int] = {}  # kind of demand → how many such jobs were submitted
    refused_count: int = 0
    refusals: list[Refusal] = []  # the last hundred
    unknown_since: int = 0  # first entry of a type this program does not know: follow, never lead
    jobs_ended: dict[JobPhase, int] = {}  # how many ended in each phase, ever
