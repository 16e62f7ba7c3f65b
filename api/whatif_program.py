"""`python -m muster.api.whatif_program`: one question on standard input, its answer on standard output, both JSON.

A process of its own, since a long window takes a whole core for a while: it reads the server's mirror and nothing else,
and writes nowhere.
"""

import os
import sys
import time
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


class Reply(msgspec.Struct, frozen=True):
    """The answer, or why there is none; `refused` where it is the question's fault, and then `pointer` says of what."""

    view: WhatIfView | None = None
    error: str = ""
    refused: bool = False
    pointer: str = ""


def reply_to(question: Question) -> Reply:
    """Work it out."""
    begun = time.perf_counter()
    try:
        with collector_at_rest(), Mirror(Path(question.path)) as mirror:
            end = min(mirror.position(), question.last + LATER_MOST)
            start = fold_at(mirror, question.first)
            window = _entries(mirror, question.first + 1, question.last)
            later = _entries(mirror, question.last + 1, end)
            span_ns = question.began_ns, question.until_ns
            outcome = what_if(start, window, later, question.changes, span_ns=span_ns)
    except WhatIfError as error:
        return Reply(error=str(error), refused=True, pointer=error.pointer)
    except (BranchError, StoreError) as error:
        return Reply(error=str(error))
    return Reply(view_of(outcome, time.perf_counter() - begun))


def _entries(mirror: Mirror, first: int, last: int) -> list[Entry]:
    return list(chain.from_iterable(mirror.entries(first, last)))


def main() -> None:
    """Answer the question on standard input."""
    os.nice(NICE)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(reply_to(question)))


if __name__ == "__main__":
    main()
