"""What is known of devices after each report, and what becomes of the work on them."""

import msgspec
import pytest
from cluster_script import NO_RETRY, SECOND, Script, inventory, spec
from device_script import (
    a_fault,
    action,
    anew,
    anew_with,
    condition,
    cordon,
    fault,
    foreign,
    node_of,
    recovery,
    refusals,
    uncordon,
    uuid_of,
)
from policy_script import pass_time

from muster.core.decide import decide
from muster.core.state import CountedError
from muster.events import types as t
from muster.events.policy import Health, Policy
from muster.events.spec import GpuSpec, RetrySpec, WhereSpec
from muster.projections.fold import Fold

HALF = GpuSpec(memory=40 * 1024, compute=0.5)


def cluster(devices: int = 4, nodes: int = 1, **health: int) -> Script:
    script = Script()
    for number in range(1, nodes + 1):
        script.node(f"node-{number}", devices, fabric="f")
    if health:
        script.append(t.PolicyChanged(Policy(health=Health(**health)), "root"))
    return script


def running(script: Script, gpus: int = 1, **more: object) -> int:
    job = script.submit(spec(gpus, **more))
    script.settle()
    script.start(job)
    assert script.job(job).phase == "RUNNING"
    return job


# -- what is refused ------------------------------------------------------------------------------------------------


def test_reports_of_an_earlier_life_or_of_devices_that_the_node_does_not_have_are_refused() -> None:
    script = cluster()
    uuid = uuid_of(script, 0)
    script.append(t.DeviceFaulted("node-1", "earlier", a_fault(script, 0, "quarantine")))
    script.append(t.DeviceRecovered("node-1", "earlier", 0, uuid))
    script.append(t.ForeignUsageChanged("node-1", "earlier", [t.ForeignUse(0, uuid, 5)]))
    script.append(t.NodeDegraded("node-1", "earlier", "nvml_hung", "no answer"))
    script.append(t.NodeRestored("node-1", "earlier"))
    life = node_of(script).incarnation
    script.append(t.DeviceFaulted("node-1", life, t.DeviceFault(0, "GPU-other", "xid", "quarantine")))
    script.append(t.DeviceRecovered("node-1", life, 0, "GPU-other"))
    script.append(t.DeviceCordoned("node-1", "GPU-other", "root"))
    script.append(t.DeviceCordoned("node-9", uuid, "root"))
    script.append(t.DeviceUncordoned("node-1", uuid, "root"))

    assert refusals(script) == [
        *["node-1 is not in that life"] * 4,
        "node-1 is not degraded in that life",
        *["node-1 has no device GPU-other"] * 3,
        f"node-9 has no device {uuid}",
        f"nothing is wrong with a device {uuid} of node-1",
    ]
    node = node_of(script)
    assert (node.conditions, node.device_cordons, node.foreign_mib, node.degraded) == ({}, {}, {}, "")


def test_a_registration_with_a_crooked_topology_or_one_uuid_twice_is_refused() -> None:
    script = Script()
    good = inventory(2)
    twice = msgspec.structs.replace(good, devices=[good.devices[0], msgspec.structs.replace(good.devices[0], index=1)])
    for wrong in (
        msgspec.structs.replace(good, topology=[["X", "NV4"]]),
        msgspec.structs.replace(good, topology=[["X", "NV4"], ["NV4"]]),
        twice,
    ):
        script.append(t.NodeRegistered("node-1", "life", wrong, [], 1000))
    assert refusals(script) == [
        *["node-1 does not say of each two of its 2 devices how they are connected"] * 2,
        "node-1 has two devices of one uuid",
    ]
    linked = msgspec.structs.replace(good, topology=[["X", "NV4"], ["NV4", "X"]])
    script.append(t.NodeRegistered("node-1", "life", linked, [], 1000))
    assert node_of(script).inventory.topology == [["X", "NV4"], ["NV4", "X"]]


# -- application errors -----------------------------------------------------------------------------------------------


def test_a_note_changes_nothing() -> None:
    script = cluster()
    job = running(script, 4)
    fault(script, 0, "note", xid=43)
    assert (action(script, 0), node_of(script).device_errors, script.job(job).phase) == ("", {}, "RUNNING")
    assert refusals(script) == []


