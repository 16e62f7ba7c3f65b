"""Why a job waits, or why it got what it got: computed when asked, at any state. Pure.

Four steps. Filter: which nodes could hold a worker of it, and why the others cannot. Order: its place, and who holds it
back. Allocation: what it gets, or what is missing. Environment: what its workers see. Beside them every check that a
waiting job does not pass, what would let it start, and when that is expected.
"""

from collections.abc import Collection, Iterator
from typing import Final

from msgspec import structs

from muster.core.cluster import Cluster
from muster.core.explain_bounds import bound_reason, bounds_broken
from muster.core.explain_needs import needs_of
from muster.core.explain_nodes import filter_step, free_devices, never_fits, refused_nodes, what_is_missing
from muster.core.explain_order import ahead_reason, jobs_ahead, order_reasons, order_step
from muster.core.explain_placed import explain_placed, explain_reserved, past_of
from muster.core.explain_room import RoomNeeded, room_needed, room_reasons
from muster.core.explain_stops import unstopped
from muster.core.explain_turn import Turn, pass_of, turn_of
from muster.core.explain_words import jobs_named
from muster.core.explanation import AllocationStep, ExpectedStart, Explanation, Reason, WorkerPlace
from muster.core.forecast import expected_starts
from muster.core.plan import Draft
from muster.core.queues import ENDLESS, Vector
from muster.core.state import Job
from muster.events.types import RoomReserved

FORECAST_MOST: Final = 100
"""The expected start of a job further back than this is not worked out."""
FITS: Final = "fits now: it starts with the next pass"


def explain(cluster: Cluster, job_id: int) -> Explanation:
    """The explanation of a job. Raises KeyError for a job that the state does not have."""
    job = cluster.state.jobs[job_id]
    if job.phase != "PENDING":
        return explain_placed(cluster, job)
    room = cluster.state.rooms.get(job_id)
    if room is not None:
        return structs.replace(explain_reserved(cluster, job, room), expected=_expected(cluster, job, 0, []))
    return _explain_waiting(cluster, job)


def _explain_waiting(cluster: Cluster, job: Job) -> Explanation:
    ahead = jobs_ahead(cluster, job)
    with turn_of(cluster, job) as (turn, turns):
        refused = refused_nodes(turn)
        free = free_devices(turn.draft.room, turn.asker.demand)
        filtered = filter_step(turn, refused)
        allocation = _allocation(turn, free)
        never = never_fits(turn)
        needed = room_needed(turn) if turn.found is None and not never else None
        held_back = order_reasons(turn)
        obstacles = bounds_broken(turn, _places(turn, needed))
        reasons = held_back + [bound_reason(turn, obstacle) for obstacle in obstacles]
        if never:
            reasons.append(Reason("capacity", allocation.why))
        else:
            reasons += room_reasons(turn, needed, refused, what_is_missing(turn, free))
        summary = _summary(turn, held_back, allocation.why)
        needs = needs_of(turn, reasons, needed)
        spared = unstopped(turn)
        stopped = _considered(turn, turns, job)
    if stopped is not None:
        reasons, needs, spared, summary = [], [], [], stopped
    if ahead and reasons:
        reasons.append(ahead_reason(ahead))
    heads = [reason.jobs[0] for reason in reasons if reason.kind == "order" and reason.jobs]
    return Explanation(
        job.id,
        job.phase,
        cluster.state.sequence,
        summary,
        filtered,
        order_step(cluster, job, ahead, heads[0] if heads else 0),
        allocation,
        [],
        reasons=reasons,
        needs=needs,
        unstopped=spared if reasons and not never else [],
        expected=_expected(cluster, job, len(ahead), reasons),
        past=past_of(job),
    )


