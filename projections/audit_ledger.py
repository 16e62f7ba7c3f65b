"""The auditor's own book of who holds which device, kept beside the fold: nothing is held past what the device has,
an attempt gives back each worker's devices once, and the next attempt begins with nothing of the last one held."""

from typing import Final, NamedTuple

from muster.core.cluster import Cluster
from muster.core.state import ENDED, Job, Worker
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.types import Device, Inventory

_Device = tuple[str, str]
"""A node and a device's uuid: its number may be another one in another life of the node."""


class _Claim(NamedTuple):
    memory_mib: int
    compute: int


class _Held(NamedTuple):
    attempt: int
    devices: dict[int, tuple[_Device, ...]]  # by rank


_NOTHING: Final = _Held(0, {})


class _Devices(NamedTuple):
    """A node's devices as last looked at."""

    inventory: Inventory
    absent: list[str]
    uuids: list[str]  # by number
    known: dict[str, Device]


class Ledger:
    """Who holds what, entry by entry. `Ledger(cluster)` begins with what a restored state holds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Final = cluster
        self._held: Final[dict[int, _Held]] = {}
        self._claims: Final[dict[_Device, dict[int, _Claim]]] = {}
        self._nodes: Final[dict[str, _Devices]] = {}
        for job in cluster.state.jobs.values():
            self._book(job)

    def note(self, job_ids: set[int]) -> str | None:
        """Book what the last entry changed for these jobs; gives what is wrong with it."""
        problem = None
        for job_id in sorted(job_ids) if len(job_ids) > 1 else job_ids:
            job = self._cluster.state.jobs.get(job_id)
            if job is not None:
                problem = self._book(job) or problem
        return problem

    def _book(self, job: Job) -> str | None:
        attempt = job.attempt
        if attempt is None:
            return None
        before = self._held.get(job.id, _NOTHING)
        devices = {worker.rank: self._devices(worker) for worker in attempt.workers if worker.phase != "gone"}
        same = before.attempt == attempt.number
        if same and devices and devices == before.devices:
            return None
        problem = None
        if before.attempt > attempt.number:
            problem = f"attempt {job.id}.{attempt.number} follows attempt {before.attempt}"
        elif before.devices and not same:
            problem = f"attempt {job.id}.{attempt.number} begins while attempt {before.attempt} holds devices"
        elif same and any(before.devices.get(rank) != held for rank, held in devices.items()):
            problem = f"a worker of {job.id}.{attempt.number} holds devices that it had given back"
        self._release(job.id, before)
        self._claim(job, devices)
        if devices or job.phase not in ENDED:
            self._held[job.id] = _Held(attempt.number, devices)
        else:
            self._held.pop(job.id, None)
        return problem or (None if same else self._overbooked(devices))

    def _devices(self, worker: Worker) -> tuple[_Device, ...]:
        name, node = worker.node, self._node(worker.node)
        uuids = node.uuids if node is not None else []
        return tuple([(name, uuids[n] if n < len(uuids) else f"number {n}") for n in worker.devices])

    def _node(self, name: str) -> _Devices | None:
        node = self._cluster.state.nodes.get(name)
        if node is None:
            return None
        known = self._nodes.get(name)
        if known is None or known.inventory is not node.inventory or known.absent != node.absent:
            by_uuid = {device.uuid: device for device in node.inventory.devices}
            known = self._nodes[name] = _Devices(node.inventory, [*node.absent], node.uuids(), by_uuid)
        return known

    def _known(self, device: _Device) -> Device | None:
        """The device, where its node has it."""
        name, uuid = device
        node = self._node(name)
        return node.known.get(uuid) if node is not None else None

    def _release(self, job_id: int, held: _Held) -> None:
        for worker in held.devices.values():
            for device in worker:
                self._claims[device].pop(job_id, None)

    def _claim(self, job: Job, devices: dict[int, tuple[_Device, ...]]) -> None:
        demand = self._cluster.demand(job)
        for worker in devices.values():
            for held in worker:
                device = self._known(held)
                memory_mib = device_claim_mib(device, demand.device_memory_mib) if device is not None else 0
                self._claims.setdefault(held, {})[job.id] = _Claim(memory_mib, demand.compute)

    def _overbooked(self, devices: dict[int, tuple[_Device, ...]]) -> str | None:
        for worker in devices.values():
            for held in worker:
                claims = self._claims[held].values()
                memory_mib = sum(claim.memory_mib for claim in claims)
                compute = sum(claim.compute for claim in claims)
                device = self._known(held)
                if compute > WHOLE_COMPUTE or (device is not None and memory_mib > device.memory_mib):
                    holders = ", ".join(map(str, sorted(self._claims[held])))
                    name, uuid = held
                    which = f"device {device.index}" if device is not None else uuid
                    return f"{which} of {name} is held past what it has, by jobs {holders}"
        return None
