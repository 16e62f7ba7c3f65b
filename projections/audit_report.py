"""What an audit reports."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

FINDINGS_KEPT: Final = 100
TEXT_LIMIT: Final = 2000

FindingKind = Literal["sequence", "chain", "basis", "decision", "command", "holding", "invariant", "snapshot", "expect"]


class Find(Protocol):
    """Takes a finding: sequence, kind, what was expected, what was found, and the difference in words."""

    def __call__(self, sequence: int, kind: FindingKind, expected: str, found: str, why: str = "") -> None:
        """Take it."""
        ...


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it must be, at an entry. `why` says in words what differs first; "" = `expected` and
    `found` are words themselves."""

    sequence: int
    kind: FindingKind
    expected: str
    found: str
    why: str = ""


class OtherEngine(msgspec.Struct):
    """Passes of another version of the engine, which are not decided again: how many, and the sequences of the first
    and the last decision of theirs."""

    engine: int
    passes: int
    first: int
    last: int


class PassCounts(msgspec.Struct):
    """What the passes were. `passes` = `redecided` + `other_engine` + `basis_out_of_range` (decided on a state before
    the audit's first) + those with a finding about their basis. `unknown` are events of a newer program. `cut` entries
    of the last pass are behind the end of a window of a log, and were not compared."""

    observations: int = 0
    decisions: int = 0
    commands: int = 0
    passes: int = 0
    redecided: int = 0
    other_engine: int = 0
    basis_out_of_range: int = 0
    unknown: int = 0
    cut: int = 0
    other_engines: list[OtherEngine] = []


_COUNTED: Final = [name for name in PassCounts.__struct_fields__ if name != "other_engines"]


class AuditReport(msgspec.Struct):
    """What was audited and found. `entries` from `first` to `last` were folded, on top of the state at `first` - 1;
    `findings` are in the order of the log, the first hundred of `findings_count`. `refused` entries were not applied
    by the fold. `chain` is the chain after `last`, in hex.

    With `first` > 1 that state was taken on trust: nothing before `first` was read. `vouched_by` is the first decision
    whose basis names the chain that followed from it (0 = none did)."""

    first: int
    last: int
    vouched_by: int = 0
    entries: int = 0
    passes: PassCounts = msgspec.field(default_factory=PassCounts)
    refused: int = 0
    chain: str = ""
    findings_count: int = 0
    findings: list[Finding] = []
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings_count

    @property
    def entries_per_s(self) -> float:
        """How quick the audit was."""
        return self.entries / self.seconds if self.seconds else 0.0

    @property
    def exit_status(self) -> int:
        """0 where nothing was found, 1 otherwise."""
        return 0 if self.ok else 1

    def find(self, sequence: int, kind: FindingKind, expected: str, found: str, why: str = "") -> None:
        """Add a finding."""
        self.findings_count += 1
        if len(self.findings) < FINDINGS_KEPT:
            texts = (text[:TEXT_LIMIT] for text in (expected, found, why))
            self.findings.append(Finding(sequence, kind, *texts))


def merged(reports: Sequence[AuditReport]) -> AuditReport:
    """The report of reports of parts that follow on one another, in none of which anything was found."""
    whole = AuditReport(reports[0].first, reports[-1].last, chain=reports[-1].chain)
    whole.vouched_by = next((part.vouched_by for part in reports if part.vouched_by), 0) if whole.first > 1 else 0
    whole.entries = sum(part.entries for part in reports)
    whole.refused = sum(part.refused for part in reports)
    for name in _COUNTED:
        setattr(whole.passes, name, sum(getattr(part.passes, name) for part in reports))
    engines: dict[int, OtherEngine] = {}
    for other in (other for part in reports for other in part.passes.other_engines):
        known = engines.setdefault(other.engine, OtherEngine(other.engine, 0, other.first, other.last))
        known.passes, known.last = known.passes + other.passes, other.last
    whole.passes.other_engines = list(engines.values())
    return whole
