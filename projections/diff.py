"""What became of jobs, nodes and devices from one state to a later one of the same log. Pure.

Whatever differs is told as it was and as it is. Jobs that ended and left the state in between are not in the later one:
whoever has them as they ended hands them in.
"""

from collections.abc import Iterator, Mapping

import msgspec

from muster.core.health import in_words
from muster.core.state import ENDED, Job, JobPhase, Node, State


class Held(msgspec.Struct, frozen=True):
    """Devices of a node, by number."""

    node: str
    devices: list[int]


class JobSide(msgspec.Struct, frozen=True):
    """A job at one moment; `place` is where its workers are, or were where it has ended. `began`: its present or last
    attempt has run."""

    state: JobPhase
    place: list[Held]
    attempts: int
    preemptions: int
    priority: int
    began: bool
    exit_code: int | None


class JobChange(msgspec.Struct, frozen=True):
    """A job before (None = it had not been submitted) and after, and in words what became of it, in order: `came`,
    `placed`, `started`, `preempted`, `requeued`, `stopping`, `ended`, `changed`; behind some of them how often."""

    id: int
    user: str
    name: str
    queue: str
    gpus: int
    what: list[str]
    before: JobSide | None
    after: JobSide


class NodeSide(msgspec.Struct, frozen=True):
    """A node at one moment; "" = it is not cordoned, not degraded, on no fabric, of no known driver."""

    status: str
    cordoned: str
    degraded: str
    incarnation: str
    devices: int
    cpus: int
    memory_mib: int
    fabric: str
    driver: str


class NodeChange(msgspec.Struct, frozen=True):
    """A node before (None = it had not registered) and after (None = it is gone)."""

    node: str
    before: NodeSide | None
    after: NodeSide | None


class DeviceSide(msgspec.Struct, frozen=True):
    """A device at one moment: the jobs that hold it, what is wrong with it ("" = nothing), who shut it and why ("" =
    nobody), and what processes hold that are nobody's work here."""

    jobs: list[int] = []
    condition: str = ""
    cordoned: str = ""
    foreign_mib: int = 0


class DeviceChange(msgspec.Struct, frozen=True):
    """Devices of a node, known by their uuids, that were alike and are; their numbers are those after, or those before
    where they are gone. None = not there."""

    node: str
    devices: list[int]
    uuids: list[str]
    before: DeviceSide | None
    after: DeviceSide | None


class Difference(msgspec.Struct, frozen=True):
    """All of it: jobs by id, nodes and devices by name and number."""

    jobs: list[JobChange]
    nodes: list[NodeChange]
    devices: list[DeviceChange]


def unsettled(before: State, after: State) -> list[int]:
    """Jobs that had not ended before and have left the state since."""
    return [job_id for job_id, job in before.jobs.items() if job.phase not in ENDED and job_id not in after.jobs]


def difference(before: State, after: State, left: Mapping[int, Job]) -> Difference:
    """What became of everything; `left` are jobs that have left the state, as they ended."""
    jobs = {**left, **after.jobs}
    return Difference(
        jobs=[
            change for job_id in sorted(jobs) if (change := _job_change(before.jobs.get(job_id), jobs[job_id], before))
        ],
        nodes=list(_node_changes(before, after)),
        devices=list(_device_changes(before, after)),
    )


# -- jobs ---------------------------------------------------------------------------------------------------------


def _job_change(was: Job | None, now: Job, before: State) -> JobChange | None:
    if was is None and now.id <= before.sequence:
        return None  # it had left the state long before
    then, since = _job_side(was) if was is not None else None, _job_side(now)
    if was is not None and then == since and was.spec == now.spec:
        return None
    what = list(_what(then, since))
    return JobChange(now.id, now.user, now.spec.name, now.spec.queue, now.spec.gpus, what or ["changed"], then, since)


def _job_side(job: Job) -> JobSide:
    attempt = job.attempt if job.phase != "PENDING" else None
    return JobSide(
        state=job.phase,
        place=[Held(worker.node, worker.devices) for worker in attempt.workers] if attempt is not None else [],
        attempts=job.attempts,
        preemptions=job.preemptions,
        priority=job.priority,
        began=attempt is not None and attempt.started_ns > 0,
        exit_code=job.exit_code,
    )


