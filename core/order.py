"""The order in which the waiting jobs of a queue are looked at: a sort key per job, smallest first, unique by ending in
the job's id."""

from typing import Final

from muster.core.state import Job, PastUse, State
from muster.events.policy import OrderName, Policy

ENGINE_VERSION: Final = 4
"""Grows whenever `decide` may give other decisions on the same state; decisions name it, the audit honours it."""

SortKey = tuple[int, ...]
HOUR_NS: Final = 3_600_000_000_000


def policy_name(policy: Policy) -> str:
    """Order, backfill and placement by name, as decisions state them."""
    return f"{policy.order}/{policy.backfill.mode}/{policy.placement}"


def order_of(state: State, queue: str) -> OrderName:
    """By which order a queue's jobs wait."""
    spec = state.queues.get(queue)
    return state.policy.order if spec is None or spec.order is None else spec.order


def sort_key(order: OrderName, ageing: int, job: Job) -> SortKey:
    """A job's place. Under `priority` a job gains `ageing` points an hour: since all gain alike, its place among the
    others never changes. Under `fair` it is its place among its user's jobs."""
    if order == "priority":
        return ageing * job.since_at - job.priority * HOUR_NS, job.since, job.id
    return job.since, job.id


def duration_s(duration: int | str) -> int:
    """A checked duration, which is whole seconds (text, which no checked entry has, is none)."""
    return duration if isinstance(duration, int) else 0


def faded(use: PastUse, half_life_s: int, time_at: int) -> int:
    """A user's past use as of now, in device-milliseconds: it halves every half-life, in a straight line within one."""
    elapsed_ns = max(0, time_at - use.settled_at)
    half_ns = max(1, half_life_s * 1_000_000_000)
    halvings, rest_ns = divmod(elapsed_ns, half_ns)
    left = use.device_ms >> min(halvings, 200)
    left -= left * rest_ns // (2 * half_ns)
    return left + use.held * elapsed_ns // 1_000_000_000


def note_use(state: State, job: Job, change: int) -> None:
    """A user holds so many thousandths of devices more, or less, from now on."""
    if not change:
        return
    key = f"{job.spec.queue}\n{job.user}"
    use = state.past_use.get(key)
    if use is None:
        use = state.past_use[key] = PastUse(settled_at=state.time_at)
    use.device_ms = faded(use, duration_s(state.policy.half_life), state.time_at)
    use.settled_at = state.time_at
    use.held = max(0, use.held + change)
