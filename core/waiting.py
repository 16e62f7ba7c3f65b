"""Who of those that wait has a claim on what becomes free."""

from typing import Final

from muster.core.cluster import Cluster
from muster.core.ledger import Obstacle
from muster.core.releasing import Asker
from muster.core.state import Job


def exclusions(job: Job, time_at: int) -> frozenset[str]:
    """The nodes that a job is not placed on for now, since they refused its start."""
    return frozenset(node for node, until in job.excluded.items() if until > time_at)


OWN: Final = ("job_limit", "user_limit", "urgent_limit")
"""Bounds that keep a job and nobody behind it."""


def may_wait(cluster: Cluster, asker: Asker, obstacles: list[Obstacle]) -> bool:
    """Whether a job that does not start now has a claim on what becomes free: not where no state of the cluster's
    nodes, with nothing running, could hold it, nor where a bound of its own or its user's keeps it, nor where its
    queue's bounds or the lanes would keep it for ever."""
    if any(obstacle.kind in OWN for obstacle in obstacles):
        return False
    return cluster.could_start(asker.claimant, asker.job, asker.least)
