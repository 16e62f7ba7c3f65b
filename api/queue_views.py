"""Queues and the policy as people read them."""

from typing import Any

import msgspec

from muster.api.times import rfc3339_or_none
from muster.core.cluster import Cluster
from muster.core.queues import ENDLESS, NOTHING, UNBOUNDED, Queue, Tree, resolve
from muster.core.state import ENDED, Job, State
from muster.events.policy import OrderName, Policy, Portion, QueueSpec


class QueueRow(msgspec.Struct, frozen=True):
    """One queue: what it was given, and what it holds. A parent counts what is below it. Amounts of devices are in
    thousandths of one, shares in millionths of the cluster (the largest of devices, device memory, CPUs and host
    memory); `order` is the one in force. `share_ppm` is what it holds and what is reserved for it, without what is
    being stopped; `entitled_ppm` what it would have if everybody asked."""

    name: str
    weight: int
    guarantee: Portion | None
    limit: Portion | None
    order: OrderName
    running: int
    pending: int
    devices_held_milli: int
    guarantee_milli: int
    limit_milli: int | None
    share_ppm: int
    entitled_ppm: int
    takes_jobs: bool
    spec: QueueSpec


class QueuePage(msgspec.Struct, frozen=True):
    """All queues, each before those below it."""

    sequence: int
    time: str | None
    queues: list[QueueRow]


class QueueUser(msgspec.Struct, frozen=True):
    """What a user has in a queue and in those below it."""

    user: str
    running: int
    pending: int
    devices_held_milli: int


class QueueAnswer(QueueRow, frozen=True):
    """One queue: also how many devices (in thousandths) each of its portions comes to on the cluster as it is
    (`bounds_milli`; None = it bounds nothing; `kept` is what it lends to nobody), and its users, the largest first."""

    sequence: int
    bounds_milli: dict[str, int | None]
    users: list[QueueUser]


class PolicyView(msgspec.Struct, frozen=True):
    """The policy in force with every field, and what each is where nobody says otherwise."""

    sequence: int
    policy: dict[str, Any]
    default: dict[str, Any]


class _Counts:
    """What a queue and those below it, or a user there, have."""

    __slots__ = ("held_milli", "pending", "running")

    def __init__(self) -> None:
        self.running = self.pending = self.held_milli = 0


def queue_rows(cluster: Cluster) -> list[QueueRow]:
    """All queues, each before those below it. What waits and what runs is counted by lines, not by jobs."""
    state, ledger = cluster.state, cluster.ledger()
    tree = ledger.tree
    counts = {path: _Counts() for path in tree.queues}
    for path, line in cluster.lines.by_queue.items():
        _count(counts, tree, path, pending=len(line.keys))
    for path, ends in cluster.schedule.by_queue.items():
        _count(counts, tree, path, running=len(ends))
    for job_id in cluster.to_judge:  # its attempt is over, and it has not been requeued yet
        _count(counts, tree, state.jobs[job_id].spec.queue, running=1)
    for room in state.rooms.values():
        reserved_milli = sum(cluster.vector_of(*claim)[0] for claim in cluster.room_claims(room))
        _count(counts, tree, state.jobs[room.job].spec.queue, pending=1, held_milli=-reserved_milli)
    for path, held in ledger.held.items():
        counts[path].held_milli += held[0]
    return [_row(queue, counts[path], tree.share_ppm(ledger.staying(queue))) for path, queue in tree.queues.items()]


def _count(
    counts: dict[str, _Counts], tree: Tree, path: str, *, running: int = 0, pending: int = 0, held_milli: int = 0
) -> None:
    if path in tree.queues:
        for queue in tree.queues[path].upwards():
            count = counts[queue.path]
            count.running += running
            count.pending += pending
            count.held_milli += held_milli


def queue_answer(cluster: Cluster, name: str) -> QueueAnswer:
    """All about a queue that is there."""
    row = next(row for row in queue_rows(cluster) if row.name == name)
    queue = cluster.ledger().tree.queues[name]
    return QueueAnswer(
        **msgspec.structs.asdict(row),
        sequence=cluster.state.sequence,
        bounds_milli=_bounds_milli(queue),
        users=_users(cluster, queue),
    )


def _held_milli(cluster: Cluster, job: Job) -> int:
    """Thousandths of devices that a job holds, as the ledger counts them."""
    if job.attempt is None or not cluster.is_live(job):
        return 0
    demand, workers = cluster.demand(job), job.attempt.workers
    return sum(cluster.vector_of(cluster.share_of(job, each), demand)[0] for each in workers if each.phase != "gone")


def _bounds_milli(queue: Queue) -> dict[str, int | None]:
    spec = queue.spec
    bounds = {
        "guarantee": queue.guarantee,
        "limit": queue.ceiling,
        "borrow": UNBOUNDED if spec.borrow is None else resolve(spec.borrow, queue.guarantee),
        "kept": queue.kept,
        "reclaim_step": queue.step,
        "user_limit": queue.user_bound,
        "urgent_limit": queue.urgent_bound,
        "max_job": queue.job_bound,
    }
    return {name: None if bound[0] == ENDLESS else bound[0] for name, bound in bounds.items()}


def _users(cluster: Cluster, queue: Queue) -> list[QueueUser]:
    counts: dict[str, _Counts] = {}
    queues = cluster.ledger().tree.queues
    for job in cluster.state.jobs.values():
        its_queue = queues.get(job.spec.queue)
        if job.phase not in ENDED and its_queue is not None and its_queue.is_under(queue):
            count = counts.setdefault(job.user, _Counts())
            count.pending += job.phase == "PENDING"
            count.running += job.phase != "PENDING"
            count.held_milli += _held_milli(cluster, job)
    users = [QueueUser(user, each.running, each.pending, each.held_milli) for user, each in counts.items()]
    return sorted(users, key=lambda each: (-each.devices_held_milli, each.user))


def _row(queue: Queue, counts: _Counts, share_ppm: int) -> QueueRow:
    spec = queue.spec
    return QueueRow(
        name=queue.path,
        weight=spec.weight,
        guarantee=spec.guarantee,
        limit=spec.limit,
        order=queue.order,
        running=counts.running,
        pending=counts.pending,
        devices_held_milli=counts.held_milli,
        guarantee_milli=0 if queue.guarantee == NOTHING else queue.guarantee[0],
        limit_milli=None if queue.ceiling[0] == ENDLESS else queue.ceiling[0],
        share_ppm=share_ppm,
        entitled_ppm=queue.entitled_ppm,
        takes_jobs=queue.is_leaf,
        spec=spec,
    )


def queue_page(cluster: Cluster) -> QueuePage:
    """All queues, with the moment they are of."""
    state = cluster.state
    return QueuePage(state.sequence, rfc3339_or_none(state.timestamp_ns), queue_rows(cluster))


def policy_view(state: State) -> PolicyView:
    """The policy, spelled out."""
    return PolicyView(state.sequence, spelled_out(state.policy), spelled_out(Policy()))


def spelled_out(part: Any) -> Any:
    """A part of a configuration with every field, also those left at their default."""
    if isinstance(part, msgspec.Struct):
        return {name: spelled_out(value) for name, value in msgspec.structs.asdict(part).items()}
    return [spelled_out(each) for each in part] if isinstance(part, list) else part
