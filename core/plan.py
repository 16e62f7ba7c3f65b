"""A pass in the making: its decisions so far, and the room and the sums that are left after them.

A plan works on the cluster's own room and ledger and takes back what it booked there when the pass is over.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from muster.core.capacity import Capacity
from muster.core.cluster import Cluster
from muster.core.commands import start_commands, stop_commands
from muster.core.holdings import Claim
from muster.core.ledger import Claimant, negative
from muster.core.node_room import NodeRoom, Share
from muster.core.order import ENGINE_VERSION, policy_name
from muster.core.placement import Allotment, place
from muster.core.queues import NOTHING, Vector, plus
from muster.core.resources import Demand
from muster.core.state import Attempt, Job
from muster.events import types as t
from muster.events.log import BATCH_LIMIT

NOWHERE: Final[frozenset[str]] = frozenset()


class Plan:
    """The pass so far. `add` takes a decision with all its commands, or refuses all of them when the append is full."""

    def __init__(self, cluster: Cluster) -> None:
        state = cluster.state
        self.cluster: Final = cluster
        self.now_at: Final = state.time_at
        self.basis: Final = t.Basis(state.sequence, state.chain.hex(), policy_name(state.policy), ENGINE_VERSION)
        self.events: Final[list[t.Event]] = []

    def add(self, decision: t.Decision, commands: Sequence[t.Command] = ()) -> bool:
        """Whether it was taken."""
        return self.add_all([decision, *commands])

    def add_all(self, events: Sequence[t.Event]) -> bool:
        """Whether all of them were taken; else none is."""
        if len(self.events) + len(events) > BATCH_LIMIT:
            return False
        self.events.extend(events)
        return True


class Draft:
    """Room and sums of a plan that places jobs."""

    def __init__(self, plan: Plan) -> None:
        cluster = plan.cluster
        self.plan: Final = plan
        self.cluster: Final = cluster
        self.room: Final = cluster.room()
        self.ledger: Final = cluster.ledger()
        self.started: Final[dict[int, list[Claim]]] = {}  # jobs that the pass starts
        self.victims: Final[set[int]] = set()  # jobs that it stops for others
        self.benefits: Final[set[int]] = set()  # jobs that it reserves room for
        self._touched: Final[set[str]] = set()
        self._ports: Final[list[t.Endpoint]] = []
        self._charges: Final[list[tuple[Claimant, Vector]]] = []
        self._leaves: Final[list[tuple[Claimant, Vector]]] = []
        self._new_on: Final[dict[str, list[Claim]]] = {}
        self._reserved_on: Final[dict[str, dict[int, Claim]]] = {
            name: dict(claims) for name, claims in cluster.reserved_on.items()
        }
        self._parting: set[str] | None = None
        self._later: Final[dict[str, NodeRoom]] = {}

    def close(self) -> None:
        """Take back what was booked."""
        for who, claim in reversed(self._charges):
            self.ledger.charge(who, negative(claim))
        for who, claim in reversed(self._leaves):
            self.ledger.leave(who, negative(claim))
        self.room.give_ports(self._ports)
        self.cluster.touch(self._touched)

    # -- claims ---------------------------------------------------------------------------------------------------

    def vector(self, claims: Iterable[Claim]) -> Vector:
        """Claims in the ledger's terms."""
        total = NOTHING
        for share, demand in claims:
            total = plus(total, self.cluster.vector_of(share, demand))
        return total

    def claims_of(self, job: Job) -> list[Claim]:
        """What the workers of a live attempt claim, or what the pass gives to a job."""
        if job.id in self.started:
            return self.started[job.id]
        return self.cluster.claims_by(job)

    def held_by(self, job: Job) -> Vector:
        """The same in the ledger's terms."""
        if job.id in self.started:
            return self.vector(self.started[job.id])
        return self.cluster.charged_to(job)

    def reserved_nodes(self) -> Iterable[str]:
        """The nodes on which room is reserved."""
        return self._reserved_on.keys()

    def reserved_on(self, name: str) -> dict[int, Claim]:
        """What is reserved on a node, by the job that it is for."""
        return self._reserved_on.get(name, {})

    # -- decisions ------------------------------------------------------------------------------------------------

    def start(self, job: Job, who: Claimant, found: Allotment, endpoints: list[t.Endpoint], why: str) -> bool:
        """Give a job its place. False where the append is full."""
        cluster = self.cluster
        if not self._allocate(job, found.shares, endpoints, why):
            return False
        demand = cluster.demand(job)
        claims = [(share, demand) for share in found.shares]
        self.started[job.id] = claims
        for share, _ in claims:
            self.room.take(share, demand)
            self._touched.add(share.node)
            self._later.pop(share.node, None)
            self._new_on.setdefault(share.node, []).append((share, demand))
        self._charge(who, self.vector(claims))
        return True

    def _allocate(self, job: Job, shares: Sequence[Share], endpoints: list[t.Endpoint], why: str) -> bool:
        """Decide that a job begins, and hold its ports for the rest of the pass. False where the append is full."""
        master = endpoints[0]
        decision = t.JobAllocated(
            self.plan.basis,
            job.id,
            job.attempts + 1,
            placements(self.cluster, shares),
            master.address,
            master.port,
            why,
            endpoints if self.cluster.demand(job).own_ports else [],
        )
        if not self.plan.add(decision, start_commands(self.cluster, decision)):
            return False
        self.room.take_ports(endpoints)
        self._ports.extend(endpoints)
        return True

    def suppose(self, who: Claimant, claim: Vector) -> None:
        """Count a claim without a place."""
        self._charge(who, claim)

    def _charge(self, who: Claimant, claim: Vector) -> None:
        self.ledger.charge(who, claim)
        self._charges.append((who, claim))

    def enter(self, job: Job, endpoints: list[t.Endpoint]) -> bool:
        """Give a job the room that is reserved for it. False where the append is full."""
        cluster = self.cluster
        room = cluster.state.rooms[job.id]
        shares = [share for share, _ in cluster.room_claims(room)]
        why = f"room reserved by entry {room.reserved}: {room.why}"[: t.DETAIL_LIMIT]
        if not self._allocate(job, shares, endpoints, why):
            return False
        self.started[job.id] = cluster.room_claims(room)
        for share, demand in self.started[job.id]:
            self._drop_reservation(share.node, job.id)
            self._new_on.setdefault(share.node, []).append((share, demand))
            self.renew(share.node)
        return True

    def release(self, job: Job, cause: t.ReleaseCause, detail: str) -> bool:
        """Keep room for a job no more. False where the append is full."""
        room = self.cluster.state.rooms[job.id]
        if not self.plan.add(t.RoomReleased(self.plan.basis, job.id, cause, detail[: t.DETAIL_LIMIT])):
            return False
        claims = self.cluster.room_claims(room)
        for share, _ in claims:
            self._drop_reservation(share.node, job.id)
            self.renew(share.node)
        self._charge(self.ledger.claimant(job), negative(self.vector(claims)))
        return True

    def _drop_reservation(self, name: str, job: int) -> None:
        on_node = self._reserved_on[name]
        del on_node[job]
        if not on_node:
            del self._reserved_on[name]

    def reserve(
        self, job: Job, who: Claimant, shares: list[Share], victims: dict[int, t.PreemptionCause], why: str
    ) -> bool:
        """Stop the victims and keep the room for a job. False where the append is full."""
        jobs = self.cluster.state.jobs
        events: list[t.Event] = []
        for victim_id, cause in victims.items():
            events += self._preemption(jobs[victim_id], job, cause)
        places = placements(self.cluster, shares)
        refs = [t.AllocationRef(victim, jobs[victim].attempts) for victim in victims]
        events.append(t.RoomReserved(self.plan.basis, job.id, places, refs, why[: t.DETAIL_LIMIT]))
        if not self.plan.add_all(events):
            return False
        demand = self.cluster.demand(job)
        claims = [(share, demand) for share in shares]
        self._charge(who, self.vector(claims))
        self.benefits.add(job.id)
        for share, _ in claims:
            self._reserved_on.setdefault(share.node, {})[job.id] = share, demand
        nodes = {share.node for share in shares}
        for victim in victims:
            self.victims.add(victim)
            gone = self.claims_of(jobs[victim])
            leave = self.ledger.claimant(jobs[victim]), self.vector(gone)
            self.ledger.leave(*leave)
            self._leaves.append(leave)
            nodes.update(share.node for share, _ in gone)
        self._parting = None
        for name in sorted(nodes):
            self.renew(name)
        return True

    def _preemption(self, victim: Job, job: Job, cause: t.PreemptionCause) -> list[t.Event]:
        attempt = victim.attempt
        assert attempt is not None
        lost_ms = work_lost_ms(self.cluster, victim, self.plan.now_at)
        refs = live_workers(attempt)
        event = t.JobPreempted(self.plan.basis, victim.id, attempt.number, "cold", cause, job.id, lost_ms, refs)
        return [event, *stop_commands(victim.spec, event, "preempted")]

    # -- views of nodes -------------------------------------------------------------------------------------------

    def renew(self, name: str) -> None:
        """Compute a node's room anew after a change to what is claimed or reserved there."""
        self._touched.add(name)
        self._later.pop(name, None)
        now = self.room.rooms[name].emptied()
        for share, demand in (*self.cluster.claims_on(name), *self._new_on.get(name, ())):
            now.claim(share, demand)
        if name in self._reserved_on:
            now = now.lesser(self.later(name))
        self.room.put_room(name, now)

    def now(self, name: str) -> NodeRoom:
        """A node with what is claimed of it and what the pass has started there, whatever is reserved."""
        room = self.cluster.room_now(name)
        for share, demand in self._new_on.get(name, ()):
            room.claim(share, demand)
        return room

    def later(self, name: str) -> NodeRoom:
        """A node once all that leaves has left and whom room is reserved for has come. What is done to the view must be
        undone."""
        known = self._later.get(name)
        if known is not None:
            return known
        room = self._later[name] = self.room.rooms[name].emptied()
        jobs = self.cluster.state.jobs
        for (job_id, _), worker in self.cluster.workers_on[name].items():
            if job_id not in self.cluster.leaving and job_id not in self.victims:
                room.claim(self.cluster.share_of(jobs[job_id], worker), self.cluster.demand(jobs[job_id]))
        for share, demand in (*self._new_on.get(name, ()), *self._reserved_on.get(name, {}).values()):
            room.claim(share, demand)
        return room

    def parting(self) -> set[str]:
        """The nodes that will have other room once what leaves has left."""
        if self._parting is None:
            self._parting = set(self._reserved_on)
            for job_id in (*self.cluster.leaving, *self.victims):
                attempt = self.cluster.state.jobs[job_id].attempt
                assert attempt is not None
                self._parting.update(worker.node for worker in attempt.workers if worker.phase != "gone")
        return self._parting


