"""Pictures: what somebody sees in them."""

import xml.etree.ElementTree as ET

import pytest

from muster.api.plot import Panel, Series, draw, marks, unit_of

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")]


def lines(picture: str) -> list[str]:
    return [element.attrib["d"] for element in ET.fromstring(picture).iter(f"{SVG}path") if "stroke" in element.attrib]


def test_a_line_holds_its_value_until_the_next() -> None:
    """From 64 to 824 across, from 218 up to 58: half of the scale is 138."""
    picture = draw("jobs", "hours", [Panel("waiting", [Series("waiting", [(0, 0), (5, 10), (10, 5)])])])
    assert lines(picture) == ["M64 218.0V218.0H444V58.0H824V138.0"]


def test_a_column_with_many_points_shows_the_least_and_the_greatest() -> None:
    crowded = [(0.0, 0.0), (50.0, 10.0), (50.0001, 2.0), (50.0002, 6.0), (100.0, 6.0)]
    [path] = lines(draw("t", "x", [Panel("p", [Series("s", crowded)])]))
    assert path == "M64 218.0V218.0H444V186.0V58.0V122.0H824V122.0"


def test_what_is_written_cannot_break_the_picture() -> None:
    shown = texts(draw("a <b> & c", "x > y", [Panel("<p>", [Series("<s>", [(0, 1)]), Series("&", [(1, 2)])])]))
    assert {"a <b> & c", "x > y", "<p>", "<s>", "&"} <= set(shown)


@pytest.mark.parametrize("points", [[], [(3.0, 0.0)], [(3.0, 7.0)]])
def test_few_points_make_a_picture_too(points: list[tuple[float, float]]) -> None:
    assert "nothing" in texts(draw("nothing", "s", [Panel("p", [Series("s", points)])]))


def test_marks_are_round() -> None:
    assert marks(0, 6212) == [0, 2000, 4000, 6000]
    assert marks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert marks(12, 31) == [15, 20, 25, 30]


def test_times_are_counted_in_what_suits_them() -> None:
    assert [unit_of(span_s)[1] for span_s in (5, 600, 9000, 800_000)] == ["seconds", "minutes", "hours", "days"]
