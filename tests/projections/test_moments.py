"""What people write for a moment, and what it means at four in the afternoon of 31 January 2026 (UTC)."""

from datetime import UTC, datetime

import pytest

from muster.projections.moments import MomentError, parse_moment, parse_time_ns, take_moment

SECOND = 10**9
NOW_NS = round(datetime(2026, 1, 31, 16, tzinfo=UTC).timestamp()) * SECOND + SECOND // 2


def utc_ns(text: str) -> int:
    """`2026-01-31 14:05:00.123456789` by the calendar of the standard library."""
    seconds, _, fraction = text.partition(".")
    return round(datetime.fromisoformat(f"{seconds}+00:00").timestamp()) * SECOND + int(fraction.ljust(9, "0"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("now", "2026-01-31 16:00:00.5"),
        ("-90s", "2026-01-31 15:58:30.5"),
        ("-1h30m", "2026-01-31 14:30:00.5"),
        ("-1d2h3m4s", "2026-01-30 13:56:56.5"),
        ("-1w", "2026-01-24 16:00:00.5"),
        ("today", "2026-01-31 00:00:00.0"),
        ("yesterday", "2026-01-30 00:00:00.0"),
        ("2025-12-31", "2025-12-31 00:00:00.0"),
        # with all that a list shows at that time
        ("14:05:00", "2026-01-31 14:05:00.999999999"),
        ("14:05:00.123", "2026-01-31 14:05:00.123999999"),
        ("14:05", "2026-01-31 14:05:00.999999999"),
        ("9:05", "2026-01-31 09:05:00.999999999"),
        ("16:00:00", "2026-01-31 16:00:00.5"),  # the second that has begun, as far as it has come
        ("16:00:01", "2026-01-30 16:00:01.999999999"),  # the last such time that has come
        ("23:59", "2026-01-30 23:59:00.999999999"),
        ("yesterday 14:05", "2026-01-30 14:05:00.999999999"),
        ("yesterday 23:59:59.5", "2026-01-30 23:59:59.599999999"),
        ("today 9:00", "2026-01-31 09:00:00.999999999"),
        ("2026-01-02 03:04:05", "2026-01-02 03:04:05.999999999"),
        ("2026-01-02 03:04:05 UTC", "2026-01-02 03:04:05.999999999"),
        ("2026-01-02T03:04:05", "2026-01-02 03:04:05.999999999"),
        ("2026-01-02 03:04", "2026-01-02 03:04:00.999999999"),
        # with its zone: that very nanosecond
        ("2026-01-02T03:04:05Z", "2026-01-02 03:04:05.0"),
        ("2026-01-02T03:04:05.000000001+02:00", "2026-01-02 01:04:05.000000001"),
        ("2026-01-02 03:04:05-00:30", "2026-01-02 03:34:05.0"),
    ],
)
def test_times(written: str, meant: str) -> None:
    named = parse_moment(written, NOW_NS)
    assert (named.sequence, named.time_ns) == (None, utc_ns(meant))


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("14:05:00", "2026-01-31 14:05:00.0"),
        ("14:05:00.123", "2026-01-31 14:05:00.123"),
        ("yesterday 14:05", "2026-01-30 14:05:00.0"),
        ("16:00:00", "2026-01-31 16:00:00.0"),
        ("16:00:01", "2026-01-30 16:00:01.0"),
        ("2026-01-02T03:04:05.5Z", "2026-01-02 03:04:05.5"),
        ("-90s", "2026-01-31 15:58:30.5"),
        ("today", "2026-01-31 00:00:00.0"),
        ("now", "2026-01-31 16:00:00.5"),
    ],
)
def test_a_range_that_begins_at_a_time_takes_in_all_that_a_list_shows_then(written: str, first: str) -> None:
    assert parse_moment(written, NOW_NS).first_ns == utc_ns(first)


def test_a_number_is_a_sequence() -> None:
    assert parse_moment("1042", NOW_NS).sequence == 1042


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("today 16:01", "future"),
        ("2026-02-01", "future"),
        ("2999-01-01T00:00:00Z", "future"),
        ("24:00:00", "no time: hour"),
        ("14:60", "no time: minute"),
        ("yesterday 1:00:60", "no time: second"),
        ("2026-02-30", "no time: day"),
        ("2026-13-01T00:00:00Z", "no time: month"),
        ("", "no moment: write a sequence"),
        ("UTC", "no moment"),
        (" UTC", "no moment"),
        ("yesterday ", "no moment"),
        ("yesterday14:05", "no moment"),
        ("2026-01-0203:04:05", "no moment"),
        ("tomorrow", "tomorrow is in the future"),
        ("tomorrow 9:00", "in the future"),
        ("someday", "no moment: write a sequence"),
        ("10m", "no moment: did you mean -10m?"),
        ("1h30m", "did you mean -1h30m?"),
        ("-5", "did you mean -5m?"),
        ("-1W", "did you mean -1w?"),
        ("NOW", "did you mean now?"),
        ("Yesterday", "did you mean yesterday?"),
        ("1.5", "no moment"),
        ("-10", "no moment"),
        ("-1m30", "no moment"),
        ("--5m", "no moment"),
        ("x" * 500, "'x{64}' is no moment"),
    ],
)
def test_what_is_none_says_why(written: str, why: str) -> None:
    with pytest.raises(MomentError, match=why):
        parse_moment(written, NOW_NS)


def test_times_of_answers_are_read_to_the_nanosecond() -> None:
    assert parse_time_ns("2001-09-09T01:46:40Z") == 1_000_000_000 * SECOND
    assert parse_time_ns("2001-09-09 03:46:40.000000001+02:00") == 1_000_000_000 * SECOND + 1
    assert parse_time_ns("now") is None


@pytest.mark.parametrize(
    ("line", "moment", "rest"),
    [
        ("1042 queue", "1042", "queue"),
        ("-10m show 7", "-10m", "show 7"),
        ("yesterday queue", "yesterday", "queue"),
        ("yesterday 14:05 queue", "yesterday 14:05", "queue"),
        ("2026-01-31 14:05:00 UTC queue -u ada", "2026-01-31 14:05:00 UTC", "queue -u ada"),
        ("14:05:00 queue", "14:05:00", "queue"),
        ("yesterday 14:05 yesterday 15:00", "yesterday 14:05", "yesterday 15:00"),
        ("today", "today", ""),
    ],
)
def test_a_moment_may_be_two_words_of_a_command_line(line: str, moment: str, rest: str) -> None:
    assert take_moment(line.split()) == (moment, rest.split())
