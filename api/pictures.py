"""Where `--plot` writes: an SVG, which takes the place of an older one."""

from pathlib import Path

import click

from muster.api.cli_base import CommandError, Exit


def check_picture(path: Path) -> None:
    """Before the work is done. Raises CommandError."""
    if path.suffix.lower() != ".svg":
        raise CommandError(f"--plot {path}: a picture is an SVG", Exit.USAGE, f"--plot {path.with_suffix('.svg')}")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"--plot {path}: there is no folder {path.absolute().parent}", Exit.USAGE)


def write_picture(path: Path, picture: str) -> None:
    """Write it, and say so on stderr. Raises CommandError."""
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--plot {path}: {error.strerror}", Exit.FAILED) from error
    click.echo(f"muster: drawn in {path}", err=True)
