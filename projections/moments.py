"""Moments as people write them: which entry, or which time, a text means. Pure: the present is handed in.

A time without a zone is UTC, as all lists show it. It takes in all that a list shows at that time: `14:05:00` is the
last nanosecond that is printed so, and as the beginning of a range the first one. `14:05` is `14:05:00`, and both
without a date are the last such time that has come. A date, `today` and `yesterday` alone are the beginning of that
day. A time with a zone is meant to the nanosecond.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

FORMS: Final = (
    "write a sequence (1042), a time (2030-01-31T14:05:00Z, 2030-01-31 14:05, 14:05:00; UTC where it has no zone),"
    " yesterday 14:05, today, now, or a span before now (-10m, -1h30m, -1w)"
)

_SECOND_NS: Final = 1_000_000_000
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = 64

_SEQUENCE: Final = re.compile(r"[0-9]{1,18}")
_SPAN: Final = re.compile(r"-(?:[0-9]{1,9}[smhdw])+")
_SPAN_PART: Final = re.compile(r"([0-9]+)([smhdw])")
_SPAN_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}
_ZONED: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_DAY_WORD: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|today|yesterday")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_LISTED: Final = re.compile(rf"(?:({_DAY_WORD.pattern})(?:$|[Tt ](?=[0-9])))?({_CLOCK.pattern})?")


class MomentError(ValueError):
    """What was asked for is no moment of this log; the message says why."""


class BeforeLogError(MomentError):
    """The time is before the log's first entry."""


class Named(NamedTuple):
    """What a text names: the entry `sequence`, or where that is None the time `time_ns` (since 1970), which a range
    takes in that ends there, and `first_ns`, which one takes in that begins there."""

    sequence: int | None
    time_ns: int = 0
    first_ns: int = 0


def parse_moment(text: str, now_ns: int) -> Named:
    """The moment that a text means where it is `now_ns`. Raises MomentError for what is no moment, and for times that
    no calendar has or that are yet to come."""
    if _SEQUENCE.fullmatch(text):
        return Named(int(text))
    if text == "now":
        return Named(None, now_ns, now_ns)
    if _SPAN.fullmatch(text):
        span_s = sum(int(n) * _SPAN_S[unit] for n, unit in _SPAN_PART.findall(text))
        return Named(None, now_ns - span_s * _SECOND_NS, now_ns - span_s * _SECOND_NS)
    time_ns = parse_time_ns(text)
    first_ns, last_ns = (time_ns, time_ns) if time_ns is not None else _listed_ns(text, now_ns)
    if last_ns > now_ns:
        raise MomentError(f"{text} is in the future")
    return Named(None, last_ns, first_ns)


def parse_time_ns(text: str) -> int | None:
    """An RFC 3339 time, with its zone, as ns since 1970, to the nanosecond; None for what is not written as one. Raises
    MomentError for one that no calendar has."""
    match = _ZONED.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError as error:
        raise MomentError(f"{text!r} is no time: {error}") from None
    return _ns(moment) + int((fraction or "").ljust(9, "0"))


def nothing_between(begin: str | None, end: str | None) -> str:
    """That a range is empty, which is from one moment to another as they were written, in words."""
    if begin is None:
        return f"nothing had happened by {end}"
    return f"nothing has happened since {begin}" if end is None else f"nothing happened between {begin} and {end}"


def dated(text: str, time_ns: int) -> str:
    """A moment as it was written, and which that is where it does not say so."""
    return f"{text} ({second_text(time_ns)})" if _CLOCK.fullmatch(text) or _SPAN.fullmatch(text) else text


def second_text(time_ns: int) -> str:
    """A time as lists print it, with its date: `2026-01-31 14:05:00 UTC`."""
    return f"{_EPOCH + timedelta(seconds=time_ns // _SECOND_NS):%Y-%m-%d %H:%M:%S} UTC"


def take_moment(words: list[str]) -> tuple[str, list[str]]:
    """The moment that a command line's words begin with, which may be two of them (`yesterday 14:05`), and the words
    behind it. Whether it is one is not looked at. Raises ValueError where there are no words."""
    if not words:
        raise ValueError("no moment is given")
    is_two = len(words) > 1 and _DAY_WORD.fullmatch(words[0]) and _CLOCK.fullmatch(words[1])
    count = (2 if is_two else 1) + (words[2 if is_two else 1 :][:1] == ["UTC"])
    return " ".join(words[:count]), words[count:]


def _listed_ns(text: str, now_ns: int) -> tuple[int, int]:
    """A time without a zone: its first and its last nanosecond."""
    match = _LISTED.fullmatch(text.removesuffix(" UTC"))
    if match is None or not (match[1] or match[2]):
        raise MomentError(_no_moment(text))
    day_word, clock, hour, minute, second, fraction = match.groups()
    now = _EPOCH + timedelta(seconds=now_ns // _SECOND_NS)
    try:
        if clock is None:
            midnight_ns = _ns(_midnight(day_word, now))
            return midnight_ns, midnight_ns
        midnight = _midnight(day_word or "today", now)
        begun = midnight.replace(hour=int(hour), minute=int(minute), second=int(second or 0))
    except ValueError as error:
        raise MomentError(f"{text[:_SHOWN]!r} is no time: {error}") from None
    first_ns = _ns(begun) + int((fraction or "").ljust(9, "0"))
    if day_word is None and first_ns > now_ns:
        first_ns -= _DAY // timedelta(seconds=1) * _SECOND_NS
    last_ns = first_ns + 10 ** (9 - len(fraction or "")) - 1
    return first_ns, now_ns if first_ns <= now_ns < last_ns else last_ns


def _no_moment(text: str) -> str:
    """Why a text is none, with what it was perhaps meant to be."""
    word = text.strip().lower()
    if word.startswith("tomorrow"):
        return f"{text[:_SHOWN]} is in the future"
    meant = next((guess for guess in (word, f"-{word}", f"{word}m") if _is_short(guess)), None)
    return f"{text[:_SHOWN]!r} is no moment: {f'did you mean {meant}?' if meant else FORMS}"


def _is_short(text: str) -> bool:
    return bool(text in ("now", "today", "yesterday") or _SPAN.fullmatch(text))


def _midnight(day: str, now: datetime) -> datetime:
    today = now.replace(hour=0, minute=0, second=0)
    if day in ("today", "yesterday"):
        return today if day == "today" else today - _DAY
    return datetime.combine(date.fromisoformat(day), today.timetz())


def _ns(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1) * _SECOND_NS
