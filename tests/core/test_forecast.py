"""When waiting jobs are expected to start: small clusters, with times worked out by hand."""

import random

from cluster_script import SECOND, Script, spec

from muster.core.cluster import Cluster
from muster.core.decide import decide
from muster.core.forecast import Forecast, expected_starts
from muster.core.invariants import check_invariants
from muster.events import types as t
from muster.events.policy import Backfill, Lane, Policy, Preemption, QueueSpec
from muster.events.spec import JobSpec, LimitsSpec


def lasting(gpus: int, seconds: int, **more: object) -> JobSpec:
    """A job that says how long it will run."""
    return spec(gpus, limits=LimitsSpec(estimate=seconds), **more)


def running(script: Script, job_spec: JobSpec, user: str = "ada") -> int:
    job = script.submit(job_spec, user)
    script.settle()
    script.start(job)
    assert script.job(job).phase == "RUNNING"
    return job


def started_at(script: Script, job: int) -> int:
    attempt = script.job(job).attempt
    assert attempt is not None
    return attempt.started_at


def test_one_after_another() -> None:
    script = Script()
    script.node("node-1", 4)
    first = running(script, lasting(4, 600))
    second, third, fourth = (script.submit(lasting(gpus, 100)) for gpus in (2, 4, 4))
    script.settle()

    end_at = started_at(script, first) + 600 * SECOND

    assert expected_starts(script.cluster, 10) == {
        second: end_at,
        third: end_at + 100 * SECOND,
        fourth: end_at + 200 * SECOND,
    }


def test_what_was_told_is_what_happens() -> None:
    script = Script()
    script.node("node-1", 4)
    first = running(script, lasting(3, 50))
    waiting = [script.submit(lasting(gpus, seconds)) for gpus, seconds in ((4, 30), (1, 40), (1, 60), (2, 20))]
    script.settle()
    told = expected_starts(script.cluster, 10)

    # the one of 40 s ends before the head may start; the one of 60 s would not, and waits behind it
    assert script.job(waiting[1]).phase == "STARTING"
    script.start(waiting[1])
    end_at = started_at(script, first) + 50 * SECOND
    assert told == {
        waiting[0]: end_at,
        waiting[2]: end_at + 30 * SECOND,
        waiting[3]: end_at + 30 * SECOND,
    }


def test_a_job_is_expected_now_where_it_starts_with_the_next_pass() -> None:
    script = Script()
    script.node("node-1", 4)
    first, second = script.submit(lasting(4, 30)), script.submit(lasting(4, 30))

    now_at = script.cluster.state.time_at

    assert expected_starts(script.cluster, 10) == {first: now_at, second: now_at + 30 * SECOND}


def test_nobody_knows_what_waits_for_work_without_an_end() -> None:
    script = Script()
    script.node("node-1", 4)
    running(script, spec(4))
    job = script.submit(lasting(1, 10))
    script.settle()

    assert expected_starts(script.cluster, 10) == {job: None}


def test_work_that_has_run_for_longer_than_expected_may_end_any_moment() -> None:
    script = Script()
    script.node("node-1", 4)
    running(script, lasting(4, 10))
    job = script.submit(spec(4))
    script.advance(30)
    script.settle()

    assert expected_starts(script.cluster, 10) == {job: script.cluster.state.time_at}


def test_what_the_same_job_took_before_counts() -> None:
    script = Script()
    script.node("node-1", 4)
    before = running(script, spec(4, name="train"))
    script.advance(40)
    script.exit(before)
    again = running(script, spec(4, name="train"))
    job = script.submit(spec(4, name="other"))
    script.settle()

    assert expected_starts(script.cluster, 10) == {job: started_at(script, again) + 40 * SECOND}


def test_the_head_of_a_queue_at_its_limit_waits_for_work_of_its_queue() -> None:
    script = Script()
    script.node("node-1", 8)
    script.append(t.QueueConfigured(QueueSpec("small", limit=2), "root"))
    mine = running(script, lasting(2, 100, queue="small"))
    running(script, lasting(2, 10))
    job = script.submit(lasting(1, 10, queue="small"))
    script.settle()

    assert expected_starts(script.cluster, 10) == {job: started_at(script, mine) + 100 * SECOND}


def test_without_backfill_nobody_passes_the_head() -> None:
    script = Script()
    script.append(t.PolicyChanged(Policy(backfill=Backfill(mode="none")), "root"))
    script.node("node-1", 4)
    first = running(script, lasting(3, 100))
    head, behind = script.submit(lasting(4, 50)), script.submit(lasting(1, 10))
    script.settle()

    end_at = started_at(script, first) + 100 * SECOND

    assert expected_starts(script.cluster, 10) == {head: end_at, behind: end_at + 50 * SECOND}


