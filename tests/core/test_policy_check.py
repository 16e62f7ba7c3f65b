"""What is configured: each queue and the policy by itself, and the whole tree."""

from typing import Any

import pytest

from muster.core.conversion import Problem, SpecError
from muster.core.policy_check import check_policy, check_queue, check_queues, size_warnings, tree_problems
from muster.core.queues import Tree
from muster.events.policy import Backfill, Health, Lane, Policy, Preemption, QueueSpec


def test_queues_in_numbers() -> None:
    raw = {
        "queues": [
            {"name": "research", "weight": 3, "guarantee": "60%", "limit": 12, "priority": "P1", "urgent_from": "P1"},
            {"name": "research/vision", "guarantee": "12.5%", "reclaim": "wait", "order": "fair"},
        ]
    }
    assert check_queues(raw) == [
        QueueSpec("research", weight=3, guarantee="60%", limit=12, priority=600, urgent_from=600),
        QueueSpec("research/vision", guarantee="12.5%", reclaim="wait", order="fair"),
    ]


def test_a_policy_in_seconds() -> None:
    raw = {
        "order": "fair",
        "half_life": "7d",
        "backfill": {"mode": "none"},
        "preemption": {"min_runtime": "5m"},
        "lanes": [{"name": "small", "devices": "10%", "max_time": "1h30m"}],
        "health": {"errors": 5, "window": "2d", "probation": "0s"},
    }
    assert check_policy(raw) == Policy(
        order="fair",
        half_life=604_800,
        backfill=Backfill(mode="none"),
        preemption=Preemption(min_runtime=300),
        lanes=[Lane("small", "10%", max_time=5_400)],
        health=Health(errors=5, window=172_800, probation=0),
    )


def test_what_is_left_out_is_the_default() -> None:
    assert check_policy({}) == Policy()
    assert check_policy({"preemption": {"min_runtime": 0}}).preemption.min_runtime == 0
    assert check_queue({}, "a/b") == QueueSpec("a/b")
    assert check_queue({"name": "a/b", "weight": 2}, "a/b") == QueueSpec("a/b", weight=2)


