"""The laws: what must hold of a state, of a pass, and at rest, each worked out from the raw state."""

import msgspec
from cluster_script import SECOND, Script
from law_world import (
    Amounts,
    Books,
    Holding,
    Piece,
    add,
    amounts,
    broken_bounds,
    can_place,
    compute_of,
    device_mib,
    free_later,
    free_now,
    guarantee_of,
    holding_of,
    host_of,
    inside,
    is_in,
    most_claim,
    nothing_runs,
    over_guarantee,
    room_of,
    spec_of,
    takes_none,
    takes_one,
    upwards,
)

from muster.core.cluster import Cluster
from muster.core.decide import decide, next_time
from muster.core.invariants import check_invariants
from muster.core.state import Job, State
from muster.events import types as t
from muster.projections.fold import Fold

YEAR = 365 * 24 * 3600 * SECOND


def copy_of(state: State) -> State:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)


def names_of(events: list[t.Event]) -> list[str]:
    return [f"{type(event).__name__} {getattr(event, 'job', '')}" for event in events]


# -- the laws -------------------------------------------------------------------------------------------------------


def check_capacity(state: State) -> None:
    """What is held and reserved is never above what a node has, in any dimension, now or once what leaves has left."""
    books = Books(state)
    for name, node in state.nodes.items():
        for staying in (False, True):
            cpus = memory = 0
            used = {device.index: (0, 0) for device in node.inventory.devices}
            for job, holding in books.claims(staying=staying):
                if not staying and job.id in books.rooms:
                    continue
                for piece in holding:
                    if piece.node != name:
                        continue
                    host = host_of(job, len(piece.devices), piece.workers)
                    cpus, memory = cpus + host[0], memory + host[1]
                    for index in piece.devices:
                        if index >= len(node.inventory.devices):
                            continue  # it is away
                        device, (compute, mib) = node.inventory.devices[index], used[index]
                        used[index] = compute + compute_of(job), mib + device_mib(job, device)
            over = [i for i, (c, m) in used.items() if c > 1000 or m > node.inventory.devices[i].memory_mib]
            assert not over, f"devices {over} of {name} are overbooked ({staying=}): {used}"
            assert cpus <= node.inventory.cpus, f"{name}: {cpus} CPUs ({staying=})"
            assert memory <= node.inventory.memory_mib, f"{name}: {memory} MiB ({staying=})"


def check_same_as_fresh(script: Script) -> list[t.Event]:
    """`decide` says what it says on a fresh fold, says it again, and leaves everything as it was."""
    fresh = Fold.restore(script.fold.state_bytes())
    expected = decide(fresh.cluster)
    events = decide(script.cluster)
    assert names_of(events) == names_of(expected), "not what a fresh fold decides"
    assert events == expected, "not what a fresh fold decides"
    assert decide(script.cluster) == events, "not the same twice"
    assert fresh.state_bytes() == script.fold.state_bytes(), "decide changed the state"
    check_invariants(script.cluster)
    return events


def check_pass(state: State, events: list[t.Event]) -> None:
    """The decisions of a pass, one after another, on what was true when it began."""
    books = Books(state)
    victims: list[t.JobPreempted] = []
    seen: set[int] = set()
    for event in events:
        match event:
            case t.JobAllocated():
                check_start(books, event)
            case t.RoomReleased():
                check_release(state, event)
                del books.rooms[event.job]
            case t.JobTimedOut():
                assert event.job not in seen, f"job {event.job} is stopped twice in one pass"
                seen.add(event.job)
            case t.JobPreempted():
                assert event.job not in seen, f"job {event.job} is stopped twice in one pass"
                seen.add(event.job)
                victims.append(event)
            case t.RoomReserved():
                check_room(books, event, victims)
                victims = []
            case _:
                pass
    assert not victims, "victims without a beneficiary"


