"""What a program says to people, of whom nobody may be left to hear it."""

import contextlib
import os
import sys

import click


def say(text: str, *, err: bool = False) -> None:
    """Print a line. A terminal or pipe that is gone stops nothing: what follows on it is dropped."""
    try:
        click.echo(text, err=err)
    except (OSError, ValueError):
        stream = sys.stderr if err else sys.stdout
        with contextlib.suppress(OSError, ValueError):  # what is left in its buffer would fail again at the end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
