"""Whether a pass over the lines is needed at all, and over whom: nothing is looked at again that cannot have
changed."""

from bisect import bisect_left
from typing import TYPE_CHECKING

from muster.core.allocate import Allocator
from muster.core.cluster import Cluster
from muster.core.plan import Draft, Plan
from muster.core.reservations import use_reservations

if TYPE_CHECKING:
    from muster.core.standing import SortKey


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
        allocator.settle()
    return allocator


def newcomers(cluster: Cluster) -> dict[str, list[int]] | None:
    """Where only jobs behind a head have come since nothing could start: each line's head and those of them that are
    within its depth, in order. They are all that can start now. None = every line must be looked at."""
    state, backfill = cluster.state, cluster.state.policy.backfill
    if backfill.mode == "conservative":
        return None
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
        if bisect_left(line.keys, key) - bisect_left(line.keys, head) <= backfill.depth:
            places.setdefault(path, []).append(key)
    for path, keys in places.items():
        looked_at[path] += [key[-1] for key in sorted(keys)]
    return looked_at
