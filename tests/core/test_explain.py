"""What a waiting job is told, beyond the worked case."""

from cluster_script import NO_RETRY, Script, spec

from muster.core.explain import explain
from muster.events import types as t
from muster.events.spec import GpuSpec, WhereSpec


def test_a_share_is_told_how_many_devices_have_room_for_it() -> None:
    script = Script()
    script.node("node-1", 2)
    for _ in range(2):
        script.submit(spec(1, gpu=GpuSpec(compute=0.6, memory=1024)))
    script.settle()

    fits = script.submit(spec(1, gpu=GpuSpec(compute=0.4, memory=1024)))
    waits = script.submit(spec(2, gpu=GpuSpec(compute=0.5, memory=1024)))

    assert explain(script.cluster, fits).allocation.free_devices == 2
    assert explain(script.cluster, waits).allocation.why == "waits for 2 devices; 0 have room for it"


def test_what_can_never_be_placed_is_told_why() -> None:
    script = Script()
    script.node("node-1")

    job = script.submit(spec(1, where=WhereSpec(labels={"rack": "r9"})))

    expected = "can never be placed as the cluster is: no node has the label rack = r9"
    assert explain(script.cluster, job).summary == expected


def test_each_node_is_counted_under_the_reason_that_shuts_it_out() -> None:
    script = Script()
    for number in (1, 2, 3):
        script.node(f"node-{number}")
    script.append(t.NodeCordoned("node-1", "ada", "fan"))
    script.append(t.NodeSuspected("node-2", "node-2-life-1", 0, 10_000))
    busy = script.submit(spec(8))
    script.settle()

    job = script.submit(spec(1))

    filtered = explain(script.cluster, job).filter
    assert script.placed(busy).keys() == {"node-3"}
    assert filtered is not None
    assert {check.reason: check.examples for check in filtered.refused} == {
        "cordoned": ["node-1"],
        "suspect: its agent is silent": ["node-2"],
        "no device is idle": ["node-3"],
    }


def test_work_on_a_lost_node_leaves_the_others_to_whoever_comes() -> None:
    """The lost node's eight devices are no part of the cluster any more, the job on it still holds them: a queue
    without a limit is not at one."""
    script = Script()
    script.node("node-1")
    life = script.node("node-2")
    stays = script.submit(spec(8, retry=NO_RETRY, where=WhereSpec(nodes=["node-2"])))
    script.settle()
    script.start(stays)
    script.append(t.NodeSuspected("node-2", life, 0, 10_000))
    for _ in range(4):
        script.advance(59)
        script.settle()
    assert script.cluster.state.nodes["node-2"].status == "lost"
    assert script.job(stays).phase == "RUNNING"

    job = script.submit(spec(8))
    script.settle()

    assert script.placed(job) == {"node-1": [0, 1, 2, 3, 4, 5, 6, 7]}


def test_a_job_that_is_being_stopped_says_whose_word_it_waits_for() -> None:
    script = Script()
    script.node("node-1", fabric="f")
    script.node("node-2", fabric="f")
    job = script.submit(spec(8, nodes=2))
    script.settle()
    script.start(job)
    script.exit(job, 3, 1)
    assert explain(script.cluster, job).summary == (
        "is STOPPING: worker 1 on node-2: exit code 3;"
        " waits for the agent's word that rank 0 on node-1 has ended; it is yet to be told to stop it"
    )
    script.settle()
    assert explain(script.cluster, job).summary == (
        "is STOPPING: worker 1 on node-2: exit code 3;"
        " waits for the agent's word that rank 0 on node-1 has ended; it was told to stop it"
    )
    script.exit(job, None, reason="stopped")
    assert explain(script.cluster, job).summary == "is FAILED: worker 1 on node-2: exit code 3"