def test_an_application_error_fails_the_job_it_names_and_no_other_there() -> None:
    script = cluster(1)
    owner, neighbour = running(script, 1, gpu=HALF), running(script, 1, gpu=HALF)
    fault(script, 0, "fail_job", xid=13, failure="failed", job=owner, attempt=1, detail="Xid 13: bad address")

    ended = script.job(owner)
    assert ended.attempt is not None
    assert (ended.phase, ended.attempt.failure, ended.attempt.stop) == ("STOPPING", "failed", "device_fault")
    assert ended.reason == "device 0 of node-1: Xid 13: bad address"
    assert script.job(neighbour).phase == "RUNNING"
    assert action(script, 0) == ""
    (stop,) = [event for event in script.settle() if isinstance(event, t.StopWorker)]
    assert (stop.job, stop.cause, stop.grace_ms, stop.signal, stop.notice_ms) == (owner, "device_fault", 10_000, "", 0)
    script.exit(owner, None, reason="stopped")
    assert (script.job(owner).phase, script.job(owner).exit_code) == ("FAILED", None)


def test_an_error_that_names_no_job_is_everybodys_on_the_device() -> None:
    script = cluster(2)
    both = [running(script, 1, gpu=HALF) for _ in range(2)]
    elsewhere = running(script, 1)
    fault(script, 0, "fail_job", xid=94)
    assert [script.job(job).phase for job in (*both, elsewhere)] == ["STOPPING", "STOPPING", "RUNNING"]


def test_an_error_of_a_job_that_does_not_hold_the_device_fails_nobody() -> None:
    script = cluster(2)
    here, there = running(script), running(script)
    assert script.placed(there) == {"node-1": [1]}
    fault(script, 0, "fail_job", xid=13, job=there, attempt=1)
    fault(script, 0, "fail_job", xid=13, job=here, attempt=7)
    assert [script.job(job).phase for job in (here, there)] == ["RUNNING", "RUNNING"]


def test_a_third_error_of_different_jobs_makes_the_device_suspect_and_its_work_goes_on() -> None:
    script = cluster(1)
    job = running(script)
    for other in (101, 102, 102, 102):
        fault(script, 0, "count", xid=31, job=other, attempt=1)
    counted = node_of(script).device_errors[uuid_of(script, 0)]
    assert [(error.job, error.xid) for error in counted] == [(101, 31), (102, 31)]
    assert action(script, 0) == ""

    fault(script, 0, "count", xid=31, job=103, attempt=1)

    suspect = condition(script, 0)
    assert suspect is not None
    assert (suspect.action, suspect.cause, suspect.xid) == ("suspect", "xid", 31)
    assert suspect.until_at == script.cluster.state.time_at + 3600 * SECOND
    assert node_of(script).device_errors == {}
    assert script.job(job).phase == "RUNNING"


def test_errors_older_than_the_window_are_forgotten() -> None:
    script = cluster(1, window=60)
    fault(script, 0, "count", xid=31, job=101, attempt=1)
    script.advance(40)
    fault(script, 0, "count", xid=31, job=102, attempt=1)
    script.advance(40)
    fault(script, 0, "count", xid=31, job=103, attempt=1)
    assert action(script, 0) == ""
    assert [error.job for error in node_of(script).device_errors[uuid_of(script, 0)]] == [102, 103]


def test_an_error_that_names_no_job_counts_as_its_only_holders() -> None:
    script = cluster(1, errors=2)
    job = running(script, retry=RetrySpec(3, ["failed"]))
    fault(script, 0, "fail_job", xid=13, failure="failed")
    assert node_of(script).device_errors == {uuid_of(script, 0): [CountedError(job, 13, script.cluster.state.time_at)]}
    script.exit(job, None, reason="stopped")
    script.settle()
    script.start(job)
    fault(script, 0, "fail_job", xid=13, failure="failed")
    assert action(script, 0) == ""  # the same job twice
    fault(script, 0, "count", xid=13, job=999, attempt=1)
    assert action(script, 0) == "suspect"