@pytest.mark.parametrize(
    ("raw", "pointer", "words"),
    [
        (None, "", "Expected `object`"),
        ([], "", "Expected `object`"),
        ({}, "/queues", "required"),
        ({"queue": []}, "/queue", "unknown field; known here: queues"),
        ({"queues": {}}, "/queues", "Expected `array`"),
        ({"queues": ["a"]}, "/queues/0", "Expected `object`"),
        ({"queues": [{}]}, "/queues/0/name", "required"),
        ({"queues": [{"name": "A"}]}, "/queues/0/name", "a queue's name is its path: up to 8 names joined by /"),
        ({"queues": [{"name": "a/"}]}, "/queues/0/name", "each lower-case letters, digits, - and _"),
        ({"queues": [{"name": "a\n"}]}, "/queues/0/name", "up to 8 names joined by /"),
        ({"queues": [{"name": "a/b/c/d/e/f/g/h/i"}]}, "/queues/0/name", "up to 8 names"),
        (
            {"queues": [{"name": "a"}, {"name": "b", "wieght": 1}]},
            "/queues/1/wieght",
            "unknown field; known here: borrow,",
        ),
        ({"queues": [{"name": "a", "weight": 0}]}, "/queues/0/weight", ">= 1"),
        ({"queues": [{"name": "a", "guarantee": "60"}]}, "/queues/0/guarantee", 'such as "60%"'),
        ({"queues": [{"name": "a", "guarantee": "150%"}]}, "/queues/0/guarantee", "a percentage from 0% to 100%"),
        ({"queues": [{"name": "a", "guarantee": "33.333333333%"}]}, "/queues/0/guarantee", "at most two decimals"),
        ({"queues": [{"name": "a", "limit": 1.5}]}, "/queues/0/limit", "a number of devices"),
        ({"queues": [{"name": "a", "limit": -1}]}, "/queues/0/limit", ">= 0"),
        ({"queues": [{"name": "a", "max_job_share": 4}]}, "/queues/0/max_job_share", "Expected `str | null`"),
        (
            {"queues": [{"name": "a", "max_job_share": "half"}]},
            "/queues/0/max_job_share",
            "a percentage from 0% to 100% with",
        ),
        ({"queues": [{"name": "a", "reclaim": "never"}]}, "/queues/0/reclaim", "known here: preempt, wait"),
        ({"queues": [{"name": "a", "order": "lifo"}]}, "/queues/0/order", "known here: fifo, priority, fair"),
        ({"queues": [{"name": "a", "priority": "high"}]}, "/queues/0/priority", "known here: P0, P1, P2, P3"),
        ({"queues": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, "/queues/2/name", "there twice: also at /queues/0"),
        ({"queues": [{"name": f"q{n}"} for n in range(1001)]}, "/queues", "this must have at most 1000 entries"),
    ],
)
def test_what_is_wrong_with_queues_is_named_by_its_field(raw: Any, pointer: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_queues(raw)
    assert caught.value.problems[0].pointer == pointer
    assert words in caught.value.problems[0].detail


def test_a_queue_that_is_not_the_one_meant() -> None:
    with pytest.raises(SpecError) as caught:
        check_queue({"name": "b"}, "a")
    assert caught.value.problems[0] == ("/name", "this is about queue a, not b: leave the name out")


@pytest.mark.parametrize(
    ("raw", "pointer", "words"),
    [
        ([], "", "Expected `object`"),
        ({"order": "lifo"}, "/order", "known here: fifo, priority, fair"),
        ({"ageing": -1}, "/ageing", ">= 0"),
        ({"half_life": "0s"}, "/half_life", "more than nothing"),
        ({"half_life": "soon"}, "/half_life", "is no duration"),
        ({"backfill": "easy"}, "/backfill", "Expected `object`"),
        ({"backfill": {"mode": "eager"}}, "/backfill/mode", "known here: none, greedy, easy, conservative"),
        ({"backfill": {"deep": 1}}, "/backfill/deep", "unknown field; known here: depth, keep, mode"),
        ({"placement": "worst-fit"}, "/placement", "known here: best-fit, fragmentation, spread, tight"),
        ({"preemption": {"mode": "freeze"}}, "/preemption/mode", "known here: none, cold"),
        ({"preemption": {"min_runtime": "x"}}, "/preemption/min_runtime", "is no duration"),
        ({"health": {"errors": 0}}, "/health/errors", ">= 1"),
        ({"health": {"window": 0}}, "/health/window", "more than nothing"),
        ({"health": {"probation": "soon"}}, "/health/probation", "is no duration"),
        ({"topology": ["rack", ""]}, "/topology/1", "empty"),
        (
            {"lanes": [{"name": "Small", "devices": 1}]},
            "/lanes/0/name",
            "a name is lower-case letters, digits, - and _",
        ),
        ({"lanes": [{"name": "a"}]}, "/lanes/0/devices", "required"),
        ({"lanes": [{"name": "a", "devices": "all"}]}, "/lanes/0/devices", "a number of devices"),
        ({"lanes": [{"name": "a", "devices": 1, "size": 2}]}, "/lanes/0/size", "unknown field"),
        ({"lanes": [{"name": "a", "devices": 1, "max_time": 0}]}, "/lanes/0/max_time", "more than nothing"),
        (
            {"lanes": [{"name": f"l{n}", "devices": 1} for n in range(17)]},
            "/lanes",
            "this must have at most 16 entries",
        ),
    ],
)
def test_what_is_wrong_with_a_policy_is_named_by_its_field(raw: Any, pointer: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_policy(raw)
    assert caught.value.problems[0].pointer == pointer
    assert words in caught.value.problems[0].detail


def _tree(*queues: QueueSpec, lanes: tuple[Lane, ...] = ()) -> list[Problem]:
    return list(tree_problems({each.name: each for each in queues}, Policy(lanes=list(lanes))))


def test_trees_that_are_right() -> None:
    assert _tree() == []
    assert _tree(QueueSpec("default", guarantee="40%"), QueueSpec("research", guarantee="60%")) == []
    assert _tree(QueueSpec("a", guarantee=8), QueueSpec("a/b", guarantee="50%"), QueueSpec("a/c", guarantee=4)) == []
    assert _tree(QueueSpec("a", guarantee="50%"), QueueSpec("a/b", guarantee="100%", limit="50%")) == []
    assert _tree(QueueSpec("a"), QueueSpec("a/b", guarantee=0), QueueSpec("a/c", guarantee="0%")) == []
    assert _tree(QueueSpec("a", guarantee=64, limit="10%"), QueueSpec("b", guarantee="100%")) == []
    assert _tree(lanes=(Lane("x", "50%"), Lane("y", "49.99%"), Lane("z", 5))) == []


@pytest.mark.parametrize(
    ("queues", "pointer", "words"),
    [
        ([QueueSpec("a/b")], "/queues/a~1b/name", "there is no queue a for a/b to stand under"),
        ([QueueSpec("default"), QueueSpec("default/x")], "/queues/default~1x/name", "has none below it"),
        (
            [QueueSpec("a", guarantee="60%"), QueueSpec("b", guarantee="40.01%")],
            "/queues/b/guarantee",
            "the guarantees at the top are more than 100 %: a 60% + b 40.01%",
        ),
        (
            [QueueSpec("a", guarantee=8), QueueSpec("a/b", guarantee="50%"), QueueSpec("a/c", guarantee=5)],
            "/queues/a~1c/guarantee",
            "the guarantees below a are more than its 8 devices: a/b 4 devices + a/c 5 devices",
        ),
        (
            [QueueSpec("a", guarantee=8), QueueSpec("a/b", guarantee=9)],
            "/queues/a~1b/guarantee",
            "a/b is guaranteed 9 devices, more than the 8 devices of a above it",
        ),
        ([QueueSpec("a"), QueueSpec("a/b", guarantee="5%")], "/queues/a~1b/guarantee", "while a, above it, has no"),
        ([QueueSpec("a"), QueueSpec("a/b", guarantee=1)], "/queues/a~1b/guarantee", "while a, above it, has no"),
        (
            [QueueSpec("a", guarantee=9, limit=8)],
            "/queues/a/guarantee",
            "guaranteed 9 devices, but limited to 8 devices",
        ),
        ([QueueSpec("a", guarantee="9%", limit="8%")], "/queues/a/guarantee", "guaranteed 9 %, but limited to 8 %"),
        (
            [QueueSpec("a", guarantee="50%", limit="50%"), QueueSpec("a/b", guarantee="60%", limit="50%")],
            "/queues/a~1b/guarantee",
            "a/b is guaranteed 30 %, but limited to 25 %",
        ),
    ],
)
def test_trees_that_are_wrong(queues: list[QueueSpec], pointer: str, words: str) -> None:
    found = _tree(*queues)
    assert found[0][0] == pointer
    assert words in found[0][1]


def test_lanes_that_leave_nothing() -> None:
    assert _tree(lanes=(Lane("x", "50%"), Lane("y", "50%"))) == [
        ("/policy/lanes/1/devices", "lanes may keep less than 100 % of the cluster: x 50% + y 50%")
    ]
    assert _tree(lanes=(Lane("x", 1), Lane("x", 2))) == [("/policy/lanes/1/name", "lane x is there twice")]


def _warnings(*queues: QueueSpec, devices: int = 8) -> list[str]:
    total = (devices * 1000, devices * 81_000, devices * 8, devices * 65_536)
    return size_warnings(Tree({each.name: each for each in queues}, Policy(), total))


def test_guarantees_above_what_the_cluster_has() -> None:
    assert _warnings(QueueSpec("a", guarantee=8), QueueSpec("a/b", guarantee="100%")) == []
    assert _warnings(QueueSpec("a", guarantee=9), QueueSpec("a/b", guarantee=1)) == [
        "queue a is guaranteed 9 devices; the cluster has 8 devices now"
    ]
    assert _warnings(QueueSpec("a", guarantee=5), QueueSpec("b", guarantee="50%")) == [
        "the queues at the top are guaranteed 9 devices together (a 5 + b 50%); the cluster has 8 devices now"
    ]
    assert _warnings(QueueSpec("a", guarantee=1), devices=0) == []


def test_more_queues_than_there_may_be() -> None:
    queues = {f"q{number}": QueueSpec(f"q{number}") for number in range(1001)}
    assert tree_problems(queues, Policy()) == [("/queues", "1001 queues are more than 1000, which is the most")]
