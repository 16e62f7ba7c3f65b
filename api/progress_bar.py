"""Answers that come after lines of progress, and the bar that shows them."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from muster.api.cli_base import CommandError, Exit
from muster.api.cli_cluster import json_lines
from muster.api.client import Json, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable


class Bar(ExitStack):
    """A progress bar on a terminal, from the first time that there is progress to show. Work of less than `least` ends
    too soon for one."""

    def __init__(self, label: str, least: int = 0) -> None:
        super().__init__()
        self._label = label
        self._least = least
        self._update: Callable[[int], None] | None = None
        self._shown = 0

    def show(self, reached: int, last: int) -> None:
        """The work is at `reached` of `last`."""
        if not sys.stderr.isatty() or last < self._least:
            return
        if self._update is None:
            bar = click.progressbar(length=last, label=self._label, file=sys.stderr)
            self._update = self.enter_context(bar).update
        self._update(reached - self._shown)
        self._shown = reached


def last_line(chunks: Iterator[bytes], label: str) -> Json:
    """What a server answers after its lines of progress. Raises RefusedError, CommandError."""
    found: Json = {}
    with Bar(label) as bar:
        for line in json_lines(chunks):
            if "problem" in line:
                raise RefusedError(int(line["problem"]["status"]), line["problem"])
            if "reached" in line:
                bar.show(line["reached"], line["last"])
            else:
                found = line
    if not found:
        raise CommandError("the server ended the answer in the middle", Exit.UNREACHABLE, "try again")
    return found
