"""What becomes of jobs: ends, retries, cancellations, nodes that fall silent, agents that begin anew."""

from cluster_script import NO_RETRY, Script, spec

from muster.core.decide import decide, next_time
from muster.events import types as t
from muster.events.spec import RetrySpec


def one_running(gpus: int = 1, **more: object) -> tuple[Script, int]:
    script = Script()
    script.node("node-1", fabric="f")
    script.node("node-2", fabric="f")
    job = script.submit(spec(gpus, **more))
    script.settle()
    script.start(job)
    return script, job


def test_a_job_runs_and_completes() -> None:
    script, job = one_running()
    assert script.job(job).phase == "RUNNING"

    script.exit(job, 0)

    assert (script.job(job).phase, script.job(job).exit_code) == ("COMPLETED", 0)
    assert script.settle() == []


def test_a_job_fails_with_its_own_code_and_is_not_tried_again() -> None:
    script, job = one_running()

    script.exit(job, 7)
    script.settle()

    assert (script.job(job).phase, script.job(job).exit_code) == ("FAILED", 7)


def test_one_failed_worker_ends_the_gang() -> None:
    script, job = one_running(8, nodes=2)

    script.exit(job, 3, 1)
    events = script.settle()

    assert script.job(job).phase == "STOPPING"
    (stop,) = [event for event in events if isinstance(event, t.StopWorker)]
    assert (stop.rank, stop.cause) == (0, "worker_failed")
    script.exit(job, None, reason="stopped")
    assert (script.job(job).phase, script.job(job).exit_code) == ("FAILED", 3)


def test_a_failure_is_tried_again_where_the_job_asks_for_it() -> None:
    script, job = one_running(retry=RetrySpec(max_attempts=2, on=["failed"]))

    script.exit(job, 1)
    script.settle()
    assert script.job(job).phase == "STARTING"
    script.start(job)
    script.exit(job, 1)
    script.settle()

    assert (script.job(job).phase, script.job(job).attempts) == ("FAILED", 2)


def test_a_waiting_job_is_cancelled_at_once() -> None:
    script = Script()
    job = script.submit(spec(1))

    script.append(t.JobCancelRequested(job, "ada"))

    assert script.job(job).phase == "CANCELLED"
    script.node("node-1")
    assert script.settle() == []


def test_the_reason_of_a_cancellation_is_kept() -> None:
    script, job = one_running()

    script.append(t.JobCancelRequested(job, "ada", "wrong data"))
    script.settle()
    script.exit(job, None, reason="stopped")

    assert script.job(job).reason == "cancelled by ada: wrong data"


def test_a_running_job_is_stopped_and_its_devices_come_back_only_then() -> None:
    script, job = one_running(8)
    waiting = script.submit(spec(16, nodes=2))

    script.append(t.JobCancelRequested(job, "ada"))
    script.settle()
    assert (script.job(job).phase, script.job(waiting).phase) == ("STOPPING", "PENDING")

    script.exit(job, None, reason="stopped")
    script.settle()
    assert (script.job(job).phase, script.job(waiting).phase) == ("CANCELLED", "STARTING")


def test_an_allocation_that_lands_after_the_cancellation_is_undone() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(1))

    events = decide(script.cluster)
    script.append(t.JobCancelRequested(job, "ada"))
    for event in events:
        script.append(event)
    assert script.job(job).phase == "STOPPING"

    stops = script.settle()
    script.exit(job, None, reason="stopped")

    assert [type(event).__name__ for event in stops] == ["StopOrdered", "StopWorker"]
    assert script.job(job).phase == "CANCELLED"


def test_a_job_that_ends_with_its_agent_is_cancelled_and_not_tried_again() -> None:
    script, job = one_running(retry=RetrySpec(max_attempts=3, on=["failed", "node_fail"]))

    script.exit(job, None, reason="stopped")
    script.settle()

    ended = script.job(job)
    assert (ended.phase, ended.reason, ended.exit_code) == ("CANCELLED", "ended with its agent on node-1", None)


def test_a_gang_that_ends_with_its_agents_is_cancelled_whatever_its_workers_make_of_it() -> None:
    script, job = one_running(8, nodes=2, retry=RetrySpec(max_attempts=3, on=["failed"]))

    script.exit(job, None, 1, reason="stopped")
    assert script.job(job).phase == "STOPPING"
    script.exit(job, 1, 0)

    ended = script.job(job)
    assert (ended.phase, ended.reason, ended.exit_code) == ("CANCELLED", "ended with its agent on node-2", None)


