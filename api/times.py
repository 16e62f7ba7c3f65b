"""Times and sizes as people read them. Standard library only: the command line uses it too."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_NS: Final = 1_000_000_000
_LISTED: Final = re.compile(r"(?:(\d{4}-\d\d-\d\d) )?((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)(?:\.(\d{1,9}))?(?: UTC)?")


def rfc3339(timestamp_ns: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 in UTC, to the nanosecond."""
    seconds, rest = divmod(timestamp_ns, _NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def rfc3339_or_none(timestamp_ns: int) -> str | None:
    """As `rfc3339`; 0 is a time that has not come."""
    return rfc3339(timestamp_ns) if timestamp_ns else None


def today() -> str:
    """The date in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def moment(text: str, day: str, *, milliseconds: bool = False) -> str:
    """A time that `rfc3339` wrote, for a table: `14:05:00`, and `2026-01-31 14:05:00` where it is not of `day`."""
    clock = text[11:23] if milliseconds else text[11:19]
    return clock if text[:10] == day else f"{text[:10]} {clock}"


def listed_time(text: str, now_ns: int) -> str | None:
    """A time in UTC as lists print it (`14:05:00`, `14:05:00.123`, or with its date before it) as RFC 3339: the last
    nanosecond that is printed so, at most `now_ns`. Without a date it is the last such time that has come. None for
    what is written otherwise."""
    match = _LISTED.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction = match.groups()
    now = rfc3339(now_ns)
    time = f"{clock}.{fraction or ''}"
    if day is None:
        has_come = f"{now[:11]}{time}" <= now[: 11 + len(time)]
        day = now[:10] if has_come else f"{datetime.fromisoformat(now[:10]) - timedelta(days=1):%Y-%m-%d}"
    latest = f"{day}T{time.ljust(len('14:05:00.') + 9, '9')}Z"
    return now if latest[:19] == now[:19] and latest > now else latest


def to_ms(text: str | None) -> str | None:
    """A time that `rfc3339` wrote, to the millisecond."""
    return f"{text[:23]}Z" if text else None


def elapsed(duration_ms: int | None) -> str:
    """A duration as squeue writes it: `1-02:03:04`, `02:03:04`, `3:04`."""
    if duration_ms is None:
        return "-"
    minutes, seconds = divmod(max(duration_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours:02}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def mib(size_mib: int) -> str:
    """A size in MiB as text with the largest unit that stays exact to a tenth."""
    if size_mib >= 1 << 20:
        return f"{size_mib / (1 << 20):.1f}TiB"
    return f"{size_mib / 1024:.1f}GiB" if size_mib >= 1024 else f"{size_mib}MiB"  # noqa: PLR2004 - MiB in a GiB
