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
USUAL: Final = {"itp": "cluster06", "muri": "trace1", "openb": "openb_pod_list_default"}
"""The trace that is meant where the name is that of a folder with several."""


def find(what: str, name: str) -> tuple[str, Path]:
    """The file that a name stands for, there or in the folder of traces, and its full name. Raises CommandError."""
    for place in _places(name):
        if place.is_file():
            return name, place
    usual = USUAL.get(name.rstrip("/"))
    if usual is not None:
        for place in _places(f"{name.rstrip('/')}/{usual}"):
            if place.is_file():
                full = f"{name.rstrip('/')}/{usual}"
                click.echo(f"muster: {name} has several traces ({_inside(place.parent)}): {full} is taken", err=True)
                return full, place
    folders = [place for place in _places(name) if place.is_dir()]
    if folders:
        step = f"it is a folder of {_inside(folders[0])}: name one, such as {name.rstrip('/')}/NAME"
    else:
        step = f"names are looked up in the folder {FOLDER}: {_folder() or 'not set'}"
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


def _inside(folder: Path) -> str:
    """The traces of a folder by name."""
    names = (each.name.partition(".") for each in folder.iterdir() if each.is_file())
    return ", ".join(sorted(name for name, _, ending in names if f".{ending}" in ENDINGS))[:300]
