"""Who is stopped for whom, and how, as literal scenarios."""

import pytest
from cluster_script import SECOND, spec
from policy_script import (
    AT_ONCE,
    cluster,
    running,
    starts,
    stop,
    victims,
)

from muster.core.decide import next_time
from muster.events import types as t
from muster.events.policy import Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, LimitsSpec, PreemptionSpec

# -- who goes -------------------------------------------------------------------------------------------------------


def test_the_lowest_priority_goes_first_then_the_least_work_lost() -> None:
    script = cluster(4, 1, AT_ONCE)
    (older,) = running(script, spec(1, priority=100))
    script.advance(30)
    younger, higher, low = running(script, spec(1, priority=100), spec(1, priority=200), spec(1, priority=50))
    script.advance(30)
    order = []
    for _ in range(4):
        script.submit(spec(1, priority=900))
        order += victims(script.settle())
    assert order == [low, younger, older, higher]


def test_work_lost_is_devices_times_time() -> None:
    """A job of 4 devices for 30 s has more to lose than one of 1 for 60 s."""
    script = cluster(5, 1, AT_ONCE)
    (small,) = running(script, spec(1, priority=0))
    script.advance(30)
    (large,) = running(script, spec(4, priority=0))
    script.advance(30)
    script.submit(spec(1, priority=900))
    (event,) = [event for event in script.settle() if isinstance(event, t.JobPreempted)]
    assert event.job == small
    assert event.work_lost_ms // 1000 == 60
    assert script.job(large).phase == "RUNNING"


def test_who_is_not_needed_is_left_alone() -> None:
    """Cheapest first would take the job on node-2; the room is on node-1, so it stays."""
    script = cluster(2, 2, AT_ONCE)
    (two,) = running(script, spec(2, priority=0))
    script.advance(60)
    single = running(script, spec(1, priority=0), spec(1, priority=900))
    script.submit(spec(2, priority=600))
    assert victims(script.settle()) == [two]
    assert script.job(single[0]).phase == "RUNNING"


def test_nobody_is_stopped_for_a_job_that_could_not_be_placed() -> None:
    script = cluster(4, 1, AT_ONCE)
    running(script, spec(2, priority=0), spec(2, priority=900))
    script.submit(spec(4, priority=600))
    script.submit(spec(5, priority=900))
    assert script.settle() == []


def test_equal_priority_stops_nobody() -> None:
    script = cluster(1, 1, AT_ONCE)
    running(script, spec(1))
    script.submit(spec(1))
    assert script.settle() == []


def test_a_job_is_left_alone_for_its_first_while() -> None:
    script = cluster(1, 1, Policy(preemption=Preemption(min_runtime=300)))
    low = script.submit(spec(1, priority=0))
    script.settle()
    script.submit(spec(1, priority=900))
    assert script.settle() == []  # the worker has not been reported
    script.start(low)
    started_at = script.cluster.state.time_at
    script.advance(60)
    assert script.settle() == []
    assert next_time(script.cluster) == started_at + 300 * SECOND
    for _ in range(4):
        script.advance(60)
    assert victims(script.settle()) == [low]


def test_the_first_while_is_known_beside_a_plan_that_came_to_nothing() -> None:
    """One of two jobs may be stopped now, which is not enough: the time is when the other one may."""
    script = cluster(2, 1, Policy(preemption=Preemption(min_runtime=50)))
    (first,) = running(script, spec(1, priority=0))
    script.advance(30)
    (second,) = running(script, spec(1, priority=0))
    script.advance(30)
    started = script.job(second).attempt
    assert started is not None
    script.submit(spec(2, priority=900))
    assert script.settle() == []
    assert next_time(script.cluster) == started.started_at + 50 * SECOND
    script.advance(30)
    assert sorted(victims(script.settle())) == [first, second]


def test_a_job_has_a_budget_of_preemptions() -> None:
    script = cluster(1, 1, Policy(preemption=Preemption(min_runtime=0, max_per_job=2)))
    low = script.submit(spec(1, priority=0))
    for _ in range(2):
        running_now = script.settle()
        assert starts(running_now) == [low]
        script.start(low)
        high = script.submit(spec(1, priority=900))
        assert victims(script.settle()) == [low]
        stop(script, low)
        script.settle()
        script.start(high)
        script.exit(high)
    script.settle()
    script.start(low)
    script.submit(spec(1, priority=900))
    assert script.settle() == []
    assert (script.job(low).preemptions, script.job(low).tries) == (2, 1)


def test_a_job_that_does_not_allow_it_is_not_stopped() -> None:
    script = cluster(1, 1, AT_ONCE)
    running(script, spec(1, priority=0, preemption=PreemptionSpec(allowed=False)))
    script.submit(spec(1, priority=900))
    assert script.settle() == []


def test_without_preemption_nobody_is_stopped() -> None:
    script = cluster(1, 1, Policy(preemption=Preemption(mode="none")), QueueSpec("a", guarantee=1), QueueSpec("b"))
    running(script, spec(1, priority=0, queue="b"))
    script.submit(spec(1, priority=900, queue="b"))
    script.submit(spec(1, priority=900, queue="a"))
    assert script.settle() == []


