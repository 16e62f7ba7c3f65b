"""How placement chooses: the rule, the labels that hold gangs together, and the mix of work that is expected.

The mix is what `fragmentation` and `tight` judge by: kinds of tasks and how often each was asked for. Weights are
counts, so every sum over a mix is a whole number.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

Rule = Literal["best-fit", "fragmentation", "spread", "tight"]

BY_MIX: Final[dict[Rule, int]] = {"fragmentation": 95, "tight": 100}
"""The rules that judge by the mix, and how many percent of all that was asked for their mix must cover."""

SIGNIFICANT_BITS: Final = 5


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


def mix_of(counts: Mapping[TaskClass, int], percent: int) -> Mix:
    """The most frequent kinds (ties: the smaller kind), until they make up so much of all that was asked for."""
    mix: list[tuple[TaskClass, int]] = []
    total, covered = sum(counts.values()), 0
    for task, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered * 100 >= total * percent:
            break
        mix.append((task, count))
        covered += count
    return tuple(mix)


def scheme_of(rule: Rule, topology: Sequence[str], submissions: Mapping[str, int]) -> Scheme:
    """The scheme of a policy, with the mix of `State.mix`: ``<CPUs in all>/<gpus>/<compute>/<models by comma>`` → how
    many such jobs were submitted. Counts are cut to their first five bits: the more there are, the more rarely the mix
    changes, and with it all that is computed for it."""
    if rule not in BY_MIX:
        return Scheme(rule, tuple(topology))
    counts: dict[TaskClass, int] = {}
    for key, count in submissions.items():
        cpus, gpus, compute, models = key.split("/", 3)
        task = TaskClass(int(cpus), int(gpus), int(compute), tuple(models.split(",")) if models else ())
        spare_bits = max(count.bit_length() - SIGNIFICANT_BITS, 0)
        counts[task] = count >> spare_bits << spare_bits
    return Scheme(rule, tuple(topology), mix_of(counts, BY_MIX[rule]))
