"""What a pass does with devices that are ill: where work goes, what rooms are worth, and when to look again."""

import pytest
from cluster_script import SECOND, Script, spec
from device_script import anew, cordon, fault, foreign, node_of, recovery, uncordon, uuid_of
from policy_script import AT_ONCE, cluster, running, stop, victims

from muster.core.cluster import Cluster
from muster.core.decide import decide, next_time
from muster.events import types as t
from muster.events.policy import Policy, Preemption
from muster.events.spec import GpuSpec

PLACEMENTS = ["best-fit", "fragmentation", "tight", "spread"]
HALF = GpuSpec(memory=40 * 1024, compute=0.5)


def by(placement: str, devices: int = 4, nodes: int = 1) -> Script:
    return cluster(devices, nodes, Policy(placement=placement))  # type: ignore[arg-type]


# -- where work goes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("what", ["suspect", "drain", "reset", "quarantine", "cordon"])
def test_no_work_goes_to_a_device_that_takes_none(placement: str, what: str) -> None:
    script = by(placement)
    if what == "cordon":
        cordon(script, 0)
    else:
        fault(script, 0, what)  # type: ignore[arg-type]
    jobs = [script.submit(spec(1)) for _ in range(3)]
    half, whole = script.submit(spec(1, gpu=HALF)), script.submit(spec(2))
    script.settle()
    assert sorted(script.placed(job)["node-1"][0] for job in jobs) == [1, 2, 3]
    assert [script.job(job).phase for job in (half, whole)] == ["PENDING", "PENDING"]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_device_without_its_links_takes_work_of_one_device_only(placement: str) -> None:
    script = by(placement)
    fault(script, 0, "no_gangs")
    four = script.submit(spec(4))
    pair = script.submit(spec(2))
    script.settle()
    assert script.job(four).phase == "PENDING"
    assert 0 not in script.placed(pair)["node-1"]
    script.append(t.JobCancelRequested(four, "ada"))
    rest = [script.submit(spec(1)) for _ in range(2)]
    script.settle()
    assert 0 in [number for job in rest for number in script.placed(job)["node-1"]]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_foreign_processes_hold_is_not_given_away(placement: str) -> None:
    script = by(placement, devices=1)
    foreign(script, {0: 6144})
    whole = script.submit(spec(1))
    tail = [script.submit(spec(1, gpu=HALF)) for _ in range(2)]
    script.settle()
    # 81,000 MiB usable of 81,920: a half claims 40,500 of the 74,856 that are left, and a second one does not fit
    assert [script.job(job).phase for job in (whole, *tail)] == ["PENDING", "STARTING", "PENDING"]
    script.append(t.JobCancelRequested(whole, "ada"))
    foreign(script, {})
    script.settle()
    assert script.job(tail[1]).phase == "STARTING"


def test_gangs_over_nodes_leave_out_devices_that_are_ill() -> None:
    script = cluster(4, 2)
    fault(script, 0, "no_gangs", "node-1")
    fault(script, 3, "drain", "node-2")
    gang = script.submit(spec(6, nodes="any"))
    script.settle()
    assert script.placed(gang) == {"node-1": [1, 2, 3], "node-2": [0, 1, 2]}


def test_a_job_that_would_fit_the_whole_node_waits_for_its_device_and_is_not_split() -> None:
    script = cluster(4, 2)
    fault(script, 0, "drain", "node-1")
    fault(script, 0, "drain", "node-2")
    job = script.submit(spec(4))
    script.settle()
    assert script.job(job).phase == "PENDING"
    recovery(script, 0, "node-2")
    script.settle()
    assert script.placed(job) == {"node-2": [0, 1, 2, 3]}


def test_what_a_shut_device_bore_does_not_come_back_with_its_end() -> None:
    script = cluster(1, 1)
    first, second = running(script, spec(1, gpu=HALF), spec(1, gpu=HALF))
    fault(script, 0, "drain")
    waiting = script.submit(spec(1))
    for job in (first, second):
        script.exit(job, 0)
        script.settle()
    assert script.job(waiting).phase == "PENDING"
    uncordon(script, 0)
    script.settle()
    assert script.job(waiting).phase == "STARTING"


