"""Aligned tables for a terminal. Text from outside is shown without its control characters."""

import unicodedata
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

LEFT: Final = "<"
RIGHT: Final = ">"


class Count(int):
    """A number that is shown with its thousands apart."""

    def __str__(self) -> str:
        return f"{int(self):,}"


def clean(text: object) -> str:
    """One printable line: control characters (a terminal would obey them) are replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: wide letters two, marks that stand on others none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, width: int) -> str:
    """A line that fits into so many columns (0 = no limit)."""
    if not width or columns_of(text) <= width:
        return text
    ends = accumulate(map(_columns, text))
    return text[: sum(end < width for end in ends)] + "…"


def padded(text: str, width: int, side: str = LEFT) -> str:
    """A text with as many spaces as fill so many columns."""
    spaces = " " * (width - columns_of(text))
    return spaces + text if side == RIGHT else text + spaces


def _decimals(cell: object) -> int:
    """How many decimals a number needs; all of them stand there."""
    return max(len(f"{cell:.6f}".rstrip("0").partition(".")[2]), 1) if isinstance(cell, float) else 0


def _cell(cell: object, decimals: int) -> str:
    if isinstance(cell, float):
        return f"{cell:.{decimals}f}"
    return "-" if cell is None or cell == "" else clean(cell)


def render(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int = 0,
    spare: Sequence[str] = (),
    least: int = 0,
) -> str:
    """Titles and rows in aligned columns; columns that hold only numbers stand right, and have as many decimals in each
    line. With `width` (0 = no limit) the last column is cut to fit; those in `spare` are left out, one after another,
    as long as it would have fewer letters than it needs, or than `least` if it needs more."""
    decimals = [max(map(_decimals, column), default=0) for column in zip(*rows, strict=True)]
    cells = [list(titles), *([_cell(cell, digits) for cell, digits in zip(row, decimals, strict=True)] for row in rows)]
    widths = [max(columns_of(line[column]) for line in cells) for column in range(len(titles))]
    sides = [
        RIGHT if rows and all(isinstance(row[column], int | float | None) for row in rows) else LEFT
        for column in range(len(titles))
    ]
    shown = list(range(len(titles)))
    for title in spare if width else ():
        if sum(widths[column] + 2 for column in shown[:-1]) + min(widths[shown[-1]], least) <= width:
            break
        shown.remove(titles.index(title))
    lines = []
    for line in cells:
        text = "  ".join(padded(line[column], widths[column], sides[column]) for column in shown).rstrip()
        lines.append(cut(text, width))
    return "\n".join(lines)


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """`name  value` lines with the values aligned; pairs without a value are left out."""
    shown = [(name, value) for name, value in pairs if value not in (None, "", [])]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name:<{width}}  {clean(value)}" for name, value in shown)
