"""Order, shares, backfill, limits and lanes as literal scenarios: clusters in, who starts and who waits out."""

from cluster_script import SECOND, Script, spec

from muster.core.decide import decide, next_time
from muster.events import types as t
from muster.events.policy import Backfill, Lane, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec

HOUR = 3600
NO_PREEMPTION = Preemption(mode="none")
AT_ONCE = Preemption(min_runtime=0)


def cluster(devices: int, nodes: int, policy: Policy | None = None, *queues: QueueSpec) -> Script:
    """So many nodes of so many devices on one fabric."""
    script = Script()
    for number in range(1, nodes + 1):
        script.node(f"node-{number}", devices, fabric="f")
    script.append(t.PolicyChanged(policy or Policy(), "root"))
    for queue in queues:
        script.append(t.QueueConfigured(queue, "root"))
    return script


def run(script: Script, *jobs: int) -> None:
    """Passes to rest; these jobs' workers run."""
    script.settle()
    for job in jobs:
        script.start(job)


def phases(script: Script, *jobs: int) -> list[str]:
    return [script.job(job).phase for job in jobs]


def waits(script: Script, *jobs: int) -> list[int]:
    return [job for job in jobs if script.job(job).phase == "PENDING"]


def pass_time(script: Script, seconds: int) -> None:
    """Time passes in steps that the log takes whole."""
    while seconds > 0:
        script.advance(min(60, seconds))
        seconds -= 60


def lasting(gpus: int, seconds: int, **more: object) -> JobSpec:
    return spec(gpus, limits=LimitsSpec(estimate=seconds), **more)


# -- head of line ---------------------------------------------------------------------------------------------------


def half_full(mode: str) -> tuple[Script, int]:
    """64 devices of which 32 are busy for an hour, and a job of 64 at the head."""
    policy = Policy("fifo", backfill=Backfill(mode), preemption=NO_PREEMPTION)  # type: ignore[arg-type]
    script = cluster(8, 8, policy)
    busy = script.submit(lasting(32, HOUR, nodes="any"))
    run(script, busy)
    head = script.submit(lasting(64, HOUR, nodes="any"))
    run(script)
    assert waits(script, head) == [head]
    return script, head


def test_without_backfill_the_head_holds_what_is_behind_it() -> None:
    script, head = half_full("none")
    behind = [script.submit(lasting(4, 600)) for _ in range(3)]
    run(script)
    assert waits(script, head, *behind) == [head, *behind]


def test_easy_backfill_lets_those_run_that_end_before_the_reservation() -> None:
    script, head = half_full("easy")
    short = [script.submit(lasting(4, 600)) for _ in range(3)]
    long = script.submit(lasting(4, 2 * HOUR))
    run(script, *short)
    assert waits(script, head, *short, long) == [head, long]
    attempt = script.job(short[0]).attempt
    assert attempt is not None
    assert attempt.why.endswith(f"backfilled past job {head}")


def test_the_head_starts_no_later_for_what_passed_it() -> None:
    script, head = half_full("easy")
    short = [script.submit(lasting(4, 600)) for _ in range(8)]
    run(script, *short)
    pass_time(script, 600)
    for job in short:
        script.exit(job)
    late = script.submit(lasting(4, HOUR - 300))
    run(script)
    assert waits(script, late) == [late]
    pass_time(script, HOUR - 600)
    script.exit(10)  # the busy one, after nodes and policy in entries 1 to 9
    run(script)
    assert phases(script, head) == ["STARTING"]


def test_a_job_behind_the_head_may_last_where_it_leaves_the_reservation_alone() -> None:
    policy = Policy("fifo", preemption=NO_PREEMPTION)
    script = cluster(4, 2, policy)
    first = script.submit(lasting(4, HOUR))
    second = script.submit(lasting(2, 2 * HOUR))
    run(script, first, second)
    head = script.submit(lasting(4, HOUR))  # node-1, in an hour
    behind = script.submit(spec(2))  # nobody knows for how long: on node-2
    run(script, behind)
    assert waits(script, head, behind) == [head]
    assert script.placed(behind) == {"node-2": [2, 3]}


def test_no_more_jobs_than_the_depth_are_looked_at_behind_a_head() -> None:
    policy = Policy("fifo", backfill=Backfill(depth=2), preemption=NO_PREEMPTION)
    script = cluster(4, 1, policy)
    busy = script.submit(lasting(2, HOUR))
    run(script, busy)
    head = script.submit(lasting(4, HOUR))
    behind = [script.submit(lasting(1, 2 * HOUR)), script.submit(lasting(1, 2 * HOUR)), script.submit(lasting(1, 60))]
    run(script)
    assert waits(script, head, *behind) == [head, *behind]


