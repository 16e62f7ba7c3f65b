"""Tables as a terminal shows them."""

from muster.api.table import columns_of, cut, render


def test_wide_letters_take_two_columns_and_marks_on_others_none() -> None:
    text = render(("NAME", "GPUS"), [("漢字ジョブ", 1), ("e\u0301tude", 16), ("plain", 2)])
    assert text.splitlines() == [
        "NAME        GPUS",
        "漢字ジョブ     1",
        "e\u0301tude         16",
        "plain          2",
    ]


def test_a_line_is_cut_by_the_columns_that_it_takes() -> None:
    assert cut("漢字ジョブ", 10) == "漢字ジョブ"
    assert cut("漢字ジョブ", 9) == "漢字ジョ…"
    assert cut("漢字ジョブ", 8) == "漢字ジ…"
    assert [columns_of(cut("漢字 and e\u0301tude", width)) <= width for width in range(1, 20)] == [True] * 19
    assert cut("plain", 0) == "plain"


def test_control_letters_are_not_obeyed() -> None:
    assert render(("A", "B"), [("x\x1b[31m", "y\u202ez")]).splitlines()[1] == "x?[31m  y?z"


def test_the_numbers_of_a_column_have_as_many_decimals_as_the_finest_needs() -> None:
    text = render(("HOURS", "JOBS", "SHARE"), [(0.0, 1, 0.0), (0.02, 12, None), (32.0, 3, 1.0)])
    assert text.splitlines() == [
        "HOURS  JOBS  SHARE",
        " 0.00     1    0.0",
        " 0.02    12      -",
        "32.00     3    1.0",
    ]
