"""What agents' reports of devices do to the state, and what operators and the leader decide about devices.

Every rule gives None, or why it was not applied.
"""

from muster.core.cluster import Cluster
from muster.events import types as t


def device_faulted(cluster: Cluster, event: t.DeviceFaulted, touched: set[int]) -> str | None:
    """Something is wrong with a device."""
    raise NotImplementedError


def device_recovered(cluster: Cluster, event: t.DeviceRecovered) -> str | None:
    """What was wrong is over, as far as the agent can see."""
    raise NotImplementedError


def foreign_usage_changed(cluster: Cluster, event: t.ForeignUsageChanged) -> str | None:
    """Foreign processes hold this much now."""
    raise NotImplementedError


def node_degraded(cluster: Cluster, event: t.NodeDegraded) -> str | None:
    """No new work goes to the node."""
    raise NotImplementedError


def node_restored(cluster: Cluster, event: t.NodeRestored) -> str | None:
    """Work goes there again."""
    raise NotImplementedError


def device_cordoned(cluster: Cluster, event: t.DeviceCordoned) -> str | None:
    """No new work goes to the device."""
    raise NotImplementedError


def device_uncordoned(cluster: Cluster, event: t.DeviceUncordoned) -> str | None:
    """Somebody vouches for the device."""
    raise NotImplementedError


def device_readmitted(cluster: Cluster, event: t.DeviceReadmitted) -> str | None:
    """The device has been on probation for its time."""
    raise NotImplementedError
