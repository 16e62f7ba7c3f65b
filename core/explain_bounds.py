"""Explanations, bounds: what queues, users, lanes and guarantees leave for a waiting job, and who holds the rest."""

from collections.abc import Callable, Iterator
from typing import Final

from muster.core.explain_turn import Turn
from muster.core.explain_words import LISTED, amounts_over, devices, jobs_named, part_of, quantity
from muster.core.explanation import Amount, Reason, Resource
from muster.core.ledger import Claimant, Ledger, Obstacle, ObstacleKind
from muster.core.plan import Draft
from muster.core.queues import NOTHING, Queue, Vector, within
from muster.core.state import Job

_DIMENSION: Final = {"devices": 0, "device_memory": 1, "cpus": 2, "memory": 3}
HOLDERS_NAMED: Final = 3


def bounds_broken(turn: Turn, claims: list[Vector]) -> list[Obstacle]:
    """Every bound that the job would break now: by what it claims at least, and by these claims, which it would have in
    some place. A limit is named where it was set, not for each queue below."""
    ledger = turn.draft.ledger
    found: dict[tuple[str, str], Obstacle] = {}
    for claim in (turn.asker.least, *claims):
        for obstacle in ledger.obstacles(turn.asker.claimant, claim):
            inherited = obstacle.kind == "queue_limit" and not ledger.tree.queues[obstacle.name].has_own_limit
            if not inherited:
                found.setdefault((obstacle.kind, obstacle.name), obstacle)
    return list(found.values())


def lasting_bounds(turn: Turn, claims: list[Vector]) -> set[tuple[ObstacleKind, str]]:
    """The bounds, by kind and name, that the job would break even if nothing were held: no end of others helps."""
    empty = Ledger(turn.draft.ledger.tree)
    who = turn.asker.claimant
    broken = (each for claim in (turn.asker.least, *claims) for each in empty.obstacles(who, claim))
    return {(each.kind, each.name) for each in broken}


def bound_reason(turn: Turn, obstacle: Obstacle, *, with_holders: bool = True) -> Reason:
    """A broken bound with its sums; who holds most of it, where that is asked for."""
    amounts = amounts_over(obstacle.held, obstacle.bound, obstacle.adds)
    holders = _holders(turn, obstacle, amounts[0]) if with_holders and amounts and obstacle.kind != "job_limit" else []
    detail = "; ".join(_sum(turn, obstacle, amount) for amount in amounts[:1])
    if holders:
        detail += f"; most is held by {jobs_named(holders[:HOLDERS_NAMED])}"
    name = ", ".join(keepers(turn)) if obstacle.kind == "kept" else obstacle.name
    return Reason(obstacle.kind, detail, name, holders[:LISTED], len(holders), amounts=amounts)


def _sum(turn: Turn, obstacle: Obstacle, amount: Amount) -> str:
    queue, user = obstacle.name, turn.job.user
    held = part_of(amount.resource, amount.held, amount.bound)
    adds = quantity(amount.resource, amount.adds) + _given_up(turn, obstacle, amount)
    match obstacle.kind:
        case "job_limit":
            return (
                f"one job may hold {quantity(amount.resource, amount.bound)} in queue {queue}, and it asks for {adds}"
            )
        case "user_limit":
            return f"{user} holds {held} that one user may in queue {queue}; it adds {adds}"
        case "urgent_limit":
            urgent = turn.draft.ledger.tree.queues[queue].urgent_from
            return f"jobs of priority {urgent} and above hold {held} that they may in queue {queue}; it adds {adds}"
        case "lane":
            return f"lane {queue} is kept for small jobs: {_left_by_lane(turn, obstacle, amount)}; it adds {adds}"
        case "kept":
            who = _kept_by(turn, amount.resource)
            return f"queues keep what they lend to nobody, {who}: {held} left are held; it adds {adds}"
        case _:
            return f"queue {queue} holds {held} that it may; it adds {adds}"


def _left_by_lane(turn: Turn, obstacle: Obstacle, amount: Amount) -> str:
    """What others hold of what lanes leave, less what queues keep of that."""
    left = turn.draft.ledger.tree.total[0] - lane_size(turn, obstacle.name)
    if left == amount.bound:
        return f"others hold {part_of('devices', amount.held, amount.bound)} that it leaves"
    held = f"others hold {part_of('devices', amount.held, amount.bound)}"
    return f"{held} (it leaves {devices(left)}, less what queues lend to nobody: {_kept_by(turn, 'devices')})"


def lane_size(turn: Turn, names: str) -> int:
    """The thousandths of devices that lanes are kept, by their names in one line."""
    return sum(lane.size for lane in turn.draft.ledger.tree.lanes if lane.name in names.split(", "))


