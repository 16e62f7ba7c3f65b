"""Explanations of jobs that do not wait in line: those with room reserved, those that run, those that have ended."""

from typing import Final

from muster.core.allocate import BACKFILLED
from muster.core.cluster import Cluster
from muster.core.commands import start_commands
from muster.core.explain_ends import stop_takes_ms
from muster.core.explain_victims import victims_of
from muster.core.explain_words import jobs_named, span
from muster.core.explanation import (
    AllocationStep,
    Awaited,
    Explanation,
    Past,
    ReservedRoom,
    WorkerEnvironment,
    WorkerPlace,
)
from muster.core.holdings import Claim
from muster.core.ledger import negative
from muster.core.order import ENGINE_VERSION, policy_name
from muster.core.plan import meeting_nodes
from muster.core.queues import NOTHING, plus
from muster.core.state import Attempt, Job, Room
from muster.events import types as t
from muster.events.binding import device_environment, identity, rendezvous
from muster.events.frameworks import framework_environment, thread_environment

EXAMPLES: Final = 5


def past_of(job: Job) -> Past:
    """What became of a job so far, by its present or last attempt."""
    attempt = job.attempt
    return Past(
        attempts=job.attempts,
        tries=job.tries,
        preemptions=job.preemptions,
        timeouts=job.timeouts,
        backfilled_past=_passed(attempt),
        made_room=[victim.job for victim in attempt.made_room] if attempt is not None else [],
        stopped_for=attempt.stopped_for if attempt is not None else 0,
    )


def _passed(attempt: Attempt | None) -> int:
    """The head that a backfilled attempt passed; 0 = none."""
    head = attempt.why.rpartition(BACKFILLED)[2] if attempt is not None and BACKFILLED in attempt.why else ""
    return int(head) if head.isascii() and head.isdigit() else 0


# -- room reserved --------------------------------------------------------------------------------------------------


def explain_reserved(cluster: Cluster, job: Job, room: Room) -> Explanation:
    """A job that waits for others to leave the room that is reserved for it."""
    awaits = [_awaited(cluster, victim) for victim in (*room.victims, *_also_there(cluster, job, room))]
    workers = [WorkerPlace(place.rank, place.node, place.devices) for place in room.placements]
    reservation = ReservedRoom(room.reserved, workers, awaits, room.why)
    nodes = ", ".join(dict.fromkeys(place.node for place in room.placements))
    still = [victim for victim in awaits if not victim.gone]
    needs = [_need(victim) for victim in still]
    waits = f"waits for {jobs_named([victim.job for victim in still])} to end" if still else _awaits(cluster, job, room)
    summary = f"room on {nodes} is reserved for it by entry {room.reserved}: it {waits}"
    step = AllocationStep(
        fits=False, asked_devices=job.spec.gpus, free_devices=0, workers=workers, why=f"will be there: {room.why}"
    )
    return Explanation(
        job.id,
        job.phase,
        cluster.state.sequence,
        summary,
        None,
        None,
        step,
        [],
        needs=needs,
        victims=victims_of(cluster, job, room.victims),
        reservation=reservation,
        past=past_of(job),
    )


def _awaits(cluster: Cluster, job: Job, room: Room) -> str:
    """What a job whose room nobody is in waits for."""
    names = [place.node for place in room.placements]
    with_strays = [name for name in names if cluster.state.nodes[name].strays]
    if with_strays:
        return f"waits for workers of earlier attempts to end on {', '.join(with_strays)}"
    meeting = meeting_nodes(cluster.demand(job), names)
    if len(cluster.room().free_endpoints(meeting, job.id)) < len(meeting):
        return "waits for a rendezvous port"
    return "starts with a next pass"


def _also_there(cluster: Cluster, job: Job, room: Room) -> list[t.AllocationRef]:
    """The attempts that were being stopped anyway and are still in the room, or in the sums that it must fit
    into."""
    known = {victim.job for victim in room.victims}
    there = {job_id for claim in cluster.room_claims(room) for job_id in _leaving_share(cluster, claim)}
    if not there and not _is_admitted(cluster, job, room):
        there.update(cluster.leaving)
    return [t.AllocationRef(job_id, cluster.state.jobs[job_id].attempts) for job_id in sorted(there - known)]


def _leaving_share(cluster: Cluster, claim: Claim) -> set[int]:
    """The jobs that are being stopped and hold some of a share that is not free: of its devices, or of the host's CPUs
    or memory where these lack."""
    share, demand = claim
    room = cluster.room_now(share.node)
    if max(share.devices, default=-1) >= len(room.inventory.devices):
        return set()
    lacking = {index for index in share.devices if not room.fits_device(index, demand)}
    host_lacks = not room.fits_host(share.cpus, share.memory_mib)
    return {
        job_id
        for (job_id, _), worker in cluster.workers_on[share.node].items()
        if job_id in cluster.leaving and (host_lacks or not lacking.isdisjoint(worker.devices))
    }


