"""Why a node does not do what it was told."""


class RefusalError(Exception):
    """A worker cannot be started, and why."""
