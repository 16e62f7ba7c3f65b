"""The orders in which jobs wait, one module each: a pure function from a job's standing to its sort key."""

from collections.abc import Callable
from typing import assert_never

from muster.core.orders import fair, fifo, las, priority, sjf, srsf, srtf
from muster.core.standing import SortKey, Standing
from muster.events.policy import OrderName

__all__ = ["key_function"]


def key_function(order: OrderName) -> Callable[[Standing], SortKey]:
    """How an order ranks."""
    match order:
        case "fifo":
            return fifo.key
        case "priority":
            return priority.key
        case "fair":
            return fair.key
        case "sjf":
            return sjf.key
        case "srtf":
            return srtf.key
        case "srsf":
            return srsf.key
        case "las":
            return las.key
        case _:
            assert_never(order)
