"""Somebody vouches for a device of which its agent goes on to say that something is wrong."""

from typing import Any

from cluster_script import Script
from device_script import a_fault, action, anew, fault, recovery, uncordon

from muster.events import types as t


def vouched(what: t.FaultAction = "quarantine") -> Script:
    script = Script()
    script.node("node-1", 2)
    fault(script, 0, what, xid=64, detail="Xid 64")
    uncordon(script, 0)
    assert action(script, 0) == ""
    return script


def registers(script: Script, **more: Any) -> None:
    faults = [a_fault(script, 0, "quarantine", xid=64, **more)] if more else []
    anew(script, "node-1", [0, 1], faults=faults)


def test_what_was_vouched_for_is_not_believed_again_after_a_restart_of_the_agent() -> None:
    script = vouched()
    for _ in range(2):
        registers(script, detail="Xid 64")
        assert action(script, 0) == ""
    registers(script, detail="Xid 64; it is lost")
    assert action(script, 0) == "quarantine"


def test_once_it_is_over_it_may_happen_again() -> None:
    script = vouched()
    registers(script)
    registers(script, detail="Xid 64")
    assert action(script, 0) == "quarantine"


def test_what_happens_after_it_counts() -> None:
    script = vouched()
    fault(script, 0, "quarantine", xid=64, detail="Xid 64 (2 times)")
    assert action(script, 0) == "quarantine"
    registers(script, detail="Xid 64 (2 times)")
    assert action(script, 0) == "quarantine"


def test_what_came_beside_it_and_is_over_leaves_it_vouched_for() -> None:
    script = vouched()
    fault(script, 0, "quarantine", cause="lost", detail="it is lost; Xid 64")
    assert action(script, 0) == "quarantine"
    fault(script, 0, "quarantine", xid=64, detail="Xid 64")
    assert action(script, 0) == "probation"


def test_after_a_recovery_it_may_happen_again_at_once() -> None:
    script = vouched()
    recovery(script, 0)
    fault(script, 0, "quarantine", xid=64, detail="Xid 64")
    assert action(script, 0) == "quarantine"
