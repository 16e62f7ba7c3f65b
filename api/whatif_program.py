"""`python -m muster.api.whatif_program`: one question on standard input; on standard output, in lines, how much of it
is done, and then its answer, all JSON.

A process of its own, since a long window takes a whole core for a while: it reads the server's mirror and nothing else,
and writes nowhere.
"""

import os
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from muster.api.whatif_view import WhatIfView, view_of
from muster.events.log import Entry
from muster.projections.branch import BranchError
from muster.projections.mirror import Mirror
from muster.projections.replay import collector_at_rest, fold_at
from muster.projections.schema import StoreError
from muster.projections.whatif import Changes, WhatIfError, what_if

LATER_MOST: Final = 200_000
"""So many entries after a window are read for how long its jobs ran."""
NICE: Final = 5


class Question(msgspec.Struct, frozen=True):
    """What is asked: the mirror's path, the window's sequences and times (ns), and what is otherwise."""

    path: str
    first: int
    last: int
    began_ns: int
    until_ns: int
    changes: Changes


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer, or why there is none; `refused` where it is the question's fault, and then `pointer` says of what.
    While `done` is below 100 it is none yet, but so many percent of the work."""

    done: int = 100
    view: WhatIfView | None = None
    error: str = ""
    refused: bool = False
    pointer: str = ""


def reply_to(question: Question, told: Callable[[Reply], object] = lambda _: None) -> Reply:
    """Work it out; `told` has each percent that is done."""
    done = 0

    def progress(part: float) -> None:
        nonlocal done
        percent = min(round(100 * part), 99)
        if percent > done:
            done = percent
            told(Reply(done))

    begun = time.perf_counter()
    try:
        with collector_at_rest(), Mirror(Path(question.path)) as mirror:
            end = min(mirror.position(), question.last + LATER_MOST)
            start = fold_at(mirror, question.first)
            window = _entries(mirror, question.first + 1, question.last)
            later = _entries(mirror, question.last + 1, end)
            span_ns = question.began_ns, question.until_ns
            outcome = what_if(start, window, later, question.changes, span_ns=span_ns, progress=progress)
    except WhatIfError as error:
        return Reply(error=str(error), refused=True, pointer=error.pointer)
    except (BranchError, StoreError) as error:
        return Reply(error=str(error))
    return Reply(view=view_of(outcome, time.perf_counter() - begun))


def _entries(mirror: Mirror, first: int, last: int) -> list[Entry]:
    return list(chain.from_iterable(mirror.entries(first, last)))


def main() -> None:
    """Answer the question on standard input."""
    os.nice(NICE)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    _write(reply_to(question, _write))


def _write(reply: Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
