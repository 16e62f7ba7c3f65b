"""Order, shares between queues and their bounds, as literal scenarios."""

from cluster_script import Script, spec
from policy_script import HOUR, NO_PREEMPTION, cluster, pass_time, run, waits

from muster.events.policy import Backfill, Policy, QueueSpec

# -- order ----------------------------------------------------------------------------------------------------------


def start_order(script: Script, busy: int, *jobs: int) -> list[int]:
    """The jobs in the order in which they start on the one place that there is."""
    found = []
    running = busy
    for _ in jobs:
        script.exit(running)
        script.settle()
        (running,) = [job for job in jobs if script.job(job).phase == "STARTING"]
        script.start(running)
        found.append(running)
    return found


def busy_place(policy: Policy, *queues: QueueSpec) -> tuple[Script, int]:
    script = cluster(1, 1, policy, *queues)
    busy = script.submit(spec(1, priority=1000))
    run(script, busy)
    return script, busy


def test_fifo_is_by_submission() -> None:
    script, busy = busy_place(Policy("fifo", preemption=NO_PREEMPTION))
    jobs = [script.submit(spec(1, priority=priority)) for priority in (0, 900, 300)]
    assert start_order(script, busy, *jobs) == jobs


def test_priority_is_by_priority_then_by_submission() -> None:
    script, busy = busy_place(Policy("priority", preemption=NO_PREEMPTION))
    low, high, mid, also_high = (script.submit(spec(1, priority=priority)) for priority in (0, 900, 300, 900))
    assert start_order(script, busy, low, high, mid, also_high) == [high, also_high, mid, low]


def test_a_job_that_waited_long_enough_passes_one_of_higher_priority() -> None:
    """At 100 points an hour, P3 (0) that has waited 3 hours stands where P2 (300) begins."""
    for waited_s, first in ((3 * HOUR - 60, "young"), (3 * HOUR + 60, "old")):
        script, busy = busy_place(Policy("priority", ageing=100, preemption=NO_PREEMPTION))
        old = script.submit(spec(1, priority="P3"))
        pass_time(script, waited_s)
        young = script.submit(spec(1, priority="P2"))
        pass_time(script, 10 * HOUR)  # both age alike
        expected = [old, young] if first == "old" else [young, old]
        assert start_order(script, busy, old, young) == expected


def test_without_ageing_the_higher_priority_is_always_first() -> None:
    script, busy = busy_place(Policy("priority", ageing=0, preemption=NO_PREEMPTION))
    old = script.submit(spec(1, priority=299))
    pass_time(script, 10 * HOUR)
    young = script.submit(spec(1, priority=300))
    assert start_order(script, busy, old, young) == [young, old]


def test_fair_is_by_use_and_use_fades() -> None:
    """ada used a device for an hour, bob for 40 minutes an hour later: two half-lives leave ada a quarter of hers."""
    script = cluster(1, 1, Policy("fair", half_life=1800, preemption=NO_PREEMPTION))
    for user, seconds in (("ada", HOUR), ("bob", 40 * 60)):
        job = script.submit(spec(1), user=user)
        run(script, job)
        pass_time(script, seconds)
        script.exit(job)
    busy = script.submit(spec(1), user="eve")
    run(script, busy)
    of_bob, of_ada = script.submit(spec(1), user="bob"), script.submit(spec(1), user="ada")
    assert start_order(script, busy, of_bob, of_ada) == [of_ada, of_bob]


def test_fair_without_fading_is_by_all_use() -> None:
    script = cluster(1, 1, Policy("fair", half_life=1000 * HOUR, preemption=NO_PREEMPTION))
    for user, seconds in (("ada", HOUR), ("bob", 40 * 60)):
        job = script.submit(spec(1), user=user)
        run(script, job)
        pass_time(script, seconds)
        script.exit(job)
    busy = script.submit(spec(1), user="eve")
    run(script, busy)
    of_ada, of_bob = script.submit(spec(1), user="ada"), script.submit(spec(1), user="bob")
    assert start_order(script, busy, of_ada, of_bob) == [of_bob, of_ada]


def test_fair_counts_what_is_held_now() -> None:
    """On four free devices the users take turns, whoever submitted first."""
    script = cluster(4, 1, Policy("fair", preemption=NO_PREEMPTION))
    of_ada = [script.submit(spec(1)) for _ in range(4)]
    of_bob = [script.submit(spec(1), user="bob") for _ in range(4)]
    run(script)
    assert waits(script, *of_ada, *of_bob) == [*of_ada[2:], *of_bob[2:]]


