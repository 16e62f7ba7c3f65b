"""A branch: a log that begins at a moment of another, and goes on under other rules.

It is a true log: its entries continue the sequence and the chain, and the ordinary fold folds them, so that it can be
explained, audited and replayed. While nothing has diverged it takes over the recorded entries as they are, and checks
every pass against what `decide` gives there. From then on the facts from outside come at their times, with the jobs'
new ids; decisions are taken as the scheduler takes them, and `VirtualAgents` answer the commands.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from muster.core.decide import decide, next_time
from muster.core.queues import ENDLESS
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.subjects import subject_of, writer_class
from muster.projections.audit_passes import basis_of
from muster.projections.course import Course
from muster.projections.decision_subjects import decision_subject
from muster.projections.facts import OBSERVED, Facts, Outside
from muster.projections.fold import Fold
from muster.projections.scheduler import CLOCK_GAP_NS, CLOCK_REST_NS
from muster.projections.virtual_agents import Ids, VirtualAgents

ENTRIES_MOST: Final = 500_000


class BranchError(Exception):
    """The branch cannot go on."""


class Branch:
    """A branch of the log from where `fold` stands. `entries` are its own; `followed` counts those taken over, and
    `passes` the recorded passes that were decided again and came out the same."""

    def __init__(self, fold: Fold, course: Course, prefix: str) -> None:
        self.entries: Final[list[Entry]] = []
        self.followed = 0
        self.passes = 0
        self.ids: Final = Ids()
        self._fold: Final = fold
        self._course: Final = course
        self._prefix: Final = prefix
        self._state: Final = fold.cluster.state
        self._agents: VirtualAgents | None = None

    def append(self, event: t.Event, timestamp_ns: int, subject: str = "") -> Entry:
        """One entry more; where its subject is not given, it is a scheduler's or a cluster's."""
        if not subject:
            subject = decision_subject(event, self._state, self._prefix)
        now_ns = max(timestamp_ns, self._state.timestamp_ns)
        return self._take(Entry(self._state.sequence + 1, now_ns, subject, codec.encode(event)))

    def _take(self, entry: Entry) -> Entry:
        if len(self.entries) >= ENTRIES_MOST:
            raise BranchError(f"the branch has {ENTRIES_MOST} entries and is not at its end")
        self.entries.append(entry)
        self._course.pass_time(entry.timestamp_ns)
        self._fold.apply(entry)
        self._course.note(entry)
        return entry

    # -- nothing has diverged -------------------------------------------------------------------------------------

    def follow(self, recorded: Sequence[Entry], is_dropped: Callable[[t.Event], bool]) -> bool:
        """Take over recorded entries until a pass comes out otherwise, or a fact is dropped; True = all of them."""
        bases = {basis.sequence for entry in recorded if (basis := _basis(entry)) is not None}
        begun = self._state.sequence
        decided = {begun: decide(self._fold.cluster)} if begun in bases else {}
        end = 0  # of the pass that was compared last
        for place, entry in enumerate(recorded):
            basis = _basis(entry)
            if basis is not None and place >= end and basis.sequence >= begun:
                expected = decided.get(basis.sequence, [])
                end = place + _length(recorded, place, basis)
                if not _same(recorded[place:end], expected, basis, is_last=end == len(recorded)):
                    return False
                self.passes += 1
                decided.clear()
            elif _is_changed(entry, is_dropped):
                return False
            self._take(entry)
            self.followed += 1
            if entry.sequence in bases:
                decided[entry.sequence] = decide(self._fold.cluster)
        return True

    # -- on its own -----------------------------------------------------------------------------------------------

    def go_on(
        self, facts: Facts, is_dropped: Callable[[t.Event], bool], progress: Callable[[int], object]
    ) -> VirtualAgents:
        """Let the rest of the window's facts come, until its end; the agents that answered. `progress` is told the time
        reached (ns). Raises BranchError."""
        agents = self._agents = VirtualAgents(self._fold.cluster, facts, self.ids)
        left_at = self._state.sequence if self.followed else 0
        outside = [each for each in facts.outside if each.sequence > left_at]
        lag_ns, until_ns = facts.lag_ns(), self._course.until_ns
        come = 0
        decided_ns, decisions = ENDLESS, list[t.Event]()
        now_ns = self._state.timestamp_ns
        while True:
            if decided_ns == ENDLESS and (decisions := decide(self._fold.cluster)):
                decided_ns = now_ns + lag_ns
            fact_ns = outside[come].timestamp_ns if come < len(outside) else ENDLESS
            clock_ns = self._clock_ns() if decided_ns == ENDLESS else ENDLESS
            now_ns = min(decided_ns, fact_ns, agents.next_ns(), clock_ns)
            if now_ns > until_ns:
                return agents
            before = len(self.entries)
            if decided_ns <= now_ns:
                decided_ns = ENDLESS
                self._command(decisions, now_ns)
            while come < len(outside) and outside[come].timestamp_ns <= now_ns:
                if decided_ns < ENDLESS and isinstance(outside[come].event, OBSERVED):
                    decided_ns = ENDLESS  # the leader has one append in flight: its news comes after its pass
                    self._command(decisions, now_ns)
                self._happen(outside[come], facts, is_dropped)
                come += 1
            for report in agents.reports(now_ns):
                self.append(report, now_ns, subject_of(report, prefix=self._prefix))
            if clock_ns <= now_ns and len(self.entries) == before:
                self.append(t.ClockAdvanced(), now_ns)
            progress(now_ns)

    def _clock_ns(self) -> int:
        """When a leader tells the time next, if nothing else happens."""
        due_at = next_time(self._fold.cluster)
        if due_at is None:
            return ENDLESS
        state = self._state
        return state.timestamp_ns + min(max(due_at - state.time_at, CLOCK_GAP_NS), CLOCK_REST_NS)

    def _command(self, events: Sequence[t.Event], now_ns: int) -> None:
        """Append a pass, and let the agents have its commands."""
        assert self._agents is not None
        subjects = [decision_subject(event, self._state, self._prefix) for event in events]
        for event, subject in zip(events, subjects, strict=True):
            self.append(event, now_ns, subject)
            if isinstance(event, t.Command):
                self._agents.told(event, now_ns)

    def _happen(self, outside: Outside, facts: Facts, is_dropped: Callable[[t.Event], bool]) -> None:
        """A fact comes, with the branch's ids in it."""
        assert self._agents is not None
        event = outside.event
        if is_dropped(event):
            return
        if isinstance(event, t.JobCancelRequested):
            event = msgspec.structs.replace(event, job=self.ids.in_branch(event.job))
        elif isinstance(event, t.DeviceFaulted):
            event = msgspec.structs.replace(event, fault=self._fault(event.fault))
        elif isinstance(event, t.NodeRegistered):
            workers = self._agents.listed(event.node) if facts.survived.get(outside.sequence, True) else []
            event = msgspec.structs.replace(event, workers=workers, faults=[self._fault(each) for each in event.faults])
        entry = self.append(event, outside.timestamp_ns, outside.subject)
        if isinstance(event, t.JobSubmitted):
            self.ids.note(outside.sequence, entry.sequence)
        elif isinstance(event, t.NodeRegistered | t.NodeRecovered):
            self._agents.back(event.node)

    def _fault(self, fault: t.DeviceFault) -> t.DeviceFault:
        """A fault that names a job, with that job's present attempt."""
        if not fault.job:
            return fault
        job_id = self.ids.in_branch(fault.job)
        job = self._state.jobs.get(job_id)
        return msgspec.structs.replace(fault, job=job_id, attempt=job.attempts if job is not None else fault.attempt)


