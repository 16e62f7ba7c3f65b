"""Deleting what jobs have made, whatever that is.

A tree can be deeper than a recursion, or than a process has descriptors, and its folders can be closed to their owner.
So each folder's folders are moved to the top, and deleted there: few are open at any time. What a name turns into
meanwhile, a link for one, is not followed.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Delete it. What cannot be deleted stays. Blocks."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        above = os.open(path.parent, os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _remove_top(above, path.name)
        finally:
            os.close(above)


def _remove_top(above: int, name: str) -> None:
    top = _open(above, name)
    try:
        _remove_files(top)
        tried: set[str] = set()
        while names := set(os.listdir(top)) - tried:  # noqa: PTH208  # a descriptor is no path
            tried |= names
            for below in names:
                with contextlib.suppress(OSError):
                    _remove_folder(top, below)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _remove_folder(top: int, name: str) -> None:
    """One that is at the top; so are its folders afterwards."""
    folder = _open(top, name)
    try:
        if os.fstat(folder).st_dev != os.fstat(top).st_dev:  # somebody has mounted something there
            return
        for inner in _remove_files(folder):
            with contextlib.suppress(OSError):
                os.close(_open(folder, inner))  # what may not be written cannot be moved
                os.rename(inner, secrets.token_hex(8), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _remove_files(folder: int) -> list[str]:
    """Delete what is no folder; the names of what is one."""
    folders = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                folders.append(name)
            else:
                os.unlink(name, dir_fd=folder)
    return folders


def _open(parent: int, name: str) -> int:
    """Open a folder, after opening it to its owner."""
    place = os.open(name, os.O_PATH | _FOLDER, dir_fd=parent)
    try:
        itself = f"/proc/self/fd/{place}"
        os.chmod(itself, 0o700)  # noqa: PTH101  # no path, but this very folder
        return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
