"""Every event of the log, one frozen Struct each; the tag on the wire is the type's name and version.

Rules: a new field has a default; a new meaning is a new type or version; a field is never renamed or reused.
Times are the log's own (the server's timestamp of the entry) and are not repeated in payloads. Durations carry
their unit in their name. Device numbers are positions in the node's inventory, which is in PCI order.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from muster.events.policy import Policy, QueueSpec
from muster.events.spec import Framework, JobSpec, Labels, Name, QueuePath, ShortText

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
"""A count, a size, a number of something; within what every JSON reader keeps exactly."""
Small = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Time = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Nanoseconds."""
Token = Annotated[str, msgspec.Meta(max_length=128)]

JobId: TypeAlias = Natural
"""A job's id is the sequence of its submission."""

DETAIL_LIMIT = 4096
Detail = Annotated[str, msgspec.Meta(max_length=DETAIL_LIMIT)]
StopCause = Literal[
    "cancelled",
    "worker_failed",
    "worker_lost",
    "start_refused",
    "start_overdue",
    "stray",
    "preempted",
    "timed_out",
    "device_fault",
]
ExitReason = Literal["exited", "stopped", "lease_expired", "start_failed", "lost"]
RequeueCause = Literal["never_started", "node_fail", "device_fault", "failed", "preempted", "timed_out"]
PreemptionCause = Literal["priority", "reclaim"]
ReleaseCause = Literal["beneficiary_gone", "room_lost"]
FaultAction = Literal["note", "count", "fail_job", "no_gangs", "suspect", "drain", "reset", "quarantine"]
"""What follows from a fault: nothing (`note`) or nothing yet (`count`: the third makes the device suspect); its work
fails (`fail_job`: counted likewise, by job); it takes work of one device only, and other work on it fails (`no_gangs`);
it takes no new work for a while (`suspect`), or until it has recovered (`drain`); likewise, and its work fails until a
reset (`reset`) or until somebody has replaced it or vouches for it (`quarantine`)."""
FaultCause = Literal[
    "xid", "recovery_action", "ecc", "row_remap", "lost", "unreadable", "memory_unknown", "mig", "fabric", "driver"
]
DegradedCause = Literal["driver_mismatch", "nvml_hung", "nvml_failed", "fabric", "reboot"]
Link = Annotated[str, msgspec.Meta(pattern=r"^(|X|NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS)$(?!\n)")]
"""How two devices are connected, as `nvidia-smi topo -m` writes it: so many NVLinks, or through one PCIe switch,
several, a host bridge, within a NUMA node, across; X is the device itself, "" unknown."""


class _Event(msgspec.Struct, frozen=True, tag_field="type", tag=lambda name: f"{name}.1", omit_defaults=True, gc=False):
    """An immutable event."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A part of an event."""


# -- parts ------------------------------------------------------------------------------------------------------


class Basis(_Part, frozen=True):
    """What a decision was made on: the log up to `sequence` with its `chain` hash (hex), by which rules."""

    sequence: Natural
    chain: Token
    policy: Token
    engine: Small


class Device(_Part, frozen=True):
    """One device of a node. `memory_mib` is usable (total less the driver's reserve; 0 = unknown); `nominal_mib` is
    what the model's name promises and what users ask for."""

    index: Small
    uuid: Token
    model: Token
    memory_mib: Natural
    nominal_mib: Natural
    pci_bus_id: Token = ""
    minor: Small | None = None  # of /dev/nvidia<minor>; None = unknown
    capability: Token = ""  # compute capability, such as "8.0"
    numa: Small | None = None  # the nearest NUMA node with CPUs
    mig: bool = False  # in MIG mode
    unified: bool = False  # its memory is the host's
    domain: Token = ""  # its NVLink domain: cluster uuid and clique, joined by a dot


class Inventory(_Part, frozen=True):
    """What a node has. Nodes with the same `fabric` can run one gang together; "" is not linked. The ports are those
    that workers meet on: by default below the range that a Linux kernel gives to outgoing connections. `containers`:
    it runs jobs with an image, and `devices_in_containers` also such as have devices."""

    devices: list[Device]
    cpus: Small
    memory_mib: Natural
    address: Token
    fabric: Token = ""
    labels: Labels = {}
    first_port: Port = 21000
    last_port: Port = 21999
    driver: Token = ""
    addresses: dict[Token, Token] = {}  # network interface → its address
    topology: list[list[Link]] = []  # by device, twice; [] = unknown
    containers: bool = False
    devices_in_containers: bool = False