def summaries(cluster: Cluster, wanted: Collection[int]) -> dict[int, str]:
    """Why each of some waiting jobs waits, in a line each, from one pass."""
    found = {
        job_id: explain_reserved(cluster, cluster.state.jobs[job_id], room).summary
        for job_id, room in cluster.state.rooms.items()
        if job_id in wanted
    }
    awaited = {job_id for job_id in wanted if job_id not in found and cluster.state.jobs[job_id].phase == "PENDING"}
    with pass_of(cluster) as (draft, allocator, turns):
        previous = 0
        for job in turns:
            if previous:
                _note_verdict(found, draft, previous)
            previous = 0
            if job.id in awaited:
                awaited.discard(job.id)
                found[job.id] = _line(Turn(draft, allocator, job, reached=True))
                previous = job.id
            elif not awaited:
                break
        if previous:
            _note_verdict(found, draft, previous)
        for job_id in sorted(awaited):
            found[job_id] = _line(Turn(draft, allocator, cluster.state.jobs[job_id], reached=False))
    return found


def _note_verdict(found: dict[int, str], draft: Draft, job_id: int) -> None:
    stopped = _verdict(draft, job_id)
    if stopped is not None:
        found[job_id] = stopped


def _line(turn: Turn) -> str:
    missing = (
        FITS if turn.found is not None else what_is_missing(turn, free_devices(turn.draft.room, turn.asker.demand))
    )
    return _summary(turn, order_reasons(turn), missing)


def _summary(turn: Turn, held_back: list[Reason], allocation: str) -> str:
    """The first of the reasons in a line."""
    if never_fits(turn):
        return allocation
    if held_back:
        head = f"waits {held_back[0].detail}"
        return f"{head}; it {allocation}" if turn.found is None else head
    obstacles = bounds_broken(turn, _places(turn, None))
    if obstacles:
        return f"waits: {bound_reason(turn, obstacles[0], with_holders=False).detail}"
    return allocation


def _considered(turn: Turn, turns: Iterator[Job], job: Job) -> str | None:
    """What the pass does for the job when it comes to it; None where it waits."""
    if turn.reached:
        next(turns, None)
    return _verdict(turn.draft, job.id)


def _verdict(draft: Draft, job_id: int) -> str | None:
    if job_id in draft.started:
        return FITS
    if job_id not in draft.benefits:
        return None
    for event in draft.plan.events:
        if isinstance(event, RoomReserved) and event.job == job_id:
            return f"{jobs_named([victim.job for victim in event.victims])} will be stopped for it by the next pass"
    return None


def _allocation(turn: Turn, free: int) -> AllocationStep:
    asked = turn.asker.demand.gpus
    if turn.found is None:
        why = what_is_missing(turn, free)
        return AllocationStep(fits=False, asked_devices=asked, free_devices=free, workers=[], why=why)
    workers = [WorkerPlace(rank, share.node, list(share.devices)) for rank, share in enumerate(turn.found.shares)]
    why = f"fits now: {turn.found.why}"
    return AllocationStep(fits=True, asked_devices=asked, free_devices=free, workers=workers, why=why)


def _places(turn: Turn, needed: RoomNeeded | None) -> list[Vector]:
    """What the job would claim where it goes now, or else where it would go."""
    found = turn.spared or turn.found or (needed.found if needed is not None else None)
    return [turn.draft.vector((share, turn.asker.demand) for share in found.shares)] if found is not None else []


# -- when ------------------------------------------------------------------------------------------------------------


def _expected(cluster: Cluster, job: Job, ahead: int, reasons: list[Reason]) -> ExpectedStart:
    """When the job is expected to start, or why nobody knows."""
    if any(reason.kind == "capacity" for reason in reasons):
        return ExpectedStart(None, None, "no state of the nodes could hold it")
    place = ahead + 1
    if place > FORECAST_MOST:
        return ExpectedStart(None, None, f"worked out for the first {FORECAST_MOST} only; it is number {place}")
    at = expected_starts(cluster, len(cluster.state.rooms) + place).get(job.id)
    if at is not None:
        return ExpectedStart(at, (at - cluster.state.time_at) // 1_000_000, "")
    unknown = sorted(
        {other for reason in reasons for other in reason.jobs if cluster.schedule.end_of(other) == ENDLESS}
    )
    if unknown:
        why = f"nobody knows for how long {jobs_named(unknown)} will run: no estimate, no history, no time limit"
        return ExpectedStart(None, None, why)
    return ExpectedStart(None, None, "nothing whose end is known lets it start")
