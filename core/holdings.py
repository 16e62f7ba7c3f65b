"""Who holds what: the claims of workers and reservations on each node, and what they add up to.

All of it is computed from the state, and kept in step as claims come and go.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Final

from muster.core.capacity import Capacity
from muster.core.health import ailments_of
from muster.core.ledger import Claimant, Ledger, negative
from muster.core.node_room import NodeRoom, Share
from muster.core.placement import place
from muster.core.queues import NOTHING, Tree, Vector, plus, total_of
from muster.core.resources import Demand, demand_of, largest_device_mib
from muster.core.scheme import scheme_of
from muster.core.state import Attempt, Job, Node, Room, State, Worker
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib

Claim = tuple[Share, Demand]


def milli_of(demands: dict[int, Demand], job: Job) -> int:
    """Thousandths of devices that a job takes, by compute. `demands`, by job, is filled as needed."""
    demand = demands.get(job.id)
    if demand is None:
        demand = demands[job.id] = demand_of(job.spec)
    return demand.gpus * demand.compute


class Holdings:
    """The claims on the nodes, the room that they leave, and the sums by queue and user."""

    def __init__(self, state: State) -> None:
        self.state: Final = state
        self._capacity: Final = Capacity()
        self._stale: Final[set[str]] = set()  # nodes whose room must be computed anew before it is looked at
        self.hardware: Final = Capacity()  # the nodes as if nothing ran: what could ever be placed
        self.healthy: Final = Capacity()  # those that take new work, likewise
        self._claims: Final[dict[int, list[Claim]]] = {}  # of jobs whose claims were asked for
        self.workers_on: Final[dict[str, dict[tuple[int, int], Worker]]] = {}
        self.reserved_on: Final[dict[str, dict[int, Claim]]] = {}  # node → job → what is reserved for it there
        self.leaving: Final[set[int]] = set()  # jobs whose workers are being stopped
        self._totals: Final[dict[str, Vector]] = {}  # what each node adds to the cluster
        self._scheme_is_stale = True
        self._ledger: Ledger | None = None  # None = to be added up anew before it is looked at
        self._bare: Ledger | None = None  # the bounds, with nothing held
        self._charges: Final[dict[tuple[int, int], tuple[Claimant, Vector]]] = {}  # of workers, as the ledger has them
        self._demands: Final[dict[int, Demand]] = {}
        self._shapes: Final[dict[Demand, int]] = {}
        self.shape_of: Final[dict[int, int]] = {}
        self._placeable: Final[dict[int, bool]] = {}  # shape → whether the hardware could hold it

    # -- what is asked for --------------------------------------------------------------------------------------------

    def demand(self, job: Job) -> Demand:
        """What the job asks for."""
        demand = self._demands.get(job.id)
        if demand is None:
            demand = self._demands[job.id] = demand_of(job.spec)
        return demand

    def milli(self, job: Job) -> int:
        """Thousandths of devices that the job takes, by compute."""
        return milli_of(self._demands, job)

    def shape(self, job: Job) -> int:
        """A number that jobs of equal demands share."""
        shape = self.shape_of.get(job.id)
        if shape is None:
            shape = self.shape_of[job.id] = self._shapes.setdefault(self.demand(job), len(self._shapes))
        return shape

    def could_hold(self, job: Job) -> bool:
        """Whether the cluster's nodes, with nothing running, could hold a job."""
        shape = self.shape(job)
        known = self._placeable.get(shape)
        if known is None:
            known = self._placeable[shape] = place(self.hardware, self.demand(job)) is not None
        return known

    def is_refused(self, job: Job) -> bool:
        """Whether every node that could hold a job has refused it a while ago."""
        now_at = self.state.time_at
        refusing = frozenset(name for name, until_at in job.excluded.items() if until_at > now_at)
        return bool(refusing) and self.could_hold(job) and place(self.hardware, self.demand(job), refusing) is None

    def could_start(self, who: Claimant, job: Job, claim: Vector) -> bool:
        """Whether a job could start with nothing running: where nodes, and the bounds of queues and lanes, are."""
        return self.could_hold(job) and self.could_admit(who, claim)

    def could_admit(self, who: Claimant, claim: Vector) -> bool:
        """Whether the bounds of queues and lanes, with nothing running, would let a claim in."""
        tree = self.ledger().tree
        if self._bare is None or self._bare.tree is not tree:
            self._bare = Ledger(tree)
        return self._bare.admits(who, claim)

    def forget(self, job: int) -> None:
        """Drop what is kept beside the state of a job that has left it."""
        self._demands.pop(job, None)
        if self._ledger is not None:
            self._ledger.forget(job)
        self.shape_of.pop(job, None)
        if len(self._shapes) > 4 * len(self.shape_of) + 1000:
            self._shapes.clear()
            self.shape_of.clear()
            self._placeable.clear()

    # -- claims -------------------------------------------------------------------------------------------------------

    def share_of(self, job: Job, worker: Worker) -> Share:
        """What a worker claims of its node."""
        demand = self.demand(job)
        assert job.attempt is not None
        cpus, memory_mib = demand.host_share(len(worker.devices), len(job.attempt.workers))
        return Share(worker.node, tuple(worker.devices), cpus, memory_mib)

    def claims_by(self, job: Job) -> list[Claim]:
        """What the workers of a live attempt claim."""
        claims = self._claims.get(job.id)
        if claims is None:
            assert job.attempt is not None
            demand = self.demand(job)
            claims = self._claims[job.id] = [
                (self.share_of(job, worker), demand) for worker in job.attempt.workers if worker.phase != "gone"
            ]
        return claims

    def charged_to(self, job: Job) -> Vector:
        """The same in the ledger's terms, as the ledger at hand has it."""
        assert job.attempt is not None
        charges = [self._charges[job.id, worker.rank][1] for worker in job.attempt.workers if worker.phase != "gone"]
        return charges[0] if len(charges) == 1 else reduce(plus, charges, NOTHING)

    def occupied(self, job: Job, worker: Worker) -> int:
        """The thousandths of devices that a worker's claim counts."""
        node = self.state.nodes.get(worker.node)
        devices = node.inventory.devices if node is not None else []
        demand = self.demand(job)
        present = [devices[index] for index in worker.devices if index < len(devices)]
        return len(present) * WHOLE_COMPUTE if demand.exclusive else sum(map(demand.occupies, present))

    def vector_of(self, share: Share, demand: Demand) -> Vector:
        """A share of a node in the ledger's terms: nothing on a lost node, which adds nothing to the cluster."""
        node = self.state.nodes.get(share.node)
        if node is None or node.status == "lost":
            return NOTHING
        devices = node.inventory.devices
        milli = mib = 0
        for index in share.devices:
            if index < len(devices):
                milli += demand.occupies(devices[index])
                mib += device_claim_mib(devices[index], demand.device_memory_mib)
        return milli, mib, share.cpus, share.memory_mib

    def claim(self, job_id: int, worker: Worker) -> None:
        """Book a placed worker."""
        on_node = self.workers_on.get(worker.node)
        if on_node is None:
            on_node = self.workers_on[worker.node] = {}
        on_node[job_id, worker.rank] = worker
        self._claims.pop(job_id, None)
        self._stale.add(worker.node)
        self._charge(self.state.jobs[job_id], worker)

    def _charge(self, job: Job, worker: Worker) -> None:
        if self._ledger is not None:
            charge = self._ledger.claimant(job), self.vector_of(self.share_of(job, worker), self.demand(job))
            self._charges[job.id, worker.rank] = charge
            self._ledger.charge(*charge)
            if job.id in self.leaving:
                self._ledger.leave(*charge)

    def _discharge(self, job_id: int, worker: Worker) -> None:
        charge = self._charges.pop((job_id, worker.rank), None)
        if charge is not None and self._ledger is not None:
            who, claim = charge
            self._ledger.charge(who, negative(claim))
            if job_id in self.leaving:
                self._ledger.leave(who, negative(claim))

    def release(self, job_id: int, worker: Worker) -> None:
        """Free what a worker held, once its tree is gone."""
        self.workers_on[worker.node].pop((job_id, worker.rank), None)
        self._claims.pop(job_id, None)
        self._stale.add(worker.node)
        self._discharge(job_id, worker)

    def _leave(self, job: Job, attempt: Attempt) -> None:
        self.leaving.add(job.id)
        for worker in attempt.workers:
            if worker.phase != "gone":
                self._stale.add(worker.node)
                if self._ledger is not None:
                    self._ledger.leave(*self._charges[job.id, worker.rank])

    def ledger(self) -> Ledger:
        """The sums over all claims. A reader may plan on it if it takes back what it booked."""
        if self._ledger is None:
            total = reduce(plus, self._totals.values(), NOTHING)
            largest_mib = largest_device_mib(self.state.nodes.values())
            self._ledger = Ledger(Tree(self.state.queues, self.state.policy, total, largest_mib))
            self._charges.clear()
            for workers in self.workers_on.values():
                for (job_id, _), worker in workers.items():
                    self._charge(self.state.jobs[job_id], worker)
            for room in self.state.rooms.values():
                self._charge_room(room)
        return self._ledger

    def hold_ports(self, attempt: Attempt) -> None:
        """Hold the ports of an attempt."""
        self._capacity.take_ports(attempt.ports())

    def free_ports(self, attempt: Attempt) -> None:
        """Let the ports of an attempt go."""
        self._capacity.give_ports(attempt.ports())

    # -- reservations -------------------------------------------------------------------------------------------------

    def room_claims(self, room: Room) -> list[Claim]:
        """What a reservation claims of each node."""
        demand = self.demand(self.state.jobs[room.job])
        claims = []
        for each in room.placements:
            cpus, memory_mib = demand.host_share(len(each.devices), len(room.placements))
            claims.append((Share(each.node, tuple(each.devices), cpus, memory_mib), demand))
        return claims

    def _reserve(self, room: Room) -> None:
        for claim in self.room_claims(room):
            self.reserved_on.setdefault(claim[0].node, {})[room.job] = claim
            self._stale.add(claim[0].node)
        if self._ledger is not None:
            self._charge_room(room)

    def _unreserve(self, room: Room) -> None:
        for share, demand in self.room_claims(room):
            on_node = self.reserved_on[share.node]
            del on_node[room.job]
            if not on_node:
                del self.reserved_on[share.node]
            self._stale.add(share.node)
            if self._ledger is not None:
                who = self._ledger.claimant(self.state.jobs[room.job])
                self._ledger.charge(who, negative(self.vector_of(share, demand)))

    def _charge_room(self, room: Room) -> None:
        assert self._ledger is not None
        job = self.state.jobs[room.job]
        for share, demand in self.room_claims(room):
            self._ledger.charge(self._ledger.claimant(job), self.vector_of(share, demand))

    # -- room ---------------------------------------------------------------------------------------------------------

    def room(self) -> Capacity:
        """What is free now. A reader may plan on it if it names the nodes it touched by `touch` afterwards."""
        if self._scheme_is_stale:
            policy = self.state.policy
            self._capacity.scheme = scheme_of(policy.placement, policy.topology, self.state.mix)
            self._scheme_is_stale = False
        if self._stale:
            for name in sorted(self._stale):
                if name in self._capacity.rooms:
                    later = self.claims_later(name) if name in self.reserved_on else None
                    self._capacity.refill(name, self.claims_on(name), later)
            self._stale.clear()
        return self._capacity

    def touch(self, nodes: Iterable[str]) -> None:
        """These nodes' room was planned on: compute it anew before it is next looked at."""
        self._stale.update(nodes)

    def claims_on(self, name: str) -> list[Claim]:
        """What is claimed of a node now."""
        return list(self._claims_of(name, leaving=True))

    def claims_later(self, name: str) -> list[Claim]:
        """What is claimed of a node once all that leaves has left and whom room is reserved for has come."""
        return [*self._claims_of(name, leaving=False), *self.reserved_on.get(name, {}).values()]

    def _claims_of(self, name: str, *, leaving: bool) -> Iterator[Claim]:
        jobs = self.state.jobs
        for (job_id, _), worker in self.workers_on[name].items():
            if leaving or job_id not in self.leaving:
                job = jobs[job_id]
                alone = job.attempt is not None and len(job.attempt.workers) == 1
                yield self.claims_by(job)[0] if alone else (self.share_of(job, worker), self.demand(job))

    def room_now(self, name: str) -> NodeRoom:
        """A node with what is claimed of it now, whatever is reserved."""
        room = self._capacity.rooms[name].emptied()
        for share, demand in self._claims_of(name, leaving=True):
            room.claim(share, demand)
        return room

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _index_inventory(self, node: Node) -> None:
        """Take in what a node has."""
        for job_id, _ in self.workers_on.setdefault(node.name, {}):
            self._claims.pop(job_id, None)  # its devices may have other numbers now
        if node.name not in self._capacity.rooms or self._capacity.rooms[node.name].inventory != node.inventory:
            self._ledger = None  # its workers' claims may be others now
        ailments = ailments_of(node)
        self._capacity.set_node(node.name, node.inventory, ailments)
        self.hardware.set_node(node.name, node.inventory)
        self.hardware.set_available(node.name, available=True)
        self.healthy.set_node(node.name, node.inventory, ailments)
        self._placeable.clear()
        self._stale.add(node.name)

    def _review_ailments(self, node: Node) -> bool:
        """Whether what is wrong with a node's devices has changed for new work."""
        ailments = ailments_of(node)
        if ailments == self._capacity.rooms[node.name].ailments:
            return False
        self._capacity.put_room(node.name, NodeRoom(node.inventory, ailments))
        self.healthy.put_room(node.name, NodeRoom(node.inventory, ailments))
        self._stale.add(node.name)
        return True

    def _review_status(self, node: Node) -> None:
        """Whether a node takes new work, and whether it counts."""
        self._capacity.set_available(node.name, available=node.available)
        self.healthy.set_available(node.name, available=node.available)
        total = NOTHING if node.status == "lost" else total_of(node.inventory)
        if self._totals.get(node.name) != total:
            self._totals[node.name] = total
            self._ledger = None
