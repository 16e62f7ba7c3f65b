"""An explanation held against brute force: each reason it gives is true, and removing all it names starts the job."""

import random

import msgspec
import pytest
from cluster_script import Script, spec
from device_script import fault, foreign
from law_world import (
    Amounts,
    Books,
    broken_bounds,
    can_place,
    compute_of,
    device_mib,
    free_now,
    nothing_runs,
    takes_none,
    takes_one,
)

from muster.core.explain import FITS, explain, summaries
from muster.core.explanation import Explanation, Reason
from muster.core.state import Job, Node
from muster.events import types as t
from muster.events.policy import Backfill, Lane, Policy, Preemption, QueueSpec
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, PreemptionSpec

SEEDS = range(100)
ROUNDS = 6
"""With work gone and bounds lifted it may be another's turn first, by shares or between users; with a node more in the
cluster, or work of a queue gone that lends nothing, more is kept for others. Then it is told anew."""
RESOURCES = ("devices", "device_memory", "cpus", "memory")
BOUND_NAMES = {
    "queue_limit": ["limit of {}"],
    "user_limit": ["own: user limit of {}"],
    "urgent_limit": ["own: urgent limit of {}"],
    "job_limit": ["own: job limit of {}", "own: job share of {}"],
    "kept": ["kept by others"],
    "lane": ["lane {}"],
}


# -- random clusters ------------------------------------------------------------------------------------------------


def some_queues(random_: random.Random) -> list[QueueSpec]:
    def portion(*choices: object) -> object:
        return random_.choice([None, None, *choices])

    names = random_.choice([["default"], ["default", "a"], ["default", "a", "b"], ["a", "a/x", "a/y", "default"]])
    guarantees: list[str | None] = random_.choice([[None] * 4, ["25%", "50%", "25%", None], ["50%", "25%", None, None]])
    return [
        QueueSpec(
            name,
            guarantee=guarantee,
            limit=portion(2, 4, "50%", "75%"),  # type: ignore[arg-type]
            borrow=portion(2),  # type: ignore[arg-type]
            lend=portion("0%", "50%"),  # type: ignore[arg-type]
            user_limit=portion(2, "50%"),  # type: ignore[arg-type]
            urgent_limit=portion(1, 2),  # type: ignore[arg-type]
            max_job_devices=portion(3),  # type: ignore[arg-type]
            order=portion("fifo", "priority", "fair", "sjf", "srsf", "las"),  # type: ignore[arg-type]
            reclaim=random_.choice(["preempt", "wait"]),
        )
        for name, guarantee in zip(names, guarantees, strict=False)
    ]


def some_policy(random_: random.Random) -> Policy:
    return Policy(
        order=random_.choice(["fifo", "priority", "fair", "srtf"]),
        backfill=Backfill(
            random_.choice(["none", "greedy", "easy", "easy", "conservative"]),
            random_.choice([1, 2, 100]),
            random_.choice(["place", "time"]),
        ),
        preemption=Preemption(random_.choice(["none", "cold"]), random_.choice([0, 60])),
        lanes=random_.choice([[], [], [Lane("quick", 1, 1)], [Lane("quick", 1, 1), Lane("short", 1, 2, 600)]]),
    )


def some_job(random_: random.Random, queues: list[str]) -> JobSpec:
    gpus = random_.choice([0, 1, 1, 1, 2, 2, 3, 4, 4, 6, 9])
    gpu = random_.choice(
        [GpuSpec()] * 4
        + [
            GpuSpec(compute=0.5, memory=20 * 1024),
            GpuSpec(compute=0.3),
            GpuSpec(model=["A"]),
            GpuSpec(model=["B", "C"]),
        ]
        + [GpuSpec(memory=40 * 1024, compute=0.1), GpuSpec(interconnect="none")]
    )
    estimate = random_.choice([None, None, 60, 600, 3600])
    return spec(
        gpus,
        cpus=random_.choice([None, 0, 1, 2]) if gpus else random_.choice([1, 4]),
        nodes=random_.choice([None, None, None, 1, 2, "any"]),
        gpu=gpu,
        queue=random_.choice(queues),
        priority=random_.choice([0, 300, 300, 600, 900]),
        limits=LimitsSpec(estimate=estimate, time_limit=random_.choice([None, 3600])),
        preemption=PreemptionSpec(allowed=random_.random() < 0.8),
    )


