"""Why a job waits, or why it got what it got: computed when asked, at any state. Pure.

Four steps. Filter: which nodes could hold a worker of it, and why the others cannot. Order: its place, and who holds it
back. Allocation: what it gets, or what is missing. Environment: what its workers see. Beside them every check that a
waiting job does not pass, what would let it start, and when that is expected.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from msgspec import structs

from muster.core.cluster import Cluster
from muster.core.explain_bounds import bound_reason, bounds_broken
from muster.core.explain_ends import being_stopped, once_stopped
from muster.core.explain_needs import needs_of
from muster.core.explain_nodes import (
    filter_step,
    free_devices,
    never_fits,
    refused_by_all,
    refused_nodes,
    what_is_missing,
)
from muster.core.explain_order import PLACES, ahead_reason, jobs_ahead, kept_for, order_reasons, order_step, since
from muster.core.explain_placed import explain_placed, explain_reserved, past_of
from muster.core.explain_room import RoomNeeded, room_needed, room_reasons
from muster.core.explain_stops import unstopped
from muster.core.explain_turn import Turn, pass_of, turn_of
from muster.core.explain_victims import staying_now, victims_planned
from muster.core.explain_words import jobs_named
from muster.core.explanation import AllocationStep, ExpectedStart, Explanation, Reason, WorkerPlace
from muster.core.forecast import Forecast
from muster.core.plan import Draft
from muster.core.queues import ENDLESS, Vector
from muster.core.state import Job
from muster.events.types import RoomReserved

FORECAST_MOST: Final = 100
"""The expected start of a job further back than this is not worked out."""
FITS: Final = "fits now: it starts with the next pass"
LATER: Final = "fits now, but one pass orders only so many starts: it starts with a later one"


def explain(cluster: Cluster, job_id: int) -> Explanation:
    """The explanation of a job. Raises KeyError for a job that the state does not have."""
    return begin(cluster, job_id).finish()


class Short(NamedTuple):
    """Why a job waits in a word or two, and in a line."""

    word: str
    text: str


class _Kept(NamedTuple):
    """What backfill keeps for a job, and from when on."""

    at: int
    what: str


class _Words(NamedTuple):
    """What is said of an expected start: where there is none, where it awaits nothing but stops, and of what backfill
    keeps."""

    unknown: str = ""
    at_once: str = ""
    kept: _Kept | None = None


class Unfinished:
    """An explanation but for when the job is expected to start. That takes longer than all the rest, and has what it
    needs of the cluster: `finish` may be called, once, in another thread while the cluster goes on."""

    def __init__(self, found: Explanation, forecast: Forecast | None = None, words: "_Words | None" = None) -> None:
        self.found: Final = found
        self._forecast: Final = forecast
        self._words: Final = words if words is not None else _Words()

    @property
    def takes_long(self) -> bool:
        """Whether anything is left to be worked out."""
        return self._forecast is not None

    def expected_workers(self) -> list[WorkerPlace]:
        """Where the job's workers are expected to start, once `finish` has come to it ([] = nobody knows)."""
        if self._forecast is None:
            return self.found.allocation.workers
        places = self._forecast.places.get(self.found.job, [])
        return [WorkerPlace(each.rank, each.node, each.devices) for each in places]

    def finish(self) -> Explanation:
        """The explanation."""
        if self._forecast is None:
            return self.found
        now_at = self._forecast.time_at
        at = self._forecast.starts().get(self.found.job)
        why = [self._words.unknown] if at is None else [self._words.at_once] if at <= now_at else []
        kept = self._words.kept
        if kept is not None and kept.at < (ENDLESS if at is None else at):
            why.append(f"{since(kept.what, kept.at, now_at)}, but another may be first in order by then")
        expected = ExpectedStart(at, None if at is None else (at - now_at) // 1_000_000, "; ".join(filter(None, why)))
        return structs.replace(self.found, expected=expected)


def begin(cluster: Cluster, job_id: int) -> Unfinished:
    """The explanation of a job but for its expected start. Raises KeyError for a job that the state does not have."""
    job = cluster.state.jobs[job_id]
    if job.phase != "PENDING":
        return Unfinished(explain_placed(cluster, job))
    room = cluster.state.rooms.get(job_id)
    if room is not None:
        forecast = Forecast(cluster, len(cluster.state.rooms))
        found = explain_reserved(cluster, job, room)
        awaited = [each.job for each in found.reservation.awaits if not each.gone] if found.reservation else []
        return Unfinished(found, forecast, _Words(_why_unknown(cluster, []), once_stopped(cluster, awaited)))
    return _begin_waiting(cluster, job)


def _begin_waiting(cluster: Cluster, job: Job) -> Unfinished:
    ahead = jobs_ahead(cluster, job)
    with turn_of(cluster, job) as (turn, turns):
        refused = refused_nodes(turn)
        free = free_devices(turn.draft.room, turn.asker.demand)
        filtered = filter_step(turn, refused)
        allocation = _allocation(turn, free)
        never = never_fits(turn)
        needed = room_needed(turn) if turn.found is None and not never else None
        held_back = order_reasons(turn)
        claims = _places(turn, needed)
        obstacles = bounds_broken(turn, claims)
        reasons = held_back + [bound_reason(turn, obstacle) for obstacle in obstacles]
        if never:
            reasons.append(Reason("capacity", allocation.why))
        else:
            reasons += room_reasons(turn, needed, refused, what_is_missing(turn, free))
        summary = _summary(turn, held_back, allocation.why).text
        needs = needs_of(turn, reasons, needed, claims)
        spared = unstopped(turn)
        refused_so = refused_by_all(turn) if turn.asker.excluded else ""
        before = staying_now(turn.draft.ledger)
        if turn.reached:
            next(turns, None)
        verdict, kept = _verdict(turn.draft, job.id), kept_for(turn)
        victims = victims_planned(turn.draft, job, before)
        reserved = _reserved(turn.draft, job.id)
    awaited: list[int] = []
    if verdict is not None:
        reasons, needs, spared, summary, kept = [], [], [], verdict, None
    elif turn.found is not None:
        allocation = structs.replace(allocation, why=f"fits on the nodes as they are: {turn.found.why}")
    if reserved is not None:
        awaited = _awaited(cluster, reserved)
        workers = [WorkerPlace(each.rank, each.node, each.devices) for each in reserved.placements]
        allocation = structs.replace(allocation, fits=False, workers=workers, why=f"will be reserved: {reserved.why}")
    if ahead and reasons:
        reasons.append(ahead_reason(ahead))
    heads = [reason.jobs[0] for reason in reasons if reason.kind == "order" and reason.jobs]
    found = Explanation(
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
        victims=victims,
        past=past_of(job),
    )
    known = _known_start(cluster, len(ahead) + 1, will_start=verdict is not None, never=bool(never))
    if known is not None:
        if known.at is not None:
            known = structs.replace(known, why=once_stopped(cluster, awaited))
        return Unfinished(structs.replace(found, expected=known))
    forecast = Forecast(cluster, len(cluster.state.rooms) + len(ahead) + 1)
    stopping = being_stopped(cluster, {other for reason in reasons for other in reason.jobs})
    at_once = once_stopped(cluster, stopping)
    unknown = refused_so if cluster.is_refused(job) else _why_unknown(cluster, reasons)
    words = _Words(unknown, at_once, _Kept(*kept) if kept is not None else None)
    return Unfinished(found, forecast, words)


def summaries(cluster: Cluster, wanted: Collection[int]) -> dict[int, str]:
    """Why each of some waiting jobs waits, in a line each."""
    return {job_id: short.text for job_id, short in in_short(cluster, wanted).items()}


def in_short(cluster: Cluster, wanted: Collection[int]) -> dict[int, Short]:
    """Why each of some waiting jobs waits, in short, from one pass."""
    found = {
        job_id: Short("reserved", explain_reserved(cluster, cluster.state.jobs[job_id], room).summary)
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


def _note_verdict(found: dict[int, Short], draft: Draft, job_id: int) -> None:
    stopped = _verdict(draft, job_id)
    if stopped is not None:
        found[job_id] = Short("next pass", stopped)


def _line(turn: Turn) -> Short:
    free = free_devices(turn.draft.room, turn.asker.demand)
    return _summary(turn, order_reasons(turn), what_is_missing(turn, free) if turn.found is None else LATER)


def _summary(turn: Turn, held_back: list[Reason], allocation: str) -> Short:
    """The first of the reasons."""
    if never_fits(turn):
        return Short("never fits", allocation)
    if held_back:
        head = f"waits {held_back[0].detail}"
        word = f"behind {held_back[0].jobs[0]}" if held_back[0].jobs else "order"
        return Short(word, f"{head}; it {allocation}" if turn.found is None else head)
    obstacles = bounds_broken(turn, _places(turn, None))
    if obstacles:
        broken = bound_reason(turn, obstacles[0], with_holders=False)
        return Short(broken.kind.replace("_", " "), f"waits: {broken.detail}")
    return Short("room", allocation) if turn.found is None else Short("next pass", LATER)


def _verdict(draft: Draft, job_id: int) -> str | None:
    """What the pass has done for a job; None where it lets it wait."""
    if job_id in draft.started:
        return FITS
    event = _reserved(draft, job_id)
    if event is None:
        return None
    if not event.victims:
        return "room that is being left will be reserved for it by the next pass"
    return f"{jobs_named([victim.job for victim in event.victims])} will be stopped for it by the next pass"


def _reserved(draft: Draft, job_id: int) -> RoomReserved | None:
    """The room that the pass reserves for a job."""
    if job_id not in draft.benefits:
        return None
    events = draft.plan.events
    return next((each for each in events if isinstance(each, RoomReserved) and each.job == job_id), None)


def _awaited(cluster: Cluster, reserved: RoomReserved) -> list[int]:
    """The jobs that a room to be reserved awaits: whom it has stopped, and who is leaving its devices already."""
    devices = {(place.node, device) for place in reserved.placements for device in place.devices}
    there = (
        job_id
        for place in reserved.placements
        for (job_id, _), worker in cluster.workers_on[place.node].items()
        if job_id in cluster.leaving and any((place.node, device) in devices for device in worker.devices)
    )
    return sorted({*there, *(victim.job for victim in reserved.victims)})


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


def _known_start(cluster: Cluster, place: int, *, will_start: bool, never: bool) -> ExpectedStart | None:
    """What is known of a start without a forecast."""
    if never:
        return ExpectedStart(None, None, "no state of the nodes could hold it")
    if will_start:
        return ExpectedStart(cluster.state.time_at, 0, "")
    if place > FORECAST_MOST:
        more = "behind those" if place > PLACES else f"number {place}"
        return ExpectedStart(None, None, f"worked out for the first {FORECAST_MOST} only; it is {more}")
    return None


def _why_unknown(cluster: Cluster, reasons: list[Reason]) -> str:
    """Why no forecast may say when a job starts."""
    awaited = {other for reason in reasons for other in reason.jobs}
    unknown = sorted(other for other in awaited if cluster.schedule.end_of(other) == ENDLESS)
    if unknown:
        return f"nobody knows for how long {jobs_named(unknown)} will run: no estimate, no history, no time limit"
    return "nothing whose end is known lets it start"
