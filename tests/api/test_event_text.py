"""Events in one line."""

import pytest

from muster.api.event_text import event_line, ranges


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([6, 0, 1, 2], "0-2,6"), ([1, 3, 5], "1,3,5")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_an_allocation_says_who_got_what() -> None:
    event = {
        "sequence": "7",
        "time": "2026-01-31T12:00:00.123456789Z",
        "type": "muster.JobAllocated.1",
        "data": {
            "type": "JobAllocated.1",
            "basis": {"sequence": 6},
            "job": 5,
            "attempt": 1,
            "placements": [
                {"rank": 0, "node": "node-1", "incarnation": "a", "devices": [4, 5, 6, 7]},
                {"rank": 1, "node": "node-2", "incarnation": "b", "devices": [2, 3]},
            ],
            "why": "best fit",
        },
    }
    assert event_line(event, "2026-01-31") == (
        "     7  12:00:00.123  JobAllocated     job=5 attempt=1 placements=node-1[4-7] node-2[2-3] why='best fit'"
    )


def test_what_is_no_event_is_still_a_line() -> None:
    event = {"sequence": "9", "time": "2026-01-31T12:00:00.000000000Z", "type": "muster.unreadable", "data": None}
    assert event_line(event, "2026-01-31").split() == ["9", "12:00:00.000", "muster.unreadable".removeprefix("muster.")]


def test_an_event_of_another_day_shows_its_date() -> None:
    event = {"sequence": "9", "time": "2026-01-30T23:59:59.999999999Z", "type": "muster.unreadable", "data": None}
    assert event_line(event, "2026-01-31").split()[1:3] == ["2026-01-30", "23:59:59.999"]
