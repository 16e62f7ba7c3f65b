"""The subject of what a scheduler writes: one rule, for the scheduler and for the audit that checks it."""

from muster.core.state import State
from muster.events import types as t
from muster.events.subjects import CLUSTER_QUEUE, subject_of


def decision_subject(event: t.Event, state: State, prefix: str) -> str:
    """The subject of an observation, a decision or a command made on this state. A decision about a job stands under
    the leaf name of the job's queue."""
    queue = CLUSTER_QUEUE
    if isinstance(event, t.JobDecision) and event.job in state.jobs:
        queue = state.jobs[event.job].spec.queue.rpartition("/")[2]
    return subject_of(event, queue, prefix)
