"""The accounts, against figures worked out by hand from short logs."""

from cluster_script import NO_RETRY, SECOND, Script, spec
from policy_script import AT_ONCE

from muster.events import types as t
from muster.events.spec import GpuSpec, PreemptionSpec, RetrySpec
from muster.projections.accounts import Totals, totals


class Clock(Script):
    """Each entry is appended at the second that `at` was set to."""

    def at(self, second: int) -> None:
        self.now_ns = 1_000 * SECOND + second * SECOND - 1_000_000

    def append_raw(self, subject: str, payload: bytes) -> int:
        now_ns = self.now_ns
        sequence = super().append_raw(subject, payload)
        self.now_ns = now_ns
        return sequence

    def totals(self, job: int, second: int) -> Totals:
        return totals(self.job(job), 1_000 * SECOND + second * SECOND)


def test_a_job_waits_holds_and_runs() -> None:
    script = Clock()
    script.at(0)
    script.node("node-1")
    job = script.submit(spec(4))
    assert script.totals(job, 7) == Totals(7_000, 0, 0, 0)
    script.at(10)
    script.settle()
    script.at(12)
    script.start(job)
    assert script.totals(job, 20) == Totals(10_000, 8_000, 4 * 10_000, 0)
    script.at(30)
    script.exit(job)
    for second in (30, 4_000):
        assert script.totals(job, second) == Totals(10_000, 18_000, 4 * 20_000, 0)


def test_shares_of_devices_count_as_what_they_are() -> None:
    script = Clock()
    script.at(0)
    script.node("node-1")
    job = script.submit(spec(2, gpu=GpuSpec(memory=40 * 1024, compute=0.25)))
    script.settle()
    script.start(job)
    assert script.totals(job, 100).device_ms == 2 * 50_000


def test_workers_are_counted_until_each_of_them_is_gone() -> None:
    script = Clock()
    script.at(0)
    script.node("node-1", fabric="ib")
    script.node("node-2", fabric="ib")
    job = script.submit(spec(16, nodes=2))
    script.settle()
    script.start(job)
    script.at(10)
    script.exit(job, 0, 0)
    script.at(25)
    script.exit(job, 0, 1)
    assert script.totals(job, 99) == Totals(0, 25_000, 8 * 10_000 + 8 * 25_000, 0)


def test_a_failed_attempt_that_is_tried_again_has_lost_its_work() -> None:
    script = Clock()
    script.at(0)
    script.node("node-1")
    job = script.submit(spec(2, retry=RetrySpec(max_attempts=2, on=["failed"])))
    script.settle()
    script.at(5)
    script.start(job)
    script.at(65)
    script.exit(job, 1)
    script.at(70)
    script.settle()  # requeued, and placed again at once
    script.at(80)
    script.start(job)
    script.at(100)
    script.exit(job, 1)
    assert script.job(job).phase == "FAILED"
    assert script.totals(job, 999) == Totals(0, 60_000 + 20_000, 2 * 65_000 + 2 * 30_000, 2 * 60_000)


def _preempted(preemption: PreemptionSpec) -> Totals:
    script = Clock()
    script.at(0)
    script.node("node-1")
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    low = script.submit(spec(8, priority=0, preemption=preemption))
    script.settle()
    script.start(low)
    script.at(600)
    high = script.submit(spec(8, priority=900, retry=NO_RETRY))
    events = script.settle()
    assert [type(event) for event in events][:1] == [t.JobPreempted]
    script.at(610)
    script.exit(low, None, reason="stopped")
    script.settle()
    script.start(high)
    assert script.job(low).phase == "PENDING"
    assert script.job(low).preemptions == 1
    return script.totals(low, 700)


def test_what_a_preempted_job_had_worked_is_lost_unless_it_was_told_to_save_it() -> None:
    lost = Totals(90_000, 610_000, 8 * 610_000, 8 * 610_000)
    assert _preempted(PreemptionSpec()) == lost
    assert _preempted(PreemptionSpec(signal="USR2@120")) == lost._replace(lost_ms=0)


def test_a_clock_that_was_put_back_counts_as_no_time() -> None:
    script = Clock()
    script.at(1_000)
    script.node("node-1")
    job = script.submit(spec(1))
    script.settle()
    script.start(job)
    script.at(10)
    assert script.totals(job, 10) == Totals(0, 0, 0, 0)
    script.exit(job)
    assert script.totals(job, 2_000) == Totals(0, 0, 0, 0)


def test_a_rejected_job_and_a_cancelled_one_have_waited_only_until_then() -> None:
    script = Clock()
    script.at(0)
    rejected = script.submit(spec(1, queue="nowhere"))
    waiting = script.submit(spec(1))
    script.at(40)
    script.append(t.JobCancelRequested(waiting, "ada"))
    assert script.totals(rejected, 99) == Totals(0, 0, 0, 0)
    assert script.totals(waiting, 99) == Totals(40_000, 0, 0, 0)
