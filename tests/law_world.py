"""What the laws are held against: sums, bounds and places worked out from the raw state, not by the core's means.

Nothing here looks at an index of the core's. Amounts are (thousandths of devices, device MiB, CPUs, host MiB).
"""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from muster.core.state import Job, Node, Room, State
from muster.events.policy import Lane, QueueSpec
from muster.events.types import Device, Inventory

Amounts = tuple[int, int, int, int]
ZERO: Amounts = (0, 0, 0, 0)
NO_BOUND = 10**18
FREE: Amounts = (NO_BOUND, NO_BOUND, NO_BOUND, NO_BOUND)
SECOND = 1_000_000_000


class Piece(NamedTuple):
    """What one worker of a job has of one node."""

    node: str
    devices: tuple[int, ...]
    workers: int  # of the whole gang


Holding = list[Piece]


def add(*many: Amounts) -> Amounts:
    return sum(a[0] for a in many), sum(a[1] for a in many), sum(a[2] for a in many), sum(a[3] for a in many)


def less(a: Amounts, b: Amounts) -> Amounts:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]


def inside(a: Amounts, bound: Amounts) -> bool:
    return all(part <= most for part, most in zip(a, bound, strict=True))


# -- what a job asks for, and what it has ---------------------------------------------------------------------------


def compute_of(job: Job) -> int:
    share = job.spec.gpu.compute
    return 1000 if share is None else max(1, round(1000 * share))


def occupied(job: Job, device: Device) -> int:
    """Thousandths of a device, by compute or by memory, whichever is more."""
    return max(compute_of(job), math.ceil(Fraction(1000 * device_mib(job, device), device.memory_mib)))


