"""What would have been: small days worked out by hand, and the same rules giving the same day."""

import random
from collections.abc import Iterator, Sequence

import pytest
from cluster_script import SECOND, spec
from log_maker import RandomCluster
from recorded_days import DAWN_NS, Day, Task

from muster.core.order import ENGINE_VERSION
from muster.events import types as t
from muster.events.log import Entry
from muster.events.policy import Backfill, Policy, Preemption, QueueSpec
from muster.events.spec import JobSpec, LimitsSpec, PreemptionSpec, RetrySpec
from muster.projections.audit import audit
from muster.projections.fold import Fold
from muster.projections.mirror import MirrorRow
from muster.projections.whatif import Changes, Outcome, WhatIfError, what_if

FIFO = Policy(order="fifo", backfill=Backfill(mode="none"), preemption=Preemption(mode="none"))
SJF = Policy(order="sjf", backfill=Backfill(mode="none"), preemption=Preemption(mode="none"))


def job(gpus: int, estimate_s: int = 0, **fields: object) -> JobSpec:
    limits = LimitsSpec(estimate=estimate_s) if estimate_s else LimitsSpec()
    return spec(gpus, limits=limits, **fields)


def day_of(tasks: Sequence[Task], until_s: float, *, devices: Sequence[int] = (1,), policy: Policy = FIFO) -> Day:
    """A day on nodes of so many devices; reports and passes take no time."""
    day = Day(lag_ms=0, start_ms=0, stop_ms=0)
    for number, count in enumerate(devices, 1):
        day.node(f"node-{number}", count)
    day.append(t.PolicyChanged(policy, "ada"))
    day.come(tasks)
    day.play(until_s)
    return day


def ask(day: Day, changes: Changes, *, first: int = 0, last: int = 0, follows: bool = True) -> Outcome:
    """The window from before the first job to the day's end, which is 300 s, or from `first` to `last`."""
    first = first or day.jobs[0] - 1
    last = last or len(day.entries)
    start = Fold.empty()
    start.apply_all(day.entries[:first])
    span_ns = 0, DAWN_NS + 300 * SECOND
    return what_if(start, day.entries[first:last], day.entries[last:], changes, span_ns=span_ns, follows=follows)


def waits(outcome: Outcome) -> dict[int, tuple[float, float]]:
    """Job → wait as recorded and as it would have been, of those that gain or lose."""
    movers = [*outcome.comparison.gained, *outcome.comparison.lost]
    return {mover.job: (mover.recorded_wait_s, mover.whatif_wait_s) for mover in movers}


def branch_of(day: Day, outcome: Outcome) -> list[Entry]:
    """The whole log of the branch."""
    return [*day.entries[: outcome.first], *outcome.entries]


