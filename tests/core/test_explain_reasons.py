"""Each reason that a job may wait for, in a cluster small enough to see it, with its numbers worked out by hand."""

from cluster_script import SECOND, Script, spec

from muster.core.explain import explain
from muster.core.explanation import Amount, ExpectedStart, Reason, Victim
from muster.core.state import Attempt
from muster.events import types as t
from muster.events.policy import Backfill, Lane, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, LimitsSpec, PreemptionSpec, WhereSpec


def cluster(*sizes: int, queues: tuple[QueueSpec, ...] = (), policy: Policy | None = None) -> Script:
    script = Script()
    for queue in queues:
        script.append(t.QueueConfigured(queue, "root"))
    if policy is not None:
        script.append(t.PolicyChanged(policy, "root"))
    for number, size in enumerate(sizes, start=1):
        script.node(f"node-{number}", size)
    return script


def running(script: Script, gpus: int, user: str = "ada", estimate: int | None = None, **more: object) -> int:
    job = script.submit(spec(gpus, limits=LimitsSpec(estimate=estimate), **more), user)
    script.settle()
    script.start(job)
    assert script.job(job).phase == "RUNNING"
    return job


def waiting(script: Script, gpus: int, user: str = "ada", **more: object) -> int:
    job = script.submit(spec(gpus, **more), user)
    script.settle()
    assert script.job(job).phase == "PENDING"
    return job


def attempt_of(script: Script, job: int) -> Attempt:
    attempt = script.job(job).attempt
    assert attempt is not None
    return attempt


def reasons(script: Script, job: int) -> dict[str, Reason]:
    found = explain(script.cluster, job).reasons
    assert len({reason.kind for reason in found}) == len(found)
    return {reason.kind: reason for reason in found}


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_queue_at_its_limit_with_who_holds_it() -> None:
    script = cluster(8, queues=(QueueSpec("research", limit=4),))
    large, small = running(script, 2, queue="research"), running(script, 1, queue="research")
    job = waiting(script, 2, queue="research")

    told = explain(script.cluster, job)

    assert told.summary == "waits: queue research holds 3 of 4 devices that it may; it adds 2 devices"
    assert told.reasons == [
        Reason(
            "queue_limit",
            "queue research holds 3 of 4 devices that it may; it adds 2 devices;"
            f" most is held by jobs {large} and {small}",
            "research",
            [large, small],
            2,
            amounts=[Amount("devices", 3000, 4000, 2000)],
        )
    ]
    assert told.needs == ["queue research may hold 1 device more, or jobs in it end"]


def test_a_limit_is_told_where_it_was_set() -> None:
    queues = (QueueSpec("research", limit=2), QueueSpec("research/vision"))
    script = cluster(8, queues=queues)
    running(script, 2, queue="research/vision")
    job = waiting(script, 1, queue="research/vision")

    assert reasons(script, job)["queue_limit"].name == "research"


def test_a_user_at_the_limit_of_users() -> None:
    script = cluster(8, queues=(QueueSpec("default", user_limit=2),))
    mine = running(script, 2)
    running(script, 2, "bob")
    job = waiting(script, 1)

    reason = reasons(script, job)["user_limit"]

    assert reason.detail == (
        f"ada holds 2 of 2 devices that one user may in queue default; it adds 1 device; most is held by job {mine}"
    )
    assert explain(script.cluster, job).unstopped == [
        "nobody is stopped for a job that its own, its user's or its queue's limits keep, whoever ends"
    ]


def test_urgent_work_at_its_limit() -> None:
    script = cluster(8, queues=(QueueSpec("default", urgent_limit=2),))
    urgent = running(script, 2, priority=900)
    running(script, 2, priority=300)
    job = waiting(script, 1, priority=950)

    reason = reasons(script, job)["urgent_limit"]

    assert (reason.jobs, reason.amounts) == ([urgent], [Amount("devices", 2000, 2000, 1000)])


def test_a_job_larger_than_one_may_be() -> None:
    script = cluster(8, queues=(QueueSpec("default", max_job_devices=2),))
    job = waiting(script, 4)

    assert explain(script.cluster, job).summary == (
        "waits: one job may hold 2 devices in queue default, and it asks for 4 devices"
    )


