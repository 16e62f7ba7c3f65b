"""Whose work an error was, by the process that the driver names.

A process that has just died is still known for a while: its error is often told later than its end.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from muster.node_agent.readings import Worktree
from muster.node_agent.tree import is_running, read_stat

REMEMBERED_S: Final = 60.0
TOLD_TWICE_S: Final = 10.0
"""One error told again within this time, by the kernel's log and NVML or by several lines, is one."""

Owner = tuple[int, int]
"""Job and attempt; `EVERYBODY` = all that is on the device."""
Source = Literal["log", "nvml"]
EVERYBODY: Final = (0, 0)


class _Seen(NamedTuple):
    owner: Owner
    last_s: float


class _Told(NamedTuple):
    at_s: float
    owners: dict[Source, Owner | None]


class Blame:
    """What ran here lately. Times are seconds of one clock that only grows."""

    def __init__(self) -> None:
        self._pids: dict[int, _Seen] = {}
        self._holders: dict[str, set[Owner]] = {}
        self._lines: dict[tuple[str, int, int], float] = {}
        self._told: dict[tuple[str, int], list[_Told]] = {}

    def learn(self, work: Sequence[Worktree], now_s: float) -> None:
        """This is all that runs now."""
        self._holders = {}
        for tree in work:
            for uuid in tree.claims_mib:
                self._holders.setdefault(uuid, set()).add((tree.job, tree.attempt))
            self.remember(tree, now_s)
        self._pids = {pid: seen for pid, seen in self._pids.items() if now_s - seen.last_s <= REMEMBERED_S}

    def remember(self, tree: Worktree, now_s: float) -> None:
        """These processes are, or just were, this work's."""
        self._pids.update(dict.fromkeys(tree.pids, _Seen((tree.job, tree.attempt), now_s)))

    def pids(self) -> frozenset[int]:
        """Processes that are or lately were somebody's work here."""
        return frozenset(self._pids)

    def pids_of(self, owner: Owner) -> frozenset[int]:
        """Those of one try of a job."""
        return frozenset(pid for pid, seen in self._pids.items() if seen.owner == owner)

    def owner(self, uuid: str, pid: int) -> Owner | None:
        """Whose error it was on the device; None = nobody's here. `pid` 0 = not known."""
        if pid in self._pids:
            return self._pids[pid].owner
        holders = self._holders.get(uuid, set())
        if not holders or (pid and is_alive(pid)):
            return None
        return next(iter(holders)) if len(holders) == 1 else EVERYBODY

    def is_repeated(self, uuid: str, xid: int, pid: int, now_s: float) -> bool:
        """Whether it is a further line of an error of this very process: nothing more need be found out."""
        last_s = self._lines.get((uuid, xid, pid))
        if pid and last_s is not None and now_s - last_s <= TOLD_TWICE_S:
            return True
        self._lines = {line: at_s for line, at_s in self._lines.items() if now_s - at_s <= TOLD_TWICE_S}
        self._lines[uuid, xid, pid] = now_s
        return False

    def is_told(self, uuid: str, xid: int, owner: Owner | None, source: Source, now_s: float) -> bool:
        """Whether this error was told already; it is from now on. One source tells an error of one owner in several
        lines; the other tells of the same error once more, and may know less of whose it was."""
        lately = [told for told in self._told.get((uuid, xid), ()) if now_s - told.at_s <= TOLD_TWICE_S]
        self._told[uuid, xid] = lately
        for told in lately:
            if told.owners.setdefault(source, owner) == owner:
                return True
        lately.append(_Told(now_s, {source: owner}))
        return False


def is_alive(pid: int) -> bool:
    """Whether there is such a process in this namespace that has not ended: a zombie has."""
    stat = read_stat(pid)
    return stat is not None and is_running(pid, stat.start_ticks)