def test_errors_of_an_idle_device_count_each_by_itself() -> None:
    script = cluster(1)
    fault(script, 0, "count", xid=38)
    fault(script, 0, "count", xid=38)
    assert action(script, 0) == ""
    fault(script, 0, "count", xid=61)
    assert action(script, 0) == "suspect"


# -- devices that are at fault ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["reset", "quarantine"])
def test_all_work_on_a_device_that_is_given_up_fails_and_is_tried_again_elsewhere(what: t.FaultAction) -> None:
    script = cluster(2, nodes=2)
    gang, single = running(script, 3, nodes=2), running(script)
    fault(script, 0, what, cause="ecc", detail="double-bit error")

    failed = script.job(gang).attempt
    assert failed is not None
    assert (failed.failure, failed.stop, failed.counted) == ("device_fault", "device_fault", True)
    assert script.job(gang).reason == "device 0 of node-1: double-bit error"
    assert script.job(single).phase == "RUNNING"
    script.settle()
    script.exit(gang, None, reason="stopped")
    (requeued,) = [event for event in script.run_pass() if isinstance(event, t.JobRequeued)]
    assert (requeued.cause, requeued.counted) == ("device_fault", True)
    assert (script.job(gang).phase, script.job(gang).tries, script.job(gang).excluded) == ("PENDING", 1, {})
    script.settle()
    assert script.job(gang).phase == "PENDING"  # three devices on two nodes are no more


def test_a_job_that_does_not_ask_for_it_is_not_tried_again() -> None:
    script = cluster()
    job = running(script, retry=NO_RETRY)
    fault(script, 0, "quarantine", xid=79)
    script.exit(job, 137)
    assert (script.job(job).phase, script.job(job).reason) == ("FAILED", "device 0 of node-1: Xid 79")


def test_work_that_had_ended_or_is_being_stopped_anyway_is_left_as_it_is() -> None:
    script = cluster(4)
    done, cancelled, crashed = running(script), running(script), running(script)
    script.exit(done, 0)
    script.append(t.JobCancelRequested(cancelled, "ada"))
    script.exit(crashed, 3)
    for number in range(3):
        fault(script, number, "quarantine", xid=79)
    script.settle()
    script.exit(cancelled, None, reason="stopped")
    phases = [script.job(job).phase for job in (done, cancelled, crashed)]
    assert phases == ["COMPLETED", "CANCELLED", "FAILED"]
    assert (script.job(crashed).exit_code, script.job(crashed).attempts) == (3, 1)


def test_a_gang_whose_worker_on_the_device_had_failed_before_keeps_its_own_failure() -> None:
    script = cluster(2, nodes=2)
    gang = running(script, 4, nodes=2)
    script.exit(gang, 3, 0)
    fault(script, 0, "quarantine", xid=79)
    script.settle()
    script.exit(gang, None, reason="stopped")
    assert (script.job(gang).phase, script.job(gang).exit_code) == ("FAILED", 3)


def test_no_gangs_ends_work_of_several_devices_and_leaves_the_rest() -> None:
    script = cluster(4)
    pair, single = running(script, 2), running(script)
    fault(script, 0, "no_gangs", xid=74)
    fault(script, 2, "no_gangs", xid=74)
    assert [script.job(job).phase for job in (pair, single)] == ["STOPPING", "RUNNING"]
    assert script.job(pair).attempt.failure == "device_fault"  # type: ignore[union-attr]
    assert (action(script, 0), action(script, 2)) == ("no_gangs", "no_gangs")


def test_a_drained_or_suspect_device_keeps_its_work() -> None:
    script = cluster(2)
    first, second = running(script), running(script)
    fault(script, 0, "drain", cause="row_remap")
    fault(script, 1, "suspect", xid=999)
    assert [script.job(job).phase for job in (first, second)] == ["RUNNING", "RUNNING"]


ORDER: list[t.FaultAction] = ["drain", "reset", "quarantine"]


@pytest.mark.parametrize("first", ORDER)
@pytest.mark.parametrize("second", ORDER)
def test_the_worst_condition_of_a_device_stays_and_of_equals_the_first(
    first: t.FaultAction, second: t.FaultAction
) -> None:
    script = cluster()
    fault(script, 0, first, xid=1)
    fault(script, 0, second, xid=2)
    worst = max(first, second, key=ORDER.index)
    found = condition(script, 0)
    assert found is not None
    assert (found.action, found.xid) == (worst, 1 if worst == first else 2)


