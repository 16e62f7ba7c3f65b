"""What Hypothesis draws: clusters, queues and policies, jobs, and what happens to them."""

from typing import Any

from hypothesis import strategies as st
from law_cluster import ACTIONS, Configure, Do, Govern, NodeShape, Setup, Step, Submit

from muster.core.policy_check import tree_problems
from muster.events.policy import Backfill, Lane, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, PreemptionSpec, RetrySpec, WhereSpec

TREES = [["default"], ["a", "b"], ["a", "b", "default"], ["a", "a/x", "a/y", "b"], ["a", "a/x", "a/y", "b", "b/z"]]


BOUNDS: list[dict[str, Any]] = [
    {},
    {},
    {"limit": "50%"},
    {"limit": 3},
    {"borrow": "0%"},
    {"borrow": "50%"},
    {"lend": "0%"},
    {"lend": "50%"},
    {"reclaim": "wait"},
    {"reclaim_step": 1},
    {"reclaim_step": "50%"},
    {"user_limit": 2},
    {"user_limit": "50%"},
    {"urgent_limit": 1},
    {"urgent_limit": "50%", "urgent_from": 600},
    {"max_job_devices": 2},
    {"max_job_share": "50%"},
]


@st.composite
def queue_specs(draw: st.DrawFn, name: str) -> QueueSpec:
    """A queue, mostly with a guarantee, some with one other bound."""
    pick = st.sampled_from
    return QueueSpec(
        name,
        weight=draw(pick([1, 1, 2, 3])),
        guarantee=draw(pick([None, "25%", "30%", "50%", "50%", "60%", 2])),
        order=draw(pick([None, None, None, "fifo", "priority", "fair", "sjf", "srtf", "srsf", "las"])),
        **draw(pick(BOUNDS)),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    pick = st.sampled_from
    sizes: list[int | str] = [1, 2, "25%"]
    lane = Lane("small", draw(pick(sizes)), draw(pick([1, 2])), draw(pick([None, None, 600])))
    return Policy(
        order=draw(pick(["priority", "priority", "fifo", "fair", "sjf", "srtf", "srsf", "las"])),
        ageing=draw(pick([10, 0, 100])),
        half_life=draw(pick([86_400, 600])),
        placement=draw(pick(["best-fit", "best-fit", "best-fit", "fragmentation", "tight", "spread"])),
        backfill=Backfill(
            draw(pick(["easy", "easy", "none", "greedy", "conservative"])),
            draw(pick([100, 100, 2, 0])),
            draw(pick(["place", "time"])),
        ),
        preemption=Preemption(draw(pick(["cold"] * 6 + ["none"])), draw(pick([0, 0, 60])), draw(pick([3, 1]))),
        lanes=draw(pick([[], [], [], [], [], [lane]])),
    )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    shapes = st.builds(
        NodeShape,
        st.sampled_from([4, 2, 3, 1]),
        st.sampled_from(["A", "A", "A", "B"]),
        st.sampled_from(["f", "f", "g", ""]),
        st.sampled_from([16, 16, 4]),
        st.just(65_536),
    )
    names = draw(st.sampled_from(TREES))
    queues = fitting([draw(queue_specs(name)) for name in names])
    return Setup(draw(st.lists(shapes, min_size=1, max_size=3)), queues, draw(policies()))


def fitting(queues: list[QueueSpec]) -> list[QueueSpec]:
    """The queues without the guarantees that do not go together."""
    found: dict[str, QueueSpec] = {}
    for queue in queues:
        for each in (queue, QueueSpec(queue.name, queue.weight, "25%", order=queue.order), QueueSpec(queue.name)):
            if not tree_problems({**found, queue.name: each}, Policy()):
                found[queue.name] = each
                break
    return list(found.values())


@st.composite
def job_specs(draw: st.DrawFn, leaves: list[str], nodes: int) -> JobSpec:
    pick = st.sampled_from
    gpus = draw(pick([1, 1, 1, 2, 2, 2, 3, 4, 5, 0]))
    shared = gpus and draw(pick([False, False, True]))
    gpu = GpuSpec(
        memory=draw(pick([None, 20 * 1024, 40 * 1024])) if shared else None,
        compute=draw(pick([None, 0.5, 0.3])) if shared else None,
        model=draw(pick([None, None, None, None, None, ["A"], ["A", "B"]])),
    )
    return JobSpec(
        command="true",
        name=draw(pick(["n", "m"])),
        queue=draw(pick(leaves)),
        priority=draw(pick([None, 0, 300, 600, 900])),
        gpus=gpus,
        nodes=draw(pick([None, None, None, None, None, None, None, "any", 1, 2])),
        cpus=draw(pick([None, None, 0, 2])) if gpus else draw(pick([1, 4])),
        gpu=gpu,
        where=WhereSpec([f"node-{draw(st.integers(1, nodes + 1))}"]) if draw(pick([0] * 9 + [1])) else WhereSpec(),
        limits=LimitsSpec(
            time_limit=draw(pick([None, None, 60, 600])),
            estimate=draw(pick([None, None, 30, 300])),
            on_timeout=draw(pick(["kill", "requeue"])),
        ),
        preemption=PreemptionSpec(allowed=draw(pick([True] * 5 + [False]))),
        retry=draw(pick([RetrySpec(), RetrySpec(1, []), RetrySpec(2, ["failed", "node_fail"])])),
    )


@st.composite
def stories(draw: st.DrawFn, rounds: int) -> tuple[Setup, list[Step]]:
    """A cluster and what happens to it, in rounds: some submissions, then what becomes of them."""
    setup = draw(setups())
    paths = [queue.name for queue in setup.queues] or ["default"]
    leaves = [path for path in paths if not any(other.startswith(path + "/") for other in paths)]
    submits = st.builds(Submit, st.sampled_from(["ada", "bob"]), job_specs(leaves, len(setup.nodes)))
    calm = ["start", "finish", "finish", "stopped", "all stopped", "pass", "settle", "quiet"]
    rough = [what for what in ACTIONS if what not in calm and what not in ("advance", "all started")]
    deeds = st.builds(Do, st.sampled_from(calm), st.integers(0, 5))
    times = st.builds(Do, st.just("advance"), st.sampled_from([61, 30, 1, 300, 700]))
    shocks = st.builds(Do, st.sampled_from(rough), st.integers(0, 20))
    rules = st.one_of(st.sampled_from(paths).flatmap(queue_specs).map(Configure), policies().map(Govern))
    step = st.one_of(deeds, deeds, deeds, deeds, times, times, shocks, rules)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, rounds))):
        steps += draw(st.lists(submits, min_size=1, max_size=4))
        steps.append(Do(draw(st.sampled_from(["settle", "settle", "pass"]))))
        steps += draw(st.sampled_from([[Do("all started")], [Do("all started"), Do("advance", 61)], []]))
        steps += draw(st.lists(step, max_size=4))
    return setup, steps