def test_a_lane_is_left_to_small_jobs() -> None:
    script = cluster(4, policy=Policy(lanes=[Lane("quick", 1, 1)]))
    large = running(script, 2)
    job = waiting(script, 2)

    reason = reasons(script, job)["lane"]

    assert (reason.name, reason.jobs) == ("quick", [large])
    assert reason.detail == (
        "lane quick is kept for small jobs: others hold 2 of 3 devices that it leaves; it adds 2 devices;"
        f" most is held by job {large}"
    )


def test_what_a_queue_lends_to_nobody() -> None:
    script = cluster(8, queues=(QueueSpec("serving", guarantee=4, lend=1), QueueSpec("default")))
    running(script, 4)
    job = waiting(script, 2)

    reason = reasons(script, job)["kept"]

    assert reason.name == "serving"
    assert reason.detail.startswith(
        "queues keep what they lend to nobody, serving (3 devices): 4 of 5 devices left are held; it adds 2 devices"
    )
    assert explain(script.cluster, job).needs == ["serving lends 1 device more, or other jobs end"]


# -- room -------------------------------------------------------------------------------------------------------------


def test_a_third_share_waits_for_compute() -> None:
    script = cluster(1)
    half = GpuSpec(memory=20 * 1024, compute=0.5)
    first, second = running(script, 1, gpu=half), running(script, 1, gpu=half)
    job = waiting(script, 1, gpu=GpuSpec(memory=20 * 1024, compute=0.1))

    told = explain(script.cluster, job)

    assert told.filter is not None
    assert [check.reason for check in told.filter.refused] == ["no device has 100 thousandths of compute free"]
    assert told.reasons[0].kind == "room"
    assert told.reasons[0].jobs in ([first], [second])  # either will do


def test_a_third_share_waits_for_memory() -> None:
    script = cluster(1)
    half = GpuSpec(memory=40 * 1024, compute=0.25)
    for _ in range(2):
        running(script, 1, gpu=half)
    job = waiting(script, 1, gpu=half)

    told = explain(script.cluster, job)

    assert told.filter is not None
    assert [check.reason for check in told.filter.refused] == ["no device has the memory free"]


def test_room_by_the_least_that_must_end_first() -> None:
    script = cluster(8)
    late = running(script, 4, estimate=900)
    running(script, 2, estimate=60)
    running(script, 2)
    job = waiting(script, 3)

    told = explain(script.cluster, job)
    [reason] = told.reasons

    assert reason.jobs == [late]  # the two that become free first are not enough, and then not needed
    assert told.needs == [f"job {late} ends: then there is room for 3 A100-80GB on node-1"]
    attempt = script.job(late).attempt
    assert attempt is not None
    assert reason.at == attempt.started_at + 900 * SECOND
    assert told.expected is not None
    assert told.expected.at == reason.at


def test_nodes_that_take_no_new_work() -> None:
    script = cluster(4, 4, 2)
    script.append(t.NodeCordoned("node-1", "ada", "fan"))
    script.append(t.NodeSuspected("node-2", "node-2-life-1", 0, 120_000))
    job = waiting(script, 4)

    found = reasons(script, job)

    assert (found["cordon"].nodes, found["silent"].nodes) == (["node-1"], ["node-2"])
    assert found["room"].detail == "waits for 4 devices; 2 are idle"
    assert explain(script.cluster, job).needs == ["node-1 takes work of it again (`muster uncordon node-1`)"]


def test_a_node_that_refused_it() -> None:
    script = cluster(4)
    job = script.submit(spec(1))
    script.settle()
    script.append(t.WorkerRefused("node-1", "node-1-life-1", 1, job, 1, 0, "no space"))
    script.settle()

    reason = reasons(script, job)["excluded"]

    assert (reason.nodes, reason.at) == (["node-1"], script.job(job).excluded["node-1"])


def test_devices_that_no_fabric_links() -> None:
    script = cluster(4, 4)
    running(script, 2, where=WhereSpec(nodes=["node-1"]))
    script.node("node-3", 8, fabric="f")
    running(script, 7, where=WhereSpec(nodes=["node-3"]))
    job = waiting(script, 5, nodes="any")

    told = explain(script.cluster, job)

    assert told.reasons[0].kind == "fabric"
    assert told.summary == "waits for 5 devices on nodes of one fabric: 7 are idle, but not on linked nodes"