def some_cluster(seed: int) -> Script:
    """A small cluster with a history, at rest."""
    random_ = random.Random(seed)
    script = Script(check=False)
    queues = some_queues(random_)
    for queue in queues:
        script.append(t.QueueConfigured(queue, "root"))
    script.append(t.PolicyChanged(some_policy(random_), "root"))
    leaves = [q.name for q in queues if not any(other.name.startswith(f"{q.name}/") for other in queues)]
    for number in range(1, random_.randint(2, 4) + 1):
        model, fabric = random_.choice("AAB"), random_.choice(["f", "f", "g", ""])
        script.node(f"node-{number}", random_.randint(1, 4), model=model, fabric=fabric, cpus=random_.choice([4, 8]))
    for _ in range(random_.randint(6, 16)):
        script.submit(some_job(random_, leaves), random_.choice(["ada", "bob"]))
        if random_.random() < 0.4:
            happen(script, random_)
    script.settle()
    return script


def happen(script: Script, random_: random.Random) -> None:
    """Something goes on."""
    script.settle()
    jobs = script.cluster.state.jobs.values()
    for job in list(jobs):
        if job.phase == "STARTING":
            script.start(job.id)
    live = [job.id for job in jobs if job.phase in ("RUNNING", "STOPPING")]
    node = random_.choice(list(script.cluster.state.nodes.values()))
    match random_.choice(
        ["end", "time", "cordon", "silent", "refuse", "nothing", "device", "device", "foreign", "ill"]
    ):
        case "end" if live:
            script.exit(random_.choice(live))
        case "time":
            script.advance(random_.choice([10, 59]))
        case "cordon":
            script.append(t.NodeCordoned(node.name, "ada", "fan"))
        case "silent" if node.status == "ready":
            script.append(t.NodeSuspected(node.name, node.incarnation, 0, 600_000))
        case "device":
            what: t.FaultAction = random_.choice(["no_gangs", "suspect", "drain", "quarantine"])
            fault(script, random_.randrange(len(node.inventory.devices)), what, node.name)
        case "foreign":
            foreign(script, {random_.randrange(len(node.inventory.devices)): 50_000}, node.name)
        case "ill":
            script.append(t.NodeDegraded(node.name, node.incarnation, "nvml_hung", "no answer"))
        case "refuse" if live:
            script.job(random_.choice(live)).excluded  # noqa: B018  only nodes refuse


def waiting(script: Script) -> list[int]:
    return [job.id for job in script.cluster.state.jobs.values() if job.phase == "PENDING"]


def copied(script: Script) -> Script:
    copy = Script(check=False)
    copy.fold.apply_all(script.entries)
    copy.entries, copy.now_ns, copy.lives = list(script.entries), script.now_ns, dict(script.lives)
    return copy


# -- each reason is true --------------------------------------------------------------------------------------------


def check_reason(script: Script, job: Job, reason: Reason, told: Explanation) -> None:
    state = script.cluster.state
    books = Books(state)
    match reason.kind:
        case "capacity":
            assert not can_place(state, job, nothing_runs(books), anywhere=True)
        case "room":
            assert not can_place(state, job, free_now(books))
            assert told.allocation.free_devices == free_devices(books, job)
        case "fabric":
            assert not can_place(state, job, free_now(books))
            anyhow = msgspec.structs.replace(job.spec.gpu, interconnect="none")
            unlinked = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, gpu=anyhow))
            assert can_place(state, unlinked, free_now(books))
        case "cordon":
            assert reason.nodes
            assert all(state.nodes[name].cordoned for name in reason.nodes)
        case "silent":
            assert reason.nodes
            assert all(state.nodes[name].status != "ready" for name in reason.nodes)
        case "degraded":
            assert reason.nodes
            assert all(state.nodes[name].degraded for name in reason.nodes)
        case "devices":
            assert reason.nodes
            assert all(ill(state.nodes[name], job) for name in reason.nodes)
        case "reservation":
            assert reason.jobs
            assert set(reason.jobs) <= state.rooms.keys()
            reserved = {place.node for other in reason.jobs for place in state.rooms[other].placements}
            assert set(reason.nodes) <= reserved
        case "order" | "ahead":
            assert reason.jobs
            assert all(state.jobs[other].phase == "PENDING" for other in reason.jobs)
            assert job.id not in reason.jobs
        case _:
            check_bound(books, job, reason)


def check_bound(books: Books, job: Job, reason: Reason) -> None:
    assert reason.amounts
    claim = [0, 0, 0, 0]
    for amount in reason.amounts:
        assert amount.held + amount.adds > amount.bound
        claim[RESOURCES.index(amount.resource)] = amount.adds
    a, b, c, d = claim
    broken = broken_bounds(books, job, (a, b, c, d), staying=False)
    names = BOUND_NAMES[reason.kind]
    assert any(each.startswith(name.format(reason.name)) for each in broken for name in names), broken
    devices = next((amount.held for amount in reason.amounts if amount.resource == "devices"), None)
    if reason.kind == "queue_limit" and devices is not None:
        held: Amounts = books.held(reason.name, staying=False)
        assert held[0] == devices
        holders = books.live.keys() | books.rooms.keys()
        assert set(reason.jobs) <= holders


