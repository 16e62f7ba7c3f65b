"""Explanations, order: a waiting job's place, and which head it may not pass under which rule."""

from collections.abc import Iterator
from typing import Final

from muster.core.allocate import in_order
from muster.core.backfill import Hold, ends_in_time
from muster.core.cluster import Cluster
from muster.core.estimates import expected_s
from muster.core.explain_turn import Turn
from muster.core.explain_words import LISTED, listed, span
from muster.core.explanation import OrderStep, Reason
from muster.core.order import policy_name
from muster.core.queues import ENDLESS
from muster.core.schedule import SECOND_NS
from muster.core.state import Job

SHOWN_AHEAD: Final = 10


def order_step(cluster: Cluster, job: Job, ahead: list[int], held_back_by: int) -> OrderStep:
    """The job's place."""
    line = cluster.lines.by_queue.get(job.spec.queue)
    same = sum(cluster.state.jobs[other].spec.queue == job.spec.queue for other in ahead)
    return OrderStep(
        policy_name(cluster.state.policy),
        len(ahead) + 1,
        cluster.lines.count,
        ahead[:SHOWN_AHEAD],
        held_back_by,
        job.spec.queue,
        same + 1,
        len(line.keys) if line is not None else 0,
    )


def jobs_ahead(cluster: Cluster, job: Job) -> list[int]:
    """The waiting jobs that are looked at before a job, were each of them to start."""
    order = in_order(cluster, cluster.lines.count, job.id)
    return order[:-1] if order and order[-1] == job.id else order


def order_reasons(turn: Turn) -> list[Reason]:
    """Which heads hold the job back, whatever room there is."""
    return list(_reasons(turn) if turn.reached else _unreached(turn))


def ahead_reason(ahead: list[int]) -> Reason:
    """Who is offered what becomes free before the job."""
    are = "job is" if len(ahead) == 1 else "jobs are"
    detail = f"{len(ahead)} {are} considered before it: {listed(ahead)}"
    return Reason("ahead", detail, jobs=ahead[:LISTED], jobs_count=len(ahead))


def _unreached(turn: Turn) -> Iterator[Reason]:
    """The pass is over before the job's turn."""
    backfill = turn.cluster.state.policy.backfill
    head = turn.line.blocked_by if turn.line is not None else 0
    queue = turn.job.spec.queue
    if head and backfill.mode == "none":
        detail = (
            f"behind job {head}, the head of queue {queue}, which does not fit yet: without backfill none passes it"
        )
        yield _by(head, detail)
    elif head:
        deep = f"backfill looks at the first {backfill.depth} behind a head"
        yield _by(head, f"behind job {head}, the head of queue {queue}, which does not fit yet: {deep}")
    elif turn.allocator.strict_for:
        yield _strict(turn)
    else:
        yield Reason("order", "behind more starts than one pass can order: its turn is in a later one")


def _strict(turn: Turn) -> Reason:
    head = turn.allocator.strict_for
    queue = turn.cluster.state.jobs[head].spec.queue
    share = f"nothing brings queue {turn.job.spec.queue} above its share"
    return _by(head, f"behind job {head} of queue {queue}, which does not fit yet: until then {share} (no backfill)")


def _reasons(turn: Turn) -> Iterator[Reason]:
    allocator, asker = turn.allocator, turn.asker
    if allocator.strict_for and allocator.beyond_share(asker):
        yield _strict(turn)
        return
    for queue in asker.claimant.queue.upwards():
        hold = allocator.holds.get(queue.path)
        if hold is not None and _stands_on_limit(turn, hold):
            yield _by(
                hold.job,
                f"behind job {hold.job}, which waits for what queue {queue.path} may hold and whose start it would put "
                f"off: {_expected(turn, hold)}; {_runs(turn)}",
                hold.at,
            )
    shadow = allocator.shadow
    if shadow is None or ends_in_time(turn.draft, turn.job, shadow.at):
        return
    place = listed(sorted(shadow.nodes))
    if shadow.bars(asker.claimant, asker.least):
        what = "would take what the queues and lanes leave for it"
    elif turn.found is not None and turn.spared is None:
        what = f"would take its place on {place}"
    else:
        return
    head = f"behind job {shadow.job}, whose start it would put off: {_expected(turn, shadow)} on {place}"
    yield _by(shadow.job, f"{head}, and this one {what}; {_runs(turn)}", shadow.at)


def _stands_on_limit(turn: Turn, hold: Hold) -> bool:
    return not ends_in_time(turn.draft, turn.job, hold.at) and hold.bars(turn.asker.claimant, turn.asker.least)


def _expected(turn: Turn, hold: Hold) -> str:
    if hold.at == ENDLESS:
        return f"nobody knows when job {hold.job} starts"
    return f"job {hold.job} is expected to start in {span(hold.at - turn.now_at)}"


def _runs(turn: Turn) -> str:
    seconds, _ = expected_s(turn.cluster.state, turn.job)
    if not seconds:
        return "nobody knows for how long this one runs"
    return f"this one would run for {span(seconds * SECOND_NS)}"


def _by(head: int, detail: str, at: int = ENDLESS) -> Reason:
    return Reason("order", detail, jobs=[head], jobs_count=1, at=None if at == ENDLESS else at)
