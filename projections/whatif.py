"""What would have happened in a window of the log under other rules, or on other nodes.

The recorded entries of the window are folded twice from the same state: as they are, and as a branch in which the
changes are in force from the first moment on. Pure: the log is read by the caller, and nothing is written to it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from muster.core.fragmentation import Measure
from muster.core.policy_check import tree_problems
from muster.core.queues import with_default
from muster.core.resources import demand_of
from muster.core.schedule import SECOND_NS
from muster.core.scheme import scheme_of
from muster.core.state import Job, State
from muster.events import types as t
from muster.events.log import BATCH_LIMIT, Entry
from muster.events.policy import Policy, QueueSpec
from muster.events.subjects import DEFAULT_PREFIX
from muster.projections.audit_passes import pass_end
from muster.projections.branch import Branch, end_of_pass
from muster.projections.comparison import Comparison, compare
from muster.projections.course import Course
from muster.projections.facts import Facts, prefix_of
from muster.projections.fold import Fold
from muster.projections.mirror import CHUNK
from muster.projections.policy_rules import note_mix
from muster.projections.virtual_agents import Guess, VirtualAgents

USER: Final = "whatif"
ADDED_LEASE_MS: Final = 120_000
_POINTERS: Final[dict[type[t.Event], str]] = {
    t.PolicyChanged: "/policy",
    t.QueueConfigured: "/queues",
    t.NodeRegistered: "/add_nodes",
    t.NodeCordoned: "/remove_nodes",
}
Progress = Callable[[float], object]
"""Told the part of the work that is done, now and then; what it raises ends it."""


class WhatIfError(ValueError):
    """The question cannot be asked of this log; the message says why, and `pointer` what of it ("" = all of it)."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer: Final = pointer


class Changes(msgspec.Struct, frozen=True):
    """What is otherwise in the branch, from its beginning on: `policy` and `queues` take the place of what people set
    in the window, `added` registers nodes by name, `removed` are given no new work, and `removed_count` more of the
    nodes that take some, the last by name."""

    policy: Policy | None = None
    queues: list[QueueSpec] = []
    added: dict[str, t.Inventory] = {}
    removed: list[str] = []
    removed_count: int = 0

    def named(self, state: State) -> "Changes":
        """The same with the names of all nodes that go. Raises WhatIfError."""
        for name in self.removed:
            if name not in state.nodes:
                raise WhatIfError(f"there was no node {name}", "/remove_nodes")
        for name in sorted(self.added):
            if name in state.nodes:
                raise WhatIfError(f"there was a node {name} already", "/add_nodes")
        left = sorted(name for name, node in state.nodes.items() if node.available and name not in self.removed)
        if self.removed_count > len(left):
            nodes = "was only 1 node" if len(left) == 1 else f"were only {len(left)} nodes"
            detail = f"there {nodes} that took work, not {self.removed_count}"
            raise WhatIfError(detail, "/remove_nodes")
        more = left[len(left) - self.removed_count :]
        return msgspec.structs.replace(self, removed=[*self.removed, *more], removed_count=0)

    def drops(self, event: t.Event) -> bool:
        """Whether a fact of the window has no place in the branch."""
        match event:
            case t.PolicyChanged():
                return self.policy is not None
            case t.QueueConfigured():
                return any(queue.name == event.queue.name for queue in self.queues)
            case t.QueueRemoved():
                return any(queue.name == event.name for queue in self.queues)
            case t.NodeUncordoned():
                return event.node in self.removed
            case _:
                return False

    def events(self, state: State) -> Iterator[t.Event]:
        """The entries that put them in force, where they differ from what is."""
        if self.policy is not None and self.policy != state.policy:
            yield t.PolicyChanged(self.policy, USER)
        known = with_default(state.queues)
        for queue in sorted(self.queues, key=lambda each: (each.name.count("/"), each.name)):
            if known.get(queue.name) != queue:
                yield t.QueueConfigured(queue, USER)
        for name, inventory in sorted(self.added.items()):
            yield t.NodeRegistered(name, f"{name}-whatif", inventory, [], ADDED_LEASE_MS)
        for name in self.removed:
            yield t.NodeCordoned(name, USER, "what if it were not there")


class Outcome(msgspec.Struct, frozen=True):
    """What came out. `first` and `last` are the window's sequences, and `began_ns` and `until_ns` its times: the state
    after `first` is where both courses begin. `left_at` is the last entry that the branch has in common with the record
    (None = all of them), `passes` how many recorded passes were decided again and came out the same, `guessed` where
    run times are from that the log never saw to their end, by how many jobs. `other_engine` counts the record's
    decisions of another engine version. `changes` name the nodes that go, and `entries` are the branch's own."""

    first: int
    last: int
    began_ns: int
    until_ns: int
    left_at: int | None
    passes: int
    guessed: dict[Guess, int]
    other_engine: int
    comparison: Comparison
    changes: Changes
    entries: list[Entry]


