"""Whether a pass over the lines is needed at all, and over whom: nothing is looked at again that cannot have
changed."""

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from muster.core.allocate import Allocator
from muster.core.backfill import depth_behind
from muster.core.cluster import Cluster
from muster.core.plan import Draft, Plan
from muster.core.queues import ENDLESS
from muster.core.reservations import use_reservations
from muster.core.schedule import SECOND_NS

if TYPE_CHECKING:
    from muster.core.standing import SortKey

LOOK_NS: Final = 60 * SECOND_NS
"""How long a pass that nobody knows the outlook of is not taken again while nothing changes."""


def place_waiting(plan: Plan) -> Allocator | None:
    """Start what can start now. Gives who worked through the lines; None where nobody had to."""
    cluster = plan.cluster
    settled = cluster.settled_until is not None and plan.now_at < cluster.settled_until
    if (settled and not cluster.fresh) or not (cluster.lines.count or cluster.state.rooms):
        return None
    only = newcomers(cluster) if settled else None
    if only is not None and all(len(jobs) == 1 for jobs in only.values()):
        cluster.fresh.clear()  # all of them are too far behind a head
        return None
    if cluster.state.policy.backfill.mode == "conservative":
        only = None  # those before them are to be booked first
    before = len(plan.events)
    draft = Draft(plan)
    try:
        allocator = Allocator(draft, only)
        if use_reservations(draft):
            allocator.run()
    finally:
        allocator.close()
        draft.close()
    if len(plan.events) == before:
        _settle(plan, allocator)
    return allocator


def _settle(plan: Plan, allocator: Allocator) -> None:
    """Note that nothing can start, and until when; and the heads, behind which newcomers may."""
    cluster = plan.cluster
    until, look_at = _outlook(plan, allocator)
    if not allocator.is_whole and until is not None and cluster.settled_until is not None:
        until = min(until, cluster.settled_until)
        look_at = look_at if cluster.look_at is None else min(look_at, cluster.look_at)
    cluster.settled_until, cluster.look_at = until, look_at
    if allocator.is_whole or allocator.reservation is not None:
        cluster.reservation = allocator.reservation
    cluster.fresh.clear()
    if allocator.is_whole:
        cluster.heads.clear()
        cluster.heads.update({path: line.blocked_by for path, line in allocator.lines.items() if line.blocked_by})


def _outlook(plan: Plan, allocator: Allocator) -> tuple[int | None, int]:
    """Until when nothing can start if nothing changes (None = who knows), and when to look again in any case."""
    cluster, wake_at = plan.cluster, allocator.wake_at
    fair = any(len(line.users) > 1 for line in cluster.lines.by_queue.values())
    if fair or allocator.has_looked_for_victims:  # as time goes by another user may come first, or others be cheaper
        return None, min(wake_at, plan.now_at + LOOK_NS)
    if allocator.bookings is not None and allocator.bookings.made:  # what runs for longer than expected moves them
        first_end_at = next(cluster.schedule.in_order(), (ENDLESS, 0))[0]
        if first_end_at <= plan.now_at:
            return None, min(wake_at, plan.now_at + LOOK_NS)
        wake_at = min(wake_at, first_end_at)
    return wake_at, wake_at


def newcomers(cluster: Cluster) -> dict[str, list[int]] | None:
    """Where only jobs behind a head have come since nothing could start: each line's head and those of them that are
    within its depth, in order. They are all that can start now. None = every line must be looked at."""
    state, backfill = cluster.state, cluster.state.policy.backfill
    depth = depth_behind(backfill, len(cluster.lines.by_queue))
    looked_at = {path: [head] for path, head in cluster.heads.items()}
    places: dict[str, list[SortKey]] = {}
    for job_id in cluster.fresh:
        job = state.jobs[job_id]
        path = job.spec.queue
        line = cluster.lines.by_queue[path]
        if line.order == "fair" or path not in cluster.heads:
            return None
        head = cluster.lines.key_of(state.jobs[cluster.heads[path]], line.order)
        key = cluster.lines.key_of(job, line.order)
        if key < head:
            return None
        if bisect_left(line.keys, key) - bisect_left(line.keys, head) <= depth:
            places.setdefault(path, []).append(key)
    for path, keys in places.items():
        looked_at[path] += [key[-1] for key in sorted(keys)]
    return looked_at
