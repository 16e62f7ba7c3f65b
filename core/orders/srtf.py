"""Shortest remaining time first."""

from muster.core.standing import SortKey, Standing


def key(standing: Standing) -> SortKey:
    """Whoever is expected to run for the shortest time yet is first."""
    return standing.unknown, standing.left_ns, standing.since, standing.job
