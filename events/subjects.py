"""Subjects: where each event stands on the wire. The second token is the writer's class, so that permissions are
one line each. Job ids stay out of subjects: each distinct subject costs the server memory for ever."""

import re
from typing import Final, assert_never

from muster.events import types as t

DEFAULT_PREFIX: Final = "muster"
CLUSTER_QUEUE: Final = "_cluster"

LOG_CLASSES: Final = ("submission", "job", "admin", "node", "decision", "command")
TELEMETRY_CLASSES: Final = ("heartbeat", "gpu")

_WORD_BOUNDARY: Final = re.compile(r"(?<!^)(?=[A-Z])")


WRITERS: Final[dict[type, str]] = {
    t.JobSubmitted: "submission",
    t.JobCancelRequested: "job",
    **dict.fromkeys(t.AdminFact.__args__, "admin"),
    **dict.fromkeys(t.NodeFact.__args__, "node"),
    **dict.fromkeys((*t.Observation.__args__, *t.Decision.__args__), "decision"),
    **dict.fromkeys(t.Command.__args__, "command"),
}
"""Event type → the class of writer that may write it."""


def kebab(name: str) -> str:
    """`JobAllocated` as a subject token: `job-allocated`."""
    return _WORD_BOUNDARY.sub("-", name).lower()


_TOKEN: Final = {kind: kebab(kind.__name__) for kind in t.Event.__args__}


def subject_of(event: t.Event, queue: str = CLUSTER_QUEUE, prefix: str = DEFAULT_PREFIX) -> str:
    """The subject an event is written under; `queue` is the leaf name of its job's queue, where it has one."""
    token = _TOKEN[type(event)]
    match event:
        case t.JobSubmitted():
            return f"{prefix}.submission.{queue}"
        case t.JobCancelRequested():
            return f"{prefix}.job.{queue}.{token}"
        case (
            t.NodeCordoned()
            | t.NodeUncordoned()
            | t.DeviceCordoned()
            | t.DeviceUncordoned()
            | t.QueueConfigured()
            | t.QueueRemoved()
            | t.PolicyChanged()
        ):
            return f"{prefix}.admin.{token}"
        case (
            t.NodeRegistered()
            | t.WorkerStarted()
            | t.WorkerExited()
            | t.WorkerRefused()
            | t.StopFailed()
            | t.DeviceFaulted()
            | t.DeviceRecovered()
            | t.ForeignUsageChanged()
            | t.NodeDegraded()
            | t.NodeRestored()
        ):
            return f"{prefix}.node.{event.node}.{token}"
        case (
            t.LeaderStarted()
            | t.ClockAdvanced()
            | t.NodeSuspected()
            | t.NodeRecovered()
            | t.NodeLost()
            | t.DeviceReadmitted()
        ):
            return f"{prefix}.decision.{CLUSTER_QUEUE}.{token}"
        case (
            t.JobAllocated()
            | t.StopOrdered()
            | t.JobRequeued()
            | t.JobPreempted()
            | t.JobTimedOut()
            | t.RoomReserved()
            | t.RoomReleased()
        ):
            return f"{prefix}.decision.{queue}.{token}"
        case t.StartWorker() | t.StopWorker():
            return f"{prefix}.command.{event.node}"
        case _:
            assert_never(event)


def writer_class(subject: str) -> str:
    """The writer's class of a subject: its second token ("" where it has none)."""
    first = subject.find(".")
    second = subject.find(".", first + 1)
    return subject[first + 1 : second if second > 0 else None] if first > 0 else ""


def registration_subject(node: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Where a node's registrations stand."""
    return f"{prefix}.node.{node}.{_TOKEN[t.NodeRegistered]}"


def fence_filter(prefix: str = DEFAULT_PREFIX) -> str:
    """The subjects whose last sequence fences a decider."""
    return f"{prefix}.decision.>"
