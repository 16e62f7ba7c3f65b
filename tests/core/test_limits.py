"""Shares of one card, time limits and lanes, as literal scenarios."""

from cluster_script import SECOND, Script, spec
from policy_script import (
    HOUR,
    cluster,
    pass_time,
    phases,
    run,
    waits,
)

from muster.core.decide import decide, next_time
from muster.events import types as t
from muster.events.policy import Backfill, Lane, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec

# -- two dimensions on one card -------------------------------------------------------------------------------------


def share_of(gib: int, compute: float | None = None, gpus: int = 1, name: str = "job") -> JobSpec:
    return spec(gpus, name=name, gpu=GpuSpec(memory=gib * 1024, compute=compute))


def test_compute_runs_out_before_memory() -> None:
    script = cluster(1, 1, Policy("fifo"))
    jobs = [script.submit(share_of(20, 0.5)), script.submit(share_of(20, 0.5)), script.submit(share_of(20, 0.1))]
    run(script)
    assert waits(script, *jobs) == jobs[2:]


def test_shares_free_on_two_devices_are_not_one_devices_room() -> None:
    script = cluster(2, 1, Policy("fifo"))
    halves = [script.submit(share_of(20, 0.5)) for _ in range(4)]
    run(script, *halves)
    assert [script.placed(job)["node-1"] for job in halves] == [[0], [0], [1], [1]]
    script.exit(halves[0])
    script.exit(halves[2])
    large, half = script.submit(share_of(20, 0.8)), script.submit(share_of(20, 0.5, name="of unknown length"))
    run(script)
    assert waits(script, large, half) == [large]
    assert script.placed(half) == {"node-1": [1]}  # it leaves the first device alone, where there is room first
    script.exit(halves[1])
    run(script)
    assert script.placed(large) == {"node-1": [0]}


def test_two_of_half_the_memory_share_a_card_and_a_third_waits() -> None:
    script = cluster(1, 1, Policy("fifo"))
    jobs = [script.submit(share_of(40, 0.1)) for _ in range(3)]
    run(script)
    assert waits(script, *jobs) == jobs[2:]


def test_four_devices_of_40_gib_with_two_suitable_cards_wait() -> None:
    script = Script()
    script.node("node-1", 4)
    fill = [script.submit(share_of(60, 0.1)) for _ in range(2)]
    run(script, *fill)
    four = script.submit(share_of(40, 0.2, gpus=4))
    run(script)
    assert waits(script, four) == [four]
    script.exit(fill[0])
    run(script)
    assert waits(script, four) == [four]  # three suitable ones
    script.exit(fill[1])
    run(script)
    assert script.placed(four) == {"node-1": [0, 1, 2, 3]}


# -- time limits and lanes ------------------------------------------------------------------------------------------


def test_a_job_whose_time_is_over_waits_behind_those_that_waited_and_goes_on_after_them() -> None:
    """A server of four devices and five users: four devices at once, for an hour at a time."""
    script = cluster(4, 1, Policy("fifo"))
    limits = LimitsSpec(time_limit=HOUR, on_timeout="requeue")
    whole = script.submit(spec(4, limits=limits), user="ada")
    run(script, whole)
    single = [script.submit(spec(1), user=user) for user in ("bob", "eve", "dan", "kim")]
    run(script)
    assert waits(script, *single) == single
    pass_time(script, HOUR - 1)
    assert script.settle() == []
    pass_time(script, 1)
    events = script.settle()
    (over,) = [event for event in events if isinstance(event, t.JobTimedOut)]
    assert (over.job, over.action) == (whole, "requeue")
    script.exit(whole, None, reason="stopped")
    run(script, *single)
    assert waits(script, whole, *single) == [whole]
    assert script.job(whole).tries == 0
    for job in single:
        script.exit(job)
    run(script, whole)
    script.exit(whole)
    assert phases(script, whole) == ["COMPLETED"]


def test_a_job_whose_time_is_over_ends_where_it_asked_for_that() -> None:
    script = cluster(1, 1, Policy())
    job = script.submit(spec(1, limits=LimitsSpec(time_limit=60)))
    run(script, job)
    assert next_time(script.cluster) == script.cluster.state.time_at + 60 * SECOND
    pass_time(script, 60)
    script.settle()
    script.exit(job, None, reason="stopped")
    assert phases(script, job) == ["TIMEOUT"]
    assert script.settle() == []


def test_a_job_that_ends_well_before_the_stop_reaches_it_is_completed() -> None:
    script = cluster(1, 1, Policy())
    job = script.submit(spec(1, limits=LimitsSpec(time_limit=60, on_timeout="requeue")))
    run(script, job)
    pass_time(script, 60)
    script.settle()
    script.exit(job, 0)
    assert phases(script, job) == ["COMPLETED"]


def test_a_lane_is_kept_for_small_jobs() -> None:
    """Of four devices one is for jobs of one device: a job of four never fits, and holds up nobody."""
    for mode in ("easy", "none"):
        policy = Policy("fifo", backfill=Backfill(mode), lanes=[Lane("small", 1)])
        script = cluster(4, 1, policy)
        never = script.submit(spec(4))
        large = script.submit(spec(3))
        small = script.submit(spec(1))
        run(script)
        assert waits(script, never, large, small) == [never]
        assert script.settle() == []
        assert next_time(script.cluster) is None or script.cluster.starting


def test_large_jobs_leave_the_lane_free_and_small_ones_may_take_all() -> None:
    policy = Policy("fifo", lanes=[Lane("small", "50%", max_time=600)])
    script = cluster(4, 1, policy)
    long = [script.submit(spec(1)) for _ in range(3)]
    short = [script.submit(spec(1, limits=LimitsSpec(time_limit=600))) for _ in range(3)]
    run(script)
    assert waits(script, *long, *short) == [long[2], short[2]]


def test_a_job_that_its_queues_bounds_keep_for_ever_blocks_nobody_and_evicts_nobody() -> None:
    policy = Policy("priority", backfill=Backfill("none"), preemption=Preemption(min_runtime=0))
    script = cluster(4, 1, policy, QueueSpec("a", limit=2), QueueSpec("b"))
    low = script.submit(spec(2, queue="a", priority=0))
    run(script, low)
    never = script.submit(spec(3, queue="a", priority=900))
    behind = script.submit(spec(1, queue="b"))
    events = script.settle()
    assert [event.job for event in events if isinstance(event, t.JobAllocated)] == [behind]
    assert phases(script, low, never) == ["RUNNING", "PENDING"]
    assert decide(script.cluster) == []