class DeviceFault(_Part, frozen=True):
    """What is wrong with a device. `failure` is how work that it fails is counted; `job` and `attempt` name whose work
    it was (0 = everybody's there)."""

    index: Small
    uuid: Token
    cause: FaultCause
    action: FaultAction
    xid: Small = 0
    failure: Literal["failed", "device_fault"] = "device_fault"
    job: JobId = 0
    attempt: Small = 0
    detail: Detail = ""


class ForeignUse(_Part, frozen=True):
    """Memory of a device that processes hold which are nobody's work here."""

    index: Small
    uuid: Token
    memory_mib: Natural


class ExitStatus(_Part, frozen=True):
    """How a worker ended. `exit_code` is the program's own, 128 + signal where a signal ended it, None if unknown."""

    reason: ExitReason
    exit_code: Annotated[int, msgspec.Meta(ge=-1, le=1 << 32)] | None = None
    signal: Small | None = None
    detail: Detail = ""


class WorkerReport(_Part, frozen=True):
    """A worker that a registering agent knows of: running under its keeper, or ended with `exit`."""

    job: JobId
    attempt: Small
    rank: Small
    pid: Natural = 0
    exit: ExitStatus | None = None


class Placement(_Part, frozen=True):
    """One worker of an allocation: its rank, its node's life, and the devices it holds there."""

    rank: Small
    node: Name
    incarnation: Token
    devices: list[Small]


class WorkerRef(_Part, frozen=True):
    """A worker that a stop is meant for."""

    rank: Small
    node: Name
    incarnation: Token


class DeviceBinding(_Part, frozen=True):
    """A device given to a worker."""

    index: Small
    uuid: Token


class Endpoint(_Part, frozen=True):
    """Where a worker can be met."""

    address: Token
    port: Port


class AllocationRef(_Part, frozen=True):
    """One try of a job."""

    job: JobId
    attempt: Small


# -- outside facts, written by the API --------------------------------------------------------------------------


class JobSubmitted(_Event, frozen=True):
    """A job was accepted. `key` is the caller's Idempotency-Key; the entry's sequence is the job's id."""

    user: ShortText
    spec: JobSpec
    key: Token = ""
    wait_for_capacity: bool = False


class JobCancelRequested(_Event, frozen=True):
    """Somebody asked for a job to end."""

    job: JobId
    user: ShortText
    reason: Detail = ""


class NodeCordoned(_Event, frozen=True):
    """No new work goes to a node."""

    node: Name
    user: ShortText
    reason: Detail = ""


class NodeUncordoned(_Event, frozen=True):
    """A node takes new work again."""

    node: Name
    user: ShortText


class QueueConfigured(_Event, frozen=True):
    """A queue was made, or changed to this."""

    queue: QueueSpec
    user: ShortText


class QueueRemoved(_Event, frozen=True):
    """A queue that nothing is in was taken away."""

    name: QueuePath
    user: ShortText


class PolicyChanged(_Event, frozen=True):
    """The cluster decides by these rules from now on."""

    policy: Policy
    user: ShortText


class DeviceCordoned(_Event, frozen=True):
    """No new work goes to a device. `index` is its number then, for readers (None = unknown): the uuid counts."""

    node: Name
    uuid: Token
    user: ShortText
    reason: Detail = ""
    index: Small | None = None


class DeviceUncordoned(_Event, frozen=True):
    """A device takes new work again: somebody vouches for it, whatever was wrong. `index` as in DeviceCordoned."""

    node: Name
    uuid: Token
    user: ShortText
    index: Small | None = None


# -- outside facts, written by agents ---------------------------------------------------------------------------


class NodeRegistered(_Event, frozen=True):
    """An agent began a life. Earlier lives are over: a worker it does not list is not running and never will be, and
    what it does not list as wrong with its devices is over too. `degraded` says why the node takes no new work."""

    node: Name
    incarnation: Token
    inventory: Inventory
    workers: list[WorkerReport]
    lease_ms: Natural
    agent_version: Token = ""
    faults: list[DeviceFault] = []
    foreign: list[ForeignUse] = []
    degraded: Detail = ""


