"""What a job asks for, in whole numbers, and what that claims of a device.

A device has two dimensions, memory in MiB and compute in thousandths; what a demand claims of a device is
`muster.events.binding.device_claim_mib`.
"""

import re
from typing import Final, Literal, NamedTuple

from muster.events.binding import WHOLE_COMPUTE
from muster.events.spec import JobSpec

DEFAULT_CPUS_PER_DEVICE: Final = 1

_SIZE: Final = re.compile(r"^(\d{1,15})\s*(M|MB|MiB|G|GB|GiB|T|TB|TiB)?$")
_UNIT_MIB: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}


def parse_size_mib(size: int | str) -> int:
    """A size in MiB: a whole number of MiB, or text such as ``"40GiB"``. GB and G mean GiB, as on the cards' own
    names. Raises ValueError."""
    if isinstance(size, int):
        return size
    match = _SIZE.match(size.strip())
    if match is None:
        raise ValueError(f'{size!r} is no size: write whole MiB, or a number with MiB, GiB or TiB, such as "40GiB"')
    return int(match[1]) * _UNIT_MIB[(match[2] or "M")[0]]


class Demand(NamedTuple):
    """A job's needs. `cpus` and `memory_mib` are per device, or in all where there is none; `device_memory_mib` is
    nominal, 0 = the whole device; `models` empty = any."""

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

    @property
    def exclusive(self) -> bool:
        """Whether it takes all the compute of its devices."""
        return self.compute == WHOLE_COMPUTE

    @property
    def constrained(self) -> bool:
        """Whether only some nodes will do, by name or label."""
        return bool(self.node_names or self.labels)

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
    )