def test_the_rest_of_a_gang_whose_agent_was_ended_is_stopped() -> None:
    script, job = one_running(8, nodes=2)

    script.exit(job, None, 1, reason="stopped")
    (stop,) = [event for event in script.settle() if isinstance(event, t.StopWorker)]
    assert (stop.rank, stop.cause) == (0, "cancelled")
    script.exit(job, None, 0, reason="stopped")

    assert script.job(job).phase == "CANCELLED"


def test_a_job_that_has_failed_before_its_agent_ended_has_failed() -> None:
    script, job = one_running(8, nodes=2)

    script.exit(job, 3, 0)
    script.exit(job, None, 1, reason="stopped")

    assert (script.job(job).phase, script.job(job).exit_code) == ("FAILED", 3)


def test_a_refused_start_leaves_the_node_out_and_counts_as_a_try() -> None:
    script = Script()
    life = script.node("node-1")
    script.node("node-2")
    job = script.submit(spec(1))
    script.settle()

    script.append(t.WorkerRefused("node-1", life, 4, job, 1, 0, "no such directory"))
    script.settle()

    assert script.placed(job) == {"node-2": [0]}
    assert script.job(job).tries == 2


def test_a_job_refused_everywhere_does_not_hold_back_the_others_and_is_tried_again_later() -> None:
    script = Script()
    life = script.node("node-1")
    job = script.submit(spec(1))
    script.settle()
    script.append(t.WorkerRefused("node-1", life, 3, job, 1, 0, "busy"))
    other = script.submit(spec(1))
    script.settle()
    assert (script.job(job).phase, script.job(other).phase) == ("PENDING", "STARTING")

    assert next_time(script.cluster) is not None
    for _ in range(12):
        script.advance(60)
    script.settle()

    assert script.job(job).phase == "STARTING"


def test_a_silent_node_gets_no_new_work_and_keeps_what_it_has() -> None:
    script, job = one_running()
    node = script.job(job).attempt.workers[0].node  # type: ignore[union-attr]

    script.append(t.NodeSuspected(node, f"{node}-life-1", 0, 10_000))
    other = script.submit(spec(1))
    script.settle()

    assert script.job(job).phase == "RUNNING"
    assert node not in script.placed(other)


def test_a_node_whose_lease_ran_out_is_lost_and_its_job_runs_elsewhere() -> None:
    script, job = one_running()
    script.append(t.NodeSuspected("node-1", "node-1-life-1", 0, 10_000))

    script.advance(60)
    script.advance(60)
    assert script.settle() == []
    script.advance(21)
    events = script.settle()

    assert isinstance(events[0], t.NodeLost)
    assert script.placed(job) == {"node-2": [0]}
    assert script.job(job).attempts == 2


def test_one_long_step_of_the_clock_ends_no_lease() -> None:
    script, job = one_running()
    script.append(t.NodeSuspected("node-1", "node-1-life-1", 0, 10_000))

    script.advance(100_000)

    assert script.settle() == []
    assert script.job(job).phase == "RUNNING"


def test_a_job_that_may_not_be_retried_waits_for_its_lost_node() -> None:
    script, job = one_running(retry=NO_RETRY)
    script.append(t.NodeSuspected("node-1", "node-1-life-1", 0, 10_000))
    for _ in range(3):
        script.advance(60)
    script.settle()
    assert script.cluster.state.nodes["node-1"].status == "lost"
    assert script.job(job).phase == "RUNNING"

    script.node("node-1", fabric="f", workers=[t.WorkerReport(job, 1, 0, 77)])
    script.exit(job, 0)

    assert script.job(job).phase == "COMPLETED"


def test_an_agent_that_begins_anew_keeps_its_workers() -> None:
    script, job = one_running()

    script.node("node-1", fabric="f", workers=[t.WorkerReport(job, 1, 0, 77)])
    script.settle()
    script.exit(job, 5)

    assert (script.job(job).phase, script.job(job).exit_code, script.job(job).attempts) == ("FAILED", 5, 1)


