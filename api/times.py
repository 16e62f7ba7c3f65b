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
