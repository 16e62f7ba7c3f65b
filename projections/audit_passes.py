"""Deciding again: every pass in the log against what `decide` gives on the state at its basis.

All decisions and commands with one basis stand together in the log, and are the whole of what `decide` gives. The
basis is not before the last entry under the decision subjects. Observations are checked for form only. Passes of
another engine or policy are counted and not decided again.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from muster.core.decide import decide
from muster.core.order import ENGINE_VERSION
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.subjects import writer_class
from muster.projections.audit_report import Find, OtherEngine, PassCounts
from muster.projections.audit_words import difference, phrase
from muster.projections.decision_subjects import decision_subject
from muster.projections.fold import Fold, next_chain
from muster.projections.mirror import MirrorRow

OBSERVATIONS: Final = (t.LeaderStarted, t.ClockAdvanced, t.NodeSuspected, t.NodeRecovered)


class _Peek(msgspec.Struct, gc=False):
    basis: t.Basis | None = None


_peek: Final = msgspec.json.Decoder(_Peek).decode


def basis_of(payload: bytes) -> t.Basis | None:
    """The basis that a payload names, where it can be read."""
    try:
        return _peek(payload).basis
    except (msgspec.MsgspecError, RecursionError):
        return None


def bases_in(entries: Iterable[Entry | MirrorRow]) -> set[int]:
    """The sequences on which this engine decided the given entries."""
    decisions = (each for each in entries if ".decision." in each.subject and writer_class(each.subject) == "decision")
    found = {basis_of(each.payload) for each in decisions}
    return {basis.sequence for basis in found if basis is not None and basis.engine == ENGINE_VERSION}


def pass_end(last: int, following: Iterable[Entry | MirrorRow]) -> int:
    """The sequence of the last entry of the pass that entry `last` is in, or `last`; of the entries from `last` on."""
    found = last
    for each in following:
        writer = writer_class(each.subject)
        basis = basis_of(each.payload) if writer == "decision" else None
        if writer != "command" and (basis is None or basis.sequence >= last):
            break
        found = each.sequence
    return found


class _Expected(NamedTuple):
    """What must stand next: the event, and its subject after the prefix."""

    event: t.Event
    subject: str


class _AtBasis(NamedTuple):
    chain: str
    messages: list[_Expected]


class _Pass(msgspec.Struct):
    basis: t.Basis
    first: int
    expected: list[_Expected] | None  # None: not decided again
    compared: int = 0
    differs: bool = False


class PassChecker:
    """Follows the log beside a fold: `before` each entry is applied, `after` it, and `finish` at the end. `proved` is
    the last entry up to which the chain is the one that a decision names, `vouched_by` the first such decision."""

    def __init__(self, fold: Fold, bases: set[int], start: int, find: Find) -> None:
        self.counts = PassCounts()
        self.vouched_by = 0
        self._fold = fold
        self._bases = bases
        self._start = start
        self._find = find
        self._at: dict[int, _AtBasis] = {}
        self._pass: _Pass | None = None
        self._proved = start
        self._others: dict[int, OtherEngine] = {}
        self._in_the_middle = start > 0  # perhaps of a pass, whose beginning is not at hand
        self._since: list[Entry] = []  # the entries after the first basis in `_at`
        self._chained = False  # whether the last entry's chain is kept anywhere
        self.after(start)

    def before(self, entry: Entry, writer: str) -> None:
        """Check an entry that is about to be applied; `writer` is its subject's class."""
        if writer == "decision":
            self._decision(entry)
        elif writer == "command":
            self._command(entry)
        else:
            self._in_the_middle = False
            if self._pass is not None:
                self._end_pass()

    def note(self, entry: Entry, *, chained: bool) -> None:
        """The entry was applied; `chained`: a chain of it is kept beside it."""
        self._chained = chained
        if self._at:
            self._since.append(entry)

    def after(self, sequence: int) -> None:
        """The fold is at `sequence`: decide now what a pass on this basis must be."""
        if sequence in self._bases:
            state = self._fold.cluster.state
            self._at[sequence] = _AtBasis(state.chain.hex(), self._decide())

    def _decide(self) -> list[_Expected]:
        state = self._fold.cluster.state
        try:
            events = decide(self._fold.cluster)
        except Exception as error:  # noqa: BLE001 - on the state of a damaged log anything may fail: that is a finding
            self._find(state.sequence, "decision", "a state that can be decided on", repr(error))
            return []
        return [_Expected(event, decision_subject(event, state, "")) for event in events]

    def finish(self, *, may_be_cut: bool) -> None:
        """No entry follows; where what is audited `may_be_cut`, in the middle of a pass, what that lacks is counted."""
        this = self._pass
        if may_be_cut and this is not None and this.expected is not None and not this.differs:
            self.counts.cut = len(this.expected) - this.compared
        else:
            self._end_pass()

    def _decision(self, entry: Entry) -> None:
        basis = basis_of(entry.payload)
        if basis is None:
            self._in_the_middle = False
            self._without_basis(entry)
            return
        self.counts.decisions += 1
        if self._pass is None or self._pass.basis != basis:
            self._end_pass()
            self._begin_pass(entry, basis)
        self._in_the_middle = False
        self._compare(entry)

    def _without_basis(self, entry: Entry) -> None:
        try:
            event = codec.decode(entry.payload)
        except codec.UnknownEventError:
            self.counts.unknown += 1
        except codec.UnreadableEventError as error:
            if self._pass is not None and self._is_open(self._pass):
                self._compare(entry)
                return
            self._find(entry.sequence, "decision", "a decision or an observation", f"unreadable: {error}")
        else:
            self.counts.observations += 1
            if not isinstance(event, OBSERVATIONS):
                self._find(entry.sequence, "decision", "a decision or an observation", type(event).__name__)
        self._end_pass()

    def _command(self, entry: Entry) -> None:
        self.counts.commands += 1
        if self._pass is not None:
            self._compare(entry)
        elif not self._in_the_middle:
            self._find(entry.sequence, "command", "a command after the decision that it follows from", _text(entry))

    def _begin_pass(self, entry: Entry, basis: t.Basis) -> None:
        self.counts.passes += 1
        fence = 0 if self._in_the_middle else self._fold.cluster.state.fence  # which may be of this very pass
        this = self._pass = _Pass(basis, entry.sequence, None)
        if not fence <= basis.sequence < entry.sequence:
            expected = f"a basis from {fence} to {entry.sequence - 1}"
            self._find(entry.sequence, "basis", expected, f"basis {basis.sequence}")
        elif basis.engine != ENGINE_VERSION:
            self._note_other(basis.engine, entry.sequence)
        elif basis.sequence < self._start:
            self.counts.basis_out_of_range += 1
        else:
            self.counts.redecided += 1
            at_basis = self._at[basis.sequence]
            this.expected = at_basis.messages
            if at_basis.chain == basis.chain:
                self.vouched_by = self.vouched_by or entry.sequence
            else:
                self._broken(entry, basis, at_basis.chain)
            self._proved = basis.sequence
        self._at.clear()
        self._since.clear()

    def _note_other(self, engine: int, sequence: int) -> None:
        self.counts.other_engine += 1
        other = self._others.get(engine)
        if other is None:
            other = self._others[engine] = OtherEngine(engine, 0, sequence, sequence)
            self.counts.other_engines.append(other)
        other.passes += 1
        other.last = sequence

    def _broken(self, entry: Entry, basis: t.Basis, chain: str) -> None:
        """The chain up to the basis is not what the decision names. Where no other is kept, the audit goes on from the
        one that it names, so that every damage is found."""
        first, last = self._proved + 1, basis.sequence
        which = f"entry {last} is" if first == last else f"one or more of the entries {first} to {last} are"
        why = f"{which} not what was there when this was decided, or its basis was changed"
        expected, found = f"chain {chain} at entry {last}", f"chain {basis.chain} at entry {last}"
        self._find(entry.sequence, "chain", expected, found, why)
        if not self._chained and re.fullmatch("[0-9a-f]{32}", basis.chain):
            link = bytes.fromhex(basis.chain)
            for later in self._since:
                if later.sequence > last:
                    link = next_chain(link, later)
            self._fold.cluster.state.chain = link

    def _compare(self, entry: Entry) -> None:
        """The entry is the next one of the pass. A pass is reported once, at its first difference."""
        this = self._pass
        if this is None or this.expected is None or this.differs:
            return
        if this.compared >= len(this.expected):
            self._differ(
                this, entry, "the end of the pass", f"the pass on basis {this.basis.sequence} ends before this"
            )
            return
        event, subject = this.expected[this.compared]
        expected = _on_basis(event, this.basis)
        payload = codec.encode(expected)
        subject = entry.subject.partition(".")[0] + subject
        this.compared += 1
        if payload != entry.payload:
            self._differ(this, entry, payload.decode(), difference(expected, entry.payload))
        elif subject != entry.subject:
            self._differ(this, entry, f"subject {subject}", f"expected subject {subject}, found {entry.subject}")

    def _differ(self, this: _Pass, entry: Entry, expected: str, why: str) -> None:
        this.differs = True
        command = writer_class(entry.subject) == "command"
        self._find(entry.sequence, "command" if command else "decision", expected, _text(entry), why)

    @staticmethod
    def _is_open(this: _Pass) -> bool:
        return this.expected is not None and this.compared < len(this.expected)

    def _end_pass(self) -> None:
        this, self._pass = self._pass, None
        if this is None or this.expected is None or this.differs or not self._is_open(this):
            return
        event = _on_basis(this.expected[this.compared].event, this.basis)
        found = f"the pass on basis {this.basis.sequence} ends before it"
        why = f"expected {phrase(event)}, and {found}"
        self._find(this.first + this.compared, "decision", codec.encode(event).decode(), found, why)


def _on_basis(event: t.Event, basis: t.Basis) -> t.Event:
    """The decision with the chain that its pass states: a chain that differs is reported once, not by each."""
    if isinstance(event, t.Decision) and event.basis.chain != basis.chain:
        return msgspec.structs.replace(event, basis=msgspec.structs.replace(event.basis, chain=basis.chain))
    return event


def _text(entry: Entry) -> str:
    return f"{entry.subject} {entry.payload.decode(errors='replace')}"
