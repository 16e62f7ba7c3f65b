"""The words of a story: causes, places and ends as sentences say them. Every cause of an event has its words."""

from typing import Final

from muster.core.state import Job, JobPhase
from muster.events import types as t
from muster.events.numbers import ranges

STOP_CAUSES: Final[dict[t.StopCause, str]] = {
    "cancelled": "it is cancelled",
    "worker_failed": "one of them has failed",
    "worker_lost": "one of them is lost",
    "start_refused": "a start was refused",
    "start_overdue": "one of them was not reported in time",
    "stray": "their attempt is over",
    "preempted": "it makes room",
    "timed_out": "its time is over",
    "device_fault": "a device has failed",
}
REQUEUE_CAUSES: Final[dict[t.RequeueCause, str]] = {
    "never_started": "it never started",
    "node_fail": "its node failed",
    "device_fault": "its device failed",
    "failed": "it failed",
    "preempted": "it made room",
    "timed_out": "its time was over",
}
FAULT_ACTIONS: Final[dict[t.FaultAction, str]] = {
    "note": "",
    "count": "this counts against it",
    "fail_job": "the work there fails",
    "no_gangs": "it takes work of one device only",
    "suspect": "it takes no new work for a while",
    "drain": "it takes no new work until it has recovered",
    "reset": "its work fails, and it takes none until it is reset",
    "quarantine": "its work fails, and it takes none until somebody vouches for it",
}
ENDS: Final[dict[JobPhase, str]] = {
    "COMPLETED": "has completed",
    "FAILED": "has failed",
    "CANCELLED": "is cancelled",
    "TIMEOUT": "has run out of time",
    "NODE_FAIL": "ends with its node",
    "REJECTED": "is rejected",
}


def because(reason: str) -> str:
    """A reason given, behind what it is given for."""
    return f": {reason}" if reason else ""


def gpus(count: int) -> str:
    """So many GPUs."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def gpus_of(job: Job) -> str:
    """The GPUs that a job asks for."""
    return gpus(job.spec.gpus) if job.spec.gpus else "CPUs alone"


def places(placements: list[t.Placement]) -> str:
    """Where workers are: `node-1[0-3], node-2[0-3]`."""
    return ", ".join(f"{place.node}[{ranges(place.devices)}]" if place.devices else place.node for place in placements)


def workers(workers: list[t.WorkerRef]) -> str:
    """Workers by their ranks, with their nodes."""
    named = ", ".join(f"{worker.rank} on {worker.node}" for worker in workers)
    return f"worker {named}" if len(workers) == 1 else f"workers {named}"


def registered(event: t.NodeRegistered) -> str:
    """A node has registered."""
    models: dict[str, int] = {}
    for device in event.inventory.devices:
        models[device.model] = models.get(device.model, 0) + 1
    has = ", ".join(f"{count} {model}" for model, count in models.items()) or "no GPU"
    running = sum(worker.exit is None for worker in event.workers)
    runs = f", where {running} worker{'s' * (running != 1)} still run{'s' * (running == 1)}" if running else ""
    return f"{event.node} is there with {has}{runs}{f'; it takes no work: {event.degraded}' if event.degraded else ''}"


def exit_words(status: t.ExitStatus) -> str:
    """How a worker ended."""
    detail = f" ({status.detail})" if status.detail else ""
    if status.reason == "exited":
        how = f"signal {status.signal}" if status.signal else f"exit code {status.exit_code}"
        return how + detail
    words = {"stopped": "it was stopped", "lease_expired": "its lease ran out", "start_failed": "it could not start"}
    return words.get(status.reason, "it is lost") + detail
