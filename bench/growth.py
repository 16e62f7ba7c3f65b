"""How a pass grows with the cluster and with the queue, as one picture: docs/pass-growth.svg.

    python -m bench.growth

The median and the 99th percentile of all passes under the default policy (with preemption after a minute), over 100 to
4,000 nodes with 10,000 waiting jobs, and over 1,000 to 100,000 waiting jobs on 1,000 nodes.
"""

import math
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from bench.policies import Load, World, run
from bench.table import Row, as_markdown, percentile
from muster.core.decide import decide
from muster.events.policy import Policy

NODES: Final = (100, 250, 500, 1000, 2000, 4000)
PENDING: Final = (1000, 3000, 10_000, 30_000, 100_000)
PICTURE: Final = Path(__file__).parents[1] / "docs" / "pass-growth.svg"
WIDTH: Final = 420
HEIGHT: Final = 260
MARGIN: Final = 50
FLOOR_MS: Final = 0.1
CEILING_MS: Final = 100.0


class Point(NamedTuple):
    """Milliseconds of a pass at one size."""

    size: int
    p50_ms: float
    p99_ms: float


def _point(size: int, load: Load) -> Point:
    passes = run(Policy(), load)
    every = [seconds * 1e3 for seconds in passes.working + passes.idle]
    point = Point(size, percentile(every, 0.5), percentile(every, 0.99))
    sys.stderr.write(f"{load.nodes} nodes, {load.pending} waiting: {point.p50_ms:.1f} ms, {point.p99_ms:.1f} ms\n")
    return point


def small_changes() -> list[Row]:
    """What a pass costs on a full cluster of the usual size when little has changed."""
    world = World(Policy(), Load())
    world.settle()
    rows = []
    for what in ("nothing to do", "one new job", "one job ended"):
        samples_ms = []
        for _ in range(100):
            if what == "one new job":
                world.submit()
            elif what == "one job ended":
                world.end_one()
            begun = time.perf_counter()
            events = decide(world.paper.fold.cluster)
            samples_ms.append((time.perf_counter() - begun) * 1e3)
            world.obey(events)
            world.settle()
        value = f"p50 {percentile(samples_ms, 0.5):.3f} ms, p99 {percentile(samples_ms, 0.99):.3f} ms"
        rows.append(Row(f"a pass on a full cluster: {what}", value, "1,000 nodes, 10,000 waiting, default policy"))
    return rows


def draw(by_nodes: list[Point], by_pending: list[Point]) -> str:
    """Both series side by side, both axes logarithmic."""
    panels = [
        _panel(0, "nodes of 8 devices (10,000 waiting)", by_nodes),
        _panel(WIDTH, "waiting jobs (1,000 nodes)", by_pending),
    ]
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    style = "<style>text{font:11px sans-serif;fill:#555}path{fill:none;stroke-width:1.6}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(panels)}</svg>\n'


def _panel(left: int, title: str, points: list[Point]) -> str:
    low, high = points[0].size, points[-1].size
    parts = [f'<text x="{left + MARGIN}" y="16">ms a pass, by {title}</text>']
    for mark_ms in (0.1, 1, 10, 100):
        y = _y(mark_ms)
        parts.append(f'<path d="M{left + MARGIN} {y:.0f}H{left + WIDTH - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + 14}" y="{y + 4:.0f}">{mark_ms:g}</text>')
    for point in points:
        x = _x(left, point.size, low, high)
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{point.size:,}</text>')
    for name, color, values in (
        ("p50", "#2a6fb0", [point.p50_ms for point in points]),
        ("p99", "#c0562b", [point.p99_ms for point in points]),
    ):
        places = [(_x(left, point.size, low, high), _y(value)) for point, value in zip(points, values, strict=True)]
        line = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{line}" stroke="{color}"/>')
        x, y = places[-1]
        parts.append(f'<text x="{x - 4:.0f}" y="{y - 6:.0f}" text-anchor="end" fill="{color}">{name}</text>')
    return "".join(parts)


def _x(left: int, size: int, low: int, high: int) -> float:
    return left + MARGIN + 10 + (WIDTH - MARGIN - 60) * math.log(size / low) / math.log(high / low)


def _y(value_ms: float) -> float:
    share = math.log(min(max(value_ms, FLOOR_MS), CEILING_MS) / FLOOR_MS) / math.log(CEILING_MS / FLOOR_MS)
    return HEIGHT - 40 - (HEIGHT - 80) * share


def measure() -> list[Row]:
    """A row for each size; draws the picture."""
    by_nodes = [_point(nodes, Load(nodes=nodes, steps=20)) for nodes in NODES]
    by_pending = [_point(pending, Load(pending=pending, steps=20)) for pending in PENDING]
    PICTURE.write_text(draw(by_nodes, by_pending))
    return [
        Row(f"a pass, {point.size:,} {what}", f"p50 {point.p50_ms:.1f} ms, p99 {point.p99_ms:.1f} ms", beside)
        for what, beside, points in (
            ("nodes", "10,000 waiting", by_nodes),
            ("waiting", "1,000 nodes", by_pending),
        )
        for point in points
    ]


if __name__ == "__main__":
    sys.stdout.write(f"{as_markdown(measure())}\n")
