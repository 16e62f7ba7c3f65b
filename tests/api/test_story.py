"""The log as a story: a sentence for each type of event, with who, where and why."""

import pytest
from cluster_script import SECOND, Script, spec
from policy_script import AT_ONCE

from muster.api.story import Teller, Told
from muster.events import types as t
from muster.events.policy import Policy, QueueSpec
from muster.events.spec import PreemptionSpec, RetrySpec
from muster.events.subjects import WRITERS
from muster.projections.fold import Fold

BASIS = t.Basis(1, "c", "p", 1)


class Book(Script):
    """A script whose entries are told."""

    def __init__(self) -> None:
        super().__init__()
        self._teller = Teller(Fold.empty())
        self._told = 0

    def tell(self) -> list[Told]:
        """The entries since the last time."""
        new = self.entries[self._told :]
        self._told = len(self.entries)
        return [self._teller.tell(entry) for entry in new]

    def lines(self) -> list[str]:
        return [told.text for told in self.tell() if not told.aside]

    def line(self, event: t.Event) -> str:
        self.tell()
        self.append(event)
        [told] = self.tell()
        _SEEN.add(told.kind)
        return told.text


_SEEN: set[str] = set()


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_job_from_its_coming_to_its_end(book: Book) -> None:
    book.node("node-1", fabric="ib")
    book.node("node-2", fabric="ib")
    assert book.lines() == ["node-1 is there with 8 A100-80GB", "node-2 is there with 8 A100-80GB"]
    job = book.submit(spec(16, name="llama", nodes=2))
    book.advance(12)
    book.settle()
    book.start(job)
    book.advance(59)
    book.exit(job)
    assert book.lines() == [
        "job 3 'llama' of ada comes to default and asks for 16 GPUs on 2 nodes",
        (
            "job 3 'llama' of ada gets node-1[0-7], node-2[0-7] after a wait of 12s:"
            " best-fit: an even split over 2 nodes on fabric ib"
        ),
        "worker 0 of job 3 'llama' of ada on node-1 runs",
        "worker 1 of job 3 'llama' of ada on node-2 runs, and so do all 2 of them",
        "worker 0 of job 3 'llama' of ada on node-1 has ended: exit code 0",
        (
            "worker 1 of job 3 'llama' of ada on node-2 has ended: exit code 0;"
            " job 3 'llama' of ada has completed after 59s on 16 GPUs"
        ),
    ]


def test_what_follows_from_decisions_is_an_aside(book: Book) -> None:
    book.node("node-1")
    job = book.submit(spec(1, name="x"))
    book.settle()
    book.append(t.StopWorker(job, 1, 0, "node-1", "life", "cancelled", 1))
    told = {each.kind: each for each in book.tell()}
    assert told["StartWorker"].text == "node-1 is to start worker 0 of job 2 'x' of ada"
    assert told["StopWorker"].text == "node-1 is to stop worker 0 of job 2 'x' of ada: it is cancelled"
    assert [kind for kind, each in told.items() if each.aside] == ["StartWorker", "StopWorker"]


@pytest.mark.parametrize(
    ("signal", "lost"),
    [(None, "is lost"), ("USR2@60", "is lost as far as its checkpoint does not keep it")],
)
def test_who_is_stopped_for_whom_and_what_is_lost(book: Book, signal: str | None, lost: str) -> None:
    book.node("node-1")
    book.append(t.PolicyChanged(AT_ONCE, "root"))
    low = book.submit(spec(8, name="low", priority=0, preemption=PreemptionSpec(signal=signal)))
    book.settle()
    book.start(low)
    book.advance(60)
    high = book.submit(spec(8, name="high", priority=900), "bob")
    book.tell()
    book.settle()
    book.exit(low, None, reason="stopped")
    book.settle()
    first, room, exit_line, again, gets = book.lines()
    assert first == (
        f"job {low} 'low' of ada is stopped for job {high} 'high' of bob (priority 900 before 0); 8m00s of device time"
        f" {lost}"
    )
    assert room.startswith(f"room is kept for job {high} 'high' of bob on node-1[0-7] (job {low} stopped for it): ")
    assert exit_line == f"worker 0 of job {low} 'low' of ada on node-1 has ended: it was stopped"
    assert again == f"job {low} 'low' of ada waits again: it made room, and the try does not count"
    assert gets.startswith(f"job {high} 'high' of bob gets node-1[0-7] after a wait of 0s: ")


