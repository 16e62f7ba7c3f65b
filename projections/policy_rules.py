"""What people's configuration of queues and policy does to the state.

Every rule gives None, or why it was not applied.
"""

from collections.abc import Mapping
from typing import Final

from muster.core.cluster import Cluster
from muster.core.quantities import DEFAULT_PRIORITY, priority_number
from muster.core.queues import DEFAULT_QUEUE
from muster.core.resources import Demand
from muster.events import types as t
from muster.events.policy import QueueSpec

QUEUES_KEPT: Final = 1000
KINDS_KEPT: Final = 200


def queue_configured(cluster: Cluster, event: t.QueueConfigured) -> str | None:
    """A queue is made or changed."""
    state, name = cluster.state, event.queue.name
    parent = name.rpartition("/")[0]
    if parent and parent not in state.queues:
        return f"queue {name} is in no queue that there is"
    if name not in state.queues and len(state.queues) >= QUEUES_KEPT:
        return f"there are {QUEUES_KEPT} queues already"
    if parent and _jobs_of(cluster, parent):
        return f"jobs are in {parent}, so no queue can be"
    state.queues[name] = event.queue
    cluster.reconfigure()
    return None


def queue_removed(cluster: Cluster, event: t.QueueRemoved) -> str | None:
    """A queue that nothing is in goes; what "default" was given is forgotten, it stays."""
    state = cluster.state
    if event.name not in state.queues:
        return f"there is no queue {event.name}"
    if any(name.startswith(f"{event.name}/") for name in state.queues):
        return f"queues are in {event.name}"
    if event.name != DEFAULT_QUEUE and _jobs_of(cluster, event.name):
        return f"jobs are in {event.name}"
    del state.queues[event.name]
    cluster.reconfigure()
    return None


def policy_changed(cluster: Cluster, event: t.PolicyChanged) -> str | None:
    """The cluster decides by other rules."""
    cluster.state.policy = event.policy
    cluster.reconfigure()
    return None


def _jobs_of(cluster: Cluster, queue: str) -> bool:
    """Whether a queue has jobs that have not ended."""
    if queue in cluster.lines.by_queue or queue in cluster.schedule.by_queue:
        return True
    waiting = [*cluster.state.rooms, *cluster.to_judge]
    return any(cluster.state.jobs[job_id].spec.queue == queue for job_id in waiting)


def queue_flaw(cluster: Cluster, queue: str) -> str:
    """Why a job cannot be in a queue ("" = it can)."""
    queues = cluster.state.queues
    if queue == DEFAULT_QUEUE and queue not in queues:
        return ""
    if queue not in queues:
        return f"/queue: there is no queue {queue!r}"
    if any(name.startswith(f"{queue}/") for name in queues):
        return f"/queue: {queue!r} has queues in it: a job goes to one of them"
    return ""


def default_priority(queues: Mapping[str, QueueSpec], queue: str) -> int:
    """Of a queue's jobs that name none: the queue's, else that of the nearest queue it is in that says."""
    path = queue
    while path:
        spec = queues.get(path)
        if spec is not None and spec.priority is not None:
            return priority_number(spec.priority)
        path = path.rpartition("/")[0]
    return DEFAULT_PRIORITY


def note_mix(mix: dict[str, int], demand: Demand) -> None:
    """Count a submission of its kind; the rarest kind goes where there are too many."""
    cpus = demand.cpus * demand.gpus if demand.gpus else demand.cpus
    key = f"{cpus}/{demand.gpus}/{demand.compute}/{','.join(demand.models)}"
    mix[key] = mix.get(key, 0) + 1
    if len(mix) > KINDS_KEPT:
        del mix[min(mix, key=lambda kind: (mix[kind], kind))]
