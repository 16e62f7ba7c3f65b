"""Events in one line."""

from typing import Any

import pytest

from muster.api.event_text import event_line
from muster.events.numbers import ranges


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([6, 0, 1, 2], "0-2,6"), ([1, 3, 5], "1,3,5")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_an_allocation_says_who_got_what() -> None:
    event = {
        "sequence": "7",
        "time": "2026-01-31T12:00:00.123456789Z",
        "type": "muster.JobAllocated.1",
        "data": {
            "type": "JobAllocated.1",
            "basis": {"sequence": 6},
            "job": 5,
            "attempt": 1,
            "placements": [
                {"rank": 0, "node": "node-1", "incarnation": "a", "devices": [4, 5, 6, 7]},
                {"rank": 1, "node": "node-2", "incarnation": "b", "devices": [2, 3]},
            ],
            "why": "best fit",
        },
    }
    assert event_line(event, "2026-01-31") == (
        "     7  12:00:00.123  JobAllocated         job=5 attempt=1 placements=node-1[4-7] node-2[2-3] why='best fit'"
    )


def test_what_is_no_event_is_still_a_line() -> None:
    event = {"sequence": "9", "time": "2026-01-31T12:00:00.000000000Z", "type": "muster.unreadable", "data": None}
    assert event_line(event, "2026-01-31").split() == ["9", "12:00:00.000", "muster.unreadable".removeprefix("muster.")]


def test_an_event_of_another_day_shows_its_date() -> None:
    event = {"sequence": "9", "time": "2026-01-30T23:59:59.999999999Z", "type": "muster.unreadable", "data": None}
    assert event_line(event, "2026-01-31").split()[1:3] == ["2026-01-30", "23:59:59.999"]


def _line(kind: str, **data: Any) -> str:
    event = {"sequence": "9", "time": "2026-01-31T12:00:00.5Z", "type": f"muster.{kind}.1", "data": data}
    return event_line(event, "2026-01-31").partition(kind)[2].strip()


def test_preemptions_limits_and_reservations_say_who_for_whom_and_what_is_lost() -> None:
    workers = [{"rank": 0, "node": "node-1", "incarnation": "a"}, {"rank": 1, "node": "node-2", "incarnation": "b"}]
    lost = {"job": 3, "attempt": 1, "mode": "cold", "cause": "priority", "beneficiary": 7, "work_lost_ms": 5_400_000}
    assert _line("JobPreempted", basis={}, **lost, workers=workers) == (
        "job=3 attempt=1 mode=cold cause=priority for=7 work_lost='01:30:00 of device time' workers=#0,#1"
    )
    assert _line("JobTimedOut", basis={}, job=3, attempt=2, action="requeue", workers=workers[:1]) == (
        "job=3 attempt=2 action=requeue workers=#0"
    )
    places = [{"rank": 0, "node": "node-1", "incarnation": "a", "devices": [0, 1, 2, 3]}]
    victims = [{"job": 3, "attempt": 1}, {"job": 4, "attempt": 2}]
    assert _line("RoomReserved", basis={}, job=7, placements=places, victims=victims, why="best-fit") == (
        "job=7 placements=node-1[0-3] stopped=3.1,4.2 why=best-fit"
    )
    assert _line("RoomReleased", basis={}, job=7, cause="room_lost", detail="node-1 is lost") == (
        "job=7 cause=room_lost detail='node-1 is lost'"
    )


def test_configurations_say_what_is_not_the_default() -> None:
    queue = {"name": "research", "guarantee": "60%", "limit": 12, "order": "fair"}
    assert _line("QueueConfigured", user="ada", queue=queue) == (
        "user=ada name=research guarantee=60% limit=12 order=fair"
    )
    assert _line("QueueRemoved", user="ada", name="research") == "user=ada name=research"
    policy = {"topology": ["rack"], "backfill": {"mode": "none"}, "lanes": [{"name": "small", "devices": "10%"}]}
    assert _line("PolicyChanged", user="ada", policy=policy) == (
        "user=ada topology=rack backfill.mode=none lane.small.devices=10%"
    )
    assert _line("PolicyChanged", user="ada", policy={}) == "user=ada all as by default"


def test_a_submission_says_where_it_waits() -> None:
    spec = {"name": "x", "queue": "research/vision", "priority": 600, "gpus": 4}
    assert _line("JobSubmitted", user="ada", spec=spec) == ("user=ada name=x queue=research/vision priority=600 gpus=4")


