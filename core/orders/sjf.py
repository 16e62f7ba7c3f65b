"""Shortest job first."""

from muster.core.standing import SortKey, Standing


def key(standing: Standing) -> SortKey:
    """Whoever is expected to run for the shortest time in all is first."""
    return standing.unknown, standing.expected_ns, standing.since, standing.job