def check_start(books: Books, event: t.JobAllocated) -> None:
    """A gang gets all of its place, where it may be, within every bound."""
    state, job = books.state, books.state.jobs[event.job]
    where = f"job {job.id}"
    assert job.phase == "PENDING", where
    assert job.id not in books.live, f"{where} is started twice"
    holding = room_of_event(event.placements)
    check_gang(state, job, event.placements)
    if job.id in books.rooms:
        assert books.rooms.pop(job.id) == holding, f"{where} does not start in its room"
    for piece in holding:
        node = state.nodes[piece.node]
        assert node.available, f"{where} goes to {piece.node}"
        assert not ill_for(state, job, piece), f"{where} goes to {piece}"
        assert job.excluded.get(piece.node, 0) <= state.time_at or job.id in state.rooms, f"{where}: refused there"
    free = free_now(books)
    books.live[job.id] = holding
    after = free_now(books)
    for piece in holding:
        devices, cpus, memory = after[piece.node]
        assert cpus >= 0, f"{where}: CPUs of {piece.node}: {free[piece.node]}"
        assert memory >= 0, f"{where}: memory of {piece.node}"
        assert all(devices[i][0] >= 0 and devices[i][1] >= 0 for i in piece.devices), f"{where}: {free[piece.node]}"
    del books.live[job.id]
    broken = broken_bounds(books, job, amounts(state, job, holding), staying=False)
    assert not broken, f"{where} breaks {broken}"
    books.live[job.id] = holding


def room_of_event(placements: list[t.Placement]) -> Holding:
    return [Piece(place.node, tuple(place.devices), len(placements)) for place in placements]


def ill_for(state: State, job: Job, piece: Piece) -> list[int]:
    """The devices of a piece that take no work of such a job, or lack memory that foreign processes hold."""
    node = state.nodes[piece.node]
    devices = node.inventory.devices
    return [
        index
        for index in piece.devices
        if index >= len(devices)
        or takes_none(node, devices[index])
        or (job.spec.gpus > 1 and takes_one(node, devices[index]))
        or device_mib(job, devices[index]) > devices[index].memory_mib - node.foreign_mib.get(devices[index].uuid, 0)
    ]


def check_gang(state: State, job: Job, placements: list[t.Placement]) -> None:
    """All of a gang or none of it, on one model, on one fabric, on as many nodes as it asked for."""
    where = f"job {job.id} at {placements}"
    names = [place.node for place in placements]
    assert len(set(names)) == len(names), where
    assert sum(len(set(place.devices)) for place in placements) == job.spec.gpus, where
    models = {state.nodes[p.node].inventory.devices[i].model for p in placements for i in p.devices}
    assert len(models) <= 1, where
    assert job.spec.gpu.model is None or models <= set(job.spec.gpu.model), where
    if len(names) > 1:
        fabrics = {state.nodes[name].inventory.fabric for name in names}
        assert len(fabrics) == 1, where
        assert "" not in fabrics, where
    if isinstance(job.spec.nodes, int):
        assert len(names) == job.spec.nodes, where


def check_release(state: State, event: t.RoomReleased) -> None:
    """Room is let go only where the beneficiary needs it no more, or it is no more."""
    job, room = state.jobs[event.job], state.rooms[event.job]
    if job.phase != "PENDING":
        return
    nodes = [state.nodes[place.node] for place in room.placements]
    lost = any(node.status != "ready" or node.cordoned or node.degraded for node in nodes)
    lost = lost or any(ill_for(state, job, piece) for piece in room_of(room))
    books = Books(state)
    later = free_later(books)
    for piece in room_of(room):
        devices, cpus, memory = later[piece.node]
        left = [devices[index][1] for index in piece.devices if index < len(devices)]
        lost = lost or min(cpus, memory, *left) < 0
        lost = lost or any(place.incarnation != state.nodes[place.node].incarnation for place in room.placements)
    barred = broken_bounds(books, job, amounts(state, job, room_of(room)), staying=True)
    assert lost or barred, f"job {job.id}'s room is let go: {event.detail}"


