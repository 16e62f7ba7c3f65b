"""Who is stopped for whom, as literal scenarios: victims, the room that is kept, and what becomes of both."""

import pytest
from cluster_script import SECOND, Script, spec

from muster.core.decide import decide, next_time
from muster.events import types as t
from muster.events.policy import Backfill, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, PreemptionSpec

AT_ONCE = Policy(preemption=Preemption(min_runtime=0))


def cluster(devices: int, nodes: int, policy: Policy, *queues: QueueSpec) -> Script:
    """So many nodes of so many devices on one fabric."""
    script = Script()
    for number in range(1, nodes + 1):
        script.node(f"node-{number}", devices, fabric="f")
    script.append(t.PolicyChanged(policy, "root"))
    for queue in queues:
        script.append(t.QueueConfigured(queue, "root"))
    return script


def running(script: Script, *specs: JobSpec, user: str = "ada") -> list[int]:
    """Jobs that were submitted, placed and started, all of them."""
    jobs = [script.submit(each, user) for each in specs]
    script.settle()
    for job in jobs:
        script.start(job)
        assert script.job(job).phase == "RUNNING", f"job {job} does not run"
    return jobs


def victims(events: list[t.Event]) -> list[int]:
    return [event.job for event in events if isinstance(event, t.JobPreempted)]


def beneficiaries(events: list[t.Event]) -> list[int]:
    return [event.job for event in events if isinstance(event, t.RoomReserved)]


def starts(events: list[t.Event]) -> list[int]:
    return [event.job for event in events if isinstance(event, t.JobAllocated)]


def stop(script: Script, *jobs: int) -> None:
    """The agents report these as stopped."""
    for job in jobs:
        script.exit(job, None, reason="stopped")


def devices_of(script: Script, queue: str) -> int:
    """Devices that a queue's jobs hold and keep."""
    jobs = [job for job in script.cluster.state.jobs.values() if job.spec.queue == queue]
    live = [job for job in jobs if job.phase in ("STARTING", "RUNNING")]
    return sum(job.spec.gpus for job in live)


# -- two teams ------------------------------------------------------------------------------------------------------

TEAMS = (QueueSpec("a", guarantee="60%"), QueueSpec("b", guarantee="40%"))


def test_a_team_alone_uses_all_and_gives_back_in_one_pass() -> None:
    script = cluster(10, 1, AT_ONCE, *TEAMS)
    running(script, *[spec(1, queue="b") for _ in range(10)])
    of_a = [script.submit(spec(1, queue="a")) for _ in range(8)]
    events = script.run_pass()
    assert len(victims(events)) == 6
    assert beneficiaries(events) == of_a[:6]
    assert all(event.cause == "reclaim" for event in events if isinstance(event, t.JobPreempted))
    assert script.settle() == []  # nobody under its guarantee loses anything
    stop(script, *victims(events))
    assert starts(script.settle()) == of_a[:6]
    assert (devices_of(script, "a"), devices_of(script, "b")) == (6, 4)
    assert script.settle() == []


def test_to_the_guarantee_within_one_job() -> None:
    """b holds 10 in jobs of 3, 3 and 4. a asks for 6 in jobs of 2: b goes to 4, and not below."""
    script = cluster(10, 1, AT_ONCE, *TEAMS)
    three, other_three, four = running(script, *[spec(gpus, queue="b") for gpus in (3, 3, 4)])
    script.advance(60)
    for _ in range(3):
        script.submit(spec(2, queue="a"))
    events = script.run_pass()
    assert sorted(victims(events)) == [three, other_three]
    stop(script, three, other_three)
    script.settle()
    assert (devices_of(script, "a"), devices_of(script, "b")) == (6, 4)
    assert script.job(four).phase == "RUNNING"


def test_a_team_that_waits_gets_its_share_as_jobs_end() -> None:
    queues = (QueueSpec("a", guarantee="60%", reclaim="wait"), TEAMS[1])
    script = cluster(10, 1, AT_ONCE, *queues)
    of_b = running(script, *[spec(1, queue="b") for _ in range(10)])
    more_of_b = [script.submit(spec(1, queue="b")) for _ in range(3)]
    of_a = [script.submit(spec(1, queue="a")) for _ in range(8)]
    assert script.settle() == []
    for ended in range(6):
        script.exit(of_b[ended])
        assert starts(script.settle()) == [of_a[ended]]
    script.exit(of_b[6])
    assert starts(script.settle()) == [more_of_b[0]]  # at 60:40 it is b's turn