def test_without_backfill_another_queue_goes_up_to_its_share_and_no_further() -> None:
    policy = Policy("fifo", backfill=Backfill("none"), preemption=NO_PREEMPTION)
    script = cluster(4, 2, policy, QueueSpec("a"), QueueSpec("b"), QueueSpec("default", weight=1_000))
    busy = script.submit(spec(2, queue="a"))
    run(script, busy)
    script.append(t.QueueConfigured(QueueSpec("default"), "root"))  # a third of 8 for each
    head = script.submit(spec(8, queue="a", nodes="any"))
    others = [script.submit(spec(1, queue="b")) for _ in range(4)]
    run(script)
    assert waits(script, head, *others) == [head, *others[2:]]


def test_a_head_at_its_own_queues_limit_does_not_keep_others_from_borrowing() -> None:
    policy = Policy("fifo", backfill=Backfill("none"), preemption=NO_PREEMPTION)
    script = cluster(8, 1, policy, QueueSpec("a", limit=2), QueueSpec("b"))
    first = script.submit(spec(2, queue="a"))
    run(script, first)
    head = script.submit(spec(2, queue="a"))
    others = [script.submit(spec(2, queue="b")) for _ in range(3)]
    run(script)
    assert waits(script, head, *others) == [head]


def test_a_head_at_a_limit_keeps_those_under_the_same_limit_from_borrowing() -> None:
    """a may hold 4, so a/x and a/y 2 each while both ask."""
    policy = Policy("fifo", backfill=Backfill("none"), preemption=NO_PREEMPTION)
    script = cluster(8, 1, policy, QueueSpec("a", guarantee=4, limit=4), QueueSpec("a/x"), QueueSpec("a/y"))
    first = script.submit(spec(3, queue="a/x"))
    run(script, first)
    script.append(t.QueueConfigured(QueueSpec("default"), "root"))
    head = script.submit(spec(2, queue="a/x"))
    beside = script.submit(spec(2, queue="a/y"))
    run(script)
    assert waits(script, head, beside) == [head, beside]
    script.exit(first)
    run(script)
    assert waits(script, head, beside) == []


def test_what_waits_for_its_queues_limit_keeps_a_reservation_on_the_limit() -> None:
    policy = Policy("fifo", preemption=NO_PREEMPTION)
    script = cluster(8, 1, policy, QueueSpec("a", limit=4))
    busy = script.submit(lasting(2, HOUR, queue="a"))
    run(script, busy)
    head = script.submit(lasting(4, HOUR, queue="a"))
    long = script.submit(lasting(2, 2 * HOUR, queue="a"))
    short = script.submit(lasting(2, 600, queue="a"))
    other = script.submit(spec(4))
    run(script)
    assert waits(script, head, long, short, other) == [head, long]


def test_estimates_are_learned_from_the_longest_of_the_last_five_runs() -> None:
    policy = Policy("fifo", preemption=NO_PREEMPTION)
    script = cluster(4, 1, policy)
    for seconds in (900, 60, 120, 30, 240, 60):  # the first is forgotten
        job = script.submit(spec(1, name="train"))
        run(script, job)
        pass_time(script, seconds)
        script.exit(job)
    assert script.cluster.state.learned == {"ada\ntrain": [60, 120, 30, 240, 60]}
    busy = script.submit(lasting(2, 300))
    run(script, busy)
    head = script.submit(lasting(4, HOUR))
    known = script.submit(spec(1, name="train"))  # 240 s
    unknown = script.submit(spec(1, name="other"))
    of_another = script.submit(spec(1, name="train"), user="bob")
    run(script)
    assert waits(script, head, known, unknown, of_another) == [head, unknown, of_another]
    pass_time(script, 120)  # the head's reservation is 180 s away now
    later = script.submit(spec(1, name="train"))
    run(script)
    assert waits(script, later) == [later]


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
    policy = Policy("priority", backfill=Backfill("none"), preemption=AT_ONCE)
    script = cluster(4, 1, policy, QueueSpec("a", limit=2), QueueSpec("b"))
    low = script.submit(spec(2, queue="a", priority=0))
    run(script, low)
    never = script.submit(spec(3, queue="a", priority=900))
    behind = script.submit(spec(1, queue="b"))
    events = script.settle()
    assert [event.job for event in events if isinstance(event, t.JobAllocated)] == [behind]
    assert phases(script, low, never) == ["RUNNING", "PENDING"]
    assert decide(script.cluster) == []