def test_what_is_wrong_with_devices_is_a_line() -> None:
    fault = {"index": 3, "uuid": "GPU-3", "cause": "xid", "action": "fail_job", "xid": 13, "job": 7, "attempt": 2}
    assert _line("DeviceFaulted", node="node-1", incarnation="a", fault={**fault, "detail": "Xid 13: an error"}) == (
        "node=node-1 device=3 cause=xid action=fail_job xid=13 job=7 attempt=2 detail='Xid 13: an error'"
    )
    assert _line("DeviceRecovered", node="node-1", incarnation="a", index=3, uuid="GPU-3", detail="it was reset") == (
        "node=node-1 device=3 detail='it was reset'"
    )
    foreign = [{"index": 0, "uuid": "GPU-0", "memory_mib": 512}, {"index": 3, "uuid": "GPU-3", "memory_mib": 6144}]
    assert _line("ForeignUsageChanged", node="node-1", incarnation="a", foreign=foreign) == (
        "node=node-1 foreign=0:512MiB,3:6.0GiB"
    )
    assert _line("ForeignUsageChanged", node="node-1", incarnation="a", foreign=[]) == "node=node-1 foreign=none"
    assert _line("NodeDegraded", node="node-1", incarnation="a", cause="nvml_hung", detail="no answer for 8 s") == (
        "node=node-1 cause=nvml_hung detail='no answer for 8 s'"
    )
    assert _line("NodeRestored", node="node-1", incarnation="a") == "node=node-1"


def test_what_people_and_the_leader_decide_about_devices_is_a_line() -> None:
    assert _line("DeviceCordoned", node="node-1", uuid="GPU-3", user="ada", reason="fan 3") == (
        "node=node-1 uuid=GPU-3 user=ada reason='fan 3'"
    )
    assert _line("DeviceUncordoned", node="node-1", uuid="GPU-3", user="ada") == "node=node-1 uuid=GPU-3 user=ada"
    assert _line("DeviceReadmitted", basis={}, node="node-1", uuid="GPU-3", why="on probation for 1h") == (
        "node=node-1 uuid=GPU-3 why='on probation for 1h'"
    )


def test_a_device_is_named_by_its_number_where_the_event_has_it() -> None:
    assert _line("DeviceCordoned", node="node-1", uuid="GPU-3", user="ada", reason="fan 3", index=0) == (
        "node=node-1 device=0 user=ada reason='fan 3'"
    )
    assert _line("DeviceUncordoned", node="node-1", uuid="GPU-3", user="ada", index=3) == (
        "node=node-1 device=3 user=ada"
    )
    assert _line("DeviceReadmitted", basis={}, node="node-1", uuid="GPU-3", why="its time", index=3) == (
        "node=node-1 device=3 why='its time'"
    )


def test_what_is_said_of_events_stands_in_a_column() -> None:
    columns = set()
    for kind in ("ForeignUsageChanged", "DeviceUncordoned", "JobEnded"):
        event = {"sequence": "9", "time": "2026-01-31T12:00:00.5Z", "type": f"muster.{kind}.1", "data": {"node": "n"}}
        columns.add(event_line(event, "2026-01-31").index("n", 45))
    assert len(columns) == 1


def test_devices_of_a_node_are_counted_by_model() -> None:
    models = ["A100-40GB", "T4", "V100", "V100", *["A100-80GB"] * 4]
    inventory = {"devices": [{"index": index, "model": model} for index, model in enumerate(models)]}
    assert _line("NodeRegistered", node="node-1", inventory=inventory, workers=[]) == (
        "node=node-1 devices=1xA100-40GB,1xT4,2xV100,4xA100-80GB"
    )
    assert _line("NodeRegistered", node="node-1", inventory={"devices": []}, workers=[]) == "node=node-1 devices=0"


def test_a_registration_says_what_is_wrong() -> None:
    inventory = {"devices": [{"index": 0, "model": "L4"}, {"index": 1, "model": "L4"}]}
    faults = [{"index": 1, "uuid": "GPU-1", "cause": "lost", "action": "quarantine"}]
    foreign = [{"index": 0, "uuid": "GPU-0", "memory_mib": 512}]
    more = {"faults": faults, "foreign": foreign, "degraded": "driver mismatch"}
    assert _line("NodeRegistered", node="node-1", incarnation="a", inventory=inventory, workers=[], **more) == (
        "node=node-1 faults=1:quarantine foreign=0:512MiB degraded='driver mismatch' devices=2xL4"
    )
