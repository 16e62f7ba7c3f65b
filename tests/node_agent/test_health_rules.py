"""What readings and Xids say, by tables written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.events.types import DeviceFault
from muster.node_agent.health import Finding, fault_of, finding_of, findings_of, incident_of
from muster.node_agent.readings import DeviceReading, RemapReading, XidEvent
from muster.node_agent.xids import XIDS

BUS = "00000000:44:00.0"
TABLE = Path(__file__).parents[3] / "shared" / "gpu" / "xid_actions.json"


def actions(reading: DeviceReading, before: int | None = None) -> list[tuple[str, str, bool, bool]]:
    return [(f.cause, f.action, f.resettable, f.reboot) for f in findings_of(reading, before)]


def test_a_healthy_device_shows_nothing() -> None:
    sound = DeviceReading(
        nvml_index=0,
        recovery_action=0,
        remap=RemapReading(3, 1, pending=False, failed=False),
        ecc_uncorrected=4,
        fabric_state=3,
        fabric_status=0,
    )
    assert findings_of(sound, 0) == []
    assert findings_of(DeviceReading(nvml_index=0), None) == []


@pytest.mark.parametrize(
    ("number", "action", "resettable", "reboot"),
    [
        (1, "reset", True, False),
        (2, "quarantine", False, True),
        (3, "no_gangs", False, False),
        (4, "drain", True, False),
        (5, "no_gangs", False, False),
        (6, "reset", True, False),
        (7, "quarantine", False, True),
        (99, "drain", False, False),
    ],
)
def test_the_driver_s_recovery_action_is_obeyed(number: int, action: str, resettable: bool, reboot: bool) -> None:  # noqa: FBT001
    reading = DeviceReading(nvml_index=0, recovery_action=number)
    assert actions(reading) == [("recovery_action", action, resettable, reboot)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"remap": RemapReading(0, 1, pending=True, failed=False)}, [("row_remap", "drain", True, False)]),
        ({"remap": RemapReading(0, 9, pending=False, failed=True)}, [("row_remap", "quarantine", False, False)]),
        ({"fabric_state": 1}, [("fabric", "drain", False, False)]),
        ({"fabric_state": 2}, [("fabric", "drain", False, False)]),
        ({"fabric_state": 3, "fabric_status": 1}, [("fabric", "drain", False, False)]),
        ({"fabric_state": 3, "fabric_status": None}, []),
        ({"fabric_state": 0, "fabric_status": 1}, []),
    ],
)
def test_memory_and_fabric(values: dict[str, Any], expected: list[tuple[str, str, bool, bool]]) -> None:
    assert actions(DeviceReading(nvml_index=0, **values)) == expected


@pytest.mark.parametrize(("before", "now", "found"), [(0, 2, 1), (2, 2, 0), (None, 2, 0), (2, 0, 0), (2, None, 0)])
def test_ecc_errors_of_a_device_without_row_remapping_count_when_they_grow(
    before: int | None, now: int | None, found: int
) -> None:
    reading = DeviceReading(nvml_index=0, ecc_uncorrected=now)
    assert actions(reading, before) == [("ecc", "reset", True, False)] * found


@pytest.mark.parametrize(
    ("xid", "action", "failure"),
    [
        (11, "fail_job", "failed"),
        (13, "fail_job", "failed"),
        (25, "fail_job", "failed"),
        (31, "fail_job", "failed"),
        (32, "fail_job", "failed"),
        (68, "fail_job", "failed"),
        (137, "fail_job", "failed"),
        (94, "fail_job", "device_fault"),
        (43, "note", "device_fault"),
        (45, "note", "device_fault"),
        (92, "note", "device_fault"),
        (121, "note", "device_fault"),
        (154, "note", "device_fault"),
        (171, "note", "device_fault"),
        (38, "count", "device_fault"),
        (61, "count", "device_fault"),
        (4711, "suspect", "device_fault"),
    ],
)
def test_what_only_happens(xid: int, action: str, failure: str) -> None:
    event = XidEvent(BUS, xid, 1234)
    assert finding_of(event) is None
    fault = incident_of(event, 3, "GPU-3", (7, 2))
    assert fault is not None
    assert (fault.index, fault.uuid, fault.cause, fault.xid, fault.job, fault.attempt) == (3, "GPU-3", "xid", xid, 7, 2)
    assert (fault.action, fault.failure) == (action, failure)


@pytest.mark.parametrize(
    ("xids", "action", "resettable", "reboot"),
    [
        ([46, 48, 62, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158], "reset", True, False),
        ([64, 157], "quarantine", False, False),
        ([63], "drain", True, False),
        ([74, 144, 145, 146, 147, 148, 149, 150], "no_gangs", False, False),
        ([79, 151], "quarantine", False, True),
    ],
)
def test_what_lasts(xids: list[int], action: str, resettable: bool, reboot: bool) -> None:  # noqa: FBT001
    for xid in xids:
        found = finding_of(XidEvent(BUS, xid))
        assert found is not None
        assert (found.action, found.cause, found.xid) == (action, "xid", xid)
        assert (found.resettable, found.reboot) == (resettable, reboot)
        assert incident_of(XidEvent(BUS, xid), 0, "GPU-0", (0, 0)) is None


def test_an_error_of_a_process_that_is_nobody_s_here_fails_nobody() -> None:
    fault = incident_of(XidEvent(BUS, 13, 99), 0, "GPU-0", None)
    assert fault is not None
    assert (fault.action, fault.job) == ("note", 0)


def test_a_fault_says_in_words_what_it_is() -> None:
    gone = finding_of(XidEvent(BUS, 79, 0, "GPU has fallen off the bus."))
    assert gone is not None
    assert gone.detail == "Xid 79: GPU has fallen off the bus."
    plain = incident_of(XidEvent(BUS, 4711), 0, "GPU-0", (0, 0))
    assert plain is not None
    assert plain.detail == "Xid 4711: not a number that is known here"


def test_the_worst_of_several_is_the_fault_and_the_others_are_told() -> None:
    findings = [
        Finding("no_gangs", "xid", "Xid 74: NVLink error", 74),
        Finding("drain", "row_remap", "rows wait"),
        Finding("quarantine", "lost", "it is gone"),
        Finding("reset", "xid", "Xid 48: double bit ECC error", 48),
        Finding("quarantine", "xid", "Xid 79: off the bus", 79),
    ]
    assert fault_of(2, "GPU-2", findings) == DeviceFault(
        index=2,
        uuid="GPU-2",
        cause="lost",
        action="quarantine",
        detail="it is gone; Xid 79: off the bus; Xid 48: double bit ECC error; rows wait; Xid 74: NVLink error",
    )
    assert fault_of(2, "GPU-2", []) is None


def test_every_xid_of_the_shared_table_is_known_and_treated_as_it_says() -> None:
    if not TABLE.exists():
        pytest.skip("the table of Xids that this one was made from is not beside the repository")
    expected = {
        "fail_job": {"app", "contained"},
        "count_then_quarantine": {"count"},
        "none": {"follows", "note"},
        "drain_gpu_reset": {"reset"},
        "kill_all_on_gpu_reset": {"reset"},
        "reset_when_idle": {"remap"},
        "quarantine_gpu": {"quarantine"},
        "quarantine_gpu_p2p": {"nvlink"},
        "quarantine_gpu_drain_node": {"reboot"},
        "drain_node": {"reboot"},
        "follow_recovery_action": {"note"},
    }
    table = {int(number): entry["agent_action"] for number, entry in json.loads(TABLE.read_text())["xids"].items()}
    assert table.keys() == XIDS.keys()
    assert [number for number, action in table.items() if XIDS[number].kind not in expected[action]] == []