def test_no_rendezvous_port_left() -> None:
    script = Script()
    inventory = t.Inventory(
        devices=[t.Device(index, f"GPU-{index}", "A", 100, 100) for index in range(2)],
        cpus=8,
        memory_mib=1000,
        address="10.0.0.1",
        first_port=20_000,
        last_port=20_000,
    )
    script.append(t.NodeRegistered("node-1", "life", inventory, [], 0))
    holder = running(script, 1)
    job = waiting(script, 1)

    reason = reasons(script, job)["port"]

    assert reason.jobs == [holder]
    assert reason.detail == f"fits on node-1, where no rendezvous port is left: held by job {holder}"


# -- order ------------------------------------------------------------------------------------------------------------


def test_behind_a_head_whose_start_it_would_put_off() -> None:
    script = cluster(4)
    running(script, 3, estimate=600)
    head = waiting(script, 4)
    job = waiting(script, 1, limits=LimitsSpec(estimate=3600))

    told = explain(script.cluster, job)

    assert told.reasons[0].jobs == [head]
    assert told.reasons[0].detail == (
        f"behind job {head}, whose start it would put off: its place on node-1 is kept by backfill beginning 9m59s"
        " from now, and this one would take its place there; this one would run for 1h00m"
    )
    assert told.order is not None
    assert (told.order.place, told.order.queue_place, told.order.held_back_by) == (2, 2, head)
    assert [reason.kind for reason in told.reasons] == ["order", "ahead"]
    assert told.needs == [f"job {head} starts or is cancelled"]


def test_behind_a_head_at_the_limit_of_its_queue() -> None:
    script = cluster(8, queues=(QueueSpec("research", limit=4),))
    running(script, 3, estimate=600, queue="research")
    head = waiting(script, 4, queue="research")
    job = waiting(script, 1, queue="research")

    reason = reasons(script, job)["order"]

    assert reason.detail == (
        f"behind job {head}, which waits for what queue research may hold and whose start it would put off:"
        " its part of that is kept by backfill beginning 9m59s from now; nobody knows for how long this one runs"
    )


def test_without_backfill_and_beyond_its_depth() -> None:
    script = cluster(4, policy=Policy(backfill=Backfill("none")))
    running(script, 3)
    head = waiting(script, 4)
    job = waiting(script, 1)
    assert reasons(script, job)["order"].detail == (
        f"behind job {head}, the head of queue default, which does not fit yet: without backfill none passes it"
    )

    script.append(t.PolicyChanged(Policy(backfill=Backfill("easy", 0)), "root"))
    script.settle()

    assert reasons(script, job)["order"].detail == (
        f"behind job {head}, the head of queue default, which does not fit yet: backfill looks at the first 0"
        " behind a head"
    )


def test_room_that_is_reserved_for_another_and_whom_that_one_awaits() -> None:
    script = cluster(4, policy=Policy(preemption=Preemption(min_runtime=0)))
    victim = running(script, 4)
    urgent = script.submit(spec(2, priority=900))
    script.settle()
    job = waiting(script, 4, priority=0)

    told = explain(script.cluster, urgent)

    assert told.reservation is not None
    assert [(worker.node, worker.devices) for worker in told.reservation.workers] == [("node-1", [0, 1])]
    assert [(each.job, each.told, each.gone) for each in told.reservation.awaits] == [(victim, True, False)]
    reserved = script.cluster.state.rooms[urgent].reserved
    assert told.summary == f"room on node-1 is reserved for it by entry {reserved}: it waits for job {victim} to end"
    assert told.needs == [f"the workers of job {victim} end: it was told to stop, and has up to 10s for it"]
    assert reasons(script, job)["reservation"].jobs == [urgent]

    script.exit(victim, None, reason="stopped")
    script.settle()

    placed = explain(script.cluster, urgent).past
    assert placed is not None
    assert placed.made_room == [victim]
    stopped = explain(script.cluster, victim).past
    assert stopped is not None
    assert (stopped.stopped_for, stopped.preemptions, stopped.attempts, stopped.tries) == (urgent, 1, 1, 0)


def test_what_the_next_pass_will_do_is_told_before_it() -> None:
    script = cluster(4, policy=Policy(preemption=Preemption(min_runtime=0)))
    victim = running(script, 4)
    urgent = script.submit(spec(2, priority=900))

    told = explain(script.cluster, urgent)

    assert told.summary == f"job {victim} will be stopped for it by the next pass"
    assert (told.reasons, told.needs) == ([], [])