def test_the_order_in_which_kinds_of_devices_were_met_decides_nothing() -> None:
    script = Script()
    script.append(t.PolicyChanged(Policy(placement="fragmentation"), "root"))

    def node(name: str, models: list[str]) -> None:
        devices = [t.Device(index, f"{name}-{index}", model, 81_000, 81_920) for index, model in enumerate(models)]
        inventory = t.Inventory(devices, 64, 1 << 20, f"10.0.0.{name[-1]}")
        script.append(t.NodeRegistered(name, f"{name}-life", inventory, [], 0))

    node("node-9", ["A", "A", "A"])
    script.submit(spec(3))
    script.settle()
    node("node-1", ["B", "A"])
    job = script.submit(spec(1))
    assert decide(Cluster(script.cluster.state)) == decide(script.cluster) != []
    script.settle()
    assert script.placed(job) == {"node-1": [1]}


# -- stopping others --------------------------------------------------------------------------------------------------


def test_nobody_is_stopped_for_a_device_that_takes_no_work() -> None:
    script = cluster(1, 1, AT_ONCE)
    running(script, spec(1, priority=0))
    cordon(script, 0)
    script.submit(spec(1, priority=900))
    assert victims(script.settle()) == []


def test_no_gang_has_work_stopped_on_a_device_without_its_links() -> None:
    script = cluster(2, 1, AT_ONCE)
    low = running(script, spec(1, priority=0), spec(1, priority=0))
    fault(script, 0, "no_gangs")
    pair = script.submit(spec(2, priority=900))
    assert victims(script.settle()) == []
    script.append(t.JobCancelRequested(pair, "ada"))
    script.submit(spec(1, priority=900))
    assert victims(script.settle()) == [low[1]]  # of equals the later one


def test_nobody_is_stopped_for_memory_that_foreign_processes_hold() -> None:
    script = cluster(1, 1, AT_ONCE)
    running(script, spec(1, priority=0))
    foreign(script, {0: 6144})
    script.submit(spec(1, priority=900))
    assert victims(script.settle()) == []


# -- rooms ----------------------------------------------------------------------------------------------------------


def with_room() -> tuple[Script, int, int]:
    """A job that waits for the room on node-1's two devices which another one is leaving."""
    script = cluster(2, 2, AT_ONCE)
    (low,) = running(script, spec(2, priority=0))
    running(script, spec(2, priority=900))
    high = script.submit(spec(2, priority=600))
    assert victims(script.settle()) == [low]
    return script, low, high


@pytest.mark.parametrize(
    ("what", "detail"),
    [
        ("quarantine", "node-1: device 1: in quarantine (Xid 64: no spare row)"),
        ("no_gangs", "node-1: device 1: takes work of one device only (Xid 64: no spare row)"),
        ("suspect", "node-1: device 1: suspect for 1h00m more (Xid 64: no spare row)"),
    ],
)
def test_a_room_on_a_device_that_takes_no_such_work_is_lost(what: t.FaultAction, detail: str) -> None:
    script, _, _ = with_room()
    fault(script, 1, what, xid=64, detail="no spare row")
    (lost,) = [event for event in script.run_pass() if isinstance(event, t.RoomReleased)]
    assert lost.cause == "room_lost"
    assert lost.detail == detail


def test_a_room_is_lost_to_foreign_memory_a_cordon_and_a_degraded_node() -> None:
    details = []
    for number in range(3):
        script, _, _ = with_room()
        if number == 0:
            foreign(script, {0: 6144})
        elif number == 1:
            cordon(script, 0, reason="fan")
        else:
            script.append(t.NodeDegraded("node-1", node_of(script).incarnation, "nvml_hung", "no answer for 30s"))
        details += [event.detail for event in script.run_pass() if isinstance(event, t.RoomReleased)]
    assert details == [
        "node-1: device 0: 6144 MiB used by foreign processes",
        "node-1: device 0: cordoned by root: fan",
        "node-1 is degraded: nvml_hung: no answer for 30s",
    ]


def test_a_room_is_on_the_same_devices_whatever_their_numbers() -> None:
    script = cluster(4, 1, AT_ONCE)
    low, *_ = running(script, spec(1, priority=0), spec(1, priority=900), spec(1, priority=900), spec(1, priority=900))
    high = script.submit(spec(1, priority=600))
    assert victims(script.settle()) == [low]
    assert script.placed(low) == {"node-1": [3]}
    was = uuid_of(script, 3)
    anew(script, "node-1", [3, 2, 1, 0])
    assert not any(isinstance(event, t.RoomReleased) for event in script.settle())
    stop(script, low)
    (started,) = [event for event in script.settle() if isinstance(event, t.StartWorker)]
    assert started.job == high
    assert [(device.index, device.uuid) for device in started.devices] == [(0, was)]


