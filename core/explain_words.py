"""Numbers as explanations say them."""

from collections.abc import Sequence
from typing import Final

from muster.core.explanation import Amount, Resource
from muster.core.queues import ENDLESS, Vector
from muster.core.schedule import SECOND_NS
from muster.events.binding import WHOLE_COMPUTE

SHOWN: Final = 5
LISTED: Final = 50
_RESOURCES: Final[tuple[Resource, ...]] = ("devices", "device_memory", "cpus", "memory")


def span(length_ns: int) -> str:
    """A length of time by its two largest units: "2d03h", "1h05m", "3m20s", "40s"."""
    seconds = max(0, length_ns) // SECOND_NS
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def devices(milli: int) -> str:
    """Thousandths of devices as devices: "3 devices", "0.5 devices", "1 device"."""
    return f"{milli / WHOLE_COMPUTE:g} device{'' if milli == WHOLE_COMPUTE else 's'}"


def listed(names: Sequence[object], count: int = 0) -> str:
    """The first few of a list, and how many more there are of `count` in all."""
    shown = [str(name) for name in names[:SHOWN]]
    more = max(count, len(names)) - len(shown)
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def jobs_named(jobs: Sequence[int], count: int = 0) -> str:
    """Jobs by their numbers: "job 3", "jobs 3 and 5"."""
    return f"job{'' if max(count, len(jobs)) == 1 else 's'} {listed(jobs, count)}"


def amounts_over(held: Vector, bound: Vector, adds: Vector) -> list[Amount]:
    """The resources in which a bound would be broken."""
    return [
        Amount(resource, have, most, more)
        for resource, have, most, more in zip(_RESOURCES, held, bound, adds, strict=True)
        if most != ENDLESS and have + more > most
    ]


def part_of(resource: Resource, held: int, bound: int) -> str:
    """How much is held of how much: "3 of 4 devices", "0 of 16 CPUs", "2 of 8 GiB of host memory"."""
    most = quantity(resource, max(0, bound))
    if resource == "devices":
        return f"{held / WHOLE_COMPUTE:g} of {most}"
    return f"{held if resource == 'cpus' else f'{held / 1024:.4g}'} of {most}"


def quantity(resource: Resource, amount: int) -> str:
    """An amount of a resource in words."""
    if resource == "devices":
        return devices(amount)
    if resource == "cpus":
        return f"{amount} CPU{'' if amount == 1 else 's'}"
    what = "device memory" if resource == "device_memory" else "host memory"
    return f"{amount / 1024:.4g} GiB of {what}"