def _kept_by(turn: Turn, resource: Resource) -> str:
    place = _DIMENSION[resource]
    kept = [(queue.path, left[place]) for queue, left in _keeping(turn)]
    return ", ".join(f"{path} ({quantity(resource, left)})" for path, left in kept if left)


def keepers(turn: Turn) -> list[str]:
    """The queues that keep something from the job, in other such queues too."""
    held, mine = turn.draft.ledger.held, turn.asker.claimant.queue
    every = turn.draft.ledger.tree.keepers
    return [each.path for each in every if not mine.is_under(each) and not within(each.kept, held[each.path])]


def kept_in_all(turn: Turn, resource: Resource) -> int:
    """How much of a resource those queues keep."""
    return sum(left[_DIMENSION[resource]] for _, left in _keeping(turn))


def _keeping(turn: Turn) -> list[tuple[Queue, Vector]]:
    ledger = turn.draft.ledger
    return ledger.tree.keeping(turn.asker.claimant.queue, lambda queue: ledger.held[queue.path])


def _given_up(turn: Turn, obstacle: Obstacle, amount: Amount) -> str:
    """Who is being stopped holds still, beside the room that is reserved: how much of the sum that is."""
    ledger, place = turn.draft.ledger, _DIMENSION[amount.resource]
    match obstacle.kind:
        case "queue_limit":
            leaving = ledger.leaving[obstacle.name][place]
        case "user_limit":
            leaving = ledger.users_leaving.get((obstacle.name, turn.job.user), NOTHING)[place]
        case "urgent_limit":
            leaving = ledger.urgent_leaving.get(obstacle.name, NOTHING)[place]
        case "lane":
            names = [lane.name for lane in ledger.tree.lanes]
            leaving = ledger.outside[names.index(obstacle.name)][1] if obstacle.name in names else ledger.large[1]
        case "kept":
            leaving = ledger.all_leaving[place]
        case _:
            leaving = 0
    return (
        f"; {quantity(amount.resource, leaving)} of what is held will be free once jobs have stopped" if leaving else ""
    )


def _holders(turn: Turn, obstacle: Obstacle, amount: Amount) -> list[int]:
    """The jobs that hold of a bound, the largest first."""
    draft, ledger = turn.draft, turn.draft.ledger
    counts = _counts(turn, obstacle)
    place = _DIMENSION[amount.resource]
    sizes: list[tuple[int, int]] = []
    for job in holding(draft, _under(turn, obstacle)):
        if counts(job, ledger.claimant(job)):
            claim = held_by(draft, job)
            if claim[place]:
                sizes.append((-claim[place], job.id))
    return [job_id for _, job_id in sorted(sizes)]


def _under(turn: Turn, obstacle: Obstacle) -> Queue | None:
    queues = turn.draft.ledger.tree.queues
    return None if obstacle.kind in ("lane", "kept") else queues[obstacle.name]


def _counts(turn: Turn, obstacle: Obstacle) -> Callable[[Job, Claimant], bool]:
    """Whether a job's claim is in the sum that the bound is about."""
    match obstacle.kind:
        case "user_limit":
            return lambda job, _: job.user == turn.job.user
        case "urgent_limit":
            return lambda _, who: obstacle.name in who.urgent
        case "lane":
            names = [lane.name for lane in turn.draft.ledger.tree.lanes]
            if obstacle.name in names:
                return lambda _, who: not who.lanes[names.index(obstacle.name)]
            return lambda _, who: not who.small
        case _:
            return lambda *_: True


def holding(draft: Draft, under: Queue | None) -> Iterator[Job]:
    """The jobs that hold something, or have room reserved, under a queue or anywhere."""
    cluster, queues = draft.cluster, draft.ledger.tree.queues
    jobs = cluster.state.jobs
    running = [job_id for line in cluster.schedule.by_queue.values() for _, job_id in line]
    for job_id in dict.fromkeys((*running, *draft.started, *cluster.state.rooms, *sorted(draft.benefits))):
        job = jobs[job_id]
        if under is None or queues[job.spec.queue].is_under(under):
            yield job


def held_by(draft: Draft, job: Job) -> Vector:
    """What a job holds, or has reserved, in the ledger's terms."""
    cluster = draft.cluster
    if job.id in draft.started or (job.attempt is not None and cluster.is_live(job)):
        return draft.vector(draft.claims_of(job))
    room = cluster.state.rooms.get(job.id)
    return draft.vector(cluster.room_claims(room)) if room is not None else NOTHING
