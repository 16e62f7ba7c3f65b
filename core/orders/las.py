"""Least attained service, in two queues: for work of which nobody knows how long it runs."""

from typing import Final

from muster.core.standing import SortKey, Standing

FIRST_QUEUE_NS: Final = 3_600 * 1_000_000_000
"""Who has taken so much time of devices is in the second queue."""


def key(standing: Standing) -> SortKey:
    """Those of the first queue are first, and of each queue whoever has waited longest."""
    return int(standing.served_ns >= FIRST_QUEUE_NS), standing.since, standing.job