# -- between queues -------------------------------------------------------------------------------------------------


def test_queues_take_turns_by_weight() -> None:
    """Of 8 devices, 6 to the queue of weight 3 and 2 to that of weight 1."""
    script = cluster(8, 1, Policy("fifo", preemption=NO_PREEMPTION), QueueSpec("a", weight=3), QueueSpec("b"))
    of_b = [script.submit(spec(1, queue="b")) for _ in range(8)]
    of_a = [script.submit(spec(1, queue="a")) for _ in range(8)]
    run(script)
    assert (len(waits(script, *of_a)), len(waits(script, *of_b))) == (2, 6)


def test_nested_queues_share_what_is_above_them() -> None:
    """a has half of 8 whatever is in it: 2 for each of its two queues, 4 for b."""
    queues = [QueueSpec(name) for name in ("a", "a/x", "a/y", "b")]
    script = cluster(8, 1, Policy("fifo", preemption=NO_PREEMPTION), *queues)
    jobs = {name: [script.submit(spec(1, queue=name)) for _ in range(8)] for name in ("a/x", "a/y", "b")}
    run(script)
    assert {name: 8 - len(waits(script, *found)) for name, found in jobs.items()} == {"a/x": 2, "a/y": 2, "b": 4}


def test_a_limit_above_bounds_all_that_is_below() -> None:
    queues = [QueueSpec("a", limit="50%"), QueueSpec("a/x"), QueueSpec("a/y", limit="50%")]
    script = cluster(8, 1, Policy("fifo", preemption=NO_PREEMPTION), *queues)
    of_y = [script.submit(spec(1, queue="a/y")) for _ in range(4)]
    run(script)
    assert len(waits(script, *of_y)) == 2  # half of a half of 8
    of_x = [script.submit(spec(1, queue="a/x")) for _ in range(4)]
    run(script)
    assert len(waits(script, *of_x)) == 2


def test_what_a_queue_does_not_lend_stays_idle_for_it() -> None:
    script = cluster(8, 1, Policy("fifo"), QueueSpec("a", guarantee=4, lend=1), QueueSpec("b"))
    of_b = [script.submit(spec(1, queue="b")) for _ in range(8)]
    run(script)
    assert len(waits(script, *of_b)) == 3  # 8 less the 3 that are lent to nobody
    of_a = [script.submit(spec(1, queue="a")) for _ in range(3)]
    run(script)
    assert waits(script, *of_a) == []


def test_a_queue_borrows_up_to_its_cap() -> None:
    script = cluster(8, 1, Policy("fifo"), QueueSpec("a", guarantee=4), QueueSpec("b", guarantee=4, borrow=1))
    of_b = [script.submit(spec(1, queue="b")) for _ in range(8)]
    run(script)
    assert len(waits(script, *of_b)) == 3


def test_one_user_is_held_to_a_limit_and_holds_up_nobody() -> None:
    policy = Policy("fifo", backfill=Backfill("none"))
    script = cluster(8, 1, policy, QueueSpec("a", user_limit=2))
    of_ada = [script.submit(spec(1, queue="a")) for _ in range(4)]
    of_bob = [script.submit(spec(1, queue="a"), user="bob") for _ in range(2)]
    run(script)
    assert waits(script, *of_ada, *of_bob) == of_ada[2:]


def test_urgent_work_cannot_take_all() -> None:
    script = cluster(8, 1, Policy(), QueueSpec("a", urgent_limit="50%"))
    urgent = [script.submit(spec(1, queue="a", priority="P0")) for _ in range(8)]
    usual = [script.submit(spec(1, queue="a")) for _ in range(8)]
    run(script)
    assert waits(script, *urgent) == urgent[4:]
    assert waits(script, *usual) == usual[4:]


def test_one_job_is_held_to_its_queues_caps() -> None:
    queues = [QueueSpec("a", max_job_devices=2), QueueSpec("b", max_job_share="25%")]
    script = cluster(8, 1, Policy("fifo", backfill=Backfill("none")), *queues)
    large = [script.submit(spec(3, queue="a")), script.submit(spec(3, queue="b"))]
    small = [script.submit(spec(2, queue="a")), script.submit(spec(2, queue="b"))]
    run(script)
    assert waits(script, *large, *small) == large
