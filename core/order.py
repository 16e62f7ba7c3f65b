"""The order in which waiting jobs are looked at: a sort key per job, smallest first, unique by ending in its id."""

from collections.abc import Callable
from typing import Final

from muster.core.state import Job

SortKey = tuple[int, ...]
Order = Callable[[Job], SortKey]


def fifo(job: Job) -> SortKey:
    """First come, first served. A requeued job keeps its place."""
    return (job.id,)


ORDER: Final[Order] = fifo
POLICY: Final = "fifo/best-fit"
"""Order and placement by name, as decisions state them."""
ENGINE_VERSION: Final = 2
"""Grows whenever `decide` may give other decisions on the same state; decisions name it, the audit honours it."""
