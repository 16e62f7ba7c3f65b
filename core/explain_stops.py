"""Explanations, preemption: why nobody is stopped for a job that waits at the head of its queue."""

from collections import Counter
from collections.abc import Iterator

from muster.core.explain_turn import Turn
from muster.core.explain_words import SHOWN, listed, span
from muster.core.order import duration_s
from muster.core.preempt import Preemptor
from muster.core.queues import NOTHING, Queue, plus, within
from muster.core.schedule import SECOND_NS
from muster.core.state import Job
from muster.core.waiting import may_wait


def unstopped(turn: Turn) -> list[str]:
    """Why nobody is stopped for the job, in sentences."""
    policy = turn.cluster.state.policy.preemption
    if policy.mode == "none":
        return ["the policy stops no job for another (preemption mode none)"]
    if turn.line is None or not turn.reached or turn.line.blocked_by:
        head = turn.line.blocked_by if turn.line is not None else 0
        return [f"jobs are stopped for the head of a queue only: here job {head}"] if head else []
    asker = turn.asker
    if asker.excluded:
        return ["nobody is stopped for a job that a node has just refused"]
    if not may_wait(turn.cluster, asker, turn.draft.ledger.obstacles(asker.claimant, asker.least)):
        return ["nobody is stopped for a job that its own, its user's or its queue's limits keep, whoever ends"]
    return list(_own(turn)) + list(_reclaim(turn))


def _own(turn: Turn) -> Iterator[str]:
    """Of its own queue."""
    job, queue = turn.job, turn.job.spec.queue
    order = turn.asker.claimant.queue.order
    if order != "priority":
        yield f"the order of queue {queue} is {order}, not priority: there priority stops nobody"
        return
    running = [turn.cluster.state.jobs[other] for _, other in turn.cluster.schedule.by_queue.get(queue, ())]
    lower = [other for other in running if other.priority < job.priority]
    if not lower:
        yield f"no job of lower priority than {job.priority} runs in queue {queue}"
    else:
        yield from _spared(turn, lower, f"of lower priority in queue {queue}", own=True)


def _reclaim(turn: Turn) -> Iterator[str]:
    """Of other queues, for what its own is guaranteed."""
    preemptor, asker = Preemptor(turn.draft), turn.asker
    branches = preemptor.claiming_branches(asker)
    if branches:
        lenders = sorted({path for branch in branches for path in preemptor.borrowers(branch)})
        if not lenders:
            names = listed([branch.path for branch in branches])
            yield f"no other queue holds more than its guarantee, so none has to give back to queue {names}"
            return
        by_queue = turn.cluster.schedule.by_queue
        running = [turn.cluster.state.jobs[other] for path in lenders for _, other in by_queue.get(path, ())]
        yield from _spared(turn, running, f"in queues above their guarantee ({listed(lenders)})")
        return
    for queue in asker.claimant.queue.upwards():
        yield _no_claim(turn, queue)


def _no_claim(turn: Turn, queue: Queue) -> str:
    ledger = turn.draft.ledger
    if queue.guarantee == NOTHING:
        return f"queue {queue.path} is guaranteed nothing, so other queues' jobs are not stopped for it"
    if not within(plus(ledger.staying(queue), turn.asker.least), queue.guarantee):
        return f"queue {queue.path} would hold more than its guarantee with it, so other queues' jobs are not stopped"
    if queue.spec.reclaim == "wait":
        return f"queue {queue.path} waits for what it lent until jobs end (reclaim = wait)"
    return f"queue {queue.path} is taking back as much as its reclaim_step allows at a time"


def _spared(turn: Turn, running: list[Job], which: str, *, own: bool = False) -> Iterator[str]:
    """Why jobs that would be stopped by their place are not; those of its `own` queue may come before it as well."""
    preemptor = Preemptor(turn.draft)
    outranking: list[Job] = []
    why: Counter[str] = Counter()
    may_go: list[int] = []
    for job in running:
        reason = _protection(turn, job)
        if reason:
            why[reason] += 1
        elif own and not preemptor.outranks(turn.job, job):
            outranking.append(job)
        else:
            may_go.append(job.id)
    safe = [until for job in running if (until := _safe_until(turn, job)) > turn.now_at]
    total = len(running)
    for reason, count in sorted(why.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]:
        are = f"is {reason.replace('their', 'its')}" if count == 1 else f"are {reason}"
        yield f"{count} of {total} {'job' if total == 1 else 'jobs'} {which} {are}"
    if outranking:
        yield f"{len(outranking)} of {total} {'job' if total == 1 else 'jobs'} {which} {_still_first(outranking)}"
    if safe:
        yield f"the next of them may be stopped in {span(min(safe) - turn.now_at)}"
    if may_go:
        yield f"stopping those that may be stopped {which} would not make it fit: {listed(may_go)}"


def _still_first(jobs: list[Job]) -> str:
    """That jobs had waited for too long to be stopped."""
    longest = span(max(job.attempt.allocated_at - job.since_at for job in jobs if job.attempt is not None))
    if len(jobs) == 1:
        return f"would still come first: it had waited {longest}"
    return f"would still come first: they had waited up to {longest}"


def _protection(turn: Turn, job: Job) -> str:
    """What keeps a running job from being stopped ("" = nothing does)."""
    policy = turn.cluster.state.policy.preemption
    if job.attempt is None or job.phase == "STOPPING" or job.id in turn.draft.victims:
        return "being stopped already"
    if not job.spec.preemption.allowed:
        return "not to be preempted by their own specification"
    if job.preemptions >= policy.max_per_job:
        return f"not preempted any more after {policy.max_per_job} times"
    if _safe_until(turn, job) <= turn.now_at:
        return ""
    return f"still within their min_runtime of {span(duration_s(policy.min_runtime) * SECOND_NS)}"


def _safe_until(turn: Turn, job: Job) -> int:
    """Until when a job is left alone for its first while; one that is only starting until a while from now."""
    least_s = duration_s(turn.cluster.state.policy.preemption.min_runtime)
    started_at = job.attempt.started_at if job.attempt is not None else 0
    return (started_at or turn.now_at) + least_s * SECOND_NS
