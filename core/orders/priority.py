"""By priority, which grows by waiting."""

from muster.core.standing import HOUR_NS, SortKey, Standing


def key(standing: Standing) -> SortKey:
    """Whoever has the most points is first. All that wait gain alike, so nobody's place among them ever changes."""
    points = standing.priority * HOUR_NS - standing.ageing * standing.since_at
    return -points, standing.since, standing.job
