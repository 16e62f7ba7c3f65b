"""Times and sizes as people read them. Standard library only: the command line uses it too."""

from datetime import UTC, datetime
from typing import Final

_NS: Final = 1_000_000_000


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