class WorkerStarted(_Event, frozen=True):
    """A worker's process runs under its keeper."""

    node: Name
    incarnation: Token
    job: JobId
    attempt: Small
    rank: Small
    pid: Natural


class WorkerExited(_Event, frozen=True):
    """A worker's whole process tree is gone."""

    node: Name
    incarnation: Token
    job: JobId
    attempt: Small
    rank: Small
    exit: ExitStatus


class WorkerRefused(_Event, frozen=True):
    """An agent did not start a worker. `command` is the sequence of the command that it answers."""

    node: Name
    incarnation: Token
    command: Natural
    job: JobId
    attempt: Small
    rank: Small
    reason: Detail


class StopFailed(_Event, frozen=True):
    """A worker's tree outlived every signal: the node takes no new work until somebody has looked."""

    node: Name
    incarnation: Token
    job: JobId
    attempt: Small
    rank: Small
    detail: Detail


class DeviceFaulted(_Event, frozen=True):
    """Something is wrong with a device, or went wrong on it."""

    node: Name
    incarnation: Token
    fault: DeviceFault


class DeviceRecovered(_Event, frozen=True):
    """What was wrong with a device is over, as far as its agent can see."""

    node: Name
    incarnation: Token
    index: Small
    uuid: Token
    detail: Detail = ""


class ForeignUsageChanged(_Event, frozen=True):
    """What foreign processes hold of the node's devices now: all of it."""

    node: Name
    incarnation: Token
    foreign: list[ForeignUse]


class NodeDegraded(_Event, frozen=True):
    """Something is wrong with a node as a whole: what runs goes on, and no new work goes there."""

    node: Name
    incarnation: Token
    cause: DegradedCause
    detail: Detail


class NodeRestored(_Event, frozen=True):
    """What was wrong with the node as a whole is over."""

    node: Name
    incarnation: Token


# -- the leader's observations: fenced like decisions, not re-decided -------------------------------------------


class LeaderStarted(_Event, frozen=True):
    """A scheduler began a term."""

    scheduler: Token
    engine: Small
    policy: Token


class ClockAdvanced(_Event, frozen=True):
    """Time went by while something waits on it; the entry's timestamp is the news."""


class NodeSuspected(_Event, frozen=True):
    """A node has been silent. `silent_ms` is how long nothing was heard while others could be, when it was
    observed; `last_beat_ns` is the server's timestamp of its last beat (0 = none seen)."""

    node: Name
    incarnation: Token
    last_beat_ns: Time
    silent_ms: Natural


class NodeRecovered(_Event, frozen=True):
    """A suspect node beats again in the same life."""

    node: Name
    incarnation: Token


# -- decisions --------------------------------------------------------------------------------------------------


class JobAllocated(_Event, frozen=True):
    """A job got its devices. `master_port` is free at the first worker's address; where the framework wants a port of
    each worker's own, `endpoints` has them by rank, the first one being the master's. `why` names the rule that
    chose."""

    basis: Basis
    job: JobId
    attempt: Small
    placements: list[Placement]
    master_address: Token
    master_port: Port
    why: Detail
    endpoints: list[Endpoint] = []


class StopOrdered(_Event, frozen=True):
    """The named workers of an attempt are to end."""

    basis: Basis
    job: JobId
    attempt: Small
    cause: StopCause
    workers: list[WorkerRef]


class JobRequeued(_Event, frozen=True):
    """An attempt is over and the job waits again. `counted` tells whether the try counts against the limit."""

    basis: Basis
    job: JobId
    attempt: Small
    cause: RequeueCause
    counted: bool


class JobPreempted(_Event, frozen=True):
    """The named workers of an attempt are to end so that the beneficiary gets its room; the job then waits again.
    `work_lost_ms` is the devices' time that the attempt had run for."""

    basis: Basis
    job: JobId
    attempt: Small
    mode: Literal["cold"]
    cause: PreemptionCause
    beneficiary: JobId
    work_lost_ms: Natural
    workers: list[WorkerRef]