def test_what_is_taken_back_step_by_step() -> None:
    queues = (QueueSpec("a", guarantee="60%", reclaim_step=2), TEAMS[1])
    script = cluster(10, 1, AT_ONCE, *queues)
    running(script, *[spec(1, queue="b") for _ in range(10)])
    for _ in range(6):
        script.submit(spec(1, queue="a"))
    taken = []
    while gone := victims(script.settle()):
        taken.append(len(gone))
        stop(script, *gone)
    assert taken == [2, 2, 2]


def test_a_queue_at_its_guarantee_loses_nothing() -> None:
    script = cluster(10, 1, AT_ONCE, QueueSpec("a", guarantee="60%"), QueueSpec("b", guarantee="40%"))
    running(script, *[spec(1, queue="b", priority="P3") for _ in range(4)])
    running(script, *[spec(1, queue="a", priority="P3") for _ in range(6)])
    script.submit(spec(1, queue="a"))
    script.submit(spec(1, queue="b"))
    events = script.settle()
    causes = [event.cause for event in events if isinstance(event, t.JobPreempted)]
    assert causes == ["priority", "priority"]  # each takes from its own


def test_a_burst_of_inference_is_placed_in_one_pass() -> None:
    """80 % of 10 devices are guaranteed; training holds all. Eight jobs come at once."""
    queues = (QueueSpec("inference", guarantee="80%", priority="P0"), QueueSpec("training"))
    script = cluster(10, 1, AT_ONCE, *queues)
    running(script, *[spec(1, queue="training") for _ in range(10)])
    burst = [script.submit(spec(1, queue="inference")) for _ in range(8)]
    events = script.run_pass()
    assert (len(victims(events)), beneficiaries(events)) == (8, burst)
    assert len(set(victims(events))) == 8  # no two claim the same victim
    stop(script, *victims(events))
    assert starts(script.run_pass()) == burst


def test_a_queue_takes_back_for_all_that_it_is_in() -> None:
    """a/x stays within its own guarantee, its sibling borrowed nothing: what a lent to b comes back."""
    queues = (QueueSpec("a", guarantee=4), QueueSpec("a/x", guarantee=2), QueueSpec("a/y"), QueueSpec("b"))
    script = cluster(8, 1, AT_ONCE, *queues)
    running(script, *[spec(1, queue="b") for _ in range(8)])
    asker = script.submit(spec(2, queue="a/x"))
    events = script.run_pass()
    assert (len(victims(events)), beneficiaries(events)) == (2, [asker])


def test_a_queue_below_takes_back_from_its_sibling_where_the_one_above_is_at_its_guarantee() -> None:
    queues = (QueueSpec("a", guarantee=4), QueueSpec("a/x", guarantee=2), QueueSpec("a/y"), QueueSpec("b", guarantee=4))
    script = cluster(8, 1, AT_ONCE, *queues)
    of_y = running(script, *[spec(1, queue="a/y") for _ in range(4)])
    running(script, *[spec(1, queue="b") for _ in range(4)])
    script.submit(spec(2, queue="a/x"))
    events = script.run_pass()
    assert len(victims(events)) == 2
    assert set(victims(events)) <= set(of_y)


def test_a_queue_takes_nothing_back_beyond_its_share_of_device_memory() -> None:
    """Cards of two sizes: each queue is guaranteed half of the memory, and the second large card would be more. If it
    took it, the other one would take it back, in turn."""
    script = Script()
    for name, mib in (("node-1", 80_000), ("node-2", 20_000)):
        devices = [t.Device(index, f"{name}-{index}", f"of-{mib}", mib, mib) for index in range(2)]
        place = t.Inventory(devices=devices, cpus=64, memory_mib=1 << 20, address=f"10.0.0.{name[-1]}")
        script.append(t.NodeRegistered(name, f"{name}-life", place, [], 120_000))
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    for queue in (QueueSpec("a", guarantee="50%"), QueueSpec("b", guarantee="50%")):
        script.append(t.QueueConfigured(queue, "root"))
    large, small = (GpuSpec(model=[f"of-{mib}"], compute=0.1) for mib in (80_000, 20_000))
    running(script, spec(1, queue="a", gpu=large))
    running(script, *[spec(1, queue="b", gpu=gpu) for gpu in (small, small, large)])
    script.submit(spec(1, queue="a", gpu=large))
    assert script.settle() == []


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
    script = cluster(1, 1, Policy(preemption=Preemption(mode="none")), *TEAMS)
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


# -- the room -------------------------------------------------------------------------------------------------------


def made_room() -> tuple[Script, int, int]:
    """Two nodes of two; a job of high priority waits for the room on node-1 that another one leaves."""
    script = cluster(2, 2, AT_ONCE)
    (low,) = running(script, spec(2, priority=0))
    running(script, spec(2, priority=900))
    high = script.submit(spec(2, priority=600))
    events = script.settle()
    assert victims(events) == [low]
    (room,) = [event for event in events if isinstance(event, t.RoomReserved)]
    assert [(place.node, place.devices) for place in room.placements] == [("node-1", [0, 1])]
    assert [(ref.job, ref.attempt) for ref in room.victims] == [(low, 1)]
    return script, low, high


