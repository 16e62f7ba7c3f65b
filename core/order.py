"""The order in which the waiting jobs of a queue are looked at, and what users and jobs have taken, which it may go
by."""

from typing import Final

from muster.core.fading import Fading
from muster.core.orders import key_function
from muster.core.schedule import SECOND_NS
from muster.core.standing import SortKey, Standing
from muster.core.state import Attempt, Job, PastUse, State
from muster.events.binding import WHOLE_COMPUTE
from muster.events.policy import OrderName, Policy

ENGINE_VERSION: Final = 5
"""Grows whenever `decide` may give other decisions on the same state; decisions name it, the audit honours it."""

_MS_NS: Final = SECOND_NS // 1000


def policy_name(policy: Policy) -> str:
    """Order, backfill and placement by name, as decisions state them."""
    return f"{policy.order}/{policy.backfill.mode}/{policy.placement}"


def order_of(state: State, queue: str) -> OrderName:
    """By which order a queue's jobs wait."""
    spec = state.queues.get(queue)
    return state.policy.order if spec is None or spec.order is None else spec.order


def sort_key(order: OrderName, ageing: int, job: Job, milli: int) -> SortKey:
    """The place of a job, which takes so many thousandths of devices, among those that wait."""
    return key_function(order)(
        Standing(
            job.id,
            job.since,
            job.since_at,
            job.priority,
            ageing,
            milli,
            job.expected_s * SECOND_NS,
            job.done_ms * _MS_NS,
            job.served_ms * _MS_NS,
        )
    )


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


def note_use(state: State, job: Job, change: int, fading: Fading | None) -> None:
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
    if fading is not None:
        fading.note(key, use)


def note_service(state: State, job: Job, attempt: Attempt, milli: int) -> None:
    """An attempt that took so many thousandths of devices is over: what it took, and what of it is not lost, since the
    job was told in time to save it. Of one whose time ran out nobody knows how much is left: as much as before."""
    if not attempt.started_at:
        return
    ran_ms = max(0, state.time_at - attempt.started_at) // _MS_NS
    job.served_ms += ran_ms * milli // WHOLE_COMPUTE
    if attempt.stop == "preempted" and attempt.failure is None and job.spec.preemption.signal is not None:
        job.done_ms += ran_ms
