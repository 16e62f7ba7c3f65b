"""Numbers as people write them."""

from collections.abc import Sequence


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3, 6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