def _is_admitted(cluster: Cluster, job: Job, room: Room) -> bool:
    """Whether the bounds of the job's queues let it in now."""
    ledger = cluster.ledger()
    who = ledger.claimant(job)
    claim = NOTHING
    for share, demand in cluster.room_claims(room):
        claim = plus(claim, cluster.vector_of(share, demand))
    ledger.charge(who, negative(claim))  # what is reserved counts already
    try:
        return ledger.admits(who, claim)
    finally:
        ledger.charge(who, claim)


def _awaited(cluster: Cluster, victim: t.AllocationRef) -> Awaited:
    job = cluster.state.jobs.get(victim.job)
    attempt = job.attempt if job is not None else None
    if job is None or attempt is None or attempt.number != victim.attempt or not attempt.has_workers():
        return Awaited(victim.job, victim.attempt, told=True, gone=True)
    takes_ms = stop_takes_ms(job)
    return Awaited(victim.job, victim.attempt, told=attempt.stop_ordered, gone=False, stop_takes_ms=takes_ms)


def _need(victim: Awaited) -> str:
    told = "it was told to stop" if victim.told else "it is yet to be told to stop"
    return f"the workers of job {victim.job} end: {told}, and has up to {span(victim.stop_takes_ms * 1_000_000)} for it"


# -- placed or ended ------------------------------------------------------------------------------------------------


def explain_placed(cluster: Cluster, job: Job) -> Explanation:
    """A job that runs, is being stopped or has ended."""
    attempt, sequence = job.attempt, cluster.state.sequence
    if attempt is None:
        step = AllocationStep(fits=False, asked_devices=job.spec.gpus, free_devices=0, workers=[], why="never placed")
        summary = job.reason or f"is {job.phase}"
        return Explanation(job.id, job.phase, sequence, summary, None, None, step, [], past=past_of(job))
    workers = [WorkerPlace(worker.rank, worker.node, worker.devices) for worker in attempt.workers]
    why = f"entry {attempt.allocated}: {attempt.why}"
    step = AllocationStep(fits=True, asked_devices=job.spec.gpus, free_devices=0, workers=workers, why=why)
    reasons = [reason for reason in (job.reason, _awaited_ends(cluster, job)) if reason]
    summary = f"is {job.phase}" + (f": {'; '.join(reasons)}" if reasons else "")
    environment = _environment(cluster, job)
    victims = victims_of(cluster, job, attempt.made_room)
    return Explanation(
        job.id, job.phase, sequence, summary, None, None, step, environment, victims=victims, past=past_of(job)
    )


def _awaited_ends(cluster: Cluster, job: Job) -> str:
    """Whose word a job that is being stopped waits for ("" = nobody's)."""
    if job.phase != "STOPPING" or job.attempt is None:
        return ""
    live = [worker for worker in job.attempt.workers if worker.phase != "gone"]
    if not live:
        return ""
    names = []
    for worker in live[:EXAMPLES]:
        node = cluster.state.nodes.get(worker.node)
        silent = f" (the node is {node.status})" if node is not None and node.status != "ready" else ""
        names.append(f"rank {worker.rank} on {worker.node}{silent}")
    more = f" and {len(live) - EXAMPLES} more" if len(live) > EXAMPLES else ""
    told = "was told to stop it" if job.attempt.stop_ordered else "is yet to be told to stop it"
    return f"waits for the agent's word that {', '.join(names)}{more} has ended; it {told}"


def _environment(cluster: Cluster, job: Job) -> list[WorkerEnvironment]:
    """What the workers of the attempt see, from the commands that its allocation makes."""
    attempt = job.attempt
    assert attempt is not None
    nodes = cluster.state.nodes
    for worker in attempt.workers:
        if worker.node not in nodes or max(worker.devices, default=-1) >= len(nodes[worker.node].inventory.devices):
            return []  # the node has changed since: what it had then is not known any more
    basis = t.Basis(0, "", policy_name(cluster.state.policy), ENGINE_VERSION)
    places = [t.Placement(w.rank, w.node, w.incarnation, w.devices) for w in attempt.workers]
    allocated = t.JobAllocated(
        basis,
        job.id,
        attempt.number,
        places,
        attempt.master_address,
        attempt.master_port,
        attempt.why,
        attempt.endpoints,
    )
    return [
        WorkerEnvironment(start.rank, start.node, _variables(start)) for start in start_commands(cluster, allocated)
    ]


def _variables(command: t.StartWorker) -> dict[str, str]:
    """What follows from the command alone; the job's own values win where they do for the worker."""
    variables = rendezvous(command) | thread_environment(command) | framework_environment(command)
    variables |= {name: value for name, value in command.env.items() if name in variables}
    return variables | device_environment(command) | identity(command)