def ends(day: Day, outcome: Outcome) -> list[tuple[str, int]]:
    """What became of the branch's jobs, and when (0 = it still runs)."""
    branch = Fold.empty()
    branch.apply_all(branch_of(day, outcome))
    jobs = branch.cluster.state.jobs.values()
    return [(found.phase, max(0, found.ended_ns - DAWN_NS) // SECOND) for found in jobs]


ONE_AFTER_ANOTHER = (Task(1, 100, job(1, 100)), Task(2, 100, job(1, 100)), Task(3, 10, job(1, 10)))
"""On one device, in order: they start at 1, 101 and 201 s, so they wait 0, 99 and 198 s."""


def test_the_shortest_first_lets_the_short_job_go_ahead() -> None:
    day = day_of(ONE_AFTER_ANOTHER, 300)
    outcome = ask(day, Changes(policy=SJF))

    # the short one starts at 101, and the second long one after it, at 111
    assert waits(outcome) == {day.jobs[2]: (198.0, 98.0), day.jobs[1]: (99.0, 109.0)}
    group = outcome.comparison.jobs
    assert (group.recorded.mean_wait_s, group.whatif.mean_wait_s) == (99.0, 69.0)
    assert (group.recorded.mean_jct_s, group.whatif.mean_jct_s) == (169.0, 139.0)
    assert (outcome.left_at, outcome.comparison.same_devices) == (outcome.first, 3)


def test_another_node_lets_them_run_beside_one_another() -> None:
    day = day_of(ONE_AFTER_ANOTHER, 300)
    inventory = day.cluster.state.nodes["node-1"].inventory
    outcome = ask(day, Changes(added={"added-1": inventory}))

    # the second starts at once, the third when the first has ended, at 101
    assert waits(outcome) == {day.jobs[1]: (99.0, 0.0), day.jobs[2]: (198.0, 98.0)}
    assert outcome.comparison.whatif.utilization < outcome.comparison.recorded.utilization


def test_a_node_less_makes_them_wait_and_what_runs_there_runs_to_its_end() -> None:
    day = day_of((Task(1, 100, job(1)), Task(2, 100, job(1)), Task(50, 10, job(1))), 300, devices=(1, 1))
    placed = next(entry.sequence for entry in reversed(day.entries) if b"JobAllocated" in entry.payload)
    third = day.jobs[2]
    outcome = ask(day, Changes(removed=["node-2"]), first=third - 1)

    # recorded and otherwise it starts at 101; without node-1 too it would never start
    assert third < placed
    assert waits(outcome) == {}
    nowhere = ask(day, Changes(removed=["node-1", "node-2"]), first=third - 1)
    assert waits(nowhere) == {third: (51.0, 250.0)}  # up to the window's end, at 300
    assert nowhere.comparison.jobs.whatif.started == 0


def test_a_cancellation_comes_when_it_came() -> None:
    day = Day(lag_ms=0, start_ms=0, stop_ms=0)
    day.node("node-1", 1)
    day.append(t.PolicyChanged(FIFO, "ada"))
    day.come(ONE_AFTER_ANOTHER)
    day.at(151, lambda: day.append(t.JobCancelRequested(day.jobs[1], "ada")))
    day.play(300)
    outcome = ask(day, Changes(policy=SJF))

    # recorded it runs from 101 to 151, and the short one from then on; otherwise from 111 to 151
    assert waits(outcome) == {day.jobs[2]: (148.0, 98.0), day.jobs[1]: (99.0, 109.0)}
    assert ends(day, outcome) == [("COMPLETED", 101), ("CANCELLED", 151), ("COMPLETED", 111)]


def test_a_job_whose_end_the_log_never_saw_runs_for_its_estimate_and_is_counted() -> None:
    day = day_of((Task(1, 100, job(1)), Task(2, 1000, job(1)), Task(3, 1000, job(1, 10))), 300)
    outcome = ask(day, Changes(policy=SJF))

    # the second is still running at the end of the record; the third has not begun, and says that it takes 10 s
    assert ends(day, outcome) == [("COMPLETED", 101), ("RUNNING", 0), ("COMPLETED", 111)]
    assert outcome.guessed == {"estimate": 1, "seen": 1}


@pytest.mark.parametrize(("signal", "end_s"), [("", 151), ("USR1@5", 111)])
def test_what_is_stopped_begins_anew_unless_it_keeps_its_work(signal: str, end_s: int) -> None:
    first = job(1, preemption=PreemptionSpec(signal=signal) if signal else PreemptionSpec())
    day = day_of((Task(1, 100, first), Task(41, 10, job(1, priority=900))), 300)
    outcome = ask(day, Changes(policy=Policy(preemption=Preemption(min_runtime=0))))

    # at 41 it makes room for the urgent one, and goes on at 51: for 100 s, or for the 60 s that were left
    assert ends(day, outcome) == [("COMPLETED", end_s), ("COMPLETED", 51)]
    whole = outcome.comparison.whatif
    assert whole.preemptions == 1
    assert whole.lost_gpu_hours == pytest.approx(0 if signal else 40 / 3600)


def test_a_queue_of_the_file_takes_the_place_of_those_in_the_window() -> None:
    day = Day(lag_ms=0, start_ms=0, stop_ms=0)
    day.node("node-1", 4)
    day.append(t.QueueConfigured(QueueSpec("research", limit=1), "ada"))
    day.come([Task(second, 50, job(1, queue="research")) for second in (1, 2)])
    day.at(3, lambda: day.append(t.QueueConfigured(QueueSpec("research", limit=1, weight=2), "ada")))
    day.play(200)
    outcome = ask(day, Changes(queues=[QueueSpec("research", limit=2)]))

    assert waits(outcome) == {day.jobs[1]: (49.0, 0.0)}
    assert [group.name for group in outcome.comparison.queues] == ["research"]


def test_jobs_that_the_other_rules_refuse_are_counted_and_not_compared() -> None:
    day = Day(lag_ms=0, start_ms=0, stop_ms=0)
    day.node("node-1", 4)
    day.append(t.QueueConfigured(QueueSpec("lab"), "ada"))
    day.come([Task(0, 10, job(1)), Task(5, 10, job(1, queue="lab")), Task(6, 10, job(1, queue="lab"))])
    day.play(300)
    outcome = ask(day, Changes(queues=[QueueSpec("lab/vision")]))

    assert (outcome.comparison.jobs.jobs, outcome.comparison.rejected) == (1, 2)
    assert [group.name for group in outcome.comparison.queues] == ["default"]
    assert ask(day, Changes()).comparison.rejected == 0


def test_what_cannot_be_put_in_force_is_refused() -> None:
    day = day_of(ONE_AFTER_ANOTHER, 300)
    with pytest.raises(WhatIfError, match="no node node-9"):
        ask(day, Changes(removed=["node-9"]))
    with pytest.raises(WhatIfError, match="a node node-1 already"):
        ask(day, Changes(added={"node-1": day.cluster.state.nodes["node-1"].inventory}))
    with pytest.raises(WhatIfError, match="no queue a for a/b"):
        ask(day, Changes(queues=[QueueSpec("a/b")]))
    with pytest.raises(WhatIfError, match="only 1 node that"):
        ask(day, Changes(removed_count=2))


# -- the same rules give the same day ---------------------------------------------------------------------------------


def busy_day(seed: int, policy: Policy) -> Day:
    """Jobs of many kinds over more than an hour, with failures, cancellations and nodes that come and go."""
    chance = random.Random(seed)
    day = Day()
    for number in range(1, 5):
        day.node(f"node-{number}", 8, fabric="ib")
    day.append(t.PolicyChanged(policy, "ada"))
    tasks = []
    for number in range(250):
        gpus = chance.choice((1, 1, 1, 2, 4, 8, 12))
        runs_s = chance.choice((20, 60, 200, 500))
        kind = job(
            gpus,
            chance.choice((0, runs_s)),
            name=f"kind-{number % 17}",
            nodes="any" if gpus > 8 else None,
            priority=chance.choice((0, 300, 300, 900)),
            retry=RetrySpec(max_attempts=2, on=["failed"]),
            preemption=PreemptionSpec(signal="USR1@5") if number % 3 else PreemptionSpec(),
        )
        at_s = chance.uniform(1, 4_400)
        tasks.append(Task(at_s, runs_s, kind, chance.choice(("ada", "bob", "eve")), int(chance.random() < 0.05)))
    day.come(tasks)
    for _ in range(30):
        day.at(chance.uniform(100, 4_400), lambda: cancel_one(day, chance))
    for at_s in (1_500, 3_500):
        day.at(at_s, lambda: day.append(t.NodeCordoned("node-2", "ada")))
        day.at(at_s + 300, lambda: day.append(t.NodeUncordoned("node-2", "ada")))
    day.play(4_500)
    return day


def cancel_one(day: Day, chance: random.Random) -> None:
    day.append(t.JobCancelRequested(chance.choice(day.jobs), "ada"))


@pytest.mark.parametrize("policy", [Policy(), FIFO, Policy(order="fair", placement="fragmentation")])
def test_under_the_same_rules_the_branch_is_the_record(policy: Policy) -> None:
    day = busy_day(1, policy)
    first = len(day.entries) // 3
    outcome = ask(day, Changes(policy=policy), first=first)

    assert outcome.left_at is None
    assert outcome.passes > 20
    assert outcome.entries == day.entries[outcome.first :]
    compared = outcome.comparison
    assert compared.same_devices == compared.placed > 80
    assert (compared.recorded, compared.jobs.recorded) == (compared.whatif, compared.jobs.whatif)


@pytest.mark.parametrize("policy", [Policy(), FIFO, Policy(order="fair", placement="fragmentation")])
def test_decided_and_played_again_under_the_same_rules_it_is_nearly_the_record(policy: Policy) -> None:
    day = busy_day(2, policy)
    outcome = ask(day, Changes(), first=len(day.entries) // 3, follows=False)

    compared = outcome.comparison
    assert outcome.left_at == outcome.first
    assert compared.placed > 80
    assert compared.same_devices >= 0.99 * compared.placed
    assert compared.jobs.whatif.mean_wait_s == pytest.approx(compared.jobs.recorded.mean_wait_s, rel=0.01, abs=0.1)


@pytest.mark.parametrize("more", [0, 1])
def test_a_window_that_would_end_inside_a_pass_goes_on_to_its_end(more: int) -> None:
    """The first pass are two entries: a job is placed, and its worker is to start."""
    day = day_of(ONE_AFTER_ANOTHER, 300)
    placed = next(entry.sequence for entry in day.entries if b"JobAllocated" in entry.payload)
    outcome = ask(day, Changes(), last=placed + more)

    assert (outcome.last, outcome.left_at, outcome.passes) == (placed + 1, None, 1)
    assert audit(Paper(branch_of(day, outcome))).findings == []


def test_a_branch_is_a_log_that_passes_the_audit() -> None:
    day = busy_day(3, Policy())
    outcome = ask(day, Changes(policy=FIFO), first=len(day.entries) // 2)
    report = audit(Paper(branch_of(day, outcome)))

    assert outcome.left_at == outcome.first
    assert report.findings == []
    assert report.passes.redecided > 20


class Paper:
    """A log on paper, as an audit reads it."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def position(self) -> int:
        return len(self._entries)

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        yield [MirrorRow(*entry, b"") for entry in self._entries[first - 1 : last]]


def test_it_follows_the_record_up_to_the_first_thing_that_is_otherwise() -> None:
    day = Day(lag_ms=0, start_ms=0, stop_ms=0)
    day.node("node-1", 1)
    day.append(t.PolicyChanged(FIFO, "ada"))
    day.come([Task(1, 10, job(1, 10)), *(task._replace(at_s=task.at_s + 50) for task in ONE_AFTER_ANOTHER)])
    day.at(49, lambda: day.append(t.PolicyChanged(SJF, "ada")))
    day.play(300)
    changed = next(entry.sequence for entry in day.entries if b'"order":"sjf"' in entry.payload)
    outcome = ask(day, Changes(policy=FIFO))

    # in the record the short job of the second three goes ahead at 151; in the order of coming it waits until 251
    assert (outcome.left_at, outcome.passes) == (changed - 1, 1)
    assert waits(outcome) == {day.jobs[2]: (109.0, 99.0), day.jobs[3]: (98.0, 198.0)}


def test_decisions_of_another_engine_are_counted_and_followed_while_they_are_the_same() -> None:
    day = day_of(ONE_AFTER_ANOTHER, 300)
    older = b'"engine":1}'
    present = f'"engine":{ENGINE_VERSION}}}'.encode()
    day.entries[:] = [entry._replace(payload=entry.payload.replace(present, older)) for entry in day.entries]
    outcome = ask(day, Changes(policy=FIFO))

    assert (outcome.left_at, outcome.other_engine) == (None, 3)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_log_holds_it_can_be_asked_and_the_branch_passes_the_audit(seed: int) -> None:
    wild = RandomCluster(seed, 900)
    for changes in (Changes(), Changes(policy=SJF, removed=["node-2"]), Changes(policy=Policy(order="fair"))):
        start = Fold.empty()
        start.apply_all(wild.entries[:300])
        outcome = what_if(start, wild.entries[300:700], wild.entries[700:], changes, follows=False)
        report = audit(Paper([*wild.entries[: outcome.first], *outcome.entries]))

        assert report.findings == []
        assert outcome.comparison.jobs.whatif.started > 0


def test_a_silent_node_reports_what_happened_there_when_it_is_back() -> None:
    quiet = Day(lag_ms=0, start_ms=0, stop_ms=0)
    life = quiet.node("node-1", 1)
    quiet.append(t.PolicyChanged(FIFO, "ada"))
    quiet.come((Task(1, 20, job(1)), Task(2, 5, job(1))))
    quiet.at(10, lambda: quiet.append(t.NodeSuspected("node-1", life, 0, 10_000)))
    quiet.at(60, lambda: quiet.append(t.NodeRecovered("node-1", life)))
    quiet.play(300)
    outcome = ask(quiet, Changes(), follows=False)

    # on paper its agents are heard although it is silent; the branch's are heard once it is back, at 60
    assert ends(quiet, outcome) == [("COMPLETED", 60), ("COMPLETED", 65)]