# -- nobody stopped ---------------------------------------------------------------------------------------------------


def test_why_nobody_of_lower_priority_is_stopped() -> None:
    script = cluster(4, policy=Policy(preemption=Preemption(min_runtime=60, max_per_job=0)))
    running(script, 1, priority=0, preemption=PreemptionSpec(allowed=False))
    running(script, 2, priority=0)
    running(script, 1, priority=600)
    job = waiting(script, 4, priority=600)

    assert explain(script.cluster, job).unstopped[:2] == [
        "1 of 2 jobs of lower priority in queue default is not preempted any more after 0 times",
        "1 of 2 jobs of lower priority in queue default is not to be preempted by its own specification",
    ]


def test_a_job_in_its_first_while_is_left_alone_and_until_when() -> None:
    script = cluster(4)
    running(script, 4, priority=0)
    script.advance(20)
    job = waiting(script, 4, priority=600)

    told = explain(script.cluster, job).unstopped

    assert told[0] == "1 of 1 job of lower priority in queue default is still within its min_runtime of 1m00s"
    assert told[1] == "the next of them may be stopped in 39s"


def test_nobody_gives_back_where_nobody_is_above_its_guarantee() -> None:
    queues = (QueueSpec("a", guarantee=2), QueueSpec("b", guarantee=2))
    script = cluster(4, queues=queues)
    running(script, 2, queue="a")
    running(script, 1, queue="b")
    job = waiting(script, 2, queue="b")

    assert explain(script.cluster, job).unstopped == [
        "no job of lower priority than 300 runs in queue b",
        "queue b would hold more than its guarantee with it, so other queues' jobs are not stopped",
    ]


# -- what became of it ------------------------------------------------------------------------------------------------


def test_time_outs_are_counted() -> None:
    script = cluster(4)
    limits = LimitsSpec(time_limit=30, on_timeout="requeue")
    job = script.submit(spec(4, limits=limits))
    script.settle()
    script.start(job)
    script.advance(31)
    script.settle()
    script.exit(job, None, reason="stopped")
    script.settle()

    past = explain(script.cluster, job).past

    assert past is not None
    assert (past.attempts, past.tries, past.timeouts, past.preemptions) == (2, 1, 1, 0)


# -- who is stopped for it, and when it starts -------------------------------------------------------------------------


def two_queues(*, min_runtime: int = 0) -> Script:
    queues = (QueueSpec("serving", guarantee=4), QueueSpec("training", guarantee=2))
    return cluster(8, queues=queues, policy=Policy(preemption=Preemption(min_runtime=min_runtime)))


def test_by_what_right_work_of_another_queue_is_stopped_and_why_it_is_this_one() -> None:
    script = two_queues()
    old = running(script, 4, queue="training")
    script.advance(50)
    young = running(script, 4, queue="training")
    script.advance(9)
    job = script.submit(spec(2, queue="serving"))

    told = explain(script.cluster, job)
    [victim] = told.victims
    seconds = (script.cluster.state.time_at - attempt_of(script, young).started_at) / SECOND

    assert script.job(old).phase == "RUNNING"
    assert (victim.job, victim.cause) == (young, "reclaim")
    assert victim.work_lost_ms == int(seconds * 1000) * 4
    assert victim.detail == (
        "queue serving held 0 of 4 devices guaranteed, queue training held 8 of 2 devices guaranteed;"
        " its priority is 300; 0.6 device-minutes of work lost"
    )
    once = f"as soon as job {young} has ended (it has up to 10s from its stop)"
    assert told.expected == ExpectedStart(script.cluster.state.time_at, 0, once)
    assert told.allocation.why.startswith("will be reserved: ")


def test_by_what_right_work_of_the_own_queue_is_stopped_also_afterwards() -> None:
    script = cluster(4, policy=Policy(preemption=Preemption(min_runtime=0)))
    low = running(script, 4, priority=100)
    script.advance(30)
    job = script.submit(spec(4, priority=600))

    right = f"its priority in queue default is 100, that of job {job} 600"
    [planned] = explain(script.cluster, job).victims
    assert (planned.job, planned.cause) == (low, "priority")
    assert planned.detail == f"{right}; 2 device-minutes of work lost"

    script.settle()
    assert explain(script.cluster, job).victims == [Victim(low, "priority", None, right)]
    script.exit(low, None, reason="stopped")
    script.settle()
    assert script.job(job).phase == "STARTING"
    assert explain(script.cluster, job).victims == [Victim(low, "priority", None, right)]


