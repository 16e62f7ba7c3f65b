"""The worked case: two nodes of eight A100-80GB; X holds node 1's 0-3, Y node 2's 0-1; P and Q come."""

from cluster_script import worked_case

from muster.core.explain import explain
from muster.events import types as t


def test_the_gang_gets_four_devices_on_each_linked_node() -> None:
    script, jobs = worked_case(fabric="ib-1")

    assert script.placed(jobs["P"]) == {"node-1": [4, 5, 6, 7], "node-2": [2, 3, 4, 5]}
    assert script.job(jobs["Q"]).phase == "PENDING"


def test_each_worker_sees_its_own_devices_and_one_rendezvous() -> None:
    script, jobs = worked_case(fabric="ib-1")

    first, second = explain(script.cluster, jobs["P"]).environment

    assert (first.node, first.variables["CUDA_VISIBLE_DEVICES"]) == ("node-1", "4,5,6,7")
    assert (second.node, second.variables["CUDA_VISIBLE_DEVICES"]) == ("node-2", "2,3,4,5")
    assert [first.variables["RANK"], second.variables["RANK"]] == ["0", "1"]
    assert first.variables["WORLD_SIZE"] == second.variables["WORLD_SIZE"] == "2"
    assert first.variables["MASTER_ADDR"] == second.variables["MASTER_ADDR"] == "10.0.0.1"
    assert first.variables["MASTER_PORT"] == second.variables["MASTER_PORT"]


def test_explain_shows_four_steps_for_the_one_that_waits() -> None:
    script, jobs = worked_case(fabric="ib-1")

    answer = explain(script.cluster, jobs["Q"])

    assert answer.filter is not None
    assert answer.filter.candidates == []
    assert {(check.reason, check.examples[0]) for check in answer.filter.refused} == {
        ("no device is idle", "node-1"),
        ("2 devices are idle, of 4 asked for", "node-2"),
    }
    assert answer.order is not None
    assert (answer.order.place, answer.order.waiting, answer.order.held_back_by) == (1, 1, 0)
    assert (answer.allocation.fits, answer.allocation.asked_devices, answer.allocation.free_devices) == (False, 4, 2)
    assert answer.environment == []
    assert answer.summary == "waits for 4 devices; 2 are idle"


def test_nodes_that_are_not_linked_hold_no_gang_and_it_says_why() -> None:
    script, jobs = worked_case(fabric="", until="P")

    assert script.job(jobs["P"]).phase == "PENDING"
    assert "10 are idle, but not on linked nodes" in explain(script.cluster, jobs["P"]).summary


def test_the_one_behind_is_backfilled_where_it_leaves_the_heads_place_alone() -> None:
    """P gets node 1 once X ends; Q fits on either node, and on node 2 it is in nobody's way."""
    script, jobs = worked_case(fabric="")

    assert script.job(jobs["P"]).phase == "PENDING"
    assert script.placed(jobs["Q"]) == {"node-2": [2, 3, 4, 5]}
    past = explain(script.cluster, jobs["Q"]).past
    assert past is not None
    assert past.backfilled_past == jobs["P"]

    waiting = explain(script.cluster, jobs["P"])
    assert waiting.summary == "waits for 8 devices; 6 are idle"
    assert [(reason.kind, reason.jobs) for reason in waiting.reasons] == [("room", [jobs["X"]])]
    assert waiting.needs == [f"job {jobs['X']} ends: then there is room for 8 A100-80GB on node-1"]

    script.exit(jobs["X"])
    script.settle()
    assert script.placed(jobs["P"]) == {"node-1": [0, 1, 2, 3, 4, 5, 6, 7]}


def test_the_one_that_waited_starts_when_devices_come_back() -> None:
    script, jobs = worked_case(fabric="ib-1")
    script.start(jobs["P"])

    script.exit(jobs["X"])
    script.settle()

    assert script.job(jobs["X"]).phase == "COMPLETED"
    assert script.placed(jobs["Q"]) == {"node-1": [0, 1, 2, 3]}


def test_each_bind_carries_its_devices_by_number_and_uuid() -> None:
    script, jobs = worked_case(fabric="ib-1")
    script.exit(jobs["X"])

    events = script.run_pass()

    (start,) = [event for event in events if isinstance(event, t.StartWorker)]
    assert (start.job, start.node, start.rank, start.world) == (jobs["Q"], "node-1", 0, 1)
    assert [device.uuid for device in start.devices] == [f"GPU-10.0.0.1-{i}" for i in range(4)]
