"""What a queue could never take is refused with the sum: on four devices, 32 CPUs and 256 GiB, or on 16 devices."""

from typing import Any

import pytest

from muster.core.queue_check import queue_problems, size_problems, whole_tree
from muster.core.queues import Tree
from muster.core.state import Node, State
from muster.events.policy import Lane, Policy, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec
from muster.events.types import Device, Inventory

FOUR = (4_000, 4 * 81_000, 32, 262_144)


def spec(gpus: int = 1, **fields: Any) -> JobSpec:
    return JobSpec(command=["true"], gpus=gpus, **fields)


def tree(*queues: QueueSpec, lanes: tuple[Lane, ...] = (), devices: int = 4) -> Tree:
    total = (devices * 1000, devices * 81_000, FOUR[2] * devices // 4, FOUR[3] * devices // 4)
    return Tree({queue.name: queue for queue in queues}, Policy(lanes=list(lanes)), total)


def sizes(found: Tree, gpus: int = 1, queue: str = "default", **fields: Any) -> list[tuple[str, str]]:
    return list(size_problems(spec(gpus, queue=queue, **fields), found))


def test_a_queue_that_is_not_there_names_those_that_are() -> None:
    found = tree(QueueSpec("research"), QueueSpec("research/vision"), QueueSpec("ops"))

    assert queue_problems(spec(queue="reserach"), found) == [
        (
            "/queue",
            "there is no queue 'reserach'; queues: default, ops, research/vision. `muster queues apply FILE` makes one",
        )
    ]
    assert queue_problems(spec(queue="research"), found) == [
        ("/queue", "jobs do not wait in research itself, but in the queues below it: research/vision")
    ]
    assert queue_problems(spec(queue="research/vision"), found) == []
    assert queue_problems(spec(), tree()) == []


def test_of_very_many_queues_twenty_are_named() -> None:
    found = tree(*(QueueSpec(f"q{number:02}") for number in range(40)))

    assert "q18 and 21 more." in queue_problems(spec(queue="x"), found)[0].detail


@pytest.mark.parametrize(
    ("queue", "fields", "pointer", "words"),
    [
        ({"max_job_devices": 2}, {"gpus": 3}, "/gpus", "asks for 3; queue q takes jobs of at most 2 devices"),
        ({"max_job_share": "25%"}, {"gpus": 2}, "/gpus", "in queue q one job is limited to 1 device"),
        ({"limit": 2}, {"gpus": 3}, "/gpus", "asks for 3 devices; queue q is limited to 2 devices"),
        ({"guarantee": 1, "borrow": 1}, {"gpus": 3}, "/gpus", "queue q is limited to 2 devices"),
        ({"user_limit": 1}, {"gpus": 2}, "/gpus", "in queue q one user is limited to 1 device"),
        ({"limit": "50%", "user_limit": "50%"}, {"gpus": 2}, "/gpus", "in queue q one user is limited to 1 device"),
        (
            {"urgent_limit": 1},
            {"gpus": 2, "priority": 900},
            "/gpus",
            "in queue q jobs of priority 900 and above are limited to 1 device",
        ),
        (
            {"urgent_limit": 1, "priority": 950},
            {"gpus": 2},
            "/gpus",
            "in queue q jobs of priority 900 and above are limited to 1 device",
        ),
        ({"limit": "50%"}, {"gpus": 2, "cpus": 9}, "/cpus", "asks for 18 CPUs; queue q is limited to 16 CPUs"),
        ({"limit": "50%"}, {"gpus": 0, "cpus": 17}, "/cpus", "asks for 17 CPUs; queue q is limited to 16 CPUs"),
        ({"limit": "3.13%"}, {"gpus": 0, "cpus": 2}, "/cpus", "asks for 2 CPUs; queue q is limited to 1 CPU"),
        ({"limit": "50%"}, {"memory": 131_073}, "/memory", "queue q is limited to 128 GiB of host memory"),
    ],
)
def test_a_job_above_a_bound(queue: dict[str, Any], fields: dict[str, Any], pointer: str, words: str) -> None:
    found = sizes(tree(QueueSpec("q", **queue)), **{"queue": "q", **fields})

    assert [place for place, _ in found] == [pointer]
    assert words in found[0][1]


@pytest.mark.parametrize(
    ("queue", "fields"),
    [
        ({"max_job_devices": 2}, {"gpus": 2}),
        ({"limit": "50%"}, {"gpus": 2, "cpus": 8, "memory": 65_536}),
        ({"limit": 2}, {"gpus": 2, "cpus": 16}),  # a number of devices bounds devices only
        ({"limit": 1}, {"gpus": 2, "gpu": GpuSpec(compute=0.5, memory=8_192)}),
        ({"urgent_limit": 1}, {"gpus": 2, "priority": 899}),
        ({"limit": 0}, {"gpus": 0, "cpus": 32}),
    ],
)
def test_a_job_within_its_bounds(queue: dict[str, Any], fields: dict[str, Any]) -> None:
    assert sizes(tree(QueueSpec("q", **queue)), **{"queue": "q", **fields}) == []


def test_bounds_of_the_queues_above_count() -> None:
    found = tree(QueueSpec("a", limit="50%"), QueueSpec("a/b"), QueueSpec("a/c", limit="50%"))

    assert [text for _, text in sizes(found, 3, "a/b")] == [
        "asks for 3 devices; queue a/b is limited to 2 devices",
        "asks for 3 devices; queue a is limited to 2 devices",
    ]
    assert [text for _, text in sizes(found, 2, "a/c")] == ["asks for 2 devices; queue a/c is limited to 1 device"]


def test_devices_that_a_lane_keeps_are_in_the_sum() -> None:
    small = Lane("small", 1)

    ((pointer, words),) = sizes(tree(lanes=(small,)), 4)
    assert pointer == "/gpus"
    assert words == (
        "asks for 4 devices: the cluster has 4, of which lane small keeps 1 for jobs of at most 1 device, so 3 are left"
    )
    assert sizes(tree(lanes=(small,)), 3) == []
    assert sizes(tree(lanes=(small,)), 4, gpu=GpuSpec(compute=0.75, memory=8_192)) == []


def test_several_lanes_add_up_for_jobs_that_none_admits() -> None:
    lanes = (Lane("one", 1), Lane("two", "25%", max_devices=2, max_time=3600))
    short = LimitsSpec(time_limit=3600)

    assert sizes(tree(lanes=lanes), 3)[0][1] == (
        "asks for 3 devices: the cluster has 4, of which lane one keeps 1 for jobs of at most 1 device and lane two"
        " keeps 1 for jobs of at most 2 devices and at most 1h, so 2 are left"
    )
    assert sizes(tree(lanes=lanes), 2) == []
    assert sizes(tree(lanes=(Lane("one", 1), Lane("two", 3, max_devices=2))), 2, limits=short) == []
    assert sizes(tree(lanes=(Lane("one", 3), Lane("two", 1, max_devices=2))), 2)[0][1].endswith("so 1 is left")


def keepers(lend: int | str) -> Tree:
    below = QueueSpec("gamma/sub", guarantee="50%", lend=lend)
    return tree(QueueSpec("gamma", guarantee="50%"), below, QueueSpec("q"), devices=16)


def test_what_a_queue_lends_to_nobody_is_kept_from_the_others() -> None:
    assert sizes(keepers(0), 12, "q") == []
    ((pointer, words),) = sizes(keepers(0), 13, "q")
    assert (pointer, words.split(": ")[1]) == (
        "/gpus",
        "the cluster has 16, of which queue gamma/sub keeps 4 that it lends to nobody, so 12 are left",
    )
    assert sizes(keepers(0), 16, "gamma/sub") == []


def test_a_percentage_keeps_of_everything() -> None:
    assert sizes(keepers(0), 1, "q", cpus=97) == []
    ((pointer, words),) = sizes(keepers("0%"), 1, "q", cpus=97)
    assert (pointer, words.split(": ")[1]) == (
        "/cpus",
        "the cluster has 128 CPUs, of which queue gamma/sub keeps 32 CPUs that it lends to nobody, so 96 CPUs are left",
    )


def test_lanes_and_what_queues_keep_are_one_sum() -> None:
    lane = Lane("quick", 2, max_time=5400)
    found = tree(QueueSpec("a", guarantee=4, lend=1), QueueSpec("q"), lanes=(lane,), devices=16)

    assert sizes(found, 11, "q") == []
    ((pointer, words),) = sizes(found, 12, "q")
    assert pointer == "/gpus"
    assert words == (
        "asks for 12 devices: the cluster has 16, of which lane quick keeps 2 for jobs of at most 1 device and at most"
        " 1h30m and queue a keeps 3 that it lends to nobody, so 11 are left"
    )
    assert sizes(found, 14, "a") == []


def test_lost_nodes_still_count() -> None:
    def node(name: str, **more: Any) -> Node:
        devices = [Device(index, f"{name}-{index}", "A100-80GB", 81_000, 81_920) for index in range(8)]
        return Node(name, "life", Inventory(devices, 128, 1 << 20, "10.0.0.1"), 120_000, 0, **more)

    state = State(nodes={"a": node("a"), "b": node("b", status="lost")}, queues={"q": QueueSpec("q", limit="50%")})
    seen = Tree(state.queues, state.policy, (8_000, 648_000, 128, 1 << 20))

    assert len(sizes(seen, 8, "q")) == 1
    assert sizes(whole_tree(state, seen), 8, "q") == []
    assert len(sizes(whole_tree(state, seen), 9, "q")) == 1
    state.nodes["b"] = node("b")
    assert whole_tree(state, seen) is seen