def test_a_lasting_fault_replaces_a_condition_that_ends_by_time_and_not_the_other_way() -> None:
    script = cluster()
    fault(script, 0, "suspect", xid=1)
    fault(script, 0, "drain", xid=2)
    fault(script, 0, "suspect", xid=3)
    found = condition(script, 0)
    assert found is not None
    assert (found.action, found.xid, found.until_at) == ("drain", 2, 0)


@pytest.mark.parametrize("order", [("suspect", "no_gangs"), ("no_gangs", "suspect")])
def test_a_suspect_device_with_bad_links_takes_nothing_for_a_while_and_single_work_then(
    order: tuple[t.FaultAction, t.FaultAction],
) -> None:
    script = cluster(1)
    for each in order:
        fault(script, 0, each)
    single = script.submit(spec(1))
    script.settle()
    assert (script.job(single).phase, action(script, 0)) == ("PENDING", "no_gangs")
    pass_time(script, 3600)
    script.settle()
    assert script.job(single).phase == "STARTING"
    assert (action(script, 0), condition(script, 0).until_at) == ("no_gangs", 0)  # type: ignore[union-attr]


# -- recoveries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["reset", "quarantine", "no_gangs"])
def test_a_recovered_device_is_on_probation_and_then_takes_work(what: t.FaultAction) -> None:
    script = cluster(1, probation=100)
    fault(script, 0, what, xid=48, detail="Xid 48: double-bit error")
    script.settle()
    recovery(script, 0, detail="reset")
    found = condition(script, 0)
    assert found is not None
    assert (found.action, found.xid, found.detail) == ("probation", 48, "recovered: reset")
    assert found.until_at == script.cluster.state.time_at + 100 * SECOND
    job = script.submit(spec(1))
    script.advance(50)
    assert script.settle() == []
    script.advance(50)
    first, *_ = script.run_pass()
    assert isinstance(first, t.DeviceReadmitted)
    assert (first.node, first.uuid) == ("node-1", uuid_of(script, 0))
    script.settle()
    assert (script.job(job).phase, node_of(script).conditions) == ("STARTING", {})


def test_a_drained_device_that_recovered_takes_work_at_once() -> None:
    script = cluster(1)
    fault(script, 0, "drain")
    recovery(script, 0)
    assert node_of(script).conditions == {}


def test_without_probation_a_device_takes_work_as_soon_as_it_has_recovered_and_is_never_suspect() -> None:
    script = cluster(1, probation=0)
    fault(script, 0, "suspect")
    assert node_of(script).conditions == {}
    fault(script, 0, "reset")
    recovery(script, 0)
    assert node_of(script).conditions == {}


def test_an_agent_lifts_neither_suspicion_nor_probation() -> None:
    script = cluster(2)
    fault(script, 0, "suspect")
    fault(script, 1, "reset")
    recovery(script, 1)
    for number in (0, 1):
        recovery(script, number)
    assert (action(script, 0), action(script, 1)) == ("suspect", "probation")
    assert refusals(script) == []


def test_a_new_fault_during_probation_is_what_holds() -> None:
    script = cluster(1)
    fault(script, 0, "reset")
    recovery(script, 0)
    fault(script, 0, "drain", cause="row_remap")
    assert action(script, 0) == "drain"


def test_a_readmission_that_is_not_due_any_more_is_refused() -> None:
    script = cluster(1, probation=10)
    fault(script, 0, "suspect")
    script.advance(10)
    events = decide(script.cluster)
    fault(script, 0, "suspect")
    for event in events:
        script.append(event)
    assert action(script, 0) == "suspect"
    assert len(refusals(script)) == 1


# -- operators ------------------------------------------------------------------------------------------------------


def test_an_operator_shuts_a_device_and_vouches_for_one() -> None:
    script = cluster(1)
    job = running(script)
    cordon(script, 0, reason="fan")
    assert node_of(script).device_cordons == {uuid_of(script, 0): "by root: fan"}
    assert script.job(job).phase == "RUNNING"
    fault(script, 0, "quarantine", xid=64)
    fault(script, 0, "count", xid=13, job=101, attempt=1)
    uncordon(script, 0)
    node = node_of(script)
    assert (node.device_cordons, node.conditions, node.device_errors) == ({}, {}, {})


