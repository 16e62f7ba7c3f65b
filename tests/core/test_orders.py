"""Who is first under each order, as literal scenarios."""

import pytest
from cluster_script import Script, spec
from policy_script import NO_PREEMPTION, cluster, lasting, pass_time, phases, run, stop, waits

from muster.core.allocate import in_order
from muster.core.cluster import Cluster
from muster.events.policy import Backfill, OrderName, Policy, Preemption, QueueSpec
from muster.events.spec import JobSpec, LimitsSpec, PreemptionSpec, RetrySpec

STRICT = Backfill("none")


def busy_cluster(order: OrderName, *queues: QueueSpec) -> Script:
    """Four devices, all of them busy, nobody knows for how long."""
    script = cluster(4, 1, Policy(order, backfill=STRICT, preemption=NO_PREEMPTION), *queues)
    run(script, script.submit(spec(4)))
    return script


def sliced(gpus: int, estimate: int, limit: int, **more: object) -> JobSpec:
    """A job that runs for its time limit at a time."""
    limits = LimitsSpec(estimate=estimate or None, time_limit=limit, on_timeout="requeue")
    return spec(gpus, limits=limits, **more)


def time_out(script: Script, job: int) -> None:
    """A job runs until its time limit stops it, and waits again."""
    run(script, job)
    pass_time(script, int(script.job(job).spec.limits.time_limit or 0))
    script.settle()
    script.exit(job, None, reason="stopped")


def line(script: Script) -> list[int]:
    """Those that wait, in order, as the live indexes and fresh ones have it."""
    found = in_order(script.cluster, 100)
    assert found == in_order(Cluster(script.cluster.state), 100)
    return found


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", "wide narrow middle unknown"),
        ("las", "wide narrow middle unknown"),
        ("sjf", "wide middle narrow unknown"),
        ("srtf", "wide middle narrow unknown"),
        ("srsf", "narrow middle wide unknown"),
    ],
)
def test_who_is_first(order: OrderName, expected: str) -> None:
    script = busy_cluster(order)
    jobs = {
        script.submit(lasting(4, 600)): "wide",  # 2,400 device seconds
        script.submit(lasting(1, 1200)): "narrow",  # 1,200
        script.submit(lasting(2, 900)): "middle",  # 1,800
        script.submit(spec(1)): "unknown",
    }
    assert " ".join(jobs[job] for job in line(script)) == expected


def test_at_the_same_length_whoever_came_first_is_first() -> None:
    script = busy_cluster("sjf")
    first, second = script.submit(lasting(1, 60)), script.submit(lasting(1, 60))
    assert line(script) == [first, second]


def test_the_shortest_starts_first() -> None:
    script = cluster(1, 1, Policy("sjf", backfill=STRICT, preemption=NO_PREEMPTION))
    busy = script.submit(spec(1))
    run(script, busy)
    long, short = script.submit(lasting(1, 600)), script.submit(lasting(1, 60))
    script.exit(busy)
    run(script)
    assert phases(script, long, short) == ["PENDING", "STARTING"]


def test_a_queue_may_have_an_order_of_its_own() -> None:
    script = busy_cluster("fifo", QueueSpec("short", order="sjf"))
    slow, quick = (script.submit(lasting(1, seconds)) for seconds in (600, 60))
    brief, briefer = (script.submit(lasting(1, seconds, queue="short")) for seconds in (50, 5))
    found = line(script)
    assert [job for job in found if job in (slow, quick)] == [slow, quick]
    assert [job for job in found if job in (brief, briefer)] == [briefer, brief]


def test_what_a_job_says_counts_before_its_time_limit() -> None:
    script = busy_cluster("sjf")
    limited = script.submit(spec(1, limits=LimitsSpec(time_limit=300)))
    estimated = script.submit(spec(1, limits=LimitsSpec(time_limit=3600, estimate=60)))
    assert line(script) == [estimated, limited]


def test_what_is_learned_meanwhile_moves_nobody_who_waits() -> None:
    script = cluster(2, 1, Policy("sjf", backfill=STRICT, preemption=NO_PREEMPTION))
    teacher = script.submit(spec(1, name="train"))
    run(script, teacher, script.submit(spec(1)))
    unknown, known = script.submit(spec(2, name="train")), script.submit(lasting(2, 100))
    pass_time(script, 60)
    script.exit(teacher)  # work of that name takes a minute
    later = script.submit(spec(2, name="train"))
    assert line(script) == [later, known, unknown]


@pytest.mark.parametrize(
    ("signal", "other_s", "first"), [("USR2@10", 200, True), ("USR2@10", 50, False), (None, 200, False)]
)
def test_a_stopped_job_that_could_save_its_work_has_less_to_run(
    signal: str | None, other_s: int, *, first: bool
) -> None:
    policy = Policy("srtf", backfill=STRICT, preemption=Preemption(min_runtime=0))
    script = cluster(1, 1, policy, QueueSpec("owner", guarantee="100%"))
    stopped = script.submit(lasting(1, 600, preemption=PreemptionSpec(signal=signal)))
    run(script, stopped)
    pass_time(script, 500)
    owner = script.submit(spec(1, queue="owner"))
    script.settle()
    stop(script, stopped)
    run(script, owner)
    other = script.submit(lasting(1, other_s))
    assert line(script) == ([stopped, other] if first else [other, stopped])


def test_a_job_whose_time_ran_out_has_as_much_to_run_as_before() -> None:
    script = cluster(1, 1, Policy("srtf", backfill=STRICT, preemption=NO_PREEMPTION))
    sliced_job = script.submit(sliced(1, 0, 500, preemption=PreemptionSpec(signal="USR2@10")))
    run(script)
    other = script.submit(lasting(1, 400))
    time_out(script, sliced_job)
    run(script)
    assert waits(script, sliced_job, other) == [sliced_job]


def test_a_failed_attempt_saves_nothing() -> None:
    script = cluster(1, 1, Policy("srtf", backfill=STRICT, preemption=NO_PREEMPTION))
    fails = script.submit(
        sliced(1, 600, 5000, preemption=PreemptionSpec(signal="USR2@10"), retry=RetrySpec(on=["failed"]))
    )
    run(script, fails)
    other = script.submit(lasting(1, 550))
    pass_time(script, 500)
    script.exit(fails, 1)
    run(script)
    assert waits(script, fails, other) == [fails]


@pytest.mark.parametrize(("seconds", "first"), [(899, "served"), (900, "fresh")])
def test_whoever_took_an_hour_of_a_device_is_in_the_second_queue(seconds: int, first: str) -> None:
    script = cluster(4, 1, Policy("las", backfill=STRICT, preemption=NO_PREEMPTION))
    served = script.submit(sliced(4, 0, seconds))
    run(script)
    between = script.submit(spec(4))
    time_out(script, served)
    run(script, between)
    fresh = script.submit(spec(4))
    assert line(script) == ([served, fresh] if first == "served" else [fresh, served])
