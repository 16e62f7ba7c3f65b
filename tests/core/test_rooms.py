"""The room that is made for a job, and what becomes of it, as literal scenarios."""

import msgspec
import pytest
from cluster_script import Script, inventory, spec
from policy_script import (
    AT_ONCE,
    beneficiaries,
    cluster,
    running,
    starts,
    stop,
    victims,
)

from muster.core.decide import decide
from muster.core.explain import explain
from muster.events import types as t
from muster.events.policy import Backfill, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, WhereSpec


def made_room() -> tuple[Script, int, int]:
    """Two nodes of two; a job of high priority waits for the room on node-1 that another one leaves."""
    script = cluster(2, 2, AT_ONCE)
    (low,) = running(script, spec(2, priority=0))
    running(script, spec(2, priority=900))
    high = script.submit(spec(2, priority=600))
    events = script.settle()
    assert victims(events) == [low]
    (room,) = [event for event in events if isinstance(event, t.RoomReserved)]
    assert [(place.node, place.devices) for place in room.placements] == [("node-1", [0, 1])]
    assert [(ref.job, ref.attempt) for ref in room.victims] == [(low, 1)]
    return script, low, high


def test_the_room_is_the_beneficiarys_alone() -> None:
    script, low, high = made_room()
    sneaky = script.submit(spec(1, priority=1000))
    script.settle()
    stop(script, low)
    events = script.settle()
    assert starts(events) == [high]
    assert script.placed(high) == {"node-1": [0, 1]}
    assert script.job(sneaky).phase == "PENDING"


def test_two_rooms_do_not_use_the_same_half_of_a_card_while_the_other_half_is_being_left() -> None:
    """Each half of the card is for one of two jobs. CPUs are left first: then half of it is free, for one of them."""
    script = Script()
    script.node("node-1", 1, cpus=4)
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    half = GpuSpec(memory=20 * 1024, compute=0.5)
    on_card, on_cpus = running(script, spec(1, gpu=half, priority=100), spec(0, cpus=3, priority=0))
    first, second = (script.submit(spec(1, gpu=half, priority=900)) for _ in range(2))
    events = script.settle()
    assert (victims(events), beneficiaries(events)) == ([on_cpus, on_card], [first, second])
    stop(script, on_cpus)
    assert starts(script.settle()) == [first]
    stop(script, on_card)
    assert starts(script.settle()) == [second]


def test_the_room_waits_for_the_last_worker_to_be_gone() -> None:
    script = cluster(2, 2, AT_ONCE)
    (gang,) = running(script, spec(4, nodes=2, priority=0))
    high = script.submit(spec(4, nodes=2, priority=900))
    script.settle()
    script.exit(gang, None, 0, reason="stopped")
    assert script.settle() == []
    script.exit(gang, None, 1, reason="stopped")
    assert starts(script.settle()) == [high]


def released(events: list[t.Event]) -> list[tuple[int, str]]:
    return [(event.job, event.cause) for event in events if isinstance(event, t.RoomReleased)]


def test_the_room_is_let_go_when_its_beneficiary_is_cancelled() -> None:
    script, low, high = made_room()
    script.append(t.JobCancelRequested(high, "ada"))
    assert released(script.settle()) == [(high, "beneficiary_gone")]
    stop(script, low)
    assert starts(script.settle()) == [low]


@pytest.mark.parametrize("loss", ["cordoned", "suspect", "lost"])
def test_the_room_is_let_go_when_its_node_takes_no_work(loss: str) -> None:
    script, low, high = made_room()
    life = script.cluster.state.nodes["node-1"].incarnation
    if loss == "cordoned":
        script.append(t.NodeCordoned("node-1", "root"))
    else:
        script.append(t.NodeSuspected("node-1", life, 0, 150_000 if loss == "lost" else 10_000))
    assert released(script.settle()) == [(high, "room_lost")]
    assert script.job(high).phase == "PENDING"
    assert script.cluster.state.rooms == {}
    if loss != "lost":
        stop(script, low)
    script.settle()
    assert script.job(low).phase == "PENDING"


def test_the_room_is_let_go_when_a_limit_shuts_it() -> None:
    script, low, high = made_room()
    script.append(t.QueueConfigured(QueueSpec("default", limit=1), "root"))
    (event,) = [event for event in script.settle() if isinstance(event, t.RoomReleased)]
    assert (event.job, event.cause, event.detail) == (high, "room_lost", "queue_limit default keeps it out")
    stop(script, low)
    assert starts(script.settle()) == []


def test_cancelled_between_decision_and_log_the_room_is_let_go() -> None:
    script = cluster(1, 1, AT_ONCE)
    (low,) = running(script, spec(1, priority=0))
    high = script.submit(spec(1, priority=900))
    events = decide(script.cluster)
    script.append(t.JobCancelRequested(high, "ada"))
    for event in events:
        script.append(event)
    assert released(script.settle()) == [(high, "beneficiary_gone")]
    stop(script, low)
    assert starts(script.settle()) == [low]


def test_without_backfill_a_preempted_job_behind_its_beneficiary_waits() -> None:
    policy = Policy(backfill=Backfill("none"), preemption=Preemption(min_runtime=0))
    script = cluster(2, 1, policy)
    low = running(script, spec(1, priority=0), spec(1, priority=0))
    high = script.submit(spec(2, priority=900))
    assert sorted(victims(script.settle())) == low
    stop(script, low[0])
    assert starts(script.settle()) == []
    stop(script, low[1])
    assert starts(script.settle()) == [high]
    script.start(high)
    script.exit(high)
    assert starts(script.settle()) == low


def test_a_job_whose_room_nobody_is_in_is_told_what_it_waits_for_still() -> None:
    script = cluster(1, 0, AT_ONCE)
    there = {
        name: msgspec.structs.replace(inventory(1, address=address), first_port=20_000, last_port=20_000)
        for name, address in (("node-1", "10.0.0.1"), ("node-2", "10.0.0.2"))
    }
    for name, found in there.items():
        script.append(t.NodeRegistered(name, f"{name}-life", found, [], 120_000))
    on = {name: WhereSpec(nodes=[name]) for name in there}
    low, other = running(script, spec(1, priority=0, where=on["node-1"]), spec(1, priority=900, where=on["node-2"]))
    job = script.submit(spec(1, priority=600, where=on["node-1"]))
    script.settle()
    reserved = f"room on node-1 is reserved for it by entry {script.cluster.state.rooms[job].reserved}: it "
    assert explain(script.cluster, job).summary == f"{reserved}waits for job {low} to end"

    moved = msgspec.structs.replace(there["node-1"], address="10.0.0.2")
    script.append(t.NodeRegistered("node-1", "another", moved, [t.WorkerReport(3, 1, 0, 7)], 120_000))
    script.settle()
    assert explain(script.cluster, job).summary == f"{reserved}waits for workers of earlier attempts to end on node-1"

    script.append(t.WorkerExited("node-1", "another", 3, 1, 0, t.ExitStatus("stopped")))
    script.settle()
    assert explain(script.cluster, job).summary == f"{reserved}waits for a rendezvous port"

    script.exit(other)
    assert explain(script.cluster, job).summary == f"{reserved}starts with a next pass"
    script.settle()
    assert script.placed(job) == {"node-1": [0]}
