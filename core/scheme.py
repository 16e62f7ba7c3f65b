"""How placement chooses: the rule, the labels that hold gangs together, and the mix of work that is expected.

The mix is what the `fragmentation` rule judges by: kinds of tasks and how often each was asked for, the most frequent
first, until they make up 95 % of all. Weights are counts, so every sum over a mix is a whole number.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

COVERED_PERCENT: Final = 95
SIGNIFICANT_BITS: Final = 5

Rule = Literal["best-fit", "fragmentation", "spread"]


class TaskClass(NamedTuple):
    """A kind of task on one node: CPUs in all, devices, thousandths of compute of each, and the models that it may run
    on (none = any)."""

    cpus: int
    gpus: int
    compute: int
    models: tuple[str, ...]


Mix = tuple[tuple[TaskClass, int], ...]
"""Kinds of tasks with how often each is asked for, the most frequent first."""


class Scheme(NamedTuple):
    """How `place` chooses. `topology` are node labels, tightest first. `cpus_per_device` is how many CPUs weigh as much
    as one idle device where what is left of nodes is compared."""

    rule: Rule = "best-fit"
    topology: tuple[str, ...] = ("nvlink", "rack")
    mix: Mix = ()
    cpus_per_device: int = 16


def mix_of(counts: Mapping[TaskClass, int]) -> Mix:
    """The most frequent kinds (ties: the smaller kind), until they make up 95 % of what was asked for."""
    mix: list[tuple[TaskClass, int]] = []
    total, covered = sum(counts.values()), 0
    for task, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered * 100 >= total * COVERED_PERCENT:
            break
        mix.append((task, count))
        covered += count
    return tuple(mix)


def mix_of_submissions(counts: Mapping[str, int]) -> Mix:
    """The mix of `State.mix`, whose keys are ``<cpus in all>/<gpus>/<compute>/<models by comma>``. Counts are taken to
    their first five bits, so that the mix, and all that is computed for it, changes ever more rarely."""
    coarse: dict[TaskClass, int] = {}
    for key, count in counts.items():
        cpus, gpus, compute, models = key.split("/", 3)
        task = TaskClass(int(cpus), int(gpus), int(compute), tuple(models.split(",")) if models else ())
        spare_bits = max(count.bit_length() - SIGNIFICANT_BITS, 0)
        coarse[task] = count >> spare_bits << spare_bits
    return mix_of(coarse)
