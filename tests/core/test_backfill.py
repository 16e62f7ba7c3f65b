"""Heads of lines and what passes them, as literal scenarios."""

from typing import Literal

import pytest
from cluster_script import SECOND, Script, spec
from policy_script import HOUR, NO_PREEMPTION, cluster, lasting, pass_time, phases, run, waits

from muster.core.explain import explain
from muster.core.forecast import expected_starts
from muster.events import types as t
from muster.events.policy import Backfill, Policy, QueueSpec


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


@pytest.mark.parametrize(("keep", "node"), [("place", "node-2"), ("time", "node-1")])
def test_a_head_that_keeps_a_time_may_start_on_another_node(keep: Literal["place", "time"], node: str) -> None:
    """A gang leaves one device on each of two nodes, and the head will take one node of the two. Best fit puts a long
    job on the first: a head that keeps its place has that one, a head that keeps a time gets the other. There is room
    for one such job, not for two."""
    policy = Policy("fifo", backfill=Backfill(keep=keep), preemption=NO_PREEMPTION)
    script = cluster(4, 2, policy)
    gang = script.submit(lasting(6, HOUR, nodes=2))
    run(script, gang)
    head = script.submit(lasting(4, HOUR))
    long = [script.submit(lasting(1, 2 * HOUR)) for _ in range(2)]
    run(script, long[0])
    assert waits(script, head, *long) == [head, long[1]]
    attempt = script.job(long[0]).attempt
    assert attempt is not None
    assert [worker.node for worker in attempt.workers] == [node]
    pass_time(script, HOUR)
    script.exit(gang)
    run(script)
    assert phases(script, head) == ["STARTING"]


def test_greedy_backfill_lets_whoever_fits_pass_the_head() -> None:
    script, head = half_full("greedy")
    long = [script.submit(lasting(4, 10 * HOUR)) for _ in range(3)]
    run(script, *long)
    assert waits(script, head, *long) == [head]
    assert [reason.kind for reason in explain(script.cluster, head).reasons] == ["room"]


def two_heads(mode: str) -> tuple[Script, list[int]]:
    """Four devices: two are free in 1,000 s, one in 3,000 s. A job of two waits, 1,000 s long, and one of three."""
    script = cluster(4, 1, Policy("fifo", backfill=Backfill(mode), preemption=NO_PREEMPTION))  # type: ignore[arg-type]
    run(script, *(script.submit(lasting(gpus, seconds)) for gpus, seconds in ((2, 1000), (1, 3000))))
    heads = [script.submit(lasting(2, 1000)), script.submit(lasting(3, 1000))]
    run(script)
    assert waits(script, *heads) == heads
    return script, heads


def test_easy_backfill_keeps_nothing_for_the_second_that_waits() -> None:
    script, heads = two_heads("easy")
    long = script.submit(lasting(1, 10_000))
    run(script)
    assert waits(script, *heads, long) == heads


def test_conservative_backfill_keeps_a_place_for_the_second_too() -> None:
    script, heads = two_heads("conservative")
    long = script.submit(lasting(1, 10_000))
    run(script)
    (reason, _) = explain(script.cluster, long).reasons
    assert (reason.kind, reason.jobs) == ("order", [heads[1]])
    short = script.submit(lasting(1, 900))
    run(script, short)
    assert waits(script, *heads, long, short) == [*heads, long]


def test_conservative_backfill_starts_each_when_it_was_booked() -> None:
    script, (first, second) = two_heads("conservative")
    long = script.submit(lasting(1, 10_000))
    run(script)
    now_s = script.cluster.state.time_at // SECOND
    expected = expected_starts(script.cluster, 3)
    assert [(expected[job] or 0) // SECOND - now_s for job in (first, second, long)] == [1000, 2000, 3000]


def test_a_booked_start_is_told_however_many_ends_it_awaits() -> None:
    script = cluster(8, 4, Policy("fifo", backfill=Backfill("conservative"), preemption=NO_PREEMPTION))
    run(script, *(script.submit(lasting(1, 60 * minutes)) for minutes in range(1, 33)))
    heads = [script.submit(lasting(32, HOUR, nodes=4)) for _ in range(2)]
    run(script)
    now_s = script.cluster.state.time_at // SECOND
    expected = expected_starts(script.cluster, 2)
    assert [(expected[job] or 0) // SECOND - now_s for job in heads] == [32 * 60, 32 * 60 + HOUR]


def test_conservative_backfill_looks_no_deeper_than_it_may() -> None:
    policy = Policy("fifo", backfill=Backfill("conservative", depth=1), preemption=NO_PREEMPTION)
    script = cluster(4, 1, policy)
    run(script, script.submit(lasting(2, HOUR)))
    head, behind, deeper = script.submit(lasting(4, HOUR)), script.submit(lasting(3, 60)), script.submit(lasting(1, 60))
    run(script)
    assert waits(script, head, behind, deeper) == [head, behind, deeper]


def test_conservative_backfill_divides_its_depth_among_the_queues_that_wait() -> None:
    """One job behind each of two heads, where a queue alone may have two."""
    policy = Policy("fifo", backfill=Backfill("conservative", depth=2), preemption=NO_PREEMPTION)
    script = cluster(8, 1, policy, QueueSpec("a"), QueueSpec("b"))
    run(script, script.submit(lasting(2, HOUR, queue="a")))
    heads = [script.submit(lasting(8, HOUR, queue=queue)) for queue in "ab"]
    behind = [script.submit(lasting(1, seconds, queue=queue)) for queue in "ab" for seconds in (2 * HOUR, 60)]
    run(script)
    assert waits(script, *heads, *behind) == [*heads, *behind]
    (reason, *_) = explain(script.cluster, behind[1]).reasons
    assert reason.detail.endswith("backfill looks at the first 1 behind a head")


def test_the_rule_of_placement_holds_under_conservative_backfill_beside_a_job_that_could_never_start() -> None:
    policy = Policy("fifo", placement="spread", backfill=Backfill("conservative"), preemption=NO_PREEMPTION)
    script = cluster(2, 2, policy)
    never = script.submit(lasting(64, HOUR, nodes="any"))
    first = script.submit(lasting(1, HOUR))
    run(script, first)
    second = script.submit(lasting(1, HOUR))
    run(script, second)
    assert waits(script, never) == [never]
    nodes = []
    for job in (first, second):
        attempt = script.job(job).attempt
        assert attempt is not None
        nodes.append(attempt.workers[0].node)
    assert sorted(nodes) == ["node-1", "node-2"]


def test_conservative_backfill_waits_for_nobody_whose_end_is_not_known() -> None:
    script = cluster(4, 1, Policy("fifo", backfill=Backfill("conservative"), preemption=NO_PREEMPTION))
    run(script, script.submit(spec(3)))
    head, behind = script.submit(lasting(2, 60)), script.submit(spec(1))
    run(script, behind)
    assert waits(script, head, behind) == [head]
