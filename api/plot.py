"""Small pictures of what changes over time or along some other axis, as SVG: panels one below the other, which share
their horizontal axis. A line holds each value until the next, as counts of jobs and GPUs do."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 840
LEFT: Final = 64
RIGHT: Final = 16
TOP: Final = 48
PANEL: Final = 170
GAP: Final = 52
COLORS: Final = ("#2a6fb0", "#c0562b", "#3b8a5a", "#7a5195", "#8a6d00", "#555555")
STYLE: Final = (
    "text{font:12px sans-serif;fill:#444}.head{font-size:14px;fill:#111}.grid{stroke:#ddd}.axis{stroke:#888}"
    ".line{fill:none;stroke-width:1.5}"
)
UNITS: Final = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))

Point = tuple[float, float]


class Series(NamedTuple):
    """One line: its name, and its points from left to right."""

    name: str
    points: Sequence[Point]


class Panel(NamedTuple):
    """Lines on one scale, which begins at zero and reaches at least to `most`."""

    title: str
    lines: Sequence[Series]
    most: float = 0.0


def unit_of(span_s: float) -> tuple[int, str]:
    """In what a span of so many seconds is best counted: seconds of one, and what they are called."""
    return next((unit_s, name) for least_s, unit_s, name in UNITS if span_s >= least_s)


def draw(title: str, axis: str, panels: Sequence[Panel]) -> str:
    """The picture, as one SVG document. `axis` says what runs from left to right."""
    every = [x for panel in panels for line in panel.lines for x, _ in line.points]
    first, last = min(every, default=0.0), max(every, default=1.0)
    across = _Scale(first, last if last > first else first + 1.0, LEFT, WIDTH - RIGHT)
    height = TOP + len(panels) * (PANEL + GAP)
    parts = [f'<text class="head" x="{LEFT}" y="20">{escape(title)}</text>']
    for number, panel in enumerate(panels):
        parts += _panel(panel, TOP + number * (PANEL + GAP), across)
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{escape(axis)}</text>')
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    frame = f'<style>{STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{frame}{"".join(parts)}</svg>\n'


class _Scale(NamedTuple):
    """From values to places."""

    first: float
    last: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.first) / (self.last - self.first) * (self.end - self.start)


def _panel(panel: Panel, top: float, across: _Scale) -> list[str]:
    highest = max([panel.most, *(y for line in panel.lines for _, y in line.points)])
    up = _Scale(0.0, highest or 1.0, top + PANEL, top + 10)
    parts = [f'<text x="{LEFT}" y="{top:.0f}">{escape(panel.title)}</text>']
    for mark in marks(0.0, up.last):
        y = up(mark)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:,.10g}</text>')
    for mark in marks(across.first, across.last, 9):
        x = across(mark)
        parts.append(f'<path class="axis" d="M{x:.1f} {up.start:.1f}v4"/>')
        parts.append(f'<text x="{x:.1f}" y="{up.start + 18:.1f}" text-anchor="middle">{mark:,.10g}</text>')
    for number, line in enumerate(panel.lines):
        color = COLORS[number % len(COLORS)]
        if line.points:
            parts.append(f'<path class="line" stroke="{color}" d="{_path(line.points, across, up)}"/>')
        if len(panel.lines) > 1:
            x = WIDTH - RIGHT - 130 * (len(panel.lines) - 1 - number)
            words = escape(line.name)
            parts.append(f'<text x="{x}" y="{top:.0f}" text-anchor="end" style="fill:{color}">{words}</text>')
    return parts


def _path(points: Iterable[Point], across: _Scale, up: _Scale) -> str:
    """Steps from point to point; of those that fall on one column, the least, the greatest and the last."""
    columns: dict[int, tuple[float, float, float]] = {}
    for x, y in points:
        column = round(across(x))
        least, greatest, _ = columns.get(column, (y, y, y))
        columns[column] = (min(least, y), max(greatest, y), y)
    parts: list[str] = []
    for column, values in columns.items():
        low, high, end = (f"{up(value):.1f}" for value in values)
        parts.append(f"H{column}" if parts else f"M{column} {low}")
        parts += [f"V{low}", f"V{high}"] if low != high else []
        parts.append(f"V{end}")
    return "".join(parts)


def marks(first: float, last: float, parts: int = 5) -> list[float]:
    """Round values in a range, so that they part it in no more than so many parts, and not in much fewer."""
    rough = (last - first) / parts
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    return [number * step for number in range(math.ceil(first / step), math.floor(last / step) + 1)]