def test_a_room_on_a_device_that_is_gone_or_decided_for_an_earlier_life_is_lost() -> None:
    script, _, _ = with_room()
    anew(script, "node-1", [0])
    (lost,) = [event for event in script.run_pass() if isinstance(event, t.RoomReleased)]
    assert lost.detail == "node-1 has not all of its devices any more"

    script = cluster(2, 1, AT_ONCE)
    running(script, spec(2, priority=0))
    script.submit(spec(2, priority=600))
    events = decide(script.cluster)
    anew(script, "node-1", [1, 0])
    for event in events:
        script.append(event)
    (lost,) = [event for event in script.run_pass() if isinstance(event, t.RoomReleased)]
    assert lost.detail == "node-1 has changed"


def test_a_room_beside_other_work_is_lost_when_foreign_processes_take_what_is_between() -> None:
    script = cluster(1, 1, AT_ONCE)
    _, low = running(script, spec(1, gpu=HALF, priority=900), spec(1, gpu=HALF, priority=0))
    high = script.submit(spec(1, gpu=HALF, priority=600))
    assert victims(script.settle()) == [low]
    foreign(script, {0: 256})  # the two halves are all of the device
    (lost,) = [event for event in script.settle() if isinstance(event, t.RoomReleased)]
    assert (lost.job, lost.detail) == (high, "node-1: device 0: 256 MiB used by foreign processes")
    foreign(script, {})
    stop(script, low)
    script.settle()
    assert script.job(high).phase == "STARTING"


# -- probation ------------------------------------------------------------------------------------------------------


def test_the_next_look_is_when_the_first_probation_ends_and_devices_come_back_in_order() -> None:
    script = cluster(2, 2)
    fault(script, 1, "suspect", "node-2")
    script.advance(10)
    fault(script, 1, "suspect", "node-1")
    fault(script, 0, "suspect", "node-1")
    assert script.settle() == []
    first = node_of(script, "node-2").conditions[uuid_of(script, 1, "node-2")].until_at
    assert next_time(script.cluster) == first
    for _ in range(61):
        script.advance(60)
    events = script.run_pass()
    back = [(event.node, event.uuid) for event in events if isinstance(event, t.DeviceReadmitted)]
    assert back == [
        ("node-1", uuid_of(script, 0)),
        ("node-1", uuid_of(script, 1)),
        ("node-2", uuid_of(script, 1, "node-2")),
    ]
    assert [event.why.partition(" since entry ")[0] for event in events if isinstance(event, t.DeviceReadmitted)] == [
        "suspect"
    ] * 3
    assert script.settle() == []
    assert next_time(script.cluster) is None


def test_nobody_is_stopped_in_the_pass_in_which_a_device_comes_back() -> None:
    script = cluster(2, 1, Policy(preemption=Preemption(min_runtime=0)))
    fault(script, 1, "suspect")
    running(script, spec(1, priority=0))
    for _ in range(60):
        script.advance(60)
    high = script.submit(spec(1, priority=900))
    events = script.settle()
    assert victims(events) == []
    assert script.placed(high) == {"node-1": [1]}


def test_an_error_on_probation_begins_it_anew() -> None:
    script = cluster(1, 1)
    fault(script, 0, "reset")
    recovery(script, 0)
    script.advance(60)
    fault(script, 0, "suspect")
    until = node_of(script).conditions[uuid_of(script, 0)].until_at
    assert until == script.cluster.state.time_at + 3600 * SECOND
    assert decide(Cluster(script.cluster.state)) == decide(script.cluster) == []


def test_the_lines_are_looked_at_again_only_where_other_devices_take_work() -> None:
    script = cluster(2, 1, Policy(preemption=Preemption(mode="none")))
    running(script, spec(2))
    script.submit(spec(1))
    script.settle()
    settled = script.cluster.settled_until
    assert settled is not None

    fault(script, 0, "note")
    fault(script, 0, "count")
    assert script.cluster.settled_until == settled

    fault(script, 0, "drain")
    assert script.cluster.settled_until is None