def test_several_jobs_do_not_claim_the_same_victims() -> None:
    script = cluster(4, 1, AT_ONCE)
    low = running(script, *[spec(1, priority=0) for _ in range(4)])
    high = [script.submit(spec(2, priority=900)) for _ in range(2)]
    events = script.run_pass()
    assert sorted(victims(events)) == low
    rooms = [event for event in events if isinstance(event, t.RoomReserved)]
    assert [room.job for room in rooms] == high
    assert sorted(index for room in rooms for place in room.placements for index in place.devices) == [0, 1, 2, 3]


def test_what_is_being_left_is_for_the_first_head() -> None:
    """Seven devices are being left. The job of a, which needs eight, is first in order; that of b could stop one of its
    own, need not, and does not take what a waits for."""
    script = cluster(8, 1, AT_ONCE, QueueSpec("a"), QueueSpec("b"), QueueSpec("c"))
    large, low = running(script, spec(7, queue="c"), spec(1, queue="b", priority=0))
    script.append(t.JobCancelRequested(large, "ada"))
    script.settle()
    first, other = script.submit(spec(8, queue="a")), script.submit(spec(4, queue="b", priority=900))
    assert script.settle() == []
    script.exit(low)
    stop(script, large)
    assert starts(script.settle()) == [first]
    assert script.job(other).phase == "PENDING"


def test_half_a_card_is_made_free_where_half_is_needed() -> None:
    script = cluster(1, 1, AT_ONCE)
    half = GpuSpec(memory=20 * 1024, compute=0.5)
    low = running(script, spec(1, gpu=half, priority=0), spec(1, gpu=half, priority=100))
    script.submit(spec(1, gpu=half, priority=900))
    assert victims(script.settle()) == [low[0]]


# -- how they are stopped -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "signal", "notice_ms", "grace_ms"),
    [
        (PreemptionSpec(), "", 0, 10_000),
        (PreemptionSpec(signal="USR2@120", grace=30), "USR2", 120_000, 30_000),
        (PreemptionSpec(signal="USR1"), "USR1", 60_000, 10_000),
        (PreemptionSpec(grace=0), "", 0, 0),
    ],
)
def test_a_stop_carries_what_the_job_asked_for(
    asked: PreemptionSpec, signal: str, notice_ms: int, grace_ms: int
) -> None:
    script = cluster(2, 2, AT_ONCE)
    (low,) = running(script, spec(4, nodes=2, priority=0, preemption=asked))
    high = script.submit(spec(1, priority=900))
    events = script.run_pass()
    (order,) = [event for event in events if isinstance(event, t.JobPreempted)]
    assert (order.job, order.beneficiary, order.mode, order.cause) == (low, high, "cold", "priority")
    assert [worker.node for worker in order.workers] == ["node-1", "node-2"]
    stops = [event for event in events if isinstance(event, t.StopWorker)]
    assert [(each.node, each.cause) for each in stops] == [("node-1", "preempted"), ("node-2", "preempted")]
    assert {(each.signal, each.notice_ms, each.grace_ms) for each in stops} == {(signal, notice_ms, grace_ms)}


def test_a_preempted_job_waits_in_its_place_and_the_try_does_not_count() -> None:
    script = cluster(1, 1, Policy("fifo", preemption=Preemption(min_runtime=0)))
    (low,) = running(script, spec(1, priority=0))
    behind = script.submit(spec(1, priority=0))
    high = script.submit(spec(1, priority=900))
    assert script.settle() == []  # in order of submission the one behind is the head, and stops nobody
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    assert victims(script.settle()) == [low]
    script.append(t.PolicyChanged(Policy("fifo", preemption=Preemption(min_runtime=0)), "root"))
    stop(script, low)
    script.settle()
    assert (script.job(low).phase, script.job(low).tries, script.job(low).preemptions) == ("PENDING", 0, 1)
    script.start(high)
    script.exit(high)
    assert starts(script.settle()) == [low]
    assert script.job(behind).phase == "PENDING"


def test_a_victim_that_had_ended_well_is_completed() -> None:
    script = cluster(1, 1, AT_ONCE)
    (low,) = running(script, spec(1, priority=0))
    high = script.submit(spec(1, priority=900))
    script.settle()
    script.exit(low, 0)
    assert script.job(low).phase == "COMPLETED"
    assert starts(script.settle()) == [high]


def test_a_job_whose_time_is_over_is_not_stopped_again_for_another() -> None:
    script = cluster(1, 1, AT_ONCE)
    limits = LimitsSpec(time_limit=60, on_timeout="requeue")
    (low,) = running(script, spec(1, priority=0, limits=limits))
    script.submit(spec(1, priority=900, preemption=PreemptionSpec(allowed=False)))
    script.advance(60)
    events = script.run_pass()
    assert [type(event) for event in events] == [t.JobTimedOut, t.StopWorker]
    assert victims(script.settle()) == []
    assert script.job(low).preemptions == 0