def place_with_ports(
    room: Capacity, demand: Demand, excluded: frozenset[str], job_id: int
) -> tuple[Allotment, list[t.Endpoint]] | None:
    """Where the demand goes now, and the ports that its workers are met at there; a node that has none left for a
    worker that needs one is left out."""
    while (found := place(room, demand, excluded)) is not None:
        nodes = meeting_nodes(demand, [share.node for share in found.shares])
        endpoints = room.free_endpoints(nodes, job_id)
        if len(endpoints) == len(nodes):
            return found, endpoints
        excluded |= {nodes[len(endpoints)]}
    return None


def meeting_nodes(demand: Demand, nodes: Sequence[str]) -> Sequence[str]:
    """Of the nodes of a gang, in order of rank, those that need a port: the first, or every one."""
    return nodes if demand.own_ports else nodes[:1]


def placements(cluster: Cluster, shares: Sequence[Share]) -> list[t.Placement]:
    """Shares in order of rank as an event names them."""
    nodes = cluster.state.nodes
    return [
        t.Placement(rank, share.node, nodes[share.node].incarnation, list(share.devices))
        for rank, share in enumerate(shares)
    ]


def live_workers(attempt: Attempt) -> list[t.WorkerRef]:
    """The workers that are not gone, as a stop names them."""
    return [
        t.WorkerRef(worker.rank, worker.node, worker.incarnation)
        for worker in attempt.workers
        if worker.phase != "gone"
    ]


def work_lost_ms(cluster: Cluster, job: Job, now_at: int) -> int:
    """The devices' time that a live attempt has run for, in ms of a whole device; of the CPUs' where it has none."""
    attempt = job.attempt
    if attempt is None or not attempt.started_at:
        return 0
    demand = cluster.demand(job)
    elapsed_ms = max(0, now_at - attempt.started_at) // 1_000_000
    return elapsed_ms * demand.gpus * demand.compute // 1000 if demand.gpus else elapsed_ms * demand.cpus
