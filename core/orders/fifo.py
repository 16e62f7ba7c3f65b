"""First in, first out."""

from muster.core.standing import SortKey, Standing


def key(standing: Standing) -> SortKey:
    """Whoever has waited longest is first."""
    return standing.since, standing.job