def _what(then: JobSide | None, now: JobSide) -> Iterator[str]:
    if then is None:
        yield "came"
    placed = now.attempts - (then.attempts if then is not None else 0)
    if placed > 0:
        yield _times("started" if now.began or placed > 1 else "placed", placed)
    elif now.began and then is not None and not then.began:
        yield "started"
    if preempted := now.preemptions - (then.preemptions if then is not None else 0):
        yield _times("preempted", preempted)
    if now.state == "PENDING" and (placed > 0 or (then is not None and then.state != "PENDING")):
        yield "requeued"
    if now.state == "STOPPING" and (then is None or then.state != "STOPPING"):
        yield "stopping"
    if now.state in ENDED and (then is None or then.state not in ENDED):
        yield "ended"


def _times(word: str, count: int) -> str:
    return word if count == 1 else f"{word} {count} times"


# -- nodes and devices --------------------------------------------------------------------------------------------


def _node_changes(before: State, after: State) -> Iterator[NodeChange]:
    for name in sorted(before.nodes.keys() | after.nodes.keys()):
        then, now = _node_side(before.nodes.get(name)), _node_side(after.nodes.get(name))
        if then != now:
            yield NodeChange(name, then, now)


def _node_side(node: Node | None) -> NodeSide | None:
    if node is None:
        return None
    has = node.inventory
    return NodeSide(
        status=node.status,
        cordoned=node.cordoned,
        degraded=node.degraded,
        incarnation=node.incarnation,
        devices=len(has.devices),
        cpus=has.cpus,
        memory_mib=has.memory_mib,
        fabric=has.fabric,
        driver=has.driver,
    )


def _device_changes(before: State, after: State) -> Iterator[DeviceChange]:
    then, now = _device_sides(before), _device_sides(after)
    unlike: dict[tuple[str, bytes], list[tuple[int, str]]] = {}
    sides: dict[tuple[str, bytes], tuple[DeviceSide | None, DeviceSide | None]] = {}
    for node, uuid in then | now:
        (was_number, was), (number, side) = then.get((node, uuid), _NOWHERE), now.get((node, uuid), _NOWHERE)
        has_node = node in before.nodes and node in after.nodes
        comes_with_node = not has_node and (was or side) == _IDLE
        if was != side and not comes_with_node:
            alike = (node, msgspec.json.encode((was, side)))
            sides[alike] = was, side
            unlike.setdefault(alike, []).append((was_number if side is None else number, uuid))
    for alike in sorted(unlike, key=lambda alike: (alike[0], min(unlike[alike]))):
        numbers, uuids = zip(*sorted(unlike[alike]), strict=True)
        yield DeviceChange(alike[0], list(numbers), list(uuids), *sides[alike])


_IDLE = DeviceSide()
_NOWHERE: tuple[int, DeviceSide | None] = (0, None)


def _device_sides(state: State) -> dict[tuple[str, str], tuple[int, DeviceSide | None]]:
    """(node, uuid) → the device's number there, and the device."""
    holders: dict[tuple[str, int], list[int]] = {}
    for job in state.jobs.values():
        for worker in job.attempt.workers if job.attempt is not None else ():
            if worker.phase != "gone":
                for number in worker.devices:
                    holders.setdefault((worker.node, number), []).append(job.id)
    return {
        (node.name, uuid): (number, _device_side(node, number, uuid, holders))
        for node in state.nodes.values()
        for number, uuid in enumerate(node.uuids())
    }


def _device_side(node: Node, number: int, uuid: str, holders: Mapping[tuple[str, int], list[int]]) -> DeviceSide:
    wrong = node.conditions.get(uuid)
    return DeviceSide(
        jobs=sorted(holders.get((node.name, number), [])),
        condition=f"{wrong.action}: {in_words(wrong.cause, wrong.xid, wrong.detail)}" if wrong is not None else "",
        cordoned=node.device_cordons.get(uuid, ""),
        foreign_mib=node.foreign_mib.get(uuid, 0),
    )
