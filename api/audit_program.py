"""`python -m muster.api.audit_program`: parts of a mirror's log, audited as they are asked for.

A process of its own, since an audit takes a whole core for a while. Each line of standard input is a `Part`, each line
of standard output an `Audited`: how far it is, and then what it found. It reads the mirror and nothing else, and writes
nowhere; whoever asked and is gone is noticed at the next line that is written.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from muster.projections.audit import audit_on, expectation
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import fold_before
from muster.projections.fold import Fold
from muster.projections.mirror import Mirror
from muster.projections.replay import collector_at_rest
from muster.projections.schema import StoreError

NICE: Final = 5


class Part(msgspec.Struct, frozen=True):
    """The entries after `start`, where the mirror has a snapshot or begins, up to `last`. `expect` is SEQUENCE:CHAIN,
    or empty. The mirror of a window `may_be_cut` in the middle of a pass."""

    path: str
    start: int
    last: int
    expect: str = ""
    may_be_cut: bool = False


class Audited(msgspec.Struct, frozen=True):
    """It is at entry `reached`; or the report, with digests of the states that it began and ended with, or why there is
    none."""

    reached: int = 0
    report: AuditReport | None = None
    began: str = ""
    ended: str = ""
    error: str = ""


def audited(part: Part) -> Audited:
    """Audit a part."""
    try:
        with Mirror(Path(part.path)) as mirror:
            fold = fold_before(mirror, part.start)
            if fold.cluster.state.sequence != part.start:
                return Audited(error=f"no snapshot after entry {part.start} can be used")
            began = _digest(fold)
            expect = expectation(part.expect)
            report = audit_on(mirror, fold, part.last, expect, _tell, may_be_cut=part.may_be_cut)
            return Audited(part.last, report, began, _digest(fold))
    except StoreError as error:
        return Audited(error=str(error))


def _digest(fold: Fold) -> str:
    return hashlib.blake2b(fold.state_bytes(), digest_size=32).hexdigest()


def _tell(reached: int) -> None:
    _write(Audited(reached))


def _write(line: Audited) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Audit the parts that standard input asks for, one after another."""
    os.nice(NICE)
    for line in sys.stdin.buffer:
        with collector_at_rest():
            _write(audited(msgspec.json.decode(line, type=Part)))


if __name__ == "__main__":
    main()
