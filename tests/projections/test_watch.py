"""Silence is counted only while the broker could be heard."""

from cluster_script import SECOND, Script

from muster.events import types as t
from muster.projections.watch import Watch


def registered() -> Script:
    script = Script()
    script.node("node-1")
    script.node("node-2")
    return script


def test_a_node_that_is_silent_while_others_beat_is_suspected() -> None:
    script, watch = registered(), Watch()
    state = script.cluster.state
    watch.observations(state)

    for second in range(0, 11, 2):
        watch.beat("node-2", "node-2-life-1", second * SECOND)
        early = watch.observations(state)

    assert early == [t.NodeSuspected("node-1", "node-1-life-1", 0, 10_000)]


def test_a_broker_that_was_away_makes_nobody_silent() -> None:
    script, watch = registered(), Watch()
    for node in ("node-1", "node-2"):
        watch.beat(node, f"{node}-life-1", 0)

    watch.beat("node-2", "node-2-life-1", 100 * SECOND)

    assert watch.observations(script.cluster.state) == []


def test_a_stored_beat_that_was_not_heard_counts() -> None:
    script, watch = registered(), Watch()
    watch.observations(script.cluster.state)
    for second in range(0, 20, 2):
        watch.proof(second * SECOND)
    assert watch.silent(script.cluster.state) == ["node-1", "node-2"]

    watch.stored_beat("node-1", "node-1-life-1", 5)

    assert watch.silent(script.cluster.state) == ["node-2"]


def test_a_suspect_node_that_beats_in_the_same_life_recovers() -> None:
    script, watch = registered(), Watch()
    script.append(t.NodeSuspected("node-1", "node-1-life-1", 0, 10_000))

    watch.beat("node-1", "an-earlier-life", 0)
    assert watch.observations(script.cluster.state) == []
    watch.beat("node-1", "node-1-life-1", 0)

    assert watch.observations(script.cluster.state) == [t.NodeRecovered("node-1", "node-1-life-1")]


def test_a_new_life_begins_its_count_anew() -> None:
    script, watch = registered(), Watch()
    watch.observations(script.cluster.state)
    for second in range(0, 9, 2):
        watch.proof(second * SECOND)
    script.node("node-1")

    watch.observations(script.cluster.state)
    watch.proof(10 * SECOND)
    watch.proof(12 * SECOND)

    assert watch.silent(script.cluster.state) == ["node-2"]


def test_beats_of_another_life_do_not_make_up_for_silence() -> None:
    script, watch = registered(), Watch()
    state = script.cluster.state
    for second in range(0, 30, 2):
        watch.beat("node-1", "an-earlier-life", second * SECOND)
        watch.stored_beat("node-1", "an-earlier-life", second * SECOND)
        watch.beat("node-2", "node-2-life-1", second * SECOND)
        watch.observations(state)

    assert watch.observations(state) == [t.NodeSuspected("node-1", "node-1-life-1", 0, 28_000)]


def test_lives_that_are_over_are_forgotten() -> None:
    script, watch = registered(), Watch()
    for second in range(0, 2000, 2):
        watch.beat("node-1", f"life-{second}", second * SECOND)
        watch.observations(script.cluster.state)

    assert len(watch._heard) < 100
