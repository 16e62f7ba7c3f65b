"""What an explanation advises and expects can be true: ends that would help, stops that take their time, who awaits
whom on a node with several rooms, and why nobody is stopped."""

from cluster_script import Script, spec
from policy_script import AT_ONCE

from muster.core.explain import explain
from muster.core.explanation import ExpectedStart
from muster.events import types as t
from muster.events.policy import Lane, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, PreemptionSpec

SLOW = PreemptionSpec(signal="USR2@120", grace=60)


def cluster(*sizes: int, queues: tuple[QueueSpec, ...] = (), policy: Policy | None = None) -> Script:
    script = Script()
    for queue in queues:
        script.append(t.QueueConfigured(queue, "root"))
    if policy is not None:
        script.append(t.PolicyChanged(policy, "root"))
    for number, size in enumerate(sizes, start=1):
        script.node(f"node-{number}", size)
    return script


def running(script: Script, asked: JobSpec) -> int:
    job = script.submit(asked)
    script.settle()
    script.start(job)
    assert script.job(job).phase == "RUNNING"
    return job


def waiting(script: Script, asked: JobSpec) -> int:
    job = script.submit(asked)
    script.settle()
    assert script.job(job).phase == "PENDING"
    return job


# -- ends that would help ---------------------------------------------------------------------------------------------


def test_no_end_helps_against_a_limit_that_the_job_alone_breaks() -> None:
    script = cluster(8, queues=(QueueSpec("a", limit=4),))
    running(script, spec(2, queue="a"))
    job = waiting(script, spec(3, queue="a"))
    assert explain(script.cluster, job).needs == ["queue a may hold 1 device more, or jobs in it end"]

    script.append(t.QueueConfigured(QueueSpec("a", limit=2), "root"))

    assert explain(script.cluster, job).needs == ["queue a may hold 3 devices more"]


def test_no_end_helps_where_queues_keep_what_they_hold_as_well() -> None:
    """Serving holds 3 of the 4 that it keeps: with its job gone it would still keep all of them."""
    script = cluster(8, queues=(QueueSpec("serving", guarantee=4, lend=0), QueueSpec("default")))
    running(script, spec(3, queue="serving"))
    running(script, spec(1))
    small = waiting(script, spec(4, priority=0))
    assert explain(script.cluster, small).needs[0] == "serving lends 1 device more, or other jobs end"
    script.append(t.JobCancelRequested(small, "ada"))
    large = waiting(script, spec(5))
    assert explain(script.cluster, large).needs[0] == "serving lends all that is kept"


def test_no_end_helps_where_a_lane_and_what_queues_keep_leave_too_little() -> None:
    queues = (QueueSpec("serving", guarantee=4, lend=0), QueueSpec("default"))
    script = cluster(8, queues=queues, policy=Policy(lanes=[Lane("quick", 2, 1)]))
    running(script, spec(2, queue="serving"))
    fits = waiting(script, spec(3))
    needs = explain(script.cluster, fits).needs
    assert not any("other jobs end" in sentence for sentence in needs), needs


def test_nested_queues_keep_their_larger_part_once() -> None:
    """The queue above keeps 2 for those below it, of which one keeps 3 of its own."""
    queues = (
        QueueSpec("a", guarantee=6, lend=4),
        QueueSpec("a/x", guarantee=3, lend=0),
        QueueSpec("a/y", guarantee=3),
        QueueSpec("default"),
    )
    script = cluster(8, queues=queues)
    running(script, spec(5))
    job = waiting(script, spec(1))

    [reason] = [reason for reason in explain(script.cluster, job).reasons if reason.kind == "kept"]

    assert reason.detail.startswith("queues keep what they lend to nobody, a (3 devices): 5 of 5 devices left are held")


# -- stops that take their time ---------------------------------------------------------------------------------------


def test_who_waits_for_a_stop_is_told_how_long_that_may_take() -> None:
    script = cluster(4, policy=AT_ONCE)
    low = running(script, spec(4, priority=0, preemption=SLOW))
    urgent = script.submit(spec(4, priority=900))
    once = f"as soon as job {low} has ended (it has up to 3m00s from its stop)"
    planned = explain(script.cluster, urgent)
    script.settle()

    told = explain(script.cluster, urgent)
    assert planned.expected is not None
    assert (planned.expected.in_ms, planned.expected.why) == (0, once)
    assert told.expected == ExpectedStart(script.cluster.state.time_at, 0, once)
    assert told.needs == [f"the workers of job {low} end: it was told to stop, and has up to 3m00s for it"]