def ill(node: Node, job: Job) -> bool:
    """Whether something is wrong with devices of a node for a job."""
    return any(
        takes_none(node, device) or (job.spec.gpus > 1 and takes_one(node, device)) or device.uuid in node.foreign_mib
        for device in node.inventory.devices
    )


def free_devices(books: Books, job: Job) -> int:
    """How many devices of nodes that take new work have the memory and the compute asked for."""
    free = free_now(books)
    return sum(
        compute >= compute_of(job) and mib >= device_mib(job, device)
        for name, node in books.state.nodes.items()
        if node.status == "ready" and not (node.cordoned or node.strays or node.degraded)
        for device, (compute, mib) in zip(node.inventory.devices, free[name].devices, strict=True)
        if job.spec.gpu.model is None or device.model in job.spec.gpu.model
        if job.spec.gpus == 1 or not takes_one(node, device)
    )


# -- removing all that it names starts the job ------------------------------------------------------------------------


def remove(script: Script, job: Job, reason: Reason) -> None:
    state = script.cluster.state
    match reason.kind:
        case "capacity":
            for _ in range(job.spec.nodes if isinstance(job.spec.nodes, int) else 1):
                number = len(state.nodes) + 1
                model = (job.spec.gpu.model or ["A"])[0]
                script.node(f"node-{number}", max(1, job.spec.gpus), model=model, fabric="new", cpus=1000)
        case "cordon":
            for name in reason.nodes:
                script.append(t.NodeUncordoned(name, "ada"))
        case "silent":
            for name in reason.nodes:
                back(script, name)
        case "degraded":
            for name in reason.nodes:
                script.append(t.NodeRestored(name, state.nodes[name].incarnation))
        case "devices":
            for name in reason.nodes:
                heal(script, name)
        case "excluded":
            script.advance(600)
        case "lane":
            gone = reason.name.split(", ")
            lanes = [lane for lane in state.policy.lanes if lane.name not in gone]
            script.append(t.PolicyChanged(msgspec.structs.replace(state.policy, lanes=lanes), "root"))
        case "kept":
            for name in reason.name.split(", "):
                configure(script, name, lend=None)
        case "queue_limit":
            configure(script, reason.name, limit=None, borrow=None)
        case "user_limit":
            configure(script, reason.name, user_limit=None)
        case "urgent_limit":
            configure(script, reason.name, urgent_limit=None)
        case "job_limit":
            configure(script, reason.name, max_job_devices=None, max_job_share=None)
        case _:
            assert reason.jobs_count == len(reason.jobs)
            for other in reason.jobs:
                end(script, other)


def back(script: Script, name: str) -> None:
    """A silent node's agent is heard again, or begins a new life."""
    node = script.cluster.state.nodes[name]
    if node.status == "suspect":
        script.append(t.NodeRecovered(name, node.incarnation))
    else:
        script.append(t.NodeRegistered(name, f"{node.incarnation}-again", node.inventory, [], 120_000))


def heal(script: Script, name: str) -> None:
    """Nothing is wrong with a node's devices any more."""
    for uuid in list(script.cluster.state.nodes[name].conditions):
        script.append(t.DeviceUncordoned(name, uuid, "ada"))
    foreign(script, {}, name)


def configure(script: Script, name: str, **fields: object) -> None:
    queue = script.cluster.state.queues[name]
    script.append(t.QueueConfigured(msgspec.structs.replace(queue, **fields), "root"))


def end(script: Script, job_id: int) -> None:
    """A job goes, whatever it is doing."""
    job = script.job(job_id)
    if not job.cancelled_by:
        script.append(t.JobCancelRequested(job_id, "ada"))
    if job.phase == "STOPPING":
        script.exit(job_id, None, reason="stopped")


def starts(script: Script, job_id: int) -> bool:
    """Whether the job is placed by what follows, once whoever is stopped for it has gone."""
    before = script.job(job_id).attempts
    script.settle()
    room = script.cluster.state.rooms.get(job_id)
    if room is not None:
        for victim in room.victims:
            if script.job(victim.job).phase == "STOPPING":
                script.exit(victim.job, None, reason="stopped")
        script.settle()
    return script.job(job_id).attempts > before


def jobs_named(told: Explanation) -> set[int]:
    """Whose turn is before the job's."""
    return {other for reason in told.reasons if reason.kind in ("order", "ahead") for other in reason.jobs}


