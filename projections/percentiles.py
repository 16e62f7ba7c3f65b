"""What so many percent do not exceed."""


def percentile(ordered: list[int], percent: int) -> int:
    """The least value that so many percent of them do not exceed; 0 of none."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0