# -- foreign memory, and nodes as a whole -----------------------------------------------------------------------------


def test_what_foreign_processes_hold_is_replaced_as_a_whole() -> None:
    script = cluster(3)
    foreign(script, {0: 512, 1: 6144})
    foreign(script, {1: 0, 2: 256})
    assert node_of(script).foreign_mib == {uuid_of(script, 2): 256}
    script.append(
        t.ForeignUsageChanged("node-1", node_of(script).incarnation, [t.ForeignUse(0, "GPU-of-nobody", 4096)])
    )
    assert node_of(script).foreign_mib == {}


def test_a_degraded_node_keeps_its_work_and_gets_no_more_until_it_is_restored() -> None:
    script = cluster(2)
    job = running(script)
    life = node_of(script).incarnation
    script.append(t.NodeDegraded("node-1", life, "driver_mismatch", "library 560, driver 550"))
    other = script.submit(spec(1))
    script.settle()
    assert node_of(script).degraded == "driver_mismatch: library 560, driver 550"
    assert [script.job(each).phase for each in (job, other)] == ["RUNNING", "PENDING"]
    script.append(t.NodeRestored("node-1", life))
    script.settle()
    assert script.job(other).phase == "STARTING"


# -- a new life -----------------------------------------------------------------------------------------------------


def test_work_keeps_its_devices_under_the_numbers_of_the_new_life() -> None:
    script = cluster(4)
    pair, single = running(script, 2), running(script)
    assert (script.placed(pair), script.placed(single)) == ({"node-1": [0, 1]}, {"node-1": [2]})
    anew(script, "node-1", [3, 2, 1, 0])
    assert (script.placed(pair), script.placed(single)) == ({"node-1": [3, 2]}, {"node-1": [1]})
    last = script.submit(spec(1))
    script.settle()
    assert script.placed(last) == {"node-1": [0]}


def test_a_device_that_is_away_for_one_life_is_still_its_works_in_the_next() -> None:
    script = cluster(3)
    jobs = [running(script) for _ in range(3)]
    whole = node_of(script).inventory
    cordon(script, 1, reason="fan")
    anew(script, "node-1", [2, 0])
    assert [script.placed(job)["node-1"] for job in jobs] == [
        [1],
        [2],
        [0],
    ]  # the second one is absent: behind the rest
    assert script.cluster.state.past_use["default\nada"].held == 2000
    waiting = script.submit(spec(1))
    script.settle()
    assert script.job(waiting).phase == "PENDING"
    anew_with(script, "node-1", whole)
    assert [script.placed(job)["node-1"] for job in jobs] == [[0], [1], [2]]
    assert script.cluster.state.past_use["default\nada"].held == 3000
    assert node_of(script).device_cordons == {whole.devices[1].uuid: "by root: fan"}
    assert node_of(script).absent == []
    script.settle()
    assert script.job(waiting).phase == "PENDING"
    script.exit(jobs[2], 0)
    script.settle()
    assert script.placed(waiting) == {"node-1": [2]}


def test_what_is_known_of_devices_goes_with_them() -> None:
    script = cluster(4)
    cordon(script, 0, reason="fan")
    fault(script, 1, "quarantine", xid=64)
    fault(script, 2, "count", xid=13, job=101, attempt=1)
    fault(script, 3, "suspect")
    known = node_of(script)
    anew(script, "node-1", [3, 2, 1, 0], faults=[a_fault(script, 1, "quarantine", xid=64)])
    assert node_of(script).conditions == known.conditions
    assert node_of(script).device_cordons == known.device_cordons
    assert node_of(script).device_errors == known.device_errors
    assert [action(script, number) for number in range(4)] == ["suspect", "", "quarantine", ""]


def test_what_an_agent_does_not_list_any_more_has_recovered() -> None:
    script = cluster(4)
    for number, what in enumerate(("quarantine", "drain", "no_gangs", "reset")):
        fault(script, number, what)  # type: ignore[arg-type]
    worse_now = [a_fault(script, 1, "quarantine"), a_fault(script, 3, "drain", cause="row_remap")]
    anew(script, "node-1", [0, 1, 2, 3], faults=worse_now)
    assert [action(script, number) for number in range(4)] == ["probation", "quarantine", "probation", "drain"]
    assert refusals(script) == []