def test_what_backfill_keeps_for_a_head_and_when_it_is_expected_where_another_will_be_first() -> None:
    """Beta is under its share once its job has ended: then its other job is first, with the place kept for alpha's."""
    queues = (QueueSpec("alpha", guarantee=1), QueueSpec("beta", guarantee=3))
    script = cluster(4, queues=queues, policy=Policy(preemption=Preemption(mode="none")))
    running(script, 1, queue="alpha", estimate=3600)
    first = running(script, 3, queue="beta", estimate=100)
    head = waiting(script, 3, queue="alpha", limits=LimitsSpec(estimate=50))
    behind = waiting(script, 3, queue="beta", limits=LimitsSpec(estimate=1000))

    told, other = explain(script.cluster, head), explain(script.cluster, behind)

    end_at = attempt_of(script, first).started_at + 100 * SECOND
    assert told.expected is not None
    assert told.expected.at == end_at + 1000 * SECOND
    assert told.expected.why == (
        "its place on node-1 is kept by backfill beginning 1m39s from now, but another may be first in order by then"
    )
    assert other.expected == ExpectedStart(end_at, (end_at - script.cluster.state.time_at) // 1_000_000, "")


# -- the words ---------------------------------------------------------------------------------------------------------


def test_a_lane_is_not_blamed_for_what_a_queue_keeps() -> None:
    queues = (QueueSpec("own", guarantee=2, lend=0), QueueSpec("default"))
    script = cluster(8, queues=queues, policy=Policy(lanes=[Lane("quick", 1, 1)]))
    running(script, 4)
    job = waiting(script, 2)

    reason = reasons(script, job)["lane"]

    assert reason.detail.startswith(
        "lane quick is kept for small jobs: others hold 4 of 5 devices"
        " (it leaves 7 devices, less what queues lend to nobody: own (2 devices)); it adds 2 devices"
    )


def test_what_is_being_given_up_is_told_beside_the_room_reserved_for_it() -> None:
    script = cluster(4, queues=(QueueSpec("default", limit=4),), policy=Policy(preemption=Preemption(min_runtime=0)))
    running(script, 3, priority=0)
    script.submit(spec(3, priority=900))
    script.settle()
    job = waiting(script, 1, priority=0)

    assert reasons(script, job)["queue_limit"].detail.startswith(
        "queue default holds 6 of 4 devices that it may; it adds 1 device;"
        " 3 devices of what is held will be free once jobs have stopped"
    )


def test_nothing_is_advised_that_cannot_be() -> None:
    queues = (QueueSpec("own", guarantee=1, lend=0), QueueSpec("default"))
    script = cluster(4, queues=queues, policy=Policy(lanes=[Lane("quick", 1, 1)]))
    running(script, 2)
    job = waiting(script, 4)

    needs = explain(script.cluster, job).needs

    assert needs[:2] == ["own lends all that is kept", "lane quick is taken away"]  # it fits beside nobody else


def test_a_job_that_fits_but_may_not_start() -> None:
    script = cluster(8, queues=(QueueSpec("research", limit=2, order="fifo"),))
    running(script, 2, queue="research")
    job = waiting(script, 1, queue="research")

    told = explain(script.cluster, job)

    assert told.allocation.why.startswith("fits on the nodes as they are: ")
    assert told.order is not None
    assert told.order.policy == "fifo/easy/best-fit"


def test_devices_that_are_idle_on_several_nodes() -> None:
    script = cluster(4, 4)
    for name in ("node-1", "node-2"):
        running(script, 2, where=WhereSpec(nodes=[name]))
    job = waiting(script, 3)

    assert explain(script.cluster, job).summary == "waits for 3 devices on one node; 4 are idle, at most 2 on one"


def test_the_place_of_a_job_far_behind_is_not_looked_for() -> None:
    script = Script(check=False)
    script.node("node-1", 1)
    running(script, 1)
    jobs = [script.submit(spec(1)) for _ in range(1002)]

    near, far = explain(script.cluster, jobs[999]), explain(script.cluster, jobs[1001])

    assert near.order is not None
    assert far.order is not None
    assert (near.order.place, far.order.place, far.order.queue_place) == (1000, 0, 0)
    assert far.reasons[-1].detail.startswith("1000 or more are considered before it: ")
