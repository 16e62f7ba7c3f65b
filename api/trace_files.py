"""Files of traces, by path or by name in the folder of traces."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from muster.api.cli_base import CommandError, Exit

FOLDER: Final = "MUSTER_TRACES"
BESIDE: Final = Path(__file__).resolve().parents[2] / "shared" / "traces"
"""The folder where none is named: beside a checkout of the source."""
ENDINGS: Final = ("", ".csv", ".csv.xz", ".csv.gz", ".swf", ".swf.gz", ".swf.xz", ".json", ".json.xz", ".json.gz")
USUAL: Final = {
    "trace": {"itp": "cluster06", "muri": "trace1", "openb": "openb_pod_list_default"},
    "list of tasks": {"openb": "openb_pod_list_default"},
}
"""What is meant where the name is that of a folder with several."""
NAMES_MOST: Final = 8


def find(what: str, name: str) -> tuple[str, Path]:
    """The file that a name stands for, there or in the folder of traces, and its full name. Raises CommandError."""
    for place in _places(name):
        if place.is_file():
            return name, place
    usual = USUAL.get(what, {}).get(name.rstrip("/"))
    if usual is not None:
        for place in _places(f"{name.rstrip('/')}/{usual}"):
            if place.is_file():
                full = f"{name.rstrip('/')}/{usual}"
                click.echo(f"muster: {name} has several: {full} is taken; {name.rstrip('/')}/NAME is another", err=True)
                return full, place
    folders = [place for place in _places(name) if place.is_dir()]
    if folders:
        step = f"it is a folder of {_inside(folders[0])}: name one, such as {name.rstrip('/')}/NAME"
    else:
        step = f"names are looked up in the folder {FOLDER}: {_looked_into(name)}"
    raise CommandError(f"no {what} {name[:200]}", Exit.NOT_FOUND, step)


def _places(name: str) -> Iterator[Path]:
    """Where a name may lead to."""
    yield Path(name)
    folder = _folder()
    if folder:
        for path in (name, f"{name}/{Path(name).name}"):
            yield from (Path(folder, path + ending) for ending in ENDINGS)


def _folder() -> str:
    named = os.environ.get(FOLDER, "")
    return named or (str(BESIDE) if BESIDE.is_dir() else "")


def _looked_into(name: str) -> str:
    """The folder of traces, or that of its folders that a name begins with, and what it has."""
    folder = _folder()
    if not folder:
        return "not set"
    near = [place for place in (Path(folder, name).parent, Path(folder)) if place.is_dir()]
    return f"{near[0]} has {_inside(near[0])}" if near else folder


def _inside(folder: Path) -> str:
    """What a folder has, by name: folders, and files that may be read."""
    files = (each.name.partition(".") for each in folder.iterdir() if each.is_file())
    names = {name for name, _, ending in files if f".{ending}" in ENDINGS}
    names |= {f"{each.name}/" for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")}
    more = f" and {len(names) - NAMES_MOST} more" if len(names) > NAMES_MOST else ""
    return ", ".join(sorted(names)[:NAMES_MOST]) + more if names else "nothing"
