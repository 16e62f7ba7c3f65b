"""Whose turn it is between queues, and what counts: cases in which a simpler rule starves or overbooks somebody."""

from cluster_script import spec
from policy_script import AT_ONCE, HOUR, NO_PREEMPTION, cluster, pass_time, phases, running, starts

from muster.core.decide import decide
from muster.events import types as t
from muster.events.policy import Backfill, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, LimitsSpec, PreemptionSpec
from muster.projections.fold import Fold

CALM = Policy(preemption=NO_PREEMPTION)


def test_at_the_same_share_the_queue_whose_job_waited_longer_is_first() -> None:
    script = cluster(4, 1, CALM, QueueSpec("a"), QueueSpec("z"))
    [first] = running(script, spec(4, queue="a"))
    older = script.submit(spec(4, queue="z"))
    younger = script.submit(spec(4, queue="a"))
    script.exit(first)
    script.settle()
    assert script.job(older).phase == "STARTING"
    assert script.job(younger).phase == "PENDING"


def test_five_queues_take_turns_on_four_devices() -> None:
    script = cluster(4, 1, CALM, *(QueueSpec(name) for name in "abcde"))
    starts = dict.fromkeys("abcde", 0)
    for name in "abcde" * 4:
        script.submit(spec(1, queue=name))
    for _ in range(16):
        script.settle()
        live = [job for job in script.cluster.state.jobs.values() if job.phase == "STARTING"]
        script.start(live[0].id)
        script.exit(live[0].id)
        starts[live[0].spec.queue] += 1
    assert min(starts.values()) >= 3, starts


def test_a_job_within_its_queues_guarantee_comes_before_one_beyond_it() -> None:
    script = cluster(4, 1, CALM, QueueSpec("a", guarantee="10%"), QueueSpec("z", guarantee="90%"))
    [first] = running(script, spec(4, queue="a"))
    beyond = script.submit(spec(4, queue="a"))
    within = script.submit(spec(3, queue="z"))
    script.exit(first)
    script.settle()
    assert script.job(within).phase == "STARTING"
    assert script.job(beyond).phase == "PENDING"


def test_a_job_larger_than_its_queues_share_has_its_turn_after_300_points_of_waiting() -> None:
    """At 10 points an hour that is 30 hours. Before, b is further above its share than a whenever a job of a's ends."""
    script = cluster(4, 1, CALM, QueueSpec("a", weight=3), QueueSpec("b"))
    running(script, spec(1, queue="b"))
    small = running(script, *[spec(1, queue="a")] * 3)
    large = script.submit(spec(3, queue="b"))
    for job in small:
        script.submit(spec(1, queue="a"))
        script.exit(job)
        [begun] = starts(script.settle())
        assert script.job(begun).spec.queue == "a"
        script.start(begun)
    pass_time(script, 30 * HOUR)
    for job in [job.id for job in script.cluster.state.jobs.values() if job.phase == "RUNNING"]:
        if script.job(job).spec.queue == "a":
            script.submit(spec(1, queue="a"))
            script.exit(job)
            script.settle()
    assert phases(script, large) == ["STARTING"]


def test_a_share_that_takes_all_of_the_memory_is_a_whole_device() -> None:
    script = cluster(4, 1, CALM, QueueSpec("a", limit=1))
    sliver = GpuSpec(compute=0.01)
    first, second = (script.submit(spec(1, queue="a", gpu=sliver)) for _ in range(2))
    script.settle()
    assert script.job(first).phase == "STARTING"
    assert script.job(second).phase == "PENDING"


def test_nothing_passes_a_head_whose_start_nobody_knows_unless_it_leaves_its_place_alone() -> None:
    script = cluster(4, 1, CALM)
    [holder] = running(script, spec(1))
    head = script.submit(spec(4))
    passing = script.submit(spec(3, limits=LimitsSpec(time_limit=10 * HOUR)))
    script.settle()
    assert script.job(passing).phase == "PENDING"
    script.exit(holder)
    script.settle()
    assert script.job(head).phase == "STARTING"


def test_priority_stops_nobody_where_it_is_not_the_order() -> None:
    script = cluster(4, 1, Policy(order="fifo", preemption=Preemption(min_runtime=0)))
    [low] = running(script, spec(4, priority=0))
    script.submit(spec(4, priority=900))
    assert script.settle() == []
    assert script.job(low).phase == "RUNNING"


def test_whoever_waited_long_enough_to_come_first_is_not_stopped_by_priority() -> None:
    """40 hours at 10 points make 400 of 0: more than 300, less than 900."""
    script = cluster(4, 1, AT_ONCE)
    [first] = running(script, spec(4, priority=0, preemption=PreemptionSpec(allowed=False)))
    aged = script.submit(spec(4, priority=0))
    script.settle()
    pass_time(script, 40 * HOUR)
    script.exit(first)
    script.settle()
    script.start(aged)
    script.submit(spec(4, priority=300))
    assert script.settle() == []
    urgent = script.submit(spec(4, priority=900))
    script.settle()
    assert script.job(aged).phase == "STOPPING"
    assert urgent in script.cluster.state.rooms


def test_a_number_of_devices_guarantees_nothing_to_work_without_devices() -> None:
    script = cluster(4, 1, AT_ONCE, QueueSpec("a", guarantee=2), QueueSpec("b", guarantee=1))
    [hog] = running(script, spec(0, queue="b", cpus=128))
    asker = script.submit(spec(1, queue="a"))
    script.settle()
    assert script.job(hog).phase == "STOPPING"
    assert asker in script.cluster.state.rooms