def test_an_exit_while_the_agent_was_away_is_told_at_registration() -> None:
    script, job = one_running()

    report = t.WorkerReport(job, 1, 0, 77, t.ExitStatus("exited", 9))
    script.node("node-1", fabric="f", workers=[report])

    assert (script.job(job).phase, script.job(job).exit_code) == ("FAILED", 9)


def test_a_worker_that_was_never_started_costs_no_try() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(1, retry=NO_RETRY))
    script.settle()

    script.node("node-1")
    script.settle()

    assert (script.job(job).phase, script.job(job).attempts, script.job(job).tries) == ("STARTING", 2, 1)


def test_a_worker_that_its_agent_has_lost_counts_as_lost_with_the_node() -> None:
    script, job = one_running()

    script.node("node-1", fabric="f")
    script.settle()

    assert (script.job(job).phase, script.job(job).attempts, script.job(job).tries) == ("STARTING", 2, 2)


def test_a_worker_that_runs_on_though_its_attempt_is_over_is_stopped_first() -> None:
    script, job = one_running()
    script.append(t.NodeSuspected("node-1", "node-1-life-1", 0, 10_000))
    for _ in range(3):
        script.advance(60)
    script.settle()
    assert script.placed(job) == {"node-2": [0]}

    life = script.node("node-1", fabric="f", workers=[t.WorkerReport(job, 1, 0, 77)])
    events = script.settle()

    assert [event for event in events if isinstance(event, t.StopWorker)] == [
        t.StopWorker(job, 1, 0, "node-1", life, "stray", 10_000)
    ]
    assert not script.cluster.state.nodes["node-1"].available
    script.append(t.WorkerExited("node-1", life, job, 1, 0, t.ExitStatus("stopped")))
    assert script.cluster.state.nodes["node-1"].available


def test_a_worker_not_reported_in_time_ends_its_attempt() -> None:
    script = Script()
    script.node("node-1")
    script.node("node-2")
    job = script.submit(spec(1))
    script.settle()

    for _ in range(2):
        script.advance(60)
    events = script.settle()
    assert [type(event).__name__ for event in events] == ["StopOrdered", "StopWorker"]
    script.exit(job, None, reason="lost")
    script.settle()

    assert script.placed(job) == {"node-2": [0]}


def test_a_stop_is_decided_again_for_the_next_life_of_an_agent() -> None:
    script, job = one_running()
    script.append(t.JobCancelRequested(job, "ada"))
    script.settle()

    life = script.node("node-1", fabric="f", workers=[t.WorkerReport(job, 1, 0, 77)])
    events = script.settle()

    assert [event.incarnation for event in events if isinstance(event, t.StopWorker)] == [life]


def test_a_cordoned_node_gets_no_new_work_until_it_is_uncordoned() -> None:
    script = Script()
    script.node("node-1")
    script.append(t.NodeCordoned("node-1", "ada", "fan"))
    job = script.submit(spec(1))
    assert script.settle() == []

    script.append(t.NodeUncordoned("node-1", "ada"))
    script.settle()

    assert script.job(job).phase == "STARTING"


def test_a_tree_that_outlives_every_signal_takes_its_node_out() -> None:
    script, job = one_running()

    script.append(t.StopFailed("node-1", "node-1-life-1", job, 1, 0, "in uninterruptible sleep"))

    assert script.cluster.state.nodes["node-1"].cordoned == f"worker {job}.1.0 could not be stopped"


def test_an_ended_job_leaves_the_state_after_an_hour() -> None:
    script, job = one_running()
    script.exit(job)

    for _ in range(59):
        script.advance(60)
    assert job in script.cluster.state.jobs
    for _ in range(3):
        script.advance(60)

    assert job not in script.cluster.state.jobs


def test_a_key_makes_one_job_for_a_day() -> None:
    script = Script()
    first = script.submit(spec(1), key="k")

    script.submit(spec(1), key="k")
    assert list(script.cluster.state.jobs) == [first]
    assert script.cluster.state.refusals[-1].reason == f"the key was used before, for job {first}"

    for _ in range(24 * 60 + 2):
        script.now_ns += 60 * 1_000_000_000
        script.check = False
        script.append(t.ClockAdvanced())
    assert script.submit(spec(1), key="k") in script.cluster.state.jobs