@st.composite
def contests(draw: st.DrawFn) -> tuple[Setup, list[Step]]:
    """A cluster full of work that may be stopped, and those who may stop it."""
    pick = st.sampled_from
    shape = NodeShape(draw(pick([4, 4, 3, 2])), cpus=draw(pick([16, 16, 4])))
    queues = fitting([draw(queue_specs(name)) for name in draw(pick(TREES))])
    paths = [queue.name for queue in queues]
    leaves = [path for path in paths if not any(other.startswith(path + "/") for other in paths)]
    first, depth = draw(pick([0, 0, 60])), draw(pick([100, 1]))
    policy = Policy(
        draw(pick(["priority", "fair", "las"])), backfill=Backfill(depth=depth), preemption=Preemption("cold", first)
    )

    def jobs(queues: list[str], priorities: list[int], most: int) -> list[Submit]:
        return [
            Submit(
                draw(pick(["ada", "bob"])),
                JobSpec(
                    command="true",
                    queue=draw(pick(queues)),
                    priority=draw(pick(priorities)),
                    gpus=draw(pick([1, 1, 2, 2, 3, 4])),
                    nodes=draw(pick([None, None, None, "any", 2])),
                    gpu=draw(pick([GpuSpec(), GpuSpec(), GpuSpec(), GpuSpec(compute=0.5, memory=20 * 1024)])),
                    limits=LimitsSpec(estimate=draw(pick([None, 300, 30]))),
                    preemption=PreemptionSpec(allowed=draw(pick([True] * 7 + [False]))),
                ),
            )
            for _ in range(draw(st.integers(2, most)))
        ]

    def deeds() -> list[Step]:
        calm = ["stopped", "all stopped", "quiet", "finish", "cancel", "settle"]
        rough = [
            "cordon",
            "suspect",
            "back",
            "uncordon",
            "refuse",
            "fault",
            "fault",
            "recover",
            "foreign",
            "turn",
            "shut",
        ]
        return [Do(draw(pick(calm * 3 + rough)), draw(st.integers(0, 20))) for _ in range(draw(st.integers(0, 4)))]

    steps: list[Step] = [
        *jobs([draw(pick(leaves)), draw(pick(leaves))], [0, 0, 300], 8),
        Do("settle"),
        Do("all started"),
    ]
    steps += [Do("advance", draw(pick([61, 30]))), *jobs(leaves, [300, 600, 900], 4), Do("settle"), *deeds()]
    steps += [*jobs(leaves, [0, 300, 600, 900], 3), Do("settle"), *deeds(), Do("advance", 61), Do("quiet")]
    return Setup([shape] * draw(pick([1, 2, 2, 3])), queues, policy), steps
