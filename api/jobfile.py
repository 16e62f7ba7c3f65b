"""A job's specification from what a person has: a TOML or JSON file, a script with `#MUSTER` lines, or flags.

Standard library only. The server checks what the fields mean; here only the form is read.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

SCRIPT_LIMIT_BYTES: Final = 100_000
FILE_LIMIT_BYTES: Final = 1_000_000
_INTERPRETER: Final = re.compile(r"^(sh|bash|dash|zsh|python[0-9.]*)$")
_MARK: Final = "#MUSTER"

Spec = dict[str, Any]


class JobFileError(Exception):
    """A file that is no job; the message names the file and, where known, the line."""


class NoFileError(JobFileError):
    """A file that is not there."""


def read_job(arguments: tuple[str, ...]) -> Spec:
    """`FILE.toml`, `FILE.json`, `SCRIPT [ARGUMENT...]` or `COMMAND [ARGUMENT...]` as a specification."""
    if not arguments:
        return {}
    path = Path(arguments[0])
    if path.suffix in (".toml", ".json"):
        if len(arguments) > 1:
            raise JobFileError(f"{path}: a job file takes no arguments; options stand before it")
        return _read_table(path)
    if path.is_file() and (path.suffix in (".sh", ".bash") or _has_marks(path)):
        return _read_script(path, arguments[1:])
    if path.suffix == ".py" and len(path.parts) == 1 and path.is_file():
        raise JobFileError(f"{path}: no command: write python3 {path}, or give it #MUSTER lines to take it along")
    return {"command": list(arguments)}


def _read_bytes(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise NoFileError(f"{path}: no such file") from error
    except OSError as error:
        raise JobFileError(f"{path}: {error.strerror}") from error
    if len(content) > limit_bytes:
        raise JobFileError(f"{path}: larger than {limit_bytes} bytes")
    return content


def read_text(path: Path) -> str:
    """A file's text. Raises JobFileError where there is none, or it is too large or not UTF-8."""
    return _text(path, _read_bytes(path, FILE_LIMIT_BYTES))


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise JobFileError(f"{path}: not UTF-8 at byte {error.start}") from error


def _read_table(path: Path) -> Spec:
    text = read_text(path)
    try:
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise JobFileError(f"{path}: {error}") from error
    if not isinstance(table, dict):
        raise JobFileError(f"{path}: a job is an object with fields such as command and gpus")
    return table


def _has_marks(path: Path) -> bool:
    with path.open("rb") as file:
        return re.search(rb"^#MUSTER\s", file.read(SCRIPT_LIMIT_BYTES), re.MULTILINE) is not None


def _read_script(path: Path, arguments: tuple[str, ...]) -> Spec:
    text = _text(path, _read_bytes(path, SCRIPT_LIMIT_BYTES))
    lines = [
        line.removeprefix(_MARK) if line.startswith((f"{_MARK} ", f"{_MARK}\t")) else "" for line in text.splitlines()
    ]
    try:
        spec = tomllib.loads("\n".join(lines))  # blank lines in between: the error's line is the script's
    except tomllib.TOMLDecodeError as error:
        raise JobFileError(f"{path}: {error}") from error
    spec.setdefault("name", path.stem[:128])
    spec["command"] = [*_interpreter(path, text), "-c", text, *_zeroth(text, path), *arguments]
    return spec


def _interpreter(path: Path, text: str) -> list[str]:
    first = text.split("\n", 1)[0]
    words = shlex.split(first[2:]) if first.startswith("#!") else ["/bin/sh"]
    if not any(_INTERPRETER.match(Path(word).name) for word in words):
        raise JobFileError(f"{path}: only shell and Python scripts are taken along; submit a command instead")
    return words


def _zeroth(text: str, path: Path) -> list[str]:
    """A shell takes the word after its script as $0; Python does not."""
    return [] if "python" in text.split("\n", 1)[0] else [str(path)]


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """`K=V` words as a dictionary. Raises JobFileError for a word without `=`."""
    found: dict[str, str] = {}
    for word in values:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise JobFileError(f"{option} {word}: write NAME=VALUE")
        found[name] = value
    return found
