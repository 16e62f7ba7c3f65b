"""One measurement, and all of them as a table."""

from typing import NamedTuple


class Row(NamedTuple):
    """What was measured, the number, and what it stands beside."""

    what: str
    value: str
    beside: str


def as_markdown(rows: list[Row]) -> str:
    """The rows, aligned."""
    lines = [Row("measurement", "value", "beside"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    texts.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(texts)


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