def _basis(entry: Entry) -> t.Basis | None:
    return basis_of(entry.payload) if writer_class(entry.subject) == "decision" else None


def _is_changed(entry: Entry, is_dropped: Callable[[t.Event], bool]) -> bool:
    if writer_class(entry.subject) != "admin":
        return False
    try:
        return is_dropped(codec.decode(entry.payload))
    except codec.UnreadableEventError:
        return False


def _length(recorded: Sequence[Entry], first: int, basis: t.Basis) -> int:
    """How many entries a pass has: decisions on its basis, and commands."""
    end = first + 1
    while end < len(recorded):
        entry = recorded[end]
        if writer_class(entry.subject) != "command" and _basis(entry) != basis:
            break
        end += 1
    return end - first


def _same(recorded: Sequence[Entry], expected: Sequence[t.Event], basis: t.Basis, *, is_last: bool) -> bool:
    """Whether a recorded pass is what was decided now, whatever engine and policy's name it states. The window may end
    in the middle of one."""
    if len(recorded) > len(expected) or (len(recorded) < len(expected) and not is_last):
        return False
    for entry, event in zip(recorded, expected, strict=False):
        stated = msgspec.structs.replace(event, basis=basis) if isinstance(event, t.Decision) else event
        if codec.encode(stated) != entry.payload:
            return False
    return True


def end_of_pass(fold: Fold, following: Sequence[Entry]) -> int:
    """How many of the following entries belong to a pass in whose middle the fold stands."""
    count = 0
    for entry in following:
        basis = _basis(entry)
        begun = basis is not None and basis.sequence < fold.cluster.state.fence
        if writer_class(entry.subject) != "command" and not begun:
            break
        count += 1
    return count
