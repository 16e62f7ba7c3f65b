"""Explanations, order: a waiting job's place, and which head it may not pass under which rule."""

from collections.abc import Iterator
from typing import Final

import msgspec

from muster.core.allocate import in_order
from muster.core.backfill import Hold, Shadow, ends_in_time
from muster.core.bookings import Bookings
from muster.core.cluster import Cluster
from muster.core.estimates import expected_s
from muster.core.explain_turn import Turn
from muster.core.explain_words import LISTED, jobs_named, listed, span
from muster.core.explanation import OrderStep, Reason
from muster.core.order import order_of, policy_name
from muster.core.queues import ENDLESS
from muster.core.schedule import SECOND_NS
from muster.core.state import Job

SHOWN_AHEAD: Final = 10
PLACES: Final = 1000
"""A job's place is looked for among so many."""


def order_step(cluster: Cluster, job: Job, ahead: list[int], held_back_by: int) -> OrderStep:
    """The job's place."""
    state, queue = cluster.state, job.spec.queue
    line = cluster.lines.by_queue.get(queue)
    same = sum(state.jobs[other].spec.queue == queue for other in ahead)
    is_placed = len(ahead) < PLACES
    return OrderStep(
        policy_name(msgspec.structs.replace(state.policy, order=order_of(state, queue))),
        len(ahead) + 1 if is_placed else 0,
        cluster.lines.count,
        ahead[:SHOWN_AHEAD],
        held_back_by,
        queue,
        same + 1 if is_placed else 0,
        len(line.keys) if line is not None else 0,
    )


def jobs_ahead(cluster: Cluster, job: Job) -> list[int]:
    """The waiting jobs that are looked at before a job, were each of them to start: the first of them."""
    order = in_order(cluster, PLACES, job.id)
    return order[:-1] if order and order[-1] == job.id else order


def order_reasons(turn: Turn) -> list[Reason]:
    """Which heads hold the job back, whatever room there is."""
    return list(_reasons(turn) if turn.reached else _unreached(turn))


def ahead_reason(ahead: list[int]) -> Reason:
    """Who is offered what becomes free before the job."""
    are = (
        "1 job is" if len(ahead) == 1 else f"{len(ahead)} jobs are" if len(ahead) < PLACES else f"{PLACES} or more are"
    )
    detail = f"{are} considered before it: {listed(ahead)}"
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
        deep = f"backfill looks at the first {turn.allocator.depth} behind a head"
        yield _by(head, f"behind job {head}, the head of queue {queue}, which does not fit yet: {deep}")
    elif turn.allocator.strictness.head:
        yield _strict(turn)
    else:
        yield Reason("order", "behind more starts than one pass can order: its turn is in a later one")


def _strict(turn: Turn) -> Reason:
    head = turn.allocator.strictness.head
    queue = turn.cluster.state.jobs[head].spec.queue
    share = f"nothing brings queue {turn.job.spec.queue} above its share"
    return _by(head, f"behind job {head} of queue {queue}, which does not fit yet: until then {share} (no backfill)")


def _reasons(turn: Turn) -> Iterator[Reason]:
    allocator, asker = turn.allocator, turn.asker
    if allocator.strictness.bars(asker):
        yield _strict(turn)
        return
    for queue in asker.claimant.queue.upwards():
        hold = allocator.holds.get(queue.path)
        if hold is not None and _stands_on_limit(turn, hold):
            head = (
                f"behind job {hold.job}, which waits for what queue {queue.path} may hold and whose start it would put"
            )
            yield _by(
                hold.job,
                f"{head} off: {since('its part of that', hold.at, turn.now_at)}{_runs(turn, hold.at)}",
                hold.at,
            )
    if allocator.bookings is not None:
        yield from _booked(turn, allocator.bookings)
        return
    shadow = allocator.shadow
    if shadow is None or ends_in_time(turn.draft, turn.job, shadow.at):
        return
    if shadow.bars(asker.claimant, asker.least):
        what = "would take what the queues and lanes leave for it"
    elif turn.found is not None and turn.spared is None:
        what = "would leave it none" if shadow.floats else "would take its place there"
    else:
        return
    kept = since(_place(shadow), shadow.at, turn.now_at)
    head = f"behind job {shadow.job}, whose start it would put off: {kept}, and this one {what}"
    yield _by(shadow.job, f"{head}{_runs(turn, shadow.at)}", shadow.at)


def _booked(turn: Turn, bookings: Bookings) -> Iterator[Reason]:
    """Which jobs that are booked a job would put off."""
    hold = bookings.hold
    if hold is not None and _stands_on_limit(turn, hold):
        kept = since(_booked_place(bookings, hold.job), hold.at, turn.now_at)
        what = f"{kept}, and this one would take what the queues and lanes leave for it"
        yield _by(
            hold.job, f"behind job {hold.job}, whose start it would put off: {what}{_runs(turn, hold.at)}", hold.at
        )
    if turn.found is None or turn.spared is not None:
        return
    others = bookings.in_the_way(turn.job, turn.found.shares)
    first = min(others, key=lambda job_id: bookings.made[job_id].at)
    at = max(turn.now_at, bookings.made[first].at)
    kept = since(_booked_place(bookings, first), at, turn.now_at)
    head = f"behind {jobs_named(others)}, whose start it would put off: for job {first} {kept}"
    detail = f"{head}, and this one would take its place there{_runs(turn, at)}"
    yield Reason("order", detail, jobs=others[:LISTED], jobs_count=len(others), at=at)


def _booked_place(bookings: Bookings, job: int) -> str:
    return f"its place on {listed(sorted(share.node for share in bookings.made[job].found.shares))}"


def _stands_on_limit(turn: Turn, hold: Hold) -> bool:
    return not ends_in_time(turn.draft, turn.job, hold.at) and hold.bars(turn.asker.claimant, turn.asker.least)


def kept_for(turn: Turn) -> tuple[int, str] | None:
    """From when on backfill keeps something for the job, and what, in words; None where it does not."""
    shadow = turn.allocator.shadow
    if shadow is not None and shadow.job == turn.job.id:
        return shadow.at, _place(shadow)
    bookings = turn.allocator.bookings
    if bookings is not None and turn.job.id in bookings.made:
        return max(turn.now_at, bookings.made[turn.job.id].at), _booked_place(bookings, turn.job.id)
    for path, hold in turn.allocator.holds.items():
        if hold.job == turn.job.id:
            return hold.at, f"its part of what queue {path} may hold"
    return None


def _place(shadow: Shadow) -> str:
    nodes = listed(sorted(shadow.nodes))
    return f"a place, on {nodes} or elsewhere," if shadow.floats else f"its place on {nodes}"


def since(what: str, at: int, now_at: int) -> str:
    """That backfill keeps something, and from when on."""
    if at == ENDLESS:
        return f"{what}, which becomes free nobody knows when, is kept by backfill"
    return f"{what} is kept by backfill {f'beginning {span(at - now_at)} from now' if at > now_at else 'from now on'}"


def _runs(turn: Turn, at: int) -> str:
    """For how long the job would run, where it could be short enough."""
    if at == ENDLESS:
        return ""
    seconds, _ = expected_s(turn.cluster.state, turn.job)
    if not seconds:
        return "; nobody knows for how long this one runs"
    return f"; this one would run for {span(seconds * SECOND_NS)}"


def _by(head: int, detail: str, at: int = ENDLESS) -> Reason:
    return Reason("order", detail, jobs=[head], jobs_count=1, at=None if at == ENDLESS else at)
