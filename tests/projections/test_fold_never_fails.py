"""Whatever anybody may write, in any order, is applied or refused: random events of every type, from small values."""

import random
from typing import Any

import msgspec
import pytest
from cluster_script import Script, spec

from muster.core.cluster import Cluster
from muster.core.decide import decide
from muster.core.explain import explain, summaries
from muster.core.forecast import expected_starts
from muster.events import codec
from muster.events import types as t
from muster.events.subjects import subject_of
from muster.projections.fold import Fold

EVENT_TYPES = t.Event.__args__
WORDS = ["node-1", "node-2", "node-1-life-1", "node-1-life-2", "ada", "default", "f"]
NUMBERS = [0, 0, 1, 1, 2, 3, 4, 8, 1000, 21000, (1 << 31)]


def some(kind: msgspec.inspect.Type, random_: random.Random) -> Any:
    """A random value of a type."""
    match kind:
        case msgspec.inspect.IntType(ge=low, le=high):
            return min(max(random_.choice(NUMBERS), low or 0), high or 1 << 31)
        case msgspec.inspect.StrType():
            return random_.choice(WORDS)
        case msgspec.inspect.FloatType():
            return random_.choice([0.25, 0.5, 1.0])
        case msgspec.inspect.BoolType():
            return random_.random() < 0.5
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.LiteralType(values=values):
            return random_.choice(values)
        case msgspec.inspect.UnionType(types=kinds):
            return some(random_.choice(kinds), random_)
        case msgspec.inspect.ListType(item_type=item, min_length=least):
            return [some(item, random_) for _ in range(random_.randint(least or 0, 3))]
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return {some(key, random_): some(value, random_) for _ in range(random_.randint(0, 1))}
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return cls(
                **{
                    field.name: some(field.type, random_)
                    for field in fields
                    if field.required or random_.random() < 0.5
                }
            )
        case _:
            raise AssertionError(kind)


def plausible(event: t.Event, script: Script, random_: random.Random) -> t.Event:
    """The event, about things that are there."""
    state = script.cluster.state
    changes: dict[str, Any] = {}
    names = set(event.__struct_fields__)
    job = random_.choice(list(state.jobs.values())) if state.jobs else None
    if job is not None and "job" in names:
        changes["job"] = job.id
        if "attempt" in names:
            changes["attempt"] = job.attempts + isinstance(event, t.JobAllocated)
    node = random_.choice(list(state.nodes.values()))
    if job is not None and job.attempt is not None and job.attempt.workers:
        worker = random_.choice(job.attempt.workers)
        node = state.nodes.get(worker.node, node)
        changes |= {"rank": worker.rank} if "rank" in names else {}
    changes |= {"node": node.name} if "node" in names else {}
    changes |= {"incarnation": node.incarnation} if "incarnation" in names else {}
    if node.inventory.devices:
        uuid = random_.choice(node.inventory.devices).uuid
        changes |= {"uuid": uuid} if "uuid" in names else {}
        if isinstance(event, t.DeviceFaulted):
            changes["fault"] = msgspec.structs.replace(event.fault, uuid=uuid, job=random_.choice([0, event.fault.job]))
        if isinstance(event, t.ForeignUsageChanged):
            changes["foreign"] = [msgspec.structs.replace(use, uuid=uuid) for use in event.foreign]
    if isinstance(event, t.JobSubmitted):
        changes["spec"] = spec(random_.randint(1, 9), nodes=random_.choice([None, None, "any"]))
    if isinstance(event, t.NodeRegistered) and random_.random() < 0.8:
        reports = [
            t.WorkerReport(job_id, state.jobs[job_id].attempts, rank, 7)
            for job_id, rank in script.cluster.workers_on[node.name]
        ]
        inventory = node.inventory
        if random_.random() < 0.3:
            found = random_.sample(inventory.devices, random_.randint(0, len(inventory.devices)))
            renamed = [msgspec.structs.replace(device, index=place) for place, device in enumerate(found)]
            inventory = msgspec.structs.replace(inventory, devices=renamed)
        inventory = msgspec.structs.replace(inventory, topology=[])
        changes |= {"inventory": inventory, "workers": reports, "incarnation": f"life-{state.sequence}"}
    return msgspec.structs.replace(event, **changes)


@pytest.mark.parametrize("seed", range(30))
def test_random_events_are_applied_or_refused_and_the_state_can_always_be_written(seed: int) -> None:
    random_ = random.Random(seed)
    script = Script(check=False)
    script.node("node-1")
    script.node("node-2")
    for _ in range(300):
        kind = random_.choice(EVENT_TYPES)
        event = some(msgspec.inspect.type_info(kind), random_)
        if random_.random() < 0.8:
            event = plausible(event, script, random_)
        script.append_raw(subject_of(event, "default"), codec.encode(event))
        if random_.random() < 0.3:
            script.run_pass()
        if random_.random() < 0.1:
            script.now_ns += random_.choice([1, 30, 400]) * 1_000_000_000

    written = script.fold.state_bytes()

    assert Fold.restore(written).state_bytes() == written
    assert decide(Cluster(script.cluster.state)) == decide(script.cluster)


@pytest.mark.parametrize("seed", range(30))
def test_every_job_can_be_explained_whatever_happened(seed: int) -> None:
    random_ = random.Random(seed)
    script = Script(check=False)
    script.node("node-1")
    script.node("node-2", fabric="f")
    for _ in range(100):
        event = some(msgspec.inspect.type_info(random_.choice(EVENT_TYPES)), random_)
        if random_.random() < 0.8:
            event = plausible(event, script, random_)
        script.append_raw(subject_of(event, "default"), codec.encode(event))
        if random_.random() < 0.3:
            script.run_pass()
        if random_.random() < 0.2:
            jobs = list(script.cluster.state.jobs)
            before = script.fold.state_bytes()
            for job in jobs:
                assert explain(script.cluster, job).summary
            assert summaries(script.cluster, jobs).keys() <= set(jobs)
            assert expected_starts(script.cluster, 10).keys() <= set(jobs)
            assert script.fold.state_bytes() == before


OUTSIDE = [
    *t.NodeFact.__args__,
    *t.NodeFact.__args__,
    t.WorkerStarted,
    t.WorkerExited,
    t.JobSubmitted,
    t.JobSubmitted,
    t.JobCancelRequested,
    t.NodeUncordoned,
    t.NodeUncordoned,
    t.DeviceCordoned,
    t.DeviceUncordoned,
    t.DeviceUncordoned,
    t.NodeSuspected,
    t.NodeRecovered,
]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_people_and_agents_report_the_invariants_hold_after_every_entry(seed: int) -> None:
    random_ = random.Random(seed)
    script = Script()
    script.node("node-1", fabric="f")
    script.node("node-2", fabric="f")
    for _ in range(150):
        decided = decide(script.cluster) if random_.random() < 0.5 else []
        for _ in range(random_.randint(1, 2)):  # facts may land between a pass's basis and its append
            kind = random_.choice(OUTSIDE)
            event = plausible(some(msgspec.inspect.type_info(kind), random_), script, random_)
            script.append_raw(subject_of(event, "default"), codec.encode(event))
        for event in decided:
            script.append_raw(subject_of(event, "default"), codec.encode(event))
        if random_.random() < 0.1:
            script.now_ns += random_.choice([1, 30, 400]) * 1_000_000_000
        if random_.random() < 0.3:
            assert decide(Cluster(script.cluster.state)) == decide(script.cluster)