def what_if(
    start: Fold,
    window: Sequence[Entry],
    later: Sequence[Entry],
    changes: Changes,
    *,
    span_ns: tuple[int, int] = (0, 0),
    follows: bool = True,
    progress: Progress = lambda _: None,
) -> Outcome:
    """Run a window, whose entries follow on `start`, under other rules. Of `later`, the entries after it, it takes in
    the rest of a pass that it would end in; from the others only run times are learned. The window is from the first to
    the second of `span_ns`, at least from the entry that it follows on to its last. Where `follows` is off, the branch
    leaves the record at once. Raises WhatIfError, BranchError."""
    middle = end_of_pass(start, window)
    start.apply_all(window[:middle])
    window = window[middle:]
    if not window:
        raise WhatIfError("nothing happens in this window", "/from")
    further = pass_end(window[-1].sequence, [window[-1], *later[:BATCH_LIMIT]]) - window[-1].sequence
    window, later = [*window, *later[:further]], later[further:]
    state_bytes, state = start.state_bytes(), start.cluster.state
    changes = changes.named(state)
    facts = Facts(state)
    facts.read(window)
    facts.close()
    facts.read(later)
    measure, first = _measure(state, facts), state.sequence
    began_ns, until_ns = _span(state, window, later, span_ns)
    facts.seen_ns = max(facts.seen_ns, until_ns)
    record = Course(start, began_ns, until_ns, measure)
    _replay(start, record, window, lambda part: progress(part / 4))
    fold = Fold.restore(state_bytes)
    course = Course(fold, began_ns, until_ns, measure)
    branch = Branch(fold, course, prefix_of(window, DEFAULT_PREFIX))
    put_in = _put_in_force(branch, fold, changes, began_ns)
    agents: VirtualAgents | None = None
    if put_in or not follows or not branch.follow(window, changes.drops):
        length_ns = max(1, until_ns - began_ns)
        agents = branch.go_on(
            facts, changes.drops, lambda now_ns: progress(0.25 + 0.75 * (now_ns - began_ns) / length_ns)
        )
    course.finish()
    guessed: dict[Guess, int] = {}
    for guess in agents.guessed.values() if agents is not None else ():
        guessed[guess] = guessed.get(guess, 0) + 1
    return Outcome(
        first,
        window[-1].sequence,
        began_ns,
        until_ns,
        first + branch.followed if agents is not None else None,
        branch.passes,
        guessed,
        facts.other_engine,
        compare(record, course, branch.ids, lambda job_id: _length_ns(facts, record.jobs[job_id])),
        changes,
        branch.entries,
    )


def _span(state: State, window: Sequence[Entry], later: Sequence[Entry], span_ns: tuple[int, int]) -> tuple[int, int]:
    """When the window begins and ends: between its entries and those around it."""
    began_ns = min(max(span_ns[0], state.timestamp_ns), max(window[0].timestamp_ns, state.timestamp_ns))
    least_ns = max(began_ns, window[-1].timestamp_ns)
    most_ns = max(least_ns, later[0].timestamp_ns) if later else max(least_ns, span_ns[1])
    return began_ns, min(max(span_ns[1], least_ns), most_ns)


def _replay(fold: Fold, course: Course, window: Sequence[Entry], progress: Progress) -> None:
    for place, entry in enumerate(window):
        course.pass_time(entry.timestamp_ns)
        fold.apply(entry)
        course.note(entry)
        if place % CHUNK == 0:
            progress(place / len(window))
    course.finish()


def _put_in_force(branch: Branch, fold: Fold, changes: Changes, now_ns: int) -> bool:
    """Append what is otherwise; whether anything is. Raises WhatIfError for what the fold does not apply."""
    state = fold.cluster.state
    queues = state.queues | {queue.name: queue for queue in changes.queues}
    for problem in tree_problems(queues, changes.policy or state.policy):
        raise WhatIfError(problem.detail, problem.pointer)
    events = list(changes.events(state))
    refused = state.refused_count
    for event in events:
        branch.append(event, now_ns)
        if state.refused_count > refused:
            raise WhatIfError(state.refusals[-1].reason, _POINTERS.get(type(event), ""))
    return bool(events)


def _measure(state: State, facts: Facts) -> Measure | None:
    """By what fragmentation is measured in both courses: the mix of all that was asked for up to the window's end."""
    mix = dict(state.mix)
    for each in facts.outside:
        if isinstance(each.event, t.JobSubmitted):
            note_mix(mix, demand_of(each.event.spec))
    found = scheme_of("tight", (), mix).mix
    return Measure(found) if found else None


def _length_ns(facts: Facts, job: Job) -> int:
    """For how long a recorded job runs, as far as anybody knows."""
    runs = facts.runs(job.id)
    if runs:
        return runs[-1].whole[0]
    estimate = job.spec.limits.estimate
    said_ns = estimate * SECOND_NS if isinstance(estimate, int) else 0
    return max(facts.longest_ns(job.id), said_ns) or facts.median_run_ns()