def check_room(books: Books, event: t.RoomReserved, victims: list[t.JobPreempted]) -> None:
    """Room that is made: for whom it may be, from whom it may be, and from no more than needed."""
    state, job = books.state, books.state.jobs[event.job]
    where = f"room for job {job.id} of {job.spec.queue}"
    assert job.phase == "PENDING", where
    assert job.id not in books.rooms, where
    assert job.id not in books.live, where
    check_gang(state, job, event.placements)
    assert [victim.job for victim in victims] == [ref.job for ref in event.victims], where
    gone: list[int] = []
    for victim in victims:
        assert victim.beneficiary == job.id, where
        check_victim(books, job, victim, gone, amounts(state, job, room_of_event(event.placements)))
        gone.append(victim.job)
    for back in gone:
        others = [each for each in gone if each != back]
        if can_place(state, job, free_later(books, but=others)):
            fits = not broken_later(books, job, others)
            assert not fits, f"{where}: job {back} of {gone} need not have been stopped"
    books.leaving.update(gone)
    holding = room_of_event(event.placements)
    broken = broken_bounds(books, job, amounts(state, job, holding), staying=True)
    assert not broken, f"{where} breaks {broken}"
    free = free_later(books)
    books.rooms[job.id] = holding
    after = free_later(books)
    for piece in holding:
        devices, cpus, memory = after[piece.node]
        assert min(cpus, memory) >= 0, f"{where}: {free[piece.node]}"
        assert all(devices[i][0] >= 0 and devices[i][1] >= 0 for i in piece.devices), f"{where}: {free[piece.node]}"


def broken_later(books: Books, job: Job, gone: list[int]) -> list[str]:
    """The bounds that a job would break once what leaves has left and these are gone too."""
    leaving = set(books.leaving)
    books.leaving.update(gone)
    try:
        return broken_bounds(books, job, most_claim(books.state, job), staying=True)
    finally:
        books.leaving.clear()
        books.leaving.update(leaving)


def check_victim(books: Books, job: Job, event: t.JobPreempted, gone: list[int], claim: Amounts) -> None:
    state, victim = books.state, books.state.jobs[event.job]
    policy = state.policy.preemption
    where = f"job {victim.id} of {victim.spec.queue} is stopped for job {job.id} of {job.spec.queue}"
    assert policy.mode == "cold", where
    assert victim.id in books.live, where
    assert victim.id not in books.leaving, where
    assert victim.id not in gone, where
    assert victim.spec.preemption.allowed, f"{where}: it may not be"
    assert victim.preemptions < policy.max_per_job, f"{where}: too often"
    assert isinstance(policy.min_runtime, int)
    assert victim.attempt is not None
    ran_ns = state.time_at - victim.attempt.started_at if victim.attempt.started_at else 0
    assert ran_ns >= policy.min_runtime * SECOND, f"{where}: it has run for {ran_ns} ns"
    assert sorted(ref.node for ref in event.workers) == sorted(piece.node for piece in books.live[victim.id]), where
    if victim.spec.queue == job.spec.queue:
        assert victim.priority < job.priority, f"{where}: its priority is no lower"
        return
    common = next((each for each in upwards(job.spec.queue) if is_in(victim.spec.queue, each)), "")
    mine = [each for each in upwards(job.spec.queue) if each != common and not is_in(common, each)]
    theirs = [each for each in upwards(victim.spec.queue) if each != common and not is_in(common, each)]
    branch = mine[-1]
    assert spec_of(state, branch).reclaim == "preempt", where
    would = add(books.held(branch, staying=True, but=gone), claim)
    assert inside(would, guarantee_of(books, branch)), f"{where}: {branch} would hold {would}"
    for each in theirs:
        unprotected = not victim.spec.gpus and isinstance(spec_of(state, each).guarantee, int)
        assert unprotected or over_guarantee(books, each, but=gone), f"{where}: {each} holds no more than its guarantee"


def check_rest(script: Script) -> None:
    """What must hold when a pass has given nothing."""
    check_rooms_at_rest(script.cluster.state)
    check_nobody_waits_in_vain(script.cluster.state)
    check_next_time(script.cluster)