def test_refused_entries_say_why_they_change_nothing(book: Book) -> None:
    assert book.line(t.JobCancelRequested(77, "ada", "a typo")) == (
        "ada asks for an end of job 77: a typo; this changes nothing: there is no job 77"
    )
    book.append_raw("muster.node.node-1.worker-exited", b"\xff")
    [told] = book.tell()
    assert told.kind == "unreadable"
    assert told.text.startswith("something that cannot be read; this changes nothing: unreadable:")
    rejected = book.submit(spec(1, name="x", queue="nowhere"))
    [line] = book.lines()
    assert line.startswith(
        f"job {rejected} 'x' of ada comes to nowhere and asks for 1 GPU; job {rejected} 'x' of ada is"
    )
    assert "is rejected: " in line


def test_every_type_of_event_has_its_sentence(book: Book) -> None:
    life = book.node("node-1")
    job = book.submit(spec(2, name="x", retry=RetrySpec(max_attempts=3, on=["failed", "node_fail"])))
    book.settle()
    book.start(job)
    who = f"job {job} 'x' of ada"
    ref = [t.WorkerRef(0, "node-1", life)]
    place = [t.Placement(0, "node-1", life, [0, 1, 2])]
    fault = t.DeviceFault(7, "GPU-10.0.0.1-7", "xid", "quarantine", 64, detail="no spare row")
    sentences: list[tuple[t.Event, str]] = [
        (t.NodeCordoned("node-1", "ada", "a loud fan"), "ada keeps new work from node-1: a loud fan"),
        (t.NodeUncordoned("node-1", "ada"), "ada gives node-1 new work again"),
        (t.DeviceCordoned("node-1", "GPU-10.0.0.1-6", "ada"), "ada keeps new work from device 6 of node-1"),
        (t.DeviceUncordoned("node-1", "GPU-10.0.0.1-6", "ada"), "ada vouches for device 6 of node-1: it takes work"),
        (
            t.QueueConfigured(QueueSpec("lab", guarantee="50%"), "ada"),
            "ada sets up queue lab: guarantee=50%",
        ),
        (t.QueueRemoved("lab", "ada"), "ada takes queue lab away"),
        (t.PolicyChanged(Policy(order="fair"), "ada"), "ada puts rules in force: order=fair"),
        (t.PolicyChanged(Policy(), "ada"), "ada puts rules in force: all as by default"),
        (
            t.DeviceFaulted("node-1", life, fault),
            "device 7 of node-1: Xid 64: no spare row; its work fails, and it takes none until somebody vouches for it",
        ),
        (
            t.DeviceRecovered("node-1", life, 7, "GPU-10.0.0.1-7", "it was reset"),
            "device 7 of node-1 has recovered: it was reset",
        ),
        (
            t.ForeignUsageChanged("node-1", life, [t.ForeignUse(3, "GPU-10.0.0.1-3", 6144)]),
            "processes that are nobody's work here hold 6.0GiB of device 3 on node-1",
        ),
        (
            t.ForeignUsageChanged("node-1", life, []),
            "processes that are nobody's work here hold nothing on node-1",
        ),
        (
            t.NodeDegraded("node-1", life, "nvml_hung", "no answer for 8 s"),
            "node-1 takes no new work: no answer for 8 s",
        ),
        (t.NodeRestored("node-1", life), "node-1 is well again"),
        (t.LeaderStarted("s-1", 5, "fifo"), "scheduler s-1 leads (engine 5, policy fifo)"),
        (t.ClockAdvanced(), "time goes by"),
        (
            t.NodeSuspected("node-1", life, 0, 10_000),
            "node-1 has been silent for 10s, and gets no new work",
        ),
        (t.NodeRecovered("node-1", life), "node-1 is heard again"),
        (
            t.StopFailed("node-1", life, job, 1, 0, "stuck in the driver"),
            f"worker 0 of {who} on node-1 outlives every signal, and the node takes no new work: stuck in the driver",
        ),
        (t.JobCancelRequested(job, "bob", ""), f"bob asks for an end of {who}"),
        (
            t.StopOrdered(BASIS, job, 1, "cancelled", ref),
            f"worker 0 on node-1 of {who} must stop: it is cancelled",
        ),
        (
            t.StartWorker(job, 1, 0, 1, "node-1", life, "x", "ada", "true", [], 0, 0, 0, 0, "a", 1, 1, leased=True),
            f"node-1 is to start worker 0 of {who}",
        ),
        (
            t.StopWorker(job, 1, 0, "node-1", life, "timed_out", 1),
            f"node-1 is to stop worker 0 of {who}: its time is over",
        ),
        (
            t.WorkerExited("node-1", life, job, 1, 0, t.ExitStatus("exited", 143, 15)),
            (
                f"worker 0 of {who} on node-1 has ended: signal 15; {who} is cancelled after 0s on 2 GPUs: cancelled by"
                " bob"
            ),
        ),
    ]
    for event, sentence in sentences:
        assert book.line(event) == sentence
    refused: list[tuple[t.Event, str]] = [
        (
            t.DeviceReadmitted(BASIS, "node-1", "GPU-10.0.0.1-7", "on probation for 1h"),
            "device 7 of node-1 takes work again: on probation for 1h",
        ),
        (
            t.JobTimedOut(BASIS, job, 1, "requeue", ref),
            f"{who} has run for its time limit: it is stopped, and waits again",
        ),
        (t.JobRequeued(BASIS, job, 1, "failed", counted=True), f"{who} waits again: it failed"),
        (
            t.JobPreempted(BASIS, job, 1, "cold", "reclaim", 99, 5_400_000, ref),
            f"{who} is stopped for job 99 (what its queue lent is asked back); 1h30m of device time is lost",
        ),
        (
            t.RoomReserved(BASIS, 99, place, [t.AllocationRef(job, 1)], "best-fit"),
            f"room is kept for job 99 on node-1[0-2] (job {job} stopped for it): best-fit",
        ),
        (t.RoomReleased(BASIS, job, "room_lost", "node-1 is lost"), f"no more room is kept for {who}: node-1 is lost"),
        (t.JobAllocated(BASIS, job, 3, place, "a", 1, "best-fit"), f"{who} gets node-1[0-2] (attempt 3): best-fit"),
        (
            t.WorkerRefused("node-1", life, 1, job, 1, 0, "the disk is full"),
            f"node-1 does not start worker 0 of {who}: the disk is full",
        ),
        (t.WorkerStarted("node-1", life, job, 1, 0, 1), f"worker 0 of {who} on node-1 runs"),
    ]
    for event, sentence in refused:
        text, _, reason = book.line(event).partition("; this changes nothing: ")
        assert (text, bool(reason)) == (sentence, True)
    assert book.line(t.NodeLost(BASIS, "node-1", life, 0, 120_000, [t.AllocationRef(77, 1)])).startswith(
        "node-1 is lost: its lease of 2m00s has run out; what ran there of job 77 is over"
    )
    _SEEN.update(("JobSubmitted", "NodeRegistered"))  # told in the tests above
    assert {kind.__name__ for kind in WRITERS} == _SEEN


