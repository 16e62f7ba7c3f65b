"""Jobs with an image go to nodes that run containers; what no node runs is refused; what all have refused says so."""

import pytest
from cluster_script import Script, spec

from muster.core.explain import explain, summaries
from muster.core.forecast import expected_starts
from muster.core.placement import place
from muster.core.resources import demand_of
from muster.core.scheme import Rule
from muster.core.spec_check import capacity_problems, check_spec
from muster.events import types as t
from muster.events.policy import Policy
from muster.events.spec import WhereSpec

RULES: tuple[Rule, ...] = ("best-fit", "spread", "fragmentation", "tight")


def three_nodes(rule: Rule = "best-fit") -> Script:
    """node-1 runs no containers, node-2 gives its devices to them, node-3 does not."""
    script = Script()
    script.node("node-1", fabric="lab")
    script.node("node-2", fabric="lab", containers=True, devices_in_containers=True)
    script.node("node-3", fabric="lab", containers=True)
    script.append(t.PolicyChanged(Policy(placement=rule), "root"))
    return script


@pytest.mark.parametrize("rule", RULES)
def test_an_image_goes_where_containers_are_run_under_every_rule(rule: Rule) -> None:
    script = three_nodes(rule)
    with_devices = script.submit(spec(8, image="a:1"))
    without = [script.submit(spec(0, cpus=100, image="a:1")) for _ in range(3)]
    script.settle()

    assert list(script.placed(with_devices)) == ["node-2"]
    assert [script.job(job).phase for job in without] == ["STARTING", "STARTING", "PENDING"]
    assert {node for job in without[:2] for node in script.placed(job)} == {"node-2", "node-3"}
    filtered = explain(script.cluster, without[2]).filter
    assert filtered is not None
    refused = {check.reason: check.examples for check in filtered.refused}
    assert refused["runs no containers"] == ["node-1"]


@pytest.mark.parametrize("fields", [{"nodes": 2}, {"nodes": 2, "gpu": {"interconnect": "none"}}])
def test_a_gang_is_not_split_over_a_node_that_gives_no_devices_to_containers(fields: dict[str, object]) -> None:
    script = three_nodes()
    job = check_spec({"command": "x", "gpus": 8, "image": "a:1", **fields})

    assert place(script.cluster.hardware, demand_of(job)) is None
    (problem,) = capacity_problems(job, script.cluster.hardware)
    assert problem == ("/image", "the nodes that could hold it give no devices to containers")


def test_a_gang_without_devices_goes_to_the_nodes_that_run_containers() -> None:
    script = three_nodes()
    job = script.submit(spec(0, cpus=2, nodes=2, image="a:1"))
    script.settle()

    assert list(script.placed(job)) == ["node-2", "node-3"]


def test_what_no_node_runs_is_named() -> None:
    script = Script()
    script.node("node-1")
    image = check_spec({"command": "x", "gpus": 1, "image": "a:1"})
    too_large = check_spec({"command": "x", "gpus": 64, "image": "a:1"})

    assert capacity_problems(image, script.cluster.hardware) == [
        ("/image", "no node runs containers: none has podman or docker")
    ]
    assert [problem.pointer for problem in capacity_problems(too_large, script.cluster.hardware)] == ["/gpus"]

    script.node("node-2", containers=True)

    assert capacity_problems(image, script.cluster.hardware) == [
        ("/image", "no node can give devices to a container: simulated ones are on paper only")
    ]

    script.node("node-3", containers=True, devices_in_containers=True)

    assert capacity_problems(image, script.cluster.hardware) == []


def test_a_job_that_was_accepted_waits_for_a_node_that_runs_containers() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(1, image="a:1"))
    script.settle()

    found = explain(script.cluster, job)
    assert found.summary == "can never be placed as the cluster is: no node runs containers: none has podman or docker"
    assert [reason.kind for reason in found.reasons] == ["capacity"]

    script.node("node-2", containers=True, devices_in_containers=True)
    script.settle()

    assert list(script.placed(job)) == ["node-2"]


def refused_by(script: Script, job: int, *nodes: str) -> None:
    for attempt, node in enumerate(nodes, 1):
        script.append(t.WorkerRefused(node, f"{node}-life-1", 1, job, attempt, 0, "no space left"))
        script.settle()


def test_a_job_that_every_node_has_refused_says_so_first_and_no_time_is_expected() -> None:
    script = Script()
    script.node("node-1")
    script.node("node-2", model="T4")
    job = script.submit(spec(0, cpus=1, where=WhereSpec(nodes=["node-1"])))
    script.settle()
    refused_by(script, job, "node-1")

    why = (
        "waits since node-1 refused to start it: no space left; no other node could hold it, and it is tried again in "
    )
    assert summaries(script.cluster, [job])[job].startswith(why)
    found = explain(script.cluster, job)
    assert found.summary.startswith(why)
    assert found.expected is not None
    assert found.expected.at is None
    assert found.expected.why.startswith("no other node could hold it, and it is tried again in ")
    assert expected_starts(script.cluster, 10) == {job: None}