def check_rooms_at_rest(state: State) -> None:
    """A room that is free has been used."""
    books = Books(state)
    for room in state.rooms.values():
        job = state.jobs[room.job]
        nodes = [state.nodes[place.node] for place in room.placements]
        usable = all(node.status == "ready" and not (node.cordoned or node.degraded) for node in nodes)
        assert usable, f"room of job {job.id} is lost"
        ill = [piece for piece in room_of(room) if ill_for(state, job, piece)]
        assert not ill, f"room of job {job.id} is on {ill}"
        in_the_way = [
            other
            for other, holding in books.live.items()
            for piece in holding
            for place in room.placements
            if piece.node == place.node and (other in books.leaving)
        ]
        barred = broken_bounds(books, job, amounts(state, job, room_of(room)), staying=False)
        blocked = in_the_way or any(node.strays for node in nodes) or barred
        assert blocked, f"job {job.id} does not start in its room"
        for_ever = broken_bounds(books, job, amounts(state, job, room_of(room)), staying=True)
        assert not for_ever, f"job {job.id} can never start in its room: {for_ever}"


def is_own(bounds: list[str]) -> bool:
    return any(name.startswith("own") for name in bounds)


def check_nobody_waits_in_vain(state: State) -> None:
    """No job waits that could start and is in nobody's way."""
    books = Books(state)
    free, bare = free_now(books), nothing_runs(books)
    waiting = [job for job in state.jobs.values() if job.phase == "PENDING" and job.id not in state.rooms]
    able = []
    for job in waiting:
        claim = most_claim(state, job)
        nobody = Books(state)
        nobody.live, nobody.rooms = {}, {}
        least = (claim[0], 0, claim[2], claim[3])
        if not can_place(state, job, bare, anywhere=True) or broken_bounds(nobody, job, least, staying=False):
            continue
        if is_own(broken_bounds(books, job, least, staying=False)):
            continue
        able.append(job)
    live = [job for job in state.jobs.values() if holding_of(job)]
    ends = [end for job in live if (end := expected_end(state, job)) is not None]
    known = len(ends) == len(live)
    for job in able:
        if not can_place(state, job, free):
            continue
        if broken_bounds(books, job, most_claim(state, job), staying=False):
            continue
        others = [other for other in able if other.id != job.id and not excluded_now(state, other)]
        seconds = expected_seconds(state, job)
        in_time = known and seconds > 0 and state.time_at + seconds * SECOND <= min(ends, default=0)
        easy = state.policy.backfill.mode == "easy" and state.policy.backfill.depth >= len(waiting)
        assert others, f"job {job.id} waits for nobody and could start"
        assert not (easy and in_time), f"job {job.id} waits and would end before anything else"


def excluded_now(state: State, job: Job) -> bool:
    return any(until > state.time_at for until in job.excluded.values())


def expected_seconds(state: State, job: Job) -> int:
    limits = job.spec.limits
    limit = limits.time_limit or 0
    assert isinstance(limit, int)
    if limits.estimate:
        assert isinstance(limits.estimate, int)
        return limits.estimate
    runs = state.learned.get(f"{job.user}\n{job.spec.name}")
    if runs:
        return min(max(runs), limit) if limit else max(runs)
    return limit


def expected_end(state: State, job: Job) -> int | None:
    """When what a job has will be free; None where it has nothing or nobody knows."""
    if not holding_of(job) or job.attempt is None:
        return None
    if job.phase == "STOPPING":
        return 0
    seconds = job.attempt.expected_s
    return (job.attempt.started_at or job.attempt.allocated_at) + seconds * SECOND if seconds else None


def check_next_time(cluster: Cluster) -> None:
    """Until the time that is named, time alone changes nothing; where nobody knows, a minute is the longest."""
    at = next_time(cluster)
    state = copy_of(cluster.state)
    last = state.time_at + YEAR if at is None else at - 1
    for time_at in (state.time_at + SECOND, state.time_at + (last - state.time_at) // 2, last):
        if state.time_at < time_at <= last:
            later = copy_of(state)
            later.time_at = time_at
            events = decide(Cluster(later))
            if at is None or at > state.time_at + 60 * SECOND or cluster.settled_until is not None:
                assert not events, f"next time is {at}, but at {time_at}: {names_of(events)}"
