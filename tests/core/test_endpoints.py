"""Ports that workers are met at: one for the gang, or one for each worker where the framework wants it so."""

from cluster_script import Script, inventory, spec
from msgspec.structs import replace
from policy_script import AT_ONCE

from muster.core.decide import decide
from muster.core.explain import explain
from muster.events import types as t
from muster.events.spec import JobSpec, RetrySpec, WhereSpec
from muster.events.types import Endpoint, JobAllocated, StartWorker


def allocated(events: list[t.Event], job: int) -> JobAllocated:
    [found] = [event for event in events if isinstance(event, JobAllocated) and event.job == job]
    return found


def commands(events: list[t.Event], job: int) -> list[StartWorker]:
    return [event for event in events if isinstance(event, StartWorker) and event.job == job]


def two_nodes(*, address: str | None = None, ports: int = 1000) -> Script:
    script = Script()
    for name in ("node-1", "node-2"):
        has = replace(inventory(4, fabric="lab", address=address or f"10.0.0.{name[-1]}"), last_port=21_000 + ports - 1)
        script.append(t.NodeRegistered(name, f"{name}-life-1", has, [], 120_000))
    return script


def tensorflow(gpus: int = 8, **fields: object) -> JobSpec:
    return spec(gpus, framework="tensorflow", retry=RetrySpec(max_attempts=2, on=["failed"]), **fields)


def test_each_worker_of_tensorflow_has_a_port_at_its_own_node() -> None:
    script = two_nodes()
    job = script.submit(tensorflow())
    events = script.settle()
    both = [Endpoint("10.0.0.1", 21_000 + job), Endpoint("10.0.0.2", 21_000 + job)]
    assert allocated(events, job).endpoints == both
    assert (allocated(events, job).master_address, allocated(events, job).master_port) == ("10.0.0.1", 21_000 + job)
    assert [command.endpoints for command in commands(events, job)] == [both, both]
    attempt = script.job(job).attempt
    assert attempt is not None
    assert attempt.endpoints == both


def test_nodes_of_one_address_give_a_gang_different_ports() -> None:
    script = two_nodes(address="10.0.0.9")
    job = script.submit(tensorflow())
    ports = [endpoint.port for endpoint in allocated(script.settle(), job).endpoints]
    assert ports == [21_000 + job, 21_001 + job]
    other = script.submit(spec(0, cpus=1))
    script.settle()
    attempt = script.job(other).attempt
    assert attempt is not None
    assert attempt.master_port not in ports


def test_other_frameworks_have_the_master_s_port_alone() -> None:
    script = two_nodes()
    job = script.submit(spec(8, framework="pytorch"))
    events = script.settle()
    assert allocated(events, job).endpoints == []
    assert [command.endpoints for command in commands(events, job)] == [[], []]


def test_who_finds_no_port_for_each_worker_waits_for_one() -> None:
    script = two_nodes(ports=1)
    holder = script.submit(spec(0, cpus=1, where=WhereSpec(nodes=["node-2"])))
    script.settle()
    script.start(holder)
    job = script.submit(tensorflow(gpus=8))
    assert script.settle() == []
    reasons = explain(script.cluster, job).reasons
    assert [reason.kind for reason in reasons] == ["port"]
    assert reasons[0].jobs == [holder]
    script.exit(holder)
    assert [endpoint.port for endpoint in allocated(script.settle(), job).endpoints] == [21_000, 21_000]


def test_ports_are_free_again_when_the_attempt_is_over() -> None:
    script = two_nodes(ports=1)
    job = script.submit(tensorflow())
    script.settle()
    script.start(job)
    script.exit(job, 1, 0)
    later = script.submit(spec(0, cpus=1, where=WhereSpec(nodes=["node-1"])))
    script.settle()
    assert script.job(later).phase == "PENDING"  # the other worker is told to stop: until it has, its ports are held
    script.exit(job, 1, 1)
    script.settle()
    assert script.job(later).phase == "STARTING"
    script.start(later)
    script.exit(later)
    assert [event.attempt for event in script.settle() if isinstance(event, JobAllocated) and event.job == job] == [2]


