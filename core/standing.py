"""What the place of a job in an order may depend on, in plain numbers.

All of it stays as it is while a job waits, so that nobody's place is ever to be worked out again.
"""

from typing import Final, NamedTuple

HOUR_NS: Final = 3_600_000_000_000

SortKey = tuple[int, ...]
"""Smallest first; unique by ending in the job's id."""


class Standing(NamedTuple):
    """A job that waits, or that runs and is ranked among those that wait. `since` is the sequence since which it waits,
    `since_at` the logical time of that. `milli` are the devices that it takes, in thousandths of one."""

    job: int
    since: int = 0
    since_at: int = 0
    priority: int = 0
    ageing: int = 0  # points of priority that an hour of waiting adds
    milli: int = 0
    expected_ns: int = 0  # how long it is expected to run in all; 0 = nobody knows
    done_ns: int = 0  # for how long it has run, as far as that is not lost
    served_ns: int = 0  # the time of whole devices that its attempts have taken, all of them

    @property
    def unknown(self) -> int:
        """1 where nobody knows how long it runs, else 0: such jobs come last."""
        return 0 if self.expected_ns else 1

    @property
    def left_ns(self) -> int:
        """For how long it is expected to run yet (0 where nobody knows)."""
        return max(0, self.expected_ns - self.done_ns)
