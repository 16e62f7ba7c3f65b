"""Forecasts are worked out beside the event loop, one at a time; the loop keeps at least every other turn."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
_FORECASTER: Final = ThreadPoolExecutor(1, "forecast")


async def beside_the_loop(work: Callable[[], T]) -> T:
    """The result of `work`, which must need nothing that the loop goes on changing."""
    return await asyncio.get_running_loop().run_in_executor(_FORECASTER, work)
