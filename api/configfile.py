"""A configuration file: `[[queue]]` tables and a `[policy]`, in TOML or JSON.

Standard library only. What the fields mean is checked elsewhere; here only the form is read.
"""

import json
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.api.jobfile import JobFileError, read_text

_KNOWN: Final = ("queue", "policy")


class ConfigFile(NamedTuple):
    """What a file has: the tables of its queues and its policy (None = it says nothing of them)."""

    path: Path
    queues: list[Any] | None
    policy: Any | None


def read_config(path: Path) -> ConfigFile:
    """Read a file. Raises JobFileError, which names the file and what is wrong."""
    text = read_text(path)
    try:
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobFileError(f"{path}: {error}") from error
    if not isinstance(table, dict):
        raise JobFileError(f"{path}: it must be an object with queue, a list, and policy")
    unknown = [name for name in table if name not in _KNOWN]
    if unknown:
        raise JobFileError(f"{path}: /{unknown[0][:128]}: unknown; a file has [[queue]] tables and a [policy]")
    queues, policy = table.get("queue"), table.get("policy")
    if queues is not None and not isinstance(queues, list):
        raise JobFileError(f"{path}: /queue: each queue is a table of its own: write [[queue]]")
    return ConfigFile(path, queues, policy)


def in_file(pointer: str, under: str = "") -> str:
    """A pointer into a request's body as one into the file: there the body stood `under` a table, and queues are
    tables named queue."""
    return under + (f"/queue{pointer.removeprefix('/queues')}" if pointer.startswith("/queues") else pointer)
