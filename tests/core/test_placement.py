"""Where gangs go: literal clusters in, placements out."""

import pytest
from cluster_script import Script, spec

from muster.core.explain import explain
from muster.events.spec import GpuSpec, WhereSpec


def cluster(*devices: int, cpus: int = 128, memory_mib: int = 1 << 20) -> Script:
    script = Script()
    for number, count in enumerate(devices, start=1):
        script.node(f"node-{number}", count, fabric="ib-1", cpus=cpus, memory_mib=memory_mib)
    return script


def test_best_fit_takes_the_node_with_the_fewest_idle_devices() -> None:
    script = cluster(8, 4, 2)

    job = script.submit(spec(2))
    script.settle()

    assert script.placed(job) == {"node-3": [0, 1]}


def test_ties_go_to_the_first_name() -> None:
    script = cluster(4, 4, 4)

    jobs = [script.submit(spec(4)) for _ in range(3)]
    script.settle()

    assert [list(script.placed(job)) for job in jobs] == [["node-1"], ["node-2"], ["node-3"]]


def test_the_head_of_the_queue_holds_back_those_behind_it() -> None:
    script = cluster(4)
    running = script.submit(spec(2))
    script.settle()
    script.start(running)

    head, behind = script.submit(spec(4)), script.submit(spec(1))
    script.settle()

    assert script.job(head).phase == script.job(behind).phase == "PENDING"
    assert explain(script.cluster, behind).order.held_back_by == head  # type: ignore[union-attr]


def test_a_job_that_no_node_could_ever_hold_blocks_nobody() -> None:
    script = cluster(4)

    impossible, small = script.submit(spec(64)), script.submit(spec(1))
    script.settle()

    assert script.job(impossible).phase == "PENDING"
    assert script.placed(small) == {"node-1": [0]}


def test_a_job_that_waits_for_capacity_starts_when_the_node_comes() -> None:
    script = cluster(4)
    job = script.submit(spec(8))
    script.settle()

    script.node("node-2", 8)
    script.settle()

    assert script.placed(job) == {"node-2": list(range(8))}


@pytest.mark.parametrize(
    ("devices", "nodes", "gpus", "expected"),
    [
        ((8, 8), None, 16, {"node-1": 8, "node-2": 8}),
        ((8, 8), 2, 8, {"node-1": 4, "node-2": 4}),
        ((8, 8), 2, 3, {"node-1": 2, "node-2": 1}),
        ((8, 8, 4), "fewest", 12, {"node-1": 8, "node-3": 4}),
        ((4, 6, 8), "any", 12, {"node-2": 6, "node-3": 6}),
        ((2, 3, 8), "any", 11, {"node-2": 3, "node-3": 8}),
        ((8, 8), 1, 8, {"node-1": 8}),
    ],
)
def test_splits(devices: tuple[int, ...], nodes: object, gpus: int, expected: dict[str, int]) -> None:
    script = cluster(*devices)

    job = script.submit(spec(gpus, nodes=nodes))
    script.settle()

    assert {node: len(held) for node, held in script.placed(job).items()} == expected


def test_a_gang_is_all_or_none() -> None:
    script = cluster(8, 8)
    busy = script.submit(spec(9, nodes=2))
    script.settle()
    script.start(busy)

    gang = script.submit(spec(8, nodes="any"))
    script.settle()

    assert script.job(gang).phase == "PENDING"
    assert script.job(gang).attempt is None


def test_a_gang_stays_on_one_fabric_unless_it_waives_the_link() -> None:
    script = Script()
    for number, fabric in enumerate(("ib-1", "ib-1", "ib-2", ""), start=1):
        script.node(f"node-{number}", 4, fabric=fabric)

    linked = script.submit(spec(8, nodes=2))
    unlinked = script.submit(spec(8, nodes=2, gpu=GpuSpec(interconnect="none")))
    script.settle()

    assert script.placed(linked).keys() == {"node-1", "node-2"}
    assert script.placed(unlinked).keys() == {"node-3", "node-4"}


def test_a_gang_stays_on_one_model() -> None:
    script = Script()
    script.node("node-1", 4, fabric="f", model="A100-80GB")
    script.node("node-2", 4, fabric="f", model="H800")

    either = script.submit(spec(4, gpu=GpuSpec(model=["H800", "A100-80GB"])))
    both = script.submit(spec(8, nodes=2, gpu=GpuSpec(model=["H800", "A100-80GB"])))
    script.settle()

    assert script.placed(either) == {"node-1": [0, 1, 2, 3]}
    assert script.job(both).phase == "PENDING"


