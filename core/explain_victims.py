"""Explanations, victims: who is stopped so that a job gets its room, by what right, and why it is these."""

from collections.abc import Mapping
from typing import Final

from muster.core.cluster import Cluster
from muster.core.explain_words import part_of, quantity
from muster.core.explanation import Resource, Victim
from muster.core.ledger import Ledger
from muster.core.plan import Draft
from muster.core.queues import ENDLESS, NOTHING, Queue, Vector
from muster.core.state import Job
from muster.events import types as t

_RESOURCES: Final[tuple[Resource, ...]] = ("devices", "device_memory", "cpus", "memory")
_MINUTE_MS: Final = 60_000


def staying_now(ledger: Ledger) -> dict[str, Vector]:
    """What each queue holds less what it is giving up, to be kept while a pass goes on."""
    return {path: ledger.staying(queue) for path, queue in ledger.tree.queues.items()}


def victims_planned(draft: Draft, job: Job, before: Mapping[str, Vector]) -> list[Victim]:
    """Those that a pass stops for a job, with what queues held `before` it was the job's turn."""
    jobs = draft.cluster.state.jobs
    stopped = [each for each in draft.plan.events if isinstance(each, t.JobPreempted) and each.beneficiary == job.id]
    found: list[Victim] = []
    for each in stopped:
        victim = jobs[each.job]
        right = _right(draft, job, victim, before) if each.cause == "reclaim" else _rank(job, victim)
        lost = f"{each.work_lost_ms / _MINUTE_MS:.3g} {'device' if victim.spec.gpus else 'CPU'}-minutes of work lost"
        found.append(Victim(each.job, each.cause, each.work_lost_ms, f"{right}; {lost}"))
    return found


def victims_of(cluster: Cluster, job: Job, refs: list[t.AllocationRef]) -> list[Victim]:
    """Those that were stopped for a job, as far as the state still tells: a victim of the job's own queue had a lower
    priority, one of another queue was to give back."""
    found: list[Victim] = []
    for ref in refs:
        victim = cluster.state.jobs.get(ref.job)
        if victim is None:
            continue
        same = victim.spec.queue == job.spec.queue
        detail = _rank(job, victim) if same else f"queue {victim.spec.queue} gave back to queue {job.spec.queue}"
        found.append(Victim(ref.job, "priority" if same else "reclaim", None, detail))
    return found


def _rank(job: Job, victim: Job) -> str:
    return f"its priority in queue {job.spec.queue} is {victim.priority}, that of job {job.id} {job.priority}"


def _right(draft: Draft, job: Job, victim: Job, before: Mapping[str, Vector]) -> str:
    """Which queue was under its guarantee and which above."""
    queues = draft.ledger.tree.queues
    for giver in reversed(list(queues[victim.spec.queue].upwards())):
        if queues[job.spec.queue].is_under(giver):
            continue  # both are in it
        taker = next(each for each in queues[job.spec.queue].upwards() if each.parent is giver.parent)
        place = _over_in(giver, before)
        sums = ", ".join(_sum(queue, before[queue.path], place) for queue in (taker, giver))
        return f"{sums}; its priority is {victim.priority}"
    return f"its priority is {victim.priority}"


def _over_in(queue: Queue, before: Mapping[str, Vector]) -> int:
    """The first resource of which a queue holds more than its guarantee."""
    held = before[queue.path]
    return next((place for place in range(4) if held[place] > queue.guarantee[place]), 0)


def _sum(queue: Queue, held: Vector, place: int) -> str:
    resource, bound = _RESOURCES[place], queue.guarantee[place]
    if queue.guarantee == NOTHING or bound == ENDLESS:
        return f"queue {queue.path} held {quantity(resource, held[place])} and is guaranteed none"
    return f"queue {queue.path} held {part_of(resource, held[place], bound)} guaranteed"
