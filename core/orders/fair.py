"""Fair between users: whose turn it is follows from what users take, and this is the order of one user's jobs."""

from muster.core.standing import SortKey, Standing


def key(standing: Standing) -> SortKey:
    """Whoever has waited longest is first."""
    return standing.since, standing.job