def test_who_waits_for_what_a_cancelled_job_leaves_is_told_of_its_grace() -> None:
    """A cancel takes the time for a checkpoint away."""
    script = cluster(4)
    leaving = running(script, spec(4, preemption=SLOW))
    script.append(t.JobCancelRequested(leaving, "ada"))
    job = waiting(script, spec(2))

    told = explain(script.cluster, job)

    assert told.reasons[0].detail == (
        "waits for 2 devices; 0 are idle;"
        f" it fits once job {leaving} has ended (it is being stopped, which takes up to 1m00s)"
    )
    assert told.expected is not None
    assert told.expected.why == f"as soon as job {leaving} has ended (it has up to 1m00s from its stop)"


def test_a_job_that_is_overdue_ends_any_moment() -> None:
    script = cluster(4)
    late = running(script, spec(4, limits=LimitsSpec(estimate=60)))
    script.advance(59)
    script.advance(59)
    job = waiting(script, spec(2))

    told = explain(script.cluster, job)

    assert told.reasons[0].detail.endswith(f"it fits once job {late} has ended (expected any moment)")
    assert told.expected == ExpectedStart(script.cluster.state.time_at, 0, "")


# -- rooms on one node ------------------------------------------------------------------------------------------------


def test_each_of_two_rooms_on_a_node_names_whom_it_awaits_itself() -> None:
    script = cluster(4, policy=AT_ONCE)
    first, second = running(script, spec(2, priority=0)), running(script, spec(2, priority=100))
    rooms = [script.submit(spec(2, priority=900)) for _ in range(2)]
    script.settle()

    told = [explain(script.cluster, job) for job in rooms]

    assert [found.summary.partition(": ")[2] for found in told] == [
        f"it waits for job {first} to end",
        f"it waits for job {second} to end",
    ]


def test_a_room_whose_cpus_are_lacking_names_who_holds_them_on_other_devices() -> None:
    script = Script()
    script.node("node-1", 4, cpus=8)
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    cards, cpus = running(script, spec(4, cpus=1, priority=0)), running(script, spec(0, cpus=4, priority=0))
    script.append(t.JobCancelRequested(cpus, "ada"))
    script.settle()
    job = script.submit(spec(4, cpus=2, priority=900))
    script.settle()

    reservation = explain(script.cluster, job).reservation

    assert reservation is not None
    assert sorted(each.job for each in reservation.awaits) == [cards, cpus]


# -- nobody stopped, and what backfill keeps --------------------------------------------------------------------------


def test_priority_stops_nobody_where_it_is_not_the_order() -> None:
    script = cluster(4, policy=Policy(order="fifo", preemption=Preemption(min_runtime=0)))
    running(script, spec(4, priority=0))
    job = waiting(script, spec(2, priority=900))

    assert explain(script.cluster, job).unstopped[0] == (
        "the order of queue default is fifo, not priority: there priority stops nobody"
    )


def test_a_job_that_had_waited_long_would_still_come_first() -> None:
    """Forty hours of ten points each make up for the three hundred that it has less."""
    script = cluster(4, policy=AT_ONCE)
    script.append(t.NodeCordoned("node-1", "root", "fan"))
    old = script.submit(spec(4, priority=300))
    for _ in range(40 * 60):
        script.advance(60)
    script.append(t.NodeUncordoned("node-1", "root"))
    script.settle()
    script.start(old)
    job = waiting(script, spec(2, priority=600))

    assert explain(script.cluster, job).unstopped[0] == (
        "1 of 1 job of lower priority in queue default would still come first: it had waited 1d16h"
    )


def test_what_is_kept_for_a_head_whose_start_nobody_knows() -> None:
    script = cluster(4)
    running(script, spec(3))
    head = waiting(script, spec(4))
    job = waiting(script, spec(1, limits=LimitsSpec(estimate=60)))

    told = explain(script.cluster, job)

    assert told.reasons[0].detail == (
        f"behind job {head}, whose start it would put off: its place on node-1, which becomes free nobody knows when,"
        " is kept by backfill, and this one would take its place there"
    )
    assert told.reasons[0].at is None


def test_shares_of_a_card_that_are_being_left_are_awaited_by_whom_they_lack() -> None:
    script = cluster(2, policy=AT_ONCE)
    half = GpuSpec(memory=40 * 1024, compute=0.5)
    halves = [running(script, spec(1, gpu=half, priority=0)) for _ in range(2)]
    whole = running(script, spec(1, priority=100))
    job = script.submit(spec(1, gpu=half, priority=900))
    other = script.submit(spec(1, priority=900))
    script.settle()

    found = [explain(script.cluster, each).reservation for each in (job, other)]

    assert [[each.job for each in room.awaits] for room in found if room is not None] == [[halves[1]], [whole]]
