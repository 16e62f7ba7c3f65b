"""Whether a queue could ever take a job: by its name, and by what its bounds and the lanes leave where nothing runs."""

from collections.abc import Iterable
from functools import reduce
from typing import Final

from muster.core.conversion import Problem
from muster.core.ledger import Ledger, Obstacle
from muster.core.policy_check import plural
from muster.core.quantities import DEFAULT_PRIORITY, duration_text, priority_number
from muster.core.queues import ENDLESS, NOTHING, UNBOUNDED, BoundLane, Queue, Tree, Vector, plus, resolve, total_of
from muster.core.releasing import least_vector
from muster.core.resources import demand_of, largest_device_mib
from muster.core.state import Job, State
from muster.events.binding import WHOLE_COMPUTE
from muster.events.spec import JobSpec

QUEUES_SHOWN: Final = 20
_DIMENSIONS: Final = (("/gpus", 0), ("/cpus", 2), ("/memory", 3))


def whole_tree(state: State, tree: Tree) -> Tree:
    """The tree on all nodes, also those that are lost and may come back; `tree` is the one on the others."""
    if all(node.status != "lost" for node in state.nodes.values()):
        return tree
    nodes = state.nodes.values()
    total = reduce(plus, (total_of(node.inventory) for node in nodes), NOTHING)
    return Tree(state.queues, state.policy, total, largest_device_mib(nodes))


def queue_problems(spec: JobSpec, tree: Tree) -> list[Problem]:
    """Why the queue that a specification names cannot take jobs; [] = it can."""
    queue = tree.queues.get(spec.queue)
    if queue is None:
        known = _listed(each.path for each in tree.queues.values() if each.is_leaf)
        return [
            Problem(
                "/queue", f"there is no queue {spec.queue!r}; queues: {known}. `muster queues apply FILE` makes one"
            )
        ]
    if not queue.is_leaf:
        below = _listed(each.path for each in tree.queues.values() if each.is_leaf and each.is_under(queue))
        return [Problem("/queue", f"jobs do not wait in {queue.path} itself, but in the queues below it: {below}")]
    return []


def _listed(paths: Iterable[str]) -> str:
    names = sorted(paths)
    more = len(names) - QUEUES_SHOWN
    return ", ".join(names[:QUEUES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def size_problems(spec: JobSpec, tree: Tree) -> list[Problem]:
    """Which bounds of its queue, or of those above it, and what of lanes and of what queues keep for themselves a job
    could never keep to; [] = none. Device memory is left to the moment of placing: what a job claims of it depends on
    the device."""
    queue = tree.queues[spec.queue]
    claim = least_vector(demand_of(spec), tree.largest_mib)
    default = next((each.spec.priority for each in queue.upwards() if each.spec.priority is not None), DEFAULT_PRIORITY)
    problems = []
    for each in queue.upwards():
        problems += _bound_problems(spec, each, claim, default)
    return [*problems, *_kept_problems(spec, tree, claim)]


def _bound_problems(spec: JobSpec, queue: Queue, claim: Vector, default_priority: int | str) -> list[Problem]:
    problems = []
    where = f"in queue {queue.path}"
    most = queue.spec.max_job_devices
    if most is not None and spec.gpus > most:
        problems.append(
            Problem("/gpus", f"asks for {spec.gpus}; queue {queue.path} takes jobs of at most {_devices(most)}")
        )
    share = queue.spec.max_job_share
    if share is not None:
        problems += _over(claim, resolve(share, queue.ceiling), f"{where} one job is")
    problems += _over(claim, queue.ceiling, f"queue {queue.path} is")
    problems += _over(claim, queue.user_bound, f"{where} one user is")
    priority = default_priority if spec.priority is None else spec.priority
    if priority_number(priority) >= queue.urgent_from:
        problems += _over(claim, queue.urgent_bound, f"{where} jobs of priority {queue.urgent_from} and above are")
    return problems


def _over(claim: Vector, bound: Vector, whose: str) -> list[Problem]:
    """The first dimension in which a claim is above a bound, if there is one."""
    if bound == UNBOUNDED:
        return []
    for pointer, place in _DIMENSIONS:
        if claim[place] > bound[place]:
            return [Problem(pointer, f"asks for {_amount(claim, place)}; {whose} limited to {_amount(bound, place)}")]
    return []


def _amount(amounts: Vector, place: int) -> str:
    if place == 0:
        return _devices(amounts[0] / WHOLE_COMPUTE)
    if place == 2:  # noqa: PLR2004 - of CPUs
        return f"{amounts[place]} CPU{'' if amounts[place] == 1 else 's'}"
    return f"{amounts[place] / 1024:.4g} GiB of host memory"


def _devices(count: float) -> str:
    return plural(count, "device")


def _kept_problems(spec: JobSpec, tree: Tree, claim: Vector) -> list[Problem]:
    """What lanes keep, and queues that do not lend, from a cluster of which nothing is held yet."""
    if not tree.lanes and not tree.keepers:
        return []
    ledger = Ledger(tree)
    who = ledger.claimant(Job(0, "", spec, 0))
    broken = {(each.kind, each.name): each for each in ledger.obstacles(who, claim)}
    all_lanes = broken.get(("lane", ", ".join(lane.name for lane in tree.lanes)))
    by_lanes = [all_lanes] if all_lanes else [each for each in broken.values() if each.kind == "lane"]
    problems = [Problem("/gpus", _sum(tree, who.queue, each, 0)) for each in by_lanes]
    if kept := broken.get(("kept", "")):
        over = [(pointer, place) for pointer, place in _DIMENSIONS if claim[place] > max(kept.bound[place], 0)]
        problems += [
            Problem(pointer, _sum(tree, who.queue, kept, place)) for pointer, place in over if place or not by_lanes
        ]
    return problems


def _sum(tree: Tree, queue: Queue, broken: Obstacle, place: int) -> str:
    """What there is, who keeps how much of it, and what is left."""
    names = broken.name.split(", ")
    keepers = [_lane_keeps(lane) for lane in tree.lanes if broken.kind == "lane" and lane.name in names]
    keepers += [
        f"queue {keeper.path} keeps {_figure(kept, place)} that it lends to nobody"
        for keeper, kept in tree.keeping(queue, lambda _: NOTHING)
        if kept[place]
    ]
    a, b, c, d = broken.bound
    left = _figure((max(0, a), max(0, b), max(0, c), max(0, d)), place)
    return (
        f"asks for {_amount(broken.adds, place)}: the cluster has {_figure(tree.total, place)}, of which "
        f"{' and '.join(keepers)}, so {left} {'is' if left == '1' else 'are'} left"
    )


def _figure(amounts: Vector, place: int) -> str:
    return f"{amounts[0] / WHOLE_COMPUTE:g}" if place == 0 else _amount(amounts, place)


def _lane_keeps(lane: BoundLane) -> str:
    small = f"jobs of at most {_devices(lane.max_devices)}"
    time = "" if lane.max_time_s == ENDLESS else f" and at most {duration_text(lane.max_time_s)}"
    return f"lane {lane.name} keeps {lane.size / WHOLE_COMPUTE:g} for {small}{time}"
