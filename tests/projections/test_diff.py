"""What became of jobs, nodes and devices between two moments of one log."""

from cluster_script import Script, spec
from device_script import cordon, fault, foreign, uuid_of

from muster.core.state import State
from muster.events import types as t
from muster.projections.diff import DeviceSide, Difference, Held, difference, unsettled
from muster.projections.fold import Fold


def then(script: Script) -> State:
    """The state as it is now, to be compared with later ones."""
    return Fold.restore(script.fold.state_bytes()).cluster.state


def since(before: State, script: Script) -> Difference:
    return difference(before, script.cluster.state, {})


def told(found: Difference) -> dict[int, list[str]]:
    return {change.id: change.what for change in found.jobs}


def test_nothing_became_of_what_is_alike() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(4))
    script.settle()
    script.start(job)
    before = then(script)
    script.append(t.ClockAdvanced())
    assert since(before, script) == Difference([], [], [])
    assert difference(before, before, {}) == Difference([], [], [])


def test_a_job_comes_starts_and_ends() -> None:
    script = Script()
    script.node("node-1")
    nothing = then(script)
    job = script.submit(spec(2))
    waits = then(script)
    script.settle()
    placed = then(script)
    script.start(job)
    runs = then(script)
    script.exit(job, 3)
    ended = then(script)

    def became(before: State, after: State) -> list[str]:
        return told(difference(before, after, {})).get(job, [])

    assert became(nothing, waits) == ["came"]
    assert became(waits, placed) == ["placed"]
    assert became(placed, runs) == ["started"]
    assert became(waits, runs) == ["started"]
    assert became(runs, ended) == ["ended"]
    assert became(nothing, ended) == ["came", "started", "ended"]
    [change] = difference(placed, ended, {}).jobs
    assert change.before is not None
    assert (change.before.state, change.before.place) == ("STARTING", [Held("node-1", [0, 1])])
    assert (change.after.state, change.after.exit_code) == ("FAILED", 3)
    assert (change.user, change.gpus, change.queue) == ("ada", 2, "default")


def test_a_job_that_was_tried_twice_says_so() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(8))
    before = then(script)
    script.settle()
    script.start(job)
    script.node("node-1")  # another life of the agent, that knows of no workers
    script.settle()
    requeued = then(script)
    script.start(job)
    assert told(difference(before, requeued, {}))[job][0] == "started 2 times"
    assert told(since(requeued, script)) == {job: ["started"]}


def test_devices_that_became_alike_are_told_together() -> None:
    script = Script()
    script.node("node-1")
    before = then(script)
    job = script.submit(spec(3))
    script.settle()
    fault(script, 5, "quarantine", xid=64)
    fault(script, 6, "quarantine", xid=64)
    cordon(script, 7, reason="fan")
    foreign(script, {4: 512})
    held, taken, broken, shut = since(before, script).devices
    assert (held.node, held.devices, held.before, held.after) == ("node-1", [0, 1, 2], DeviceSide(), DeviceSide([job]))
    assert (taken.devices, taken.after) == ([4], DeviceSide(foreign_mib=512))
    assert (broken.devices, broken.uuids) == ([5, 6], [uuid_of(script, 5), uuid_of(script, 6)])
    assert broken.after == DeviceSide(condition="quarantine: Xid 64")
    assert (shut.devices, shut.after and shut.after.cordoned) == ([7], "by root: fan")


def test_nodes_come_fall_silent_and_are_cordoned() -> None:
    script = Script()
    script.node("node-1")
    script.node("node-2")
    before = then(script)
    script.node("node-3", 4)
    script.append(t.NodeCordoned("node-1", "ada", "dust"))
    script.append(t.NodeSuspected("node-2", script.cluster.state.nodes["node-2"].incarnation, script.now_ns, 10_000))
    one, two, three = since(before, script).nodes
    assert (one.node, one.before and one.before.cordoned) == ("node-1", "")
    assert one.after is not None
    assert "dust" in one.after.cordoned
    assert (two.node, two.after and two.after.status) == ("node-2", "suspect")
    assert three.before is None
    assert (three.node, three.after and three.after.devices) == ("node-3", 4)
    assert since(before, script).devices == [], "idle devices of a new node are told with it"
    back = difference(script.cluster.state, before, {})
    assert [change.node for change in back.nodes if change.after is None] == ["node-3"]


def test_what_left_the_state_is_told_as_it_ended() -> None:
    script = Script()
    script.node("node-1")
    first = script.submit(spec(8))
    before = then(script)
    script.settle()
    script.start(first)
    second = script.submit(spec(8))
    script.exit(first, 0)
    script.settle()
    script.start(second)
    script.exit(second, 1)
    left = {job_id: script.job(job_id) for job_id in (first, second)}
    for _ in range(130):
        script.advance(60)
    assert script.cluster.state.jobs == {}
    assert unsettled(before, script.cluster.state) == [first]
    found = difference(before, script.cluster.state, left)
    assert told(found) == {first: ["started", "ended"], second: ["came", "started", "ended"]}
    assert [change.after.state for change in found.jobs] == ["COMPLETED", "FAILED"]
    assert since(before, script).jobs == [], "nobody says how they ended"
