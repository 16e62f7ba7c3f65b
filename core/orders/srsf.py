"""Shortest remaining service first."""

from muster.core.standing import SortKey, Standing


def key(standing: Standing) -> SortKey:
    """Whoever is expected to take the least time of devices yet is first: a job without devices takes none."""
    return standing.unknown, standing.left_ns * standing.milli, standing.since, standing.job
