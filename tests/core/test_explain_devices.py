"""What is said of a job that waits for devices with which something is wrong."""

import pytest
from cluster_script import Script, spec
from device_script import cordon, fault, foreign, node_of, recovery, uuid_of
from policy_script import cluster, lasting, running

from muster.core.explain import explain, summaries
from muster.core.explanation import Explanation, Reason
from muster.events import types as t
from muster.events.spec import GpuSpec


def asked(script: Script, job: int) -> Explanation:
    script.settle()
    assert script.job(job).phase == "PENDING"
    return explain(script.cluster, job)


def reason(found: Explanation, kind: str) -> Reason:
    (each,) = [each for each in found.reasons if each.kind == kind]
    return each


def test_a_job_whose_only_room_is_on_probation_is_told_until_when() -> None:
    script = cluster(2, 1)
    fault(script, 1, "reset", xid=48)
    recovery(script, 1, detail="reset by its agent")
    job = script.submit(spec(2))
    found = asked(script, job)
    until = node_of(script).conditions[uuid_of(script, 1)].until_at
    words = "1 of 2 devices takes no work of it: device 1: on probation for 59m59s more (Xid 48: recovered: reset by"
    devices = reason(found, "devices")
    assert devices.detail.startswith(f"node-1: {words}")
    assert (devices.nodes, devices.at) == (["node-1"], until)
    assert found.filter is not None
    (check,) = found.filter.refused
    assert check.reason.startswith(words)
    assert found.needs == ["device 1 of node-1 takes work of it again"]
    assert found.summary == "waits for 2 devices; 1 is idle (1 more takes no work of it)"
    assert found.expected is not None
    assert found.expected.at == until
    assert summaries(script.cluster, [job]) == {job: found.summary}


def test_what_is_wrong_with_each_device_is_said_where_nobody_knows_until_when() -> None:
    script = cluster(8, 1)
    fault(script, 3, "quarantine", xid=64, detail="Xid 64: no spare row")
    fault(script, 5, "no_gangs", cause="recovery_action")
    fault(script, 4, "drain", cause="row_remap")
    cordon(script, 6, reason="fan")
    job = script.submit(spec(8))
    found = asked(script, job)
    devices = reason(found, "devices")
    assert devices.detail == (
        "node-1: 4 of 8 devices take no work of it: device 3: in quarantine (Xid 64: no spare row), "
        "device 4: draining (row remapping), "
        "device 5: takes work of one device only (the driver asks for its recovery), "
        "device 6: cordoned by root: fan"
    )
    assert devices.at is None
    command = "`muster uncordon node-1 --device 6`"
    assert found.needs == [f"devices 3, 4, 5 and 6 of node-1 take work of it again ({command})"]
    assert found.expected is not None
    assert found.expected.at is None


def test_a_node_or_a_device_that_would_do_are_both_named() -> None:
    script = cluster(8, 2)
    cordon(script, 0, reason="bad fan")
    script.append(t.NodeCordoned("node-2", "root"))
    node, device = (f"{what} takes work of it again" for what in ("node-2", "device 0 of node-1"))
    assert asked(script, script.submit(spec(8))).needs == [
        f"{node} (`muster uncordon node-2`), or {device} (`muster uncordon node-1 --device 0`)"
    ]


def test_a_job_without_devices_is_told_of_none_that_are_ill() -> None:
    script = cluster(1, 1)
    fault(script, 0, "quarantine")
    script.append(t.NodeCordoned("node-1", "root"))
    found = asked(script, script.submit(spec(0, cpus=1)))
    assert [each.kind for each in found.reasons] == ["room", "cordon"]


def test_foreign_memory_is_named() -> None:
    script = cluster(1, 1)
    foreign(script, {0: 6144})
    job = script.submit(spec(1))
    found = asked(script, job)
    assert reason(found, "devices").detail == (
        "node-1: 1 of 1 device takes no work of it: device 0: 6144 MiB used by foreign processes"
    )
    script.append(t.JobCancelRequested(job, "ada"))
    small = script.submit(spec(1, gpu=GpuSpec(memory=20 * 1024)))
    script.settle()
    assert script.job(small).phase == "STARTING"


def test_a_single_device_job_is_not_told_of_missing_links() -> None:
    script = cluster(2, 1)
    running(script, spec(2))
    fault(script, 0, "drain")
    fault(script, 1, "no_gangs")
    script.settle()
    found = asked(script, script.submit(spec(1)))
    assert "device 1" not in reason(found, "devices").detail


def test_jobs_whose_end_would_do_are_still_named_and_devices_that_bear_work_do_not_count_as_idle() -> None:
    script = cluster(2, 1)
    (busy, ill) = running(script, lasting(1, 100), lasting(1, 300))
    fault(script, 1, "drain")
    job = script.submit(spec(1))
    found = asked(script, job)
    assert reason(found, "room").jobs == [busy]
    assert found.summary == "waits for 1 device; 0 are idle"
    assert found.needs == [f"job {busy} ends: then there is room for 1 A100-80GB on node-1"]
    assert ill not in reason(found, "room").jobs


def test_a_device_that_is_ill_and_busy_must_heal_and_be_free() -> None:
    script = cluster(1, 1)
    (busy,) = running(script, spec(1))
    fault(script, 0, "drain")
    found = asked(script, script.submit(spec(1)))
    assert found.needs == [
        f"job {busy} ends: then there is room for 1 A100-80GB on node-1",
        "device 0 of node-1 takes work of it again",
    ]


def test_a_degraded_node_says_why() -> None:
    script = cluster(1, 1)
    script.append(t.NodeDegraded("node-1", node_of(script).incarnation, "driver_mismatch", "library 560, driver 550"))
    found = asked(script, script.submit(spec(1)))
    why = "driver_mismatch: library 560, driver 550"
    assert reason(found, "degraded").detail == f"1 node is degraded: node-1 ({why})"
    assert found.filter is not None
    assert found.filter.refused[0].reason == f"degraded: {why}"
    assert found.needs == ["node-1 takes work of it again"]


@pytest.mark.parametrize("others", [0, 1])
def test_the_forecast_waits_for_probation_only_where_it_is_needed(others: int) -> None:
    script = cluster(1, 1 + others)
    if others:
        running(script, lasting(1, 100))
        fault(script, 0, "suspect", "node-2")
    else:
        fault(script, 0, "suspect", "node-1")
    found = asked(script, script.submit(spec(1)))
    assert found.expected is not None
    assert found.expected.in_ms is not None
    assert round(found.expected.in_ms / 1000) == (100 if others else 3600)
