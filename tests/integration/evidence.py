"""What must be true of a log and of the jobs' own trace after whatever was done to a site.

The facts are taken from the raw events, not from the fold; the fold's own invariants are checked beside them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from integration.jobs import Line, trace
from integration.processes import until
from integration.user import User

from muster.core.invariants import check_invariants
from muster.core.state import ENDED, Job
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.projections.fold import Fold

Place = tuple[str, int]
Worker = tuple[int, int, int]
E = TypeVar("E")


class Expected(NamedTuple):
    """An acknowledged submission: the job's id, and the exit code that its own program ends with; None = it does not
    end before it is cancelled."""

    key: str
    job: int
    exit_code: int | None


class Proof(NamedTuple):
    """What the log says: every event with its sequence, and the jobs at its end."""

    events: list[tuple[int, t.Event]]
    jobs: dict[int, Job]

    def of(self, kind: type[E]) -> list[E]:
        """The events of a type."""
        return [event for _, event in self.events if isinstance(event, kind)]


async def prove(site: User, expected: Sequence[Expected]) -> Proof:
    """Check everything that must hold once all these jobs, and no others, have ended."""
    await until(lambda: not site.processes() and not site.keepers(), "the processes of jobs are gone")
    entries = await site.entries()
    proof = read(entries)
    check_submissions(proof, expected)
    check_devices(proof)
    check_trace(trace(site.folder), proof, expected)
    report = await site.audit()
    assert report.ok, report.findings[:5]
    assert report.last >= len(entries)  # a scheduler may have begun a term meanwhile
    return proof


def read(entries: list[Entry]) -> Proof:
    """Fold the log with every invariant checked after every entry, and each job seen to end at most once; twice where
    an allocation landed after the job was cancelled, and was undone."""
    fold = Fold.empty()
    endings: Counter[int] = Counter()
    over: set[int] = set()
    events = []
    for entry in entries:
        fold.apply(entry)
        check_invariants(fold.cluster)
        for job in fold.touched & fold.cluster.state.jobs.keys():
            if (fold.cluster.state.jobs[job].phase in ENDED) != (job in over):
                over ^= {job}
                endings[job] += job in over
        fold.touched.clear()
        events.append((entry.sequence, codec.decode(entry.payload)))
    jobs = fold.cluster.state.jobs
    assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
    landed = late_allocations(events)
    more = {job: count for job, count in endings.items() if count > 1 + (job in landed)}
    assert not more, f"jobs that ended more than once: {more}"
    return Proof(events, jobs)


def late_allocations(events: Sequence[tuple[int, t.Event]]) -> set[int]:
    """The jobs that were given devices after somebody had cancelled them."""
    cancelled: set[int] = set()
    landed: set[int] = set()
    for _, event in events:
        if isinstance(event, t.JobCancelRequested):
            cancelled.add(event.job)
        elif isinstance(event, t.JobAllocated) and event.job in cancelled:
            landed.add(event.job)
    return landed


def check_submissions(proof: Proof, expected: Sequence[Expected]) -> None:
    """Every acknowledged submission is there once, and its job ended with its own exit code."""
    by_key: dict[str, list[int]] = {}
    for sequence, event in proof.events:
        if isinstance(event, t.JobSubmitted):
            by_key.setdefault(event.key, []).append(sequence)
    assert {each.key: [each.job] for each in expected} == by_key
    wrong = []
    for each in expected:
        job = proof.jobs[each.job]
        phase = "CANCELLED" if each.exit_code is None else "COMPLETED" if each.exit_code == 0 else "FAILED"
        if (job.phase, job.exit_code) != (phase, each.exit_code):
            wrong.append((each.job, job.phase, job.exit_code, each.exit_code, job.reason))
    assert not wrong, f"(job, phase, exit code, own exit code, reason): {wrong}"


def check_devices(proof: Proof) -> None:
    """No device is held twice at any sequence. For jobs that share no device. What was allocated on an earlier life of
    an agent than the one that the log has by then holds nothing: it never starts."""
    lives: dict[str, str] = {}
    holder: dict[Place, Worker] = {}
    held: dict[Worker, list[Place]] = {}

    def release(worker: Worker) -> None:
        for place in held.pop(worker, []):
            del holder[place]

    for sequence, event in proof.events:
        match event:
            case t.JobAllocated(job=job, attempt=attempt, placements=placements):
                for placement in placements:
                    worker = (job, attempt, placement.rank)
                    if lives[placement.node] != placement.incarnation:
                        continue
                    held[worker] = [(placement.node, device) for device in placement.devices]
                    taken = [place for place in held[worker] if place in holder]
                    assert not taken, f"entry {sequence}: {taken} held by {[holder[place] for place in taken]}"
                    holder.update(dict.fromkeys(held[worker], worker))
            case t.WorkerExited() | t.WorkerRefused():
                release((event.job, event.attempt, event.rank))
            case t.NodeLost(node=node, ended=ended):
                over = {(ref.job, ref.attempt) for ref in ended}
                for worker in [w for w, places in held.items() if w[:2] in over and places and places[0][0] == node]:
                    release(worker)
            case t.NodeRegistered(node=node, incarnation=incarnation, workers=workers):
                lives[node] = incarnation
                live = {(report.job, report.attempt, report.rank) for report in workers if report.exit is None}
                for worker in [w for w, places in held.items() if places and places[0][0] == node and w not in live]:
                    release(worker)
            case _:
                pass
    assert not holder, f"devices still held at the end: {holder}"


def check_trace(lines: list[Line], proof: Proof, expected: Sequence[Expected]) -> None:
    """What the workers saw agrees with the log: none ran twice, none beside its successor or on a held device."""
    assert not [line for line in lines if line.what in ("twice", "clash")]
    begun = Counter(line.allocation for line in lines if line.what == "begin")
    assert not {name: count for name, count in begun.items() if count > 1}
    allocated: dict[str, tuple[str, tuple[int, ...]]] = {}
    for event in proof.of(t.JobAllocated):
        for place in event.placements:
            allocated[f"{event.job}.{event.attempt}.{place.rank}"] = (place.node, tuple(sorted(place.devices)))
    for line in lines:
        assert allocated[line.allocation] == (line.node, line.devices), line
    codes: dict[int, set[int]] = {}
    for line in lines:
        if line.what == "end":
            codes.setdefault(line.job, set()).add(int(line.extra))
    for each in expected:
        assert codes.get(each.job, set()) == ({each.exit_code} - {None}), f"job {each.job} ended with {codes}"
    check_runs(lines, proof, expected)


def check_runs(lines: list[Line], proof: Proof, expected: Sequence[Expected]) -> None:
    """A job runs again only by a requeue; one whose only worker has begun, only where that worker was lost."""
    attempts = {(line.job, line.attempt) for line in lines if line.what == "begin"}
    runs = Counter(job for job, _ in attempts)
    gangs = {event.job for event in proof.of(t.JobAllocated) if len(event.placements) > 1}
    again = Counter(
        event.job for event in proof.of(t.JobRequeued) if event.job in gangs or event.cause != "never_started"
    )
    for each in expected:
        fewest = 0 if each.exit_code is None else 1
        assert fewest <= runs[each.job] <= 1 + again[each.job], f"job {each.job} ran {runs[each.job]} times"