def test_what_an_agent_lists_ends_work_as_a_report_would_and_application_errors_are_no_such_thing() -> None:
    script = cluster(2)
    first, second = running(script), running(script)
    faults = [a_fault(script, 0, "quarantine", cause="lost"), a_fault(script, 1, "fail_job")]
    use = [t.ForeignUse(1, uuid_of(script, 1), 300), t.ForeignUse(1, "GPU-of-nobody", 300)]
    anew(script, "node-1", [1, 0], faults=faults, foreign=use, degraded="reboot needed")
    assert [script.job(job).phase for job in (first, second)] == ["STOPPING", "RUNNING"]
    assert (node_of(script).foreign_mib, node_of(script).degraded) == ({uuid_of(script, 0): 300}, "reboot needed")
    stops = [event for event in script.settle() if isinstance(event, t.StopWorker)]
    assert [(stop.job, stop.incarnation) for stop in stops] == [(first, "node-1-life-2")]


def test_a_cordoned_node_and_a_device_that_is_away_stay_what_they_are() -> None:
    script = cluster(2)
    script.append(t.NodeCordoned("node-1", "root"))
    fault(script, 0, "quarantine", cause="lost")
    whole = node_of(script).inventory
    anew(script, "node-1", [1])
    assert node_of(script).cordoned == "by root"
    assert list(node_of(script).conditions) == [whole.devices[0].uuid]
    anew_with(script, "node-1", whole)
    assert [action(script, number) for number in (0, 1)] == ["probation", ""]


def test_of_devices_that_come_and_go_only_so_many_are_remembered() -> None:
    script = Script()
    for life in range(40):
        devices = [t.Device(n, f"GPU-{life}-{n}", "A", 100, 100) for n in range(4)]
        faults = [t.DeviceFault(n, f"GPU-{life}-{n}", "xid", "quarantine") for n in range(4)]
        node = t.Inventory(devices, 8, 8, "10.0.0.1")
        script.append(t.NodeRegistered("node-1", f"life-{life}", node, [], 0, faults=faults))
    assert len(node_of(script).absent) == 64
    assert node_of(script).absent[:4] == [f"GPU-38-{n}" for n in range(4)]


# -- races ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "gpus", "ends"), [
    ("reset", 1, True),
    ("quarantine", 2, True),
    ("no_gangs", 2, True),
    ("no_gangs", 1, False),
    ("drain", 1, False),
])  # fmt: skip
def test_work_that_lands_on_a_device_after_its_fault_ends_and_costs_no_try(
    what: t.FaultAction, gpus: int, *, ends: bool
) -> None:
    script = cluster(2)
    job = script.submit(spec(gpus, retry=NO_RETRY))
    events = decide(script.cluster)
    fault(script, 0, what, xid=74)
    for event in events:
        script.append(event)
    assert (script.job(job).phase == "STOPPING") == ends
    if ends:
        script.settle()
        script.exit(job, None, reason="stopped")
        script.settle()
        assert (script.job(job).tries, script.job(job).attempts) == ((0, 1) if gpus == 2 else (1, 2))
        assert script.job(job).phase == ("PENDING" if gpus == 2 else "STARTING")


def test_a_snapshot_knows_all_of_it() -> None:
    script = cluster(4)
    fault(script, 0, "quarantine")
    fault(script, 1, "suspect")
    fault(script, 2, "count", xid=13, job=5, attempt=1)
    cordon(script, 3)
    foreign(script, {2: 512})
    restored = Fold.restore(script.fold.state_bytes())
    assert restored.state_bytes() == script.fold.state_bytes()
    assert restored.cluster.on_probation == script.cluster.on_probation != {}


def test_a_worker_elsewhere_is_not_a_holder() -> None:
    script = cluster(1, nodes=2)
    job = running(script, where=WhereSpec(nodes=["node-2"]))
    fault(script, 0, "quarantine")
    assert script.job(job).phase == "RUNNING"
