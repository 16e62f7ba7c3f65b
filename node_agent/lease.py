"""The agent's lease, counted on CLOCK_BOOTTIME from the sending of its last acknowledged beat.

The file is what keepers go by: ``<boot id> <deadline ns> <deadline ns>``, of one length for ever and written in place,
so that a full disk cannot end it. A reader believes it only when both deadlines agree.
"""

import os
from pathlib import Path
from typing import Final

from muster.node_agent import tree
from muster.node_agent.keeper_files import boottime_ns, read_lease

NS_PER_MS: Final = 1_000_000


class Lease:
    """One agent's lease of `lease_ms` (0 = none: it never ends)."""

    def __init__(self, path: Path, lease_ms: int) -> None:
        self.path = path
        self.lease_ms = lease_ms
        self.deadline_ns = read_lease(str(path)) or 0
        """0 = none was ever had in this boot."""
        self._boot_id = tree.boot_id()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Let go of the file. The lease runs on."""
        os.close(self._file)

    def over(self) -> bool:
        """Whether a lease was had and has run out."""
        return 0 < self.deadline_ns <= boottime_ns() and self.lease_ms > 0

    def forget(self) -> None:
        """The lease that is over has been settled; the next beat begins another. The file still says it is over."""
        self.deadline_ns = 0

    def renew(self, sent_ns: int) -> None:
        """A beat sent at `sent_ns` was acknowledged. Never shortens."""
        if self.lease_ms == 0:
            return
        self.deadline_ns = max(self.deadline_ns, sent_ns + self.lease_ms * NS_PER_MS)
        os.pwrite(self._file, f"{self._boot_id} {self.deadline_ns:020} {self.deadline_ns:020}\n".encode(), 0)