def test_a_cancel_takes_the_time_for_a_checkpoint_away() -> None:
    script = cluster(4, 1, AT_ONCE)
    slow = PreemptionSpec(signal="USR2@99999", grace=10_000_000)
    [job] = running(script, spec(4, limits=LimitsSpec(time_limit=10), preemption=slow))
    script.advance(11)
    told = [event for event in script.settle() if isinstance(event, t.StopWorker)]
    assert [(stop.signal, stop.notice_ms, stop.grace_ms) for stop in told] == [("USR2", 3_600_000, 600_000)]
    script.append(t.JobCancelRequested(job, "ada"))
    again = [event for event in script.settle() if isinstance(event, t.StopWorker)]
    assert [(stop.cause, stop.signal, stop.notice_ms) for stop in again] == [("cancelled", "", 0)]
    script.exit(job, 0, reason="stopped")
    assert script.job(job).phase == "CANCELLED"


def test_without_backfill_the_order_is_kept_although_more_would_fit() -> None:
    script = cluster(4, 1, Policy(order="fifo", backfill=Backfill("none")))
    [holder] = running(script, spec(2))
    head, behind = script.submit(spec(4)), script.submit(spec(1))
    script.settle()
    assert {script.job(head).phase, script.job(behind).phase} == {"PENDING"}
    script.exit(holder)
    script.settle()
    assert script.job(head).phase == "STARTING"


def test_a_job_that_is_ripe_is_not_passed_without_backfill_either() -> None:
    """Larger than its queue's share, after 30 hours: the other queue's jobs do not take what becomes free."""
    script = cluster(4, 1, Policy(backfill=Backfill("none"), preemption=NO_PREEMPTION), QueueSpec("a"), QueueSpec("b"))
    small = running(script, *[spec(1, queue="b")] * 2, spec(1, queue="a"))
    large = script.submit(spec(4, queue="a"))
    pass_time(script, 31 * HOUR)
    for job in small:
        script.submit(spec(1, queue="b"))
        script.exit(job)
        script.settle()
    assert phases(script, large) == ["STARTING"]


def test_a_decision_that_lands_after_its_jobs_queue_was_taken_away_is_undone() -> None:
    script = cluster(4, 1, CALM, QueueSpec("q"))
    job = script.submit(spec(1, queue="q"))
    decided = decide(script.cluster)
    script.append(t.JobCancelRequested(job, "ada"))
    script.append(t.QueueRemoved("q", "ada"))
    for event in decided:
        script.append(event)
    assert phases(script, job) == ["STOPPING"]
    assert [type(event) for event in script.settle()] == [t.StopOrdered, t.StopWorker]
    script.exit(job, 0, reason="stopped")
    assert phases(script, job) == ["CANCELLED"]


def test_so_many_are_looked_at_behind_a_head_as_the_depth_says() -> None:
    for depth, phase in ((1, "PENDING"), (2, "STARTING")):
        script = cluster(4, 1, Policy(backfill=Backfill(depth=depth), preemption=NO_PREEMPTION))
        running(script, spec(2, limits=LimitsSpec(estimate=100)))
        script.submit(spec(4))
        script.submit(spec(3))
        second = script.submit(spec(1, limits=LimitsSpec(estimate=50)))
        script.settle()
        assert phases(script, second) == [phase]
        assert not decide(Fold.restore(script.fold.state_bytes()).cluster)


def test_a_job_that_grows_older_than_its_victim_had_is_looked_at_again() -> None:
    """The victim had waited for 40 hours (400 points); the asker has 300, and 10 more each hour."""
    script = cluster(4, 1, AT_ONCE)
    [first] = running(script, spec(4, priority=0, preemption=PreemptionSpec(allowed=False)))
    aged = script.submit(spec(4, priority=0))
    pass_time(script, 40 * HOUR)
    script.exit(first)
    script.settle()
    script.start(aged)
    asker = script.submit(spec(4, priority=300))
    assert script.settle() == []
    pass_time(script, 11 * HOUR)
    script.settle()
    assert asker in script.cluster.state.rooms


def test_what_a_queue_keeps_is_left_for_the_head_too() -> None:
    """10 devices of which k keeps 4; 4 run until 100 s, the head asks for 6: an open-ended job of 2 would bar it."""
    script = cluster(10, 1, CALM, QueueSpec("k", guarantee=4, lend=0), QueueSpec("a"))
    [runs] = running(script, spec(4, queue="a", limits=LimitsSpec(estimate=100)))
    head = script.submit(spec(6, queue="a"))
    other = script.submit(spec(2, queue="a"))
    script.settle()
    assert phases(script, other) == ["PENDING"]
    script.exit(runs)
    script.settle()
    assert phases(script, head) == ["STARTING"]


def test_memory_counts_in_a_users_past_use() -> None:
    script = cluster(1, 1, Policy(order="fair", preemption=NO_PREEMPTION))
    sliver = GpuSpec(memory=81_920, compute=0.1)
    begun = dict.fromkeys(("hog", "bob"), 0)
    for _ in range(20):
        script.submit(spec(1, gpu=sliver), "hog")
        script.submit(spec(1), "bob")
        script.settle()
        [live] = [job for job in script.cluster.state.jobs.values() if job.phase == "STARTING"]
        script.start(live.id)
        script.advance(60)
        script.exit(live.id)
        begun[live.user] += 1
    assert begun == {"hog": 10, "bob": 10}
