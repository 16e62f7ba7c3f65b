"""The clusters and logs that are measured: 1,000 nodes of 8 devices on fabrics of 32, jobs of one device."""

from collections.abc import Iterator, Sequence
from typing import Final

from muster.core.decide import decide
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry, Message
from muster.events.spec import JobSpec
from muster.events.subjects import DEFAULT_PREFIX, subject_of
from muster.projections.decision_subjects import decision_subject
from muster.projections.fold import Fold

NODES: Final = 1000
DEVICES: Final = 8
PENDING: Final = 10_000
STEP_NS: Final = 50_000


def registrations(nodes: int = NODES) -> Iterator[t.NodeRegistered]:
    """The nodes."""
    for number in range(nodes):
        name = f"node-{number + 1}"
        address = f"10.{number // 250}.0.{number % 250 + 1}"
        devices = [t.Device(i, f"GPU-{name}-{i}", "A100-80GB", 81_000, 81_920) for i in range(DEVICES)]
        inventory = t.Inventory(devices, 128, 1 << 20, address, f"fabric-{number // 32}")
        yield t.NodeRegistered(name, f"{name}-life", inventory, [], 120_000)


def submission(gpus: int = 1) -> t.JobSubmitted:
    """One job."""
    return t.JobSubmitted("ada", JobSpec(command=["python", "train.py", "--epochs", "3"], name="train", gpus=gpus))


def mixed(number: int) -> t.JobSubmitted:
    """Mostly small jobs, some gangs."""
    return submission((1, 1, 2, 1, 4, 1, 1, 8, 1, 2)[number % 10])


class Paper:
    """A log on paper, folded as it grows, an entry every `step_ns`. Whoever has read `entries` may clear them."""

    def __init__(self, step_ns: int = STEP_NS) -> None:
        self.fold: Final = Fold.empty()
        self.entries: Final[list[Entry]] = []
        self._now_ns = 1_000_000_000
        self._step_ns = step_ns

    def append(self, event: t.Event) -> int:
        """One entry more; gives its sequence."""
        self._now_ns += self._step_ns
        sequence = self.fold.cluster.state.sequence + 1
        entry = Entry(sequence, self._now_ns, self._subject(event), codec.encode(event))
        self.entries.append(entry)
        self.fold.apply(entry)
        return entry.sequence

    def _subject(self, event: t.Event) -> str:
        if isinstance(event, t.JobSubmitted):
            return subject_of(event, event.spec.queue.rpartition("/")[2])
        return decision_subject(event, self.fold.cluster.state, DEFAULT_PREFIX)

    def pass_time(self, elapsed_ns: int) -> None:
        """Time goes by, told to the log as a leader would."""
        self._now_ns += elapsed_ns
        self.append(t.ClockAdvanced())

    def start_and_end(self, jobs: Sequence[int]) -> None:
        """The agents report the start and the end of every worker of these jobs."""
        self.start(jobs)
        self.end(jobs)

    def start(self, jobs: Sequence[int]) -> None:
        """The agents report the start of every worker of these jobs."""
        for place in self._workers(jobs):
            self.append(t.WorkerStarted(*place, pid=4000))

    def end(self, jobs: Sequence[int]) -> None:
        """The agents report the end of every worker of these jobs."""
        for place in self._workers(jobs):
            self.append(t.WorkerExited(*place, t.ExitStatus("exited", 0)))

    def _workers(self, jobs: Sequence[int]) -> Iterator[tuple[str, str, int, int, int]]:
        for job_id in jobs:
            attempt = self.fold.cluster.state.jobs[job_id].attempt
            for worker in list(attempt.workers) if attempt is not None else []:
                yield worker.node, worker.incarnation, job_id, 1, worker.rank


def history(entries: int) -> list[Entry]:
    """A log of so many entries: jobs submitted, placed, started and ended, a few hundred at a time."""
    paper = Paper()
    for registration in registrations():
        paper.append(registration)
    number = 0
    while len(paper.entries) < entries:
        jobs = []
        for _ in range(400):
            jobs.append(paper.append(mixed(number)))
            number += 1
        while events := decide(paper.fold.cluster):
            for event in events:
                paper.append(event)
        paper.start_and_end(jobs)
    return paper.entries[:entries]


def messages(events: Sequence[t.Event], prefix: str) -> list[Message]:
    """Events as messages to append."""
    return [
        Message(subject_of(event, "default"), codec.encode(event), f"{prefix}-{number}")
        for number, event in enumerate(events)
    ]