def test_names_and_labels_of_nodes_are_honoured() -> None:
    script = Script()
    script.node("node-1", labels={"rack": "r1"})
    script.node("node-2", labels={"rack": "r7"})

    by_label = script.submit(spec(1, where=WhereSpec(labels={"rack": "r7"})))
    by_name = script.submit(spec(1, where=WhereSpec(nodes=["node-2"])))
    script.settle()

    assert script.placed(by_label) == {"node-2": [0]}
    assert script.placed(by_name) == {"node-2": [1]}


def test_host_cpus_and_memory_are_promised_once() -> None:
    script = cluster(8, cpus=16, memory_mib=1000)

    fits = script.submit(spec(2, cpus=8))
    waits = script.submit(spec(1, cpus=1))
    script.settle()

    assert script.placed(fits) == {"node-1": [0, 1]}
    assert script.job(waits).phase == "PENDING"
    check = explain(script.cluster, waits).filter.refused[0]  # type: ignore[union-attr]
    assert check.reason == "0 CPUs free, 1 asked for"


def test_jobs_without_devices_take_the_node_with_the_fewest_free_cpus() -> None:
    script = Script()
    script.node("node-1", 8, cpus=64)
    script.node("node-2", 0, cpus=8)

    job = script.submit(spec(0, cpus=4, memory=100))
    script.settle()

    assert script.placed(job) == {"node-2": []}


def test_two_jobs_of_forty_gib_and_half_the_compute_share_a_card_and_a_third_waits() -> None:
    script = cluster(1)
    half = GpuSpec(memory=40 * 1024, compute=0.5)

    jobs = [script.submit(spec(1, gpu=half)) for _ in range(3)]
    script.settle()

    assert [script.job(job).phase for job in jobs] == ["STARTING", "STARTING", "PENDING"]
    assert script.placed(jobs[0]) == script.placed(jobs[1]) == {"node-1": [0]}


def test_compute_is_its_own_dimension() -> None:
    script = cluster(1)

    jobs = [script.submit(spec(1, gpu=GpuSpec(memory=20 * 1024, compute=share))) for share in (0.5, 0.5, 0.1)]
    script.settle()

    assert script.job(jobs[2]).phase == "PENDING"
    check = explain(script.cluster, jobs[2]).filter.refused[0]  # type: ignore[union-attr]
    assert check.reason == "no device has 100 thousandths of compute free"


def test_free_halves_of_two_devices_are_no_room_for_more_than_half() -> None:
    script = cluster(2)
    for _ in range(2):
        script.submit(spec(1, gpu=GpuSpec(memory=1024, compute=0.6)))
    script.settle()

    job = script.submit(spec(1, gpu=GpuSpec(memory=1024, compute=0.8)))
    script.settle()

    assert script.job(job).phase == "PENDING"


def test_the_nominal_size_takes_the_whole_card() -> None:
    script = cluster(1)

    job = script.submit(spec(1, gpu=GpuSpec(memory=80 * 1024, compute=0.5)))
    other = script.submit(spec(1, gpu=GpuSpec(memory=1, compute=0.1)))
    script.settle()

    assert script.placed(job) == {"node-1": [0]}
    assert script.job(other).phase == "PENDING"


def test_gangs_with_rank_zero_at_one_address_never_share_a_port() -> None:
    script = Script()
    script.node("node-1", address="10.0.0.9")
    script.node("node-2", address="10.0.0.9")

    jobs = [script.submit(spec(1)) for _ in range(16)]
    script.settle()

    ports = {script.job(job).attempt.master_port for job in jobs}  # type: ignore[union-attr]
    assert len(ports) == 16
    assert all(21000 <= port <= 21999 for port in ports)


def test_a_pass_is_one_append_and_the_rest_is_the_next() -> None:
    script = Script(check=False)
    for number in range(1, 151):
        script.node(f"node-{number}", 8)
    for _ in range(1000):
        script.submit(spec(1))

    first, second = script.run_pass(), script.run_pass()

    assert len(first) == len(second) == 900
    assert first[0].basis.sequence == 1150  # type: ignore[union-attr]
    assert second[0].basis.sequence == 1150 + 900  # type: ignore[union-attr]