def test_processes_are_numbered_over_an_uneven_gang() -> None:
    script = Script()
    script.node("node-1", 3, fabric="lab", containers=True, devices_in_containers=True)
    script.node("node-2", 1, fabric="lab", containers=True, devices_in_containers=True)
    job = script.submit(spec(4, framework="pytorch", image="registry/image:1"))
    started = commands(script.settle(), job)
    shape = [(len(command.devices), command.processes, command.first_process) for command in started]
    assert sorted(shape, key=lambda each: each[2]) in ([(3, 4, 0), (1, 4, 3)], [(1, 4, 0), (3, 4, 1)])
    assert {(command.framework, command.image) for command in started} == {("pytorch", "registry/image:1")}


def test_a_worker_without_devices_is_one_process() -> None:
    script = two_nodes()
    job = script.submit(spec(0, cpus=4, nodes=2, framework="jax"))
    started = commands(script.settle(), job)
    assert [(command.processes, command.first_process) for command in started] == [(2, 0), (2, 1)]


def test_who_gets_the_room_made_for_it_gets_its_ports_too() -> None:
    script = two_nodes()
    script.append(t.PolicyChanged(AT_ONCE, "root"))
    victim = script.submit(spec(8, priority=100))
    script.settle()
    script.start(victim)
    job = script.submit(tensorflow(priority=900))
    script.settle()
    script.exit(victim, 143)
    assert allocated(script.settle(), job).endpoints == [
        Endpoint("10.0.0.1", 21_000 + job),
        Endpoint("10.0.0.2", 21_000 + job),
    ]


def test_an_allocation_whose_first_endpoint_is_not_the_master_s_is_refused() -> None:
    script = two_nodes()
    job = script.submit(tensorflow())
    decided = allocated(decide(script.cluster), job)
    script.append(replace(decided, endpoints=decided.endpoints[::-1]))
    assert "does not give each worker a port" in script.cluster.state.refusals[-1].reason
    script.append(replace(decided, endpoints=decided.endpoints[:1]))
    assert len(script.cluster.state.refusals) == 2
    assert script.job(job).phase == "PENDING"


def test_an_explanation_tells_what_the_launcher_of_each_worker_finds() -> None:
    script = Script()
    script.node("node-1", 3, fabric="lab")
    script.node("node-2", 1, fabric="lab")
    env = {"PET_MAX_RESTARTS": "2", "SECRET": "s", "MUSTER_NODE": "x", "CUDA_VISIBLE_DEVICES": ""}
    job = script.submit(spec(4, framework="pytorch", cpus=6, env=env))
    script.settle()
    told = {each.node: each.variables for each in explain(script.cluster, job).environment}
    larger = told["node-1"]
    names = ("PET_NNODES", "PET_NPROC_PER_NODE", "OMP_NUM_THREADS", "MUSTER_PROCESSES", "MUSTER_LOCAL_PROCESSES")
    assert [larger[name] for name in names] == ["2", "3", "6", "4", "3"]
    assert told["node-2"]["PET_NPROC_PER_NODE"] == "1"
    assert (larger["PET_MAX_RESTARTS"], larger["MUSTER_NODE"], larger["CUDA_VISIBLE_DEVICES"]) == (
        "2",
        "node-1",
        "0,1,2",
    )
    assert "SECRET" not in larger


def test_an_explanation_tells_tensorflow_s_cluster() -> None:
    script = two_nodes()
    job = script.submit(tensorflow())
    script.settle()
    first, second = (each.variables["TF_CONFIG"] for each in explain(script.cluster, job).environment)
    port = 21_000 + job
    assert first == (
        f'{{"cluster": {{"worker": ["10.0.0.1:{port}", "10.0.0.2:{port}"]}}, "task": {{"type": "worker", "index": 0}}}}'
    )
    assert second.endswith('"index": 1}}')
