"""What a job asks for, in whole numbers, and what that claims of a device.

A device has two dimensions, memory in MiB and compute in thousandths; what a demand claims of a device is
`muster.events.binding.device_claim_mib`.
"""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from muster.core.quantities import parse_size_mib
from muster.core.state import Node
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.spec import JobSpec
from muster.events.types import Device, Inventory

DEFAULT_CPUS_PER_DEVICE: Final = 1


def largest_device_mib(nodes: Iterable[Node]) -> int:
    """The nominal memory of the largest device of all; 0 = there is none."""
    return max((device.nominal_mib for node in nodes for device in node.inventory.devices), default=0)


class Demand(NamedTuple):
    """A job's needs. `cpus` and `memory_mib` are per device, or in all where there is none; `device_memory_mib` is
    nominal, 0 = the whole device; `models` empty = any; `own_ports`: each worker has a port to be met at, not only the
    first one; `contained`: its workers run in containers."""

    gpus: int
    nodes: Literal["any", "fewest"] | int | None
    cpus: int
    memory_mib: int
    device_memory_mib: int
    compute: int
    models: tuple[str, ...]
    linked: bool
    node_names: frozenset[str]
    labels: tuple[tuple[str, str], ...]
    own_ports: bool = False
    contained: bool = False

    @property
    def exclusive(self) -> bool:
        """Whether it takes all the compute of its devices."""
        return self.compute == WHOLE_COMPUTE

    @property
    def constrained(self) -> bool:
        """Whether only some nodes will do, by name, label, or what they run."""
        return bool(self.node_names or self.labels or self.contained)

    def runs_on(self, inventory: Inventory) -> bool:
        """Whether a node runs such work at all: as processes each does, in containers not each."""
        return not self.contained or (inventory.containers and (inventory.devices_in_containers or not self.gpus))

    def occupies(self, device: Device) -> int:
        """Thousandths of a device that a claim on it counts: by compute or by memory, whichever is more; no more than
        all of one that has come back with less memory."""
        if self.compute == WHOLE_COMPUTE:
            return WHOLE_COMPUTE
        claim_mib = device_claim_mib(device, self.device_memory_mib)
        by_memory = -(-claim_mib * WHOLE_COMPUTE // max(1, device.memory_mib))
        return max(self.compute, min(by_memory, WHOLE_COMPUTE))

    def occupies_at_least(self, largest_mib: int) -> int:
        """Likewise, wherever it goes: on a device of the largest nominal memory (0 = unknown)."""
        if self.device_memory_mib == 0:
            return WHOLE_COMPUTE
        by_memory = self.device_memory_mib * WHOLE_COMPUTE // largest_mib if largest_mib else 0
        return max(self.compute, min(by_memory, WHOLE_COMPUTE))

    def host_share(self, devices: int, workers: int) -> tuple[int, int]:
        """CPUs and host MiB of one worker with `devices` devices, of `workers` workers."""
        if self.gpus:
            return self.cpus * devices, self.memory_mib * devices
        return -(-self.cpus // workers), -(-self.memory_mib // workers)


def demand_of(spec: JobSpec) -> Demand:
    """The demand of a checked specification."""
    gpu, where = spec.gpu, spec.where
    cpus = spec.cpus if spec.cpus is not None else (DEFAULT_CPUS_PER_DEVICE if spec.gpus else 0)
    return Demand(
        gpus=spec.gpus,
        nodes=spec.nodes,
        cpus=cpus,
        memory_mib=0 if spec.memory is None else parse_size_mib(spec.memory),
        device_memory_mib=0 if gpu.memory is None else parse_size_mib(gpu.memory),
        compute=WHOLE_COMPUTE if gpu.compute is None else max(1, round(gpu.compute * WHOLE_COMPUTE)),
        models=tuple(gpu.model) if gpu.model else (),
        linked=gpu.interconnect == "any",
        node_names=frozenset(where.nodes or ()),
        labels=tuple(sorted(where.labels.items())),
        own_ports=spec.framework == "tensorflow",
        contained=spec.image is not None,
    )