def test_a_lane_is_left_alone_in_the_forecast_too() -> None:
    script = Script()
    script.append(t.PolicyChanged(Policy(lanes=[Lane("quick", 1, 1)]), "root"))
    script.node("node-1", 4)
    first = running(script, lasting(2, 100))
    second = running(script, lasting(1, 300))
    job = script.submit(lasting(2, 10))
    script.settle()
    assert script.job(second).phase == "RUNNING"  # in the lane

    # one device is free and the lane's: two are left for it once the first has ended
    assert expected_starts(script.cluster, 10) == {job: started_at(script, first) + 100 * SECOND}


def test_reserved_room_is_used_once_the_victim_has_gone_and_the_victim_waits_again() -> None:
    script = Script()
    script.append(t.PolicyChanged(Policy(preemption=Preemption(min_runtime=0)), "root"))
    script.node("node-1", 4)
    victim = running(script, lasting(4, 500))
    urgent = script.submit(lasting(4, 20, priority=900))
    script.run_pass()
    assert script.job(victim).phase == "STOPPING"
    assert list(script.cluster.state.rooms) == [urgent]

    now_at = script.cluster.state.time_at

    assert expected_starts(script.cluster, 10) == {urgent: now_at}
    behind = script.submit(lasting(4, 10, priority=0))
    now_at = script.cluster.state.time_at
    # the victim comes back before the one of lower priority: for 500 s after the urgent one's 20 s
    assert expected_starts(script.cluster, 10) == {urgent: now_at, behind: now_at + 520 * SECOND}


def test_a_job_goes_back_to_a_node_that_refused_it_after_a_while() -> None:
    script = Script()
    life = script.node("node-1", 4)
    job = script.submit(lasting(4, 10))
    script.settle()
    script.node("node-2", 4)
    script.submit(spec(4))  # for nobody knows how long
    script.settle()
    script.append(t.WorkerRefused("node-1", life, 1, job, 1, 0, "no space"))
    script.settle()
    assert script.job(job).phase == "PENDING"

    [until] = script.job(job).excluded.values()

    assert expected_starts(script.cluster, 10) == {job: until}


def test_only_so_many_are_told_of_and_nothing_is_changed() -> None:
    random_ = random.Random(7)
    script = Script()
    for number in range(1, 4):
        script.node(f"node-{number}", 4, fabric="f")
    for _ in range(30):
        gpus = random_.choice([1, 1, 2, 4, 8])
        limits = LimitsSpec(estimate=random_.choice([None, 60, 600]))
        script.submit(spec(gpus, limits=limits, nodes="any" if gpus > 4 else None), random_.choice("ab"))
    script.settle()
    before = script.fold.state_bytes()

    told = expected_starts(script.cluster, 5)

    assert len(told) == 5
    assert script.fold.state_bytes() == before
    check_invariants(script.cluster)
    assert decide(script.cluster) == decide(Cluster(script.cluster.state)) == []


def test_a_job_that_others_are_stopped_for_is_expected_now_and_they_wait_again() -> None:
    script = Script()
    script.append(t.PolicyChanged(Policy(preemption=Preemption(min_runtime=0)), "root"))
    script.node("node-1", 4)
    running(script, lasting(4, 500))
    urgent, behind = (script.submit(lasting(4, 20, priority=priority)) for priority in (900, 0))

    now_at = script.cluster.state.time_at

    assert expected_starts(script.cluster, 10) == {urgent: now_at, behind: now_at + 520 * SECOND}


def test_nobody_is_stopped_later_on() -> None:
    """The first while of what runs is over in a minute; a forecast does not go into that."""
    script = Script()
    script.node("node-1", 4)
    low = running(script, lasting(4, 500, priority=0))
    urgent = script.submit(lasting(4, 20, priority=900))

    assert expected_starts(script.cluster, 10) == {urgent: started_at(script, low) + 500 * SECOND}


def test_between_users_what_they_take_until_then_counts() -> None:
    script = Script()
    script.append(t.PolicyChanged(Policy(order="fair"), "root"))
    script.node("node-1", 4)
    first = running(script, lasting(4, 100), "eve")
    users = ("ada", "ada", "bob")
    early, late, bob = (script.submit(lasting(4, 100), user) for user in users)

    end_at = started_at(script, first) + 100 * SECOND

    assert expected_starts(script.cluster, 10) == {
        early: end_at,
        bob: end_at + 100 * SECOND,  # by then Ada has taken more
        late: end_at + 200 * SECOND,
    }


def test_a_forecast_is_of_the_moment_at_which_it_was_begun() -> None:
    script = Script()
    life = script.node("node-1", 4)
    first = running(script, lasting(4, 600))
    job = script.submit(lasting(4, 100))
    script.settle()
    end_at = started_at(script, first) + 600 * SECOND
    forecast = Forecast(script.cluster, 10)

    script.exit(first)
    script.settle()
    script.start(job)
    script.append(t.NodeSuspected("node-1", life, 0, 10_000))
    script.append(t.QueueConfigured(QueueSpec("default", limit=1), "root"))
    before = script.fold.state_bytes()

    assert forecast.starts() == {job: end_at}
    assert script.fold.state_bytes() == before
    check_invariants(script.cluster)