class JobTimedOut(_Event, frozen=True):
    """An attempt has run for its time limit: its workers are to end, and then it is requeued behind those that wait, or
    ended."""

    basis: Basis
    job: JobId
    attempt: Small
    action: Literal["requeue", "kill"]
    workers: list[WorkerRef]


class RoomReserved(_Event, frozen=True):
    """Room that only this waiting job may use, there or still to be given up by the named attempts."""

    basis: Basis
    job: JobId
    placements: list[Placement]
    victims: list[AllocationRef]
    why: Detail


class RoomReleased(_Event, frozen=True):
    """Room is reserved no more without having been used."""

    basis: Basis
    job: JobId
    cause: ReleaseCause
    detail: Detail


class NodeLost(_Event, frozen=True):
    """A node's lease has run out: the listed attempts are over there and may be retried elsewhere. Attempts that
    may not be retried keep what they hold until the node is back."""

    basis: Basis
    node: Name
    incarnation: Token
    last_beat_ns: Time
    lease_ms: Natural
    ended: list[AllocationRef]


class DeviceReadmitted(_Event, frozen=True):
    """A device was on probation, or suspect, for its time, and nothing has happened: it takes work again. `index` as in
    DeviceCordoned."""

    basis: Basis
    node: Name
    uuid: Token
    why: Detail
    index: Small | None = None


# -- commands, derived purely from decisions --------------------------------------------------------------------


class StartWorker(_Event, frozen=True):
    """The bind: run this worker with these devices. `start_by_ns` is logical time; `leased` workers are stopped
    by their agent when its lease runs out. `world` counts workers; `cpus` and `memory_mib` are this worker's. A
    framework runs a process for each device (one where there is none), and numbers them over the whole gang:
    `processes` in all, `first_process` is this worker's first."""

    job: JobId
    attempt: Small
    rank: Small
    world: Small
    node: Name
    incarnation: Token
    name: str
    user: Token
    command: str | list[str]
    devices: list[DeviceBinding]
    device_memory_mib: Natural
    compute: Small
    cpus: Small
    memory_mib: Natural
    master_address: Token
    master_port: Port
    start_by_ns: Time
    leased: bool
    env: dict[str, str] = {}
    workdir: str | None = None
    framework: Framework = "none"
    processes: Small = 1
    first_process: Small = 0
    endpoints: list[Endpoint] = []
    image: Detail = ""  # the container's; "" = a plain process


class StopWorker(_Event, frozen=True):
    """End this worker: `signal` where there is one and up to `notice_ms` to end by itself, then TERM and up to
    `grace_ms`, then the whole tree is killed."""

    job: JobId
    attempt: Small
    rank: Small
    node: Name
    incarnation: Token
    cause: StopCause
    grace_ms: Natural
    signal: Token = ""  # without the SIG: "USR2"
    notice_ms: Natural = 0


Submission: TypeAlias = JobSubmitted
JobFact: TypeAlias = JobCancelRequested
AdminFact: TypeAlias = (
    NodeCordoned | NodeUncordoned | DeviceCordoned | DeviceUncordoned | QueueConfigured | QueueRemoved | PolicyChanged
)
WorkerFact: TypeAlias = WorkerStarted | WorkerExited | WorkerRefused | StopFailed
DeviceFact: TypeAlias = DeviceFaulted | DeviceRecovered | ForeignUsageChanged
NodeFact: TypeAlias = NodeRegistered | WorkerFact | DeviceFact | NodeDegraded | NodeRestored
Observation: TypeAlias = LeaderStarted | ClockAdvanced | NodeSuspected | NodeRecovered
JobDecision: TypeAlias = (
    JobAllocated | StopOrdered | JobRequeued | JobPreempted | JobTimedOut | RoomReserved | RoomReleased
)
NodeDecision: TypeAlias = NodeLost | DeviceReadmitted
Decision: TypeAlias = JobDecision | NodeDecision
Command: TypeAlias = StartWorker | StopWorker
Fact: TypeAlias = Submission | JobFact | AdminFact | NodeFact
FoldedEvent: TypeAlias = Fact | Observation | Decision
Event: TypeAlias = FoldedEvent | Command
