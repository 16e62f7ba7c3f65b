"""The Unix account that a worker runs as.

Rules: nobody falls back to the agent's own account, and root is nobody's by accident.
"""

import os
import pwd
from pathlib import Path
from typing import Final

import msgspec

from muster.node_agent.refusal import RefusalError

SAME: Final = "same"
"""Instead of an account's name: the one named like the job's user."""


class Account(msgspec.Struct, frozen=True):
    """An account, as the kernel knows it."""

    uid: int
    gid: int
    groups: list[int]


class Person(msgspec.Struct, frozen=True):
    """An account, and what its owner's programs expect."""

    name: str
    home: str
    account: Account

    def environment(self) -> dict[str, str]:
        """HOME, USER and LOGNAME."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def person_for(run_as: str, user: str, *, allow_root: bool) -> Person:
    """Who a job of `user` runs as, under `run_as` (`SAME` or a name). Raises RefusalError."""
    name = user if run_as == SAME else run_as
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise RefusalError(f"there is no account {name!r} on this node, and jobs run as their own users here") from None
    if entry.pw_uid == 0 and not allow_root:
        raise RefusalError(f"the account {name!r} is root, and no job runs as root here")
    if os.geteuid() not in (0, entry.pw_uid):
        raise RefusalError(f"only an agent that is root can run jobs as {name!r}")
    groups = sorted(os.getgrouplist(name, entry.pw_gid))
    return Person(name, entry.pw_dir, Account(entry.pw_uid, entry.pw_gid, groups))


def unreachable(path: Path, account: Account) -> Path | None:
    """The first folder on the way to `path`, itself included, that the account may not pass; None = it gets there. By
    the mode bits alone. Raises OSError where there is no such path."""
    way = path.resolve(strict=True)
    for folder in (*reversed(way.parents), way):
        if account.uid != 0 and not _may_pass(folder.stat(), account):
            return folder
    return None


def _may_pass(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & 0o100)
    if found.st_gid in (account.gid, *account.groups):
        return bool(found.st_mode & 0o010)
    return bool(found.st_mode & 0o001)