def test_the_room_is_the_beneficiarys_alone() -> None:
    script, low, high = made_room()
    sneaky = script.submit(spec(1, priority=1000))
    script.settle()
    stop(script, low)
    events = script.settle()
    assert starts(events) == [high]
    assert script.placed(high) == {"node-1": [0, 1]}
    assert script.job(sneaky).phase == "PENDING"


def test_two_rooms_do_not_use_the_same_half_of_a_card_while_the_other_half_is_being_left() -> None:
    """Each half of the card is for one of two jobs. CPUs are left first: then half of it is free, for one of them."""
    script = Script()
    script.node("node-1", 1, cpus=4)
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    half = GpuSpec(memory=20 * 1024, compute=0.5)
    on_card, on_cpus = running(script, spec(1, gpu=half, priority=100), spec(0, cpus=3, priority=0))
    first, second = (script.submit(spec(1, gpu=half, priority=900)) for _ in range(2))
    events = script.settle()
    assert (victims(events), beneficiaries(events)) == ([on_cpus, on_card], [first, second])
    stop(script, on_cpus)
    assert starts(script.settle()) == [first]
    stop(script, on_card)
    assert starts(script.settle()) == [second]


def test_the_room_waits_for_the_last_worker_to_be_gone() -> None:
    script = cluster(2, 2, AT_ONCE)
    (gang,) = running(script, spec(4, nodes=2, priority=0))
    high = script.submit(spec(4, nodes=2, priority=900))
    script.settle()
    script.exit(gang, None, 0, reason="stopped")
    assert script.settle() == []
    script.exit(gang, None, 1, reason="stopped")
    assert starts(script.settle()) == [high]


def released(events: list[t.Event]) -> list[tuple[int, str]]:
    return [(event.job, event.cause) for event in events if isinstance(event, t.RoomReleased)]


def test_the_room_is_let_go_when_its_beneficiary_is_cancelled() -> None:
    script, low, high = made_room()
    script.append(t.JobCancelRequested(high, "ada"))
    assert released(script.settle()) == [(high, "beneficiary_gone")]
    stop(script, low)
    assert starts(script.settle()) == [low]


@pytest.mark.parametrize("loss", ["cordoned", "suspect", "lost"])
def test_the_room_is_let_go_when_its_node_takes_no_work(loss: str) -> None:
    script, low, high = made_room()
    life = script.cluster.state.nodes["node-1"].incarnation
    if loss == "cordoned":
        script.append(t.NodeCordoned("node-1", "root"))
    else:
        script.append(t.NodeSuspected("node-1", life, 0, 150_000 if loss == "lost" else 10_000))
    assert released(script.settle()) == [(high, "room_lost")]
    assert script.job(high).phase == "PENDING"
    assert script.cluster.state.rooms == {}
    if loss != "lost":
        stop(script, low)
    script.settle()
    assert script.job(low).phase == "PENDING"


def test_the_room_is_let_go_when_a_limit_shuts_it() -> None:
    script, low, high = made_room()
    script.append(t.QueueConfigured(QueueSpec("default", limit=1), "root"))
    (event,) = [event for event in script.settle() if isinstance(event, t.RoomReleased)]
    assert (event.job, event.cause, event.detail) == (high, "room_lost", "queue_limit default keeps it out")
    stop(script, low)
    assert starts(script.settle()) == []


def test_cancelled_between_decision_and_log_the_room_is_let_go() -> None:
    script = cluster(1, 1, AT_ONCE)
    (low,) = running(script, spec(1, priority=0))
    high = script.submit(spec(1, priority=900))
    events = decide(script.cluster)
    script.append(t.JobCancelRequested(high, "ada"))
    for event in events:
        script.append(event)
    assert released(script.settle()) == [(high, "beneficiary_gone")]
    stop(script, low)
    assert starts(script.settle()) == [low]


def test_without_backfill_a_preempted_job_behind_its_beneficiary_waits() -> None:
    policy = Policy(backfill=Backfill("none"), preemption=Preemption(min_runtime=0))
    script = cluster(2, 1, policy)
    low = running(script, spec(1, priority=0), spec(1, priority=0))
    high = script.submit(spec(2, priority=900))
    assert sorted(victims(script.settle())) == low
    stop(script, low[0])
    assert starts(script.settle()) == []
    stop(script, low[1])
    assert starts(script.settle()) == [high]
    script.start(high)
    script.exit(high)
    assert starts(script.settle()) == low