def another_state(told: Explanation, then: Explanation, named: set[int]) -> bool:
    """Whether it is another's turn now, or more is kept for others than before."""
    before, after = ({reason.kind for reason in each.reasons} for each in (told, then))
    kept = {"kept", "lane"}  # lanes count what other queues keep
    return bool(jobs_named(then) - named) or "capacity" in before or bool(kept & (after - before))


def remove_all(script: Script, job_id: int) -> Explanation:
    """Remove all that stands in a job's way, as it is told."""
    told = explain(script.cluster, job_id)
    for victim in told.reservation.awaits if told.reservation is not None else []:
        if script.job(victim.job).phase == "STOPPING":
            script.exit(victim.job, None, reason="stopped")
    for reason in told.reasons:
        remove(script, script.job(job_id), reason)
    return told


@pytest.mark.parametrize("seed", SEEDS)
def test_every_reason_is_true(seed: int) -> None:
    script = some_cluster(seed)
    before = script.fold.state_bytes()
    for job_id in waiting(script):
        told = explain(script.cluster, job_id)
        for reason in told.reasons:
            check_reason(script, script.job(job_id), reason, told)
        assert told.reasons or job_id in script.cluster.state.rooms, "it waits for no reason"
    assert script.fold.state_bytes() == before


@pytest.mark.parametrize("seed", SEEDS)
def test_removing_all_that_is_named_starts_the_job(seed: int) -> None:
    script = some_cluster(seed)
    for job_id in waiting(script):
        then = copied(script)
        named: set[int] = set()
        for _ in range(ROUNDS):
            others = {other: then.job(other).attempts for other in waiting(then) if other != job_id}
            told = remove_all(then, job_id)
            named |= jobs_named(told)
            if starts(then, job_id):
                break
            came_first = any(then.job(other).attempts > attempts for other, attempts in others.items())
            assert came_first or another_state(told, explain(then.cluster, job_id), named), f"{job_id}: {told}"
        else:
            raise AssertionError(f"{job_id} does not start, although others have long come to an end")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_line_in_the_queue_is_the_summary(seed: int) -> None:
    script = some_cluster(seed)
    jobs = waiting(script)
    assert summaries(script.cluster, jobs) == {job_id: explain(script.cluster, job_id).summary for job_id in jobs}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_told_of_the_next_pass_is_what_it_does(seed: int) -> None:
    script = some_cluster(seed)
    random_ = random.Random(seed)
    live = [job.id for job in script.cluster.state.jobs.values() if job.phase in ("RUNNING", "STOPPING")]
    if live and random_.random() < 0.5:
        script.exit(random_.choice(live))
    leaves = sorted({job.spec.queue for job in script.cluster.state.jobs.values()})
    for _ in range(3):
        script.submit(some_job(random_, leaves), random_.choice(["ada", "bob"]))
    jobs = waiting(script)
    told = summaries(script.cluster, jobs)
    reserved, attempts = set(script.cluster.state.rooms), {job_id: script.job(job_id).attempts for job_id in jobs}
    assert told == {job_id: explain(script.cluster, job_id).summary for job_id in jobs}

    script.run_pass()

    for job_id in jobs:
        started = script.job(job_id).attempts > attempts[job_id]
        assert started == (told[job_id] == FITS) or job_id in reserved
        assert (job_id in script.cluster.state.rooms) == ("stopped for it by the next pass" in told[job_id]) or (
            job_id in reserved
        )


ADVICE = {
    "queue_limit": "queue {} may hold ",
    "user_limit": "queue {} lets each user ",
    "urgent_limit": "queue {} lets urgent jobs ",
    "lane": "lane {} is ",
    "kept": " lends ",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_where_an_end_of_others_is_advised_it_would_do(seed: int) -> None:
    script = some_cluster(seed)
    for job_id in waiting(script):
        told = explain(script.cluster, job_id)
        advised = [need for need in told.needs if ", or " in need]
        alone = copied(script)
        for job in list(alone.cluster.state.jobs.values()):
            if job.id != job_id and job.phase in ("PENDING", "STARTING", "RUNNING", "STOPPING"):
                end(alone, job.id)
        alone.settle()
        for job in list(alone.cluster.state.jobs.values()):
            if job.id != job_id and job.phase == "STOPPING":
                alone.exit(job.id, None, reason="stopped")
        left = explain(alone.cluster, job_id).reasons if alone.job(job_id).phase == "PENDING" else []
        still = [ADVICE[reason.kind].format(reason.name) for reason in left if reason.kind in ADVICE]
        assert not [need for need in advised if any(words in need for words in still)]