def test_what_an_entry_is_about_can_be_filtered(book: Book) -> None:
    book.node("node-1")
    job = book.submit(spec(1, queue="research"), "bob")
    book.append(t.QueueConfigured(QueueSpec("research"), "ada"))
    node, submitted, queue = book.tell()
    assert [*map(set, (node.nodes, node.jobs, node.users))] == [{"node-1"}, set(), set()]
    assert [*map(set, (submitted.jobs, submitted.users, submitted.queues))] == [{job}, {"bob"}, {"research"}]
    assert [*map(set, (queue.users, queue.queues))] == [{"ada"}, {"research"}]


def test_a_story_that_begins_in_the_middle_knows_who_is_there(book: Book) -> None:
    book.node("node-1")
    job = book.submit(spec(1, name="x"))
    book.settle()
    middle = Fold.restore(book.fold.state_bytes())
    teller = Teller(middle)
    told = len(book.entries)
    book.now_ns += 30 * SECOND
    book.start(job)
    book.exit(job)
    texts = [teller.tell(entry).text for entry in book.entries[told:]]
    who = f"job {job} 'x' of ada"
    assert texts == [
        f"worker 0 of {who} on node-1 runs",
        f"worker 0 of {who} on node-1 has ended: exit code 0; {who} has completed after 0s on 1 GPU",
    ]
