"""What stands against devices because of something that happened: Xids, counted errors of memory, resets that failed.

No reading shows it again, so it is kept in a file until a reset, or until the machine has been restarted: what is wrong
then is seen anew. The device itself is not asked.
"""

import logging
import os
from pathlib import Path

import msgspec

from muster.node_agent import tree
from muster.node_agent.health import Finding

logger = logging.getLogger(__name__)


class _Record(msgspec.Struct, frozen=True):
    boot_id: str
    findings: dict[str, list[Finding]]


class Standing:
    """Findings by uuid, as `path` keeps them (None: nowhere). Of one kind a device has one: the first."""

    def __init__(self, path: Path | None, boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = boot_id or tree.boot_id()
        self._findings = self._read()
        self._kept = self._findings

    def of(self, uuid: str) -> list[Finding]:
        """What stands against a device."""
        return self._findings.get(uuid, [])

    def add(self, uuid: str, finding: Finding, *, again: bool = True) -> bool:
        """Note it; where it stands already, that it has happened `again`. Whether anything is new."""
        known = next((each for each in self.of(uuid) if _kind(each) == _kind(finding)), None)
        if known is not None and not again:
            return False
        others = [each for each in self.of(uuid) if each is not known]
        noted = finding if known is None else msgspec.structs.replace(known, times=known.times + 1)
        self._findings = {**self._findings, uuid: [*others, noted]}
        return True

    def heal(self, uuid: str) -> None:
        """The device was reset: what remains is what no reset heals."""
        left = [finding for finding in self.of(uuid) if finding.action == "quarantine" and not finding.resettable]
        self._findings = {**self._findings, uuid: left}
        if not left:
            del self._findings[uuid]

    def forget(self) -> None:
        """Somebody vouches for all devices."""
        self._findings = {}

    def save(self) -> None:
        """Write what has changed, durably. Blocks; for a thread. What cannot be written is tried again next time."""
        findings = self._findings
        if self._path is None or findings == self._kept:
            return
        try:
            _write(self._path, msgspec.json.encode(_Record(self._boot_id, findings)))
        except OSError as error:
            logger.warning("what is wrong with devices cannot be kept: %s", error)
        else:
            self._kept = findings

    def _read(self) -> dict[str, list[Finding]]:
        if self._path is None:
            return {}
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("what was wrong with devices cannot be read: %s", error)
            return {}
        return record.findings if record.boot_id == self._boot_id else {}


def _kind(finding: Finding) -> tuple[str, int, str]:
    return finding.cause, finding.xid, finding.action


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
