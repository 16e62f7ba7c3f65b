"""What queues lend and take back, as literal scenarios."""

from cluster_script import Script, spec
from policy_script import AT_ONCE, beneficiaries, cluster, devices_of, running, starts, stop, victims

from muster.events import types as t
from muster.events.policy import QueueSpec
from muster.events.spec import GpuSpec, PreemptionSpec

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


def test_a_queue_is_not_taken_below_its_guarantee() -> None:
    """b holds one more than it is guaranteed; a may have three more and would need them: b gives nothing in vain."""
    script = cluster(10, 1, AT_ONCE, *TEAMS, QueueSpec("c"))
    running(script, spec(3, queue="a"), spec(2, queue="c", preemption=PreemptionSpec(allowed=False)))
    of_b = running(script, *[spec(1, queue="b") for _ in range(5)])
    three = script.submit(spec(3, queue="a"))
    assert script.settle() == []
    script.append(t.JobCancelRequested(three, "ada"))
    script.submit(spec(1, queue="a"))
    (victim,) = victims(script.settle())
    assert victim in of_b


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
