"""Sizes, durations, priorities and portions as people write them, in whole numbers. All raise ValueError."""

import re
from typing import Final

PRIORITIES: Final = {"P0": 900, "P1": 600, "P2": 300, "P3": 0}
DEFAULT_PRIORITY: Final = PRIORITIES["P2"]
MILLION: Final = 1_000_000

_SIZE: Final = re.compile(r"^(\d{1,15})\s*(M|MB|MiB|G|GB|GiB|T|TB|TiB)?$")
_UNIT_MIB: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}
_DURATION: Final = re.compile(r"^(?:(\d{1,5})d)?\s*(?:(\d{1,6})h)?\s*(?:(\d{1,8})m)?\s*(?:(\d{1,10})s)?$")
_DAY_S: Final = 86_400
_SECONDS: Final = (_DAY_S, 3600, 60, 1)
_CLOCK: Final = re.compile(r"^(?:(?:(\d{1,5})-)?(\d{1,6}):([0-5]\d)|(\d{1,8})):([0-5]\d)$")


def parse_size_mib(size: int | str) -> int:
    """A size in MiB: a whole number of MiB, or text such as ``"40GiB"``. GB and G mean GiB, as on the cards' own
    names."""
    if isinstance(size, int):
        return size
    match = _SIZE.match(size.strip())
    if match is None:
        raise ValueError(f'{size!r} is no size: write whole MiB, or a number with MiB, GiB or TiB, such as "40GiB"')
    return int(match[1]) * _UNIT_MIB[(match[2] or "M")[0]]


def parse_duration_s(duration: int | str) -> int:
    """A duration in seconds: a whole number of them, text such as ``"90s"``, ``"12h"``, ``"1h30m"``, ``"2d"``, or what
    lists print: ``"5:00"`` (minutes and seconds), ``"1:00:00"``, ``"1-00:00:00"``."""
    if isinstance(duration, int):
        return duration
    text = duration.strip()
    clock = _CLOCK.match(text)
    if clock is not None:
        days, hours, minutes, minutes_alone, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes + minutes_alone) * 60 + seconds
    match = _DURATION.match(text)
    if match is None or not any(match.groups()):
        raise ValueError(
            f'{duration!r} is no duration: write whole seconds, or text such as "90s", "1h30m", "2d", "1:30:00"'
        )
    return sum(int(count) * seconds for count, seconds in zip(match.groups("0"), _SECONDS, strict=True))


def duration_text(duration_s: int) -> str:
    """A duration as `parse_duration_s` reads it back: ``"90s"``, ``"1h30m"``, ``"24h"``, ``"7d"``."""
    if duration_s < 120:  # noqa: PLR2004 - from two minutes on minutes read better
        return f"{duration_s}s"
    days = duration_s // _DAY_S if duration_s > _DAY_S else 0
    rest_s = duration_s - days * _DAY_S
    hours, minutes, seconds = rest_s // 3600, rest_s // 60 % 60, rest_s % 60
    parts = zip((days, hours, minutes, seconds), "dhms", strict=True)
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def priority_number(priority: int | str) -> int:
    """A priority's number: P0 to P3 by name."""
    if isinstance(priority, int):
        return priority
    if priority not in PRIORITIES:
        raise ValueError(f"{priority!r} is no priority: write P0 to P3, or a number from 0 to 1000")
    return PRIORITIES[priority]


def percent_ppm(text: str) -> int:
    """A percentage such as ``"12.5%"`` in millionths of the whole."""
    whole, _, decimals = text.rstrip("%").partition(".")
    return int(whole) * 10_000 + int(decimals.ljust(2, "0")) * 100