def device_mib(job: Job, device: Device) -> int:
    asked = job.spec.gpu.memory
    if asked is None:
        return device.memory_mib
    assert isinstance(asked, int)
    if asked > device.nominal_mib:
        return asked
    return device.memory_mib if asked >= device.memory_mib else max(1, asked * device.memory_mib // device.nominal_mib)


def host_of(job: Job, devices: int, workers: int) -> tuple[int, int]:
    """CPUs and host MiB of one worker."""
    spec = job.spec
    memory = spec.memory or 0
    assert isinstance(memory, int)
    if spec.gpus:
        return (1 if spec.cpus is None else spec.cpus) * devices, memory * devices
    return -(-(spec.cpus or 0) // workers), -(-memory // workers)


def amounts(state: State, job: Job, holding: Holding) -> Amounts:
    """What a holding counts; what is on a lost node counts no more than the node."""
    total = ZERO
    for piece in holding:
        if state.nodes[piece.node].status == "lost":
            continue
        devices = state.nodes[piece.node].inventory.devices
        cpus, memory = host_of(job, len(piece.devices), piece.workers)
        there = [devices[i] for i in piece.devices if i < len(devices)]
        mib = sum(device_mib(job, device) for device in there)
        total = add(total, (sum(occupied(job, device) for device in there), mib, cpus, memory))
    return total


def holding_of(job: Job) -> Holding:
    """What the workers that are not gone have."""
    if job.attempt is None or job.phase not in ("STARTING", "RUNNING", "STOPPING"):
        return []
    workers = job.attempt.workers
    return [Piece(w.node, tuple(w.devices), len(workers)) for w in workers if w.phase != "gone"]


def room_of(room: Room) -> Holding:
    return [Piece(place.node, tuple(place.devices), len(room.placements)) for place in room.placements]


class Books:
    """Who has what at one moment of a pass: `live` by job, whether it is `leaving`, and the `rooms` kept for jobs."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.live = {job.id: found for job in state.jobs.values() if (found := holding_of(job))}
        self.leaving = {job.id for job in state.jobs.values() if job.phase == "STOPPING" and job.id in self.live}
        self.rooms = {room.job: room_of(room) for room in state.rooms.values()}

    def claims(self, *, staying: bool, but: Iterable[int] = ()) -> Iterator[tuple[Job, Holding]]:
        """All that is held and reserved, or what of it will still be there once what leaves has left."""
        without = set(but) | (self.leaving if staying else set())
        for job_id, holding in self.live.items():
            if job_id not in without:
                yield self.state.jobs[job_id], holding
        for job_id, holding in self.rooms.items():
            if job_id not in but:
                yield self.state.jobs[job_id], holding

    def total(self) -> Amounts:
        return add(ZERO, *(capacity(node.inventory) for node in self.state.nodes.values() if node.status != "lost"))

    def held(self, queue: str, *, staying: bool, but: Iterable[int] = ()) -> Amounts:
        claims = self.claims(staying=staying, but=but)
        return add(ZERO, *(amounts(self.state, job, has) for job, has in claims if is_in(job.spec.queue, queue)))


def capacity(inventory: Inventory) -> Amounts:
    devices = inventory.devices
    return 1000 * len(devices), sum(d.memory_mib for d in devices), inventory.cpus, inventory.memory_mib


# -- queues and lanes -----------------------------------------------------------------------------------------------


def is_in(queue: str, ancestor: str) -> bool:
    return queue == ancestor or queue.startswith(ancestor + "/")


def upwards(queue: str) -> list[str]:
    names = queue.split("/")
    return ["/".join(names[:count]) for count in range(len(names), 0, -1)]


def spec_of(state: State, queue: str) -> QueueSpec:
    return state.queues.get(queue) or QueueSpec(queue)


def part(portion: int | str, whole: Amounts) -> Amounts:
    if isinstance(portion, int):
        return portion * 1000, NO_BOUND, NO_BOUND, NO_BOUND
    percent = int(portion.rstrip("%"))
    a, b, c, d = (NO_BOUND if amount >= NO_BOUND else amount * percent // 100 for amount in whole)
    return a, b, c, d


def guarantee_of(books: Books, queue: str) -> Amounts:
    spec = spec_of(books.state, queue)
    if spec.guarantee is None:
        return ZERO
    above = queue.rpartition("/")[0]
    return part(spec.guarantee, guarantee_of(books, above) if above else books.total())


def limit_of(books: Books, queue: str) -> Amounts:
    spec = spec_of(books.state, queue)
    above = queue.rpartition("/")[0]
    most = limit_of(books, above) if above else books.total()
    if spec.limit is not None:
        most = part(spec.limit, most)
    if spec.borrow is not None:
        own = guarantee_of(books, queue)
        lent = add(own, part(spec.borrow, own))
        most = min(most[0], lent[0]), min(most[1], lent[1]), min(most[2], lent[2]), min(most[3], lent[3])
    return most


def over_guarantee(books: Books, queue: str, *, but: Iterable[int] = ()) -> bool:
    return not inside(books.held(queue, staying=True, but=but), guarantee_of(books, queue))


def in_lane(lane: Lane, job: Job) -> bool:
    if job.spec.gpus > lane.max_devices:
        return False
    limit = job.spec.limits.time_limit
    return lane.max_time is None or (
        isinstance(limit, int) and isinstance(lane.max_time, int) and limit <= lane.max_time
    )


def broken_bounds(books: Books, job: Job, claim: Amounts, *, staying: bool) -> list[str]:
    """The bounds that a job would break with such a claim, by name."""
    state, found = books.state, []
    others = [(o, amounts(state, o, has)) for o, has in books.claims(staying=staying, but=[job.id])]

    def check(name: str, most: Amounts, counted: list[Amounts]) -> None:
        if not inside(add(claim, *counted), most):
            found.append(f"{name}: {add(*counted)} and {claim} of {most}")

    for queue in upwards(job.spec.queue):
        spec, limit = spec_of(state, queue), limit_of(books, queue)
        inner = [(o, has) for o, has in others if is_in(o.spec.queue, queue)]
        if spec.limit is not None or spec.borrow is not None:
            check(f"limit of {queue}", limit, [has for _, has in inner])
        if spec.user_limit is not None:
            mine = [has for o, has in inner if o.user == job.user]
            check(f"own: user limit of {queue}", part(spec.user_limit, limit), mine)
        assert isinstance(spec.urgent_from, int)
        if spec.urgent_limit is not None and job.priority >= spec.urgent_from:
            urgent = [has for o, has in inner if o.priority >= spec.urgent_from]
            check(f"own: urgent limit of {queue}", part(spec.urgent_limit, limit), urgent)
        if spec.max_job_devices is not None:
            check(f"own: job limit of {queue}", part(spec.max_job_devices, limit), [])
        if spec.max_job_share is not None:
            check(f"own: job share of {queue}", part(spec.max_job_share, limit), [])
    total, kept = books.total(), kept_for_others(books, job.spec.queue, staying=staying)
    a, b, c, d = (whole - idle if idle else NO_BOUND for whole, idle in zip(total, kept, strict=True))
    check("kept by others", (a, b, c, d), [has for _, has in others])
    lanes = state.policy.lanes
    shut = [lane for lane in lanes if not in_lane(lane, job)]
    groups = [[lane] for lane in shut] + ([lanes] if len(shut) == len(lanes) > 1 else [])
    for group in groups:
        size = sum(min(part(lane.devices, total)[0], total[0]) for lane in group)
        outside = sum(has[0] for o, has in others if not any(in_lane(lane, o) for lane in group))
        if outside + claim[0] + kept[0] > total[0] - size:
            found.append("lane " + ", ".join(lane.name for lane in group))
    return found


def kept_for_others(books: Books, queue: str, *, staying: bool) -> Amounts:
    """What other queues lend to nobody and do not hold: of queues in one another what the outer one keeps or what the
    inner ones keep together, whichever is more."""
    specs = books.state.queues

    def beside(name: str) -> Amounts:
        inner = ZERO
        for other in specs:
            if other.rpartition("/")[0] == name:
                inner = add(inner, beside(other))
        pairs = zip(_kept(books, name), books.held(name, staying=staying), inner, strict=True)
        a, b, c, d = (max(most - has, below) if most else below for most, has, below in pairs)
        return a, b, c, d

    def under(name: str) -> Amounts:
        """What is kept of a queue and in it from the one that asks."""
        if not is_in(queue, name):
            return beside(name)
        inner = ZERO
        for other in specs:
            if other.rpartition("/")[0] == name:
                inner = add(inner, under(other))
        return inner

    kept = ZERO
    for name in specs:
        if "/" not in name:
            kept = add(kept, under(name))
    return kept


def _kept(books: Books, queue: str) -> Amounts:
    """The part of a guarantee that is lent to nobody."""
    spec, own = spec_of(books.state, queue), guarantee_of(books, queue)
    if spec.lend is None or spec.guarantee is None:
        return ZERO
    lent = part(spec.lend, own)
    a, b, c, d = (0 if whole >= NO_BOUND else max(0, whole - most) for whole, most in zip(own, lent, strict=True))
    return a, b, c, d


# -- places ---------------------------------------------------------------------------------------------------------


class Free(NamedTuple):
    """What a node has left: (compute, MiB) of each device, CPUs, host MiB."""

    devices: list[tuple[int, int]]
    cpus: int
    memory: int


def takes_none(node: Node, device: Device) -> bool:
    """Whether a device takes no new work."""
    found = node.conditions.get(device.uuid)
    alone = found is not None and found.action == "no_gangs" and not found.until_at
    return device.uuid in node.device_cordons or (found is not None and not alone)


def takes_one(node: Node, device: Device) -> bool:
    """Whether a device takes work of one device only."""
    found = node.conditions.get(device.uuid)
    return found is not None and found.action == "no_gangs"


def free_of(books: Books, name: str, claims: Iterable[tuple[Job, Holding]], *, sound: bool = False) -> Free:
    """`sound`: as if nothing were wrong with the devices."""
    node = books.state.nodes[name]
    inventory = node.inventory
    devices = [
        (1000, device.memory_mib)
        if sound
        else (0 if takes_none(node, device) else 1000, device.memory_mib - node.foreign_mib.get(device.uuid, 0))
        for device in inventory.devices
    ]
    cpus, memory = inventory.cpus, inventory.memory_mib
    for job, holding in claims:
        for piece in holding:
            if piece.node != name:
                continue
            host = host_of(job, len(piece.devices), piece.workers)
            cpus, memory = cpus - host[0], memory - host[1]
            for index in piece.devices:
                if index < len(devices):
                    compute, mib = devices[index]
                    devices[index] = compute - compute_of(job), mib - device_mib(job, inventory.devices[index])
    return Free(devices, cpus, memory)


def free_now(books: Books) -> dict[str, Free]:
    """What is free now and stays free when whom room is kept for has come."""
    now = [(job, has) for job, has in books.claims(staying=False) if job.id not in books.rooms or job.id in books.live]
    later = list(books.claims(staying=True))
    found = {}
    for name in books.state.nodes:
        a, b = free_of(books, name, now), free_of(books, name, later)
        devices = [(min(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a.devices, b.devices, strict=True)]
        found[name] = Free(devices, min(a.cpus, b.cpus), min(a.memory, b.memory))
    return found


def free_later(books: Books, *, but: Iterable[int] = ()) -> dict[str, Free]:
    """What is free once all that leaves has left, and those of `but` with it."""
    claims = list(books.claims(staying=True, but=but))
    return {name: free_of(books, name, claims) for name in books.state.nodes}


def nothing_runs(books: Books) -> dict[str, Free]:
    return {name: free_of(books, name, [], sound=True) for name in books.state.nodes}


def can_place(state: State, job: Job, free: dict[str, Free], *, anywhere: bool = False) -> bool:
    """Whether the whole gang has a place. `anywhere`: whatever the state of the nodes."""
    spec = job.spec
    names = [
        name
        for name, node in sorted(state.nodes.items())
        if (anywhere or (node.status == "ready" and not (node.cordoned or node.strays or node.degraded)))
        and (anywhere or job.excluded.get(name, 0) <= state.time_at)
        and (spec.where.nodes is None or name in spec.where.nodes)
        and all(node.inventory.labels.get(key) == value for key, value in spec.where.labels.items())
    ]
    fabrics = sorted({state.nodes[name].inventory.fabric for name in names})
    linked = spec.gpu.interconnect != "none"
    groups = [[n for n in names if state.nodes[n].inventory.fabric == fabric] for fabric in fabrics if fabric]
    if not spec.gpus:
        workers = spec.nodes if isinstance(spec.nodes, int) else 1
        cpus, memory = host_of(job, 0, workers)
        fits = {name for name in names if free[name].cpus >= cpus and free[name].memory >= memory}
        pools = groups if linked and workers > 1 else [names]
        return any(len(fits.intersection(pool)) >= workers for pool in pools)
    models = sorted({d.model for name in names for d in state.nodes[name].inventory.devices})
    models = [model for model in models if spec.gpu.model is None or model in spec.gpu.model]
    pools = groups if linked else [names]
    for model in models:
        most = {name: most_devices(state, job, name, model, free[name], sound=anywhere) for name in names}
        if not (isinstance(spec.nodes, int) and spec.nodes > 1) and any(n >= spec.gpus for n in most.values()):
            return True
        if spec.nodes is None and spec.gpus <= largest(state):
            continue
        if any(can_split(spec.gpus, spec.nodes, [most[name] for name in pool]) for pool in pools):
            return True
    return False


def largest(state: State) -> int:
    """The most devices of one model on one node."""
    return max(
        (
            sum(d.model == model for d in node.inventory.devices)
            for node in state.nodes.values()
            for model in {d.model for d in node.inventory.devices}
        ),
        default=0,
    )


def most_devices(state: State, job: Job, name: str, model: str, free: Free, *, sound: bool) -> int:
    """How many devices of a model a worker of this job can have on a node."""
    node = state.nodes[name]
    devices = node.inventory.devices
    count = sum(
        device.model == model
        and compute >= compute_of(job)
        and mib >= device_mib(job, device)
        and (sound or job.spec.gpus == 1 or not takes_one(node, device))
        for device, (compute, mib) in zip(devices, free.devices, strict=True)
    )
    cpus, memory = host_of(job, 1, 1)
    if cpus:
        count = min(count, free.cpus // cpus)
    if memory:
        count = min(count, free.memory // memory)
    return max(0, count)


def can_split(gpus: int, nodes: int | str | None, most: list[int]) -> bool:
    """Whether nodes that can give so many each take a gang: over any number of them, or evenly over exactly so many."""
    if nodes == 1:
        return False
    if not isinstance(nodes, int):
        return sum(most) >= gpus
    base, larger = divmod(gpus, nodes)
    sizes = [base + 1] * larger + [base] * (nodes - larger)
    return any(
        all(has >= size for has, size in zip(sorted(chosen, reverse=True), sizes, strict=True))
        for chosen in combinations(most, nodes)
    )


def most_claim(state: State, job: Job) -> Amounts:
    """What a job claims at most, on whichever devices it goes."""
    workers = job.spec.nodes if isinstance(job.spec.nodes, int) and not job.spec.gpus else 1
    cpus, memory = host_of(job, job.spec.gpus, workers)
    devices = [device for node in state.nodes.values() for device in node.inventory.devices]
    mib = max((device_mib(job, device) for device in devices), default=0)
    milli = max((occupied(job, device) for device in devices), default=0)
    return job.spec.gpus * milli, job.spec.gpus * mib, cpus * workers, memory * workers
