"""Whether a queue could ever take a job: by its name, and by what its bounds and the lanes leave where nothing runs."""

from collections.abc import Iterable
from typing import Final

from muster.core.conversion import Problem
from muster.core.policy_check import plural
from muster.core.quantities import DEFAULT_PRIORITY, priority_number
from muster.core.queues import ENDLESS, UNBOUNDED, BoundLane, Queue, Tree, Vector, resolve
from muster.core.resources import demand_of
from muster.core.state import Job, Node, State
from muster.events.binding import WHOLE_COMPUTE
from muster.events.spec import JobSpec

QUEUES_SHOWN: Final = 20
_DIMENSIONS: Final = (("/gpus", 0), ("/cpus", 2), ("/memory", 3))


def whole_tree(state: State, tree: Tree) -> Tree:
    """The tree on all nodes, also those that are lost and may come back; `tree` is the one on the others."""
    if all(node.status != "lost" for node in state.nodes.values()):
        return tree
    return Tree(state.queues, state.policy, _total(state.nodes.values()))


def _total(nodes: Iterable[Node]) -> Vector:
    devices = mib = cpus = host_mib = 0
    for node in nodes:
        inventory = node.inventory
        devices += len(inventory.devices)
        mib += sum(device.memory_mib for device in inventory.devices)
        cpus += inventory.cpus
        host_mib += inventory.memory_mib
    return devices * WHOLE_COMPUTE, mib, cpus, host_mib


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
    """Which bounds of its queue, or of those above it, and which lanes a job could never keep to; [] = none. Device
    memory is left to the moment of placing: what a job claims of it depends on the device."""
    queue = tree.queues[spec.queue]
    demand = demand_of(spec)
    per = max(demand.gpus, 1)
    claim: Vector = (demand.gpus * demand.compute, 0, demand.cpus * per, demand.memory_mib * per)
    default = next((each.spec.priority for each in queue.upwards() if each.spec.priority is not None), DEFAULT_PRIORITY)
    problems = []
    for each in queue.upwards():
        problems += _bound_problems(spec, each, claim, default)
    return [*problems, *_lane_problems(spec, tree, claim[0])]


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
    return f"{amounts[place]} CPUs" if place == 2 else f"{amounts[place] / 1024:.4g} GiB of host memory"  # noqa: PLR2004


def _devices(count: float) -> str:
    return plural(count, "device")


def _lane_problems(spec: JobSpec, tree: Tree, asked: int) -> list[Problem]:
    job = Job(0, "", spec, 0)
    closed = [lane for lane in tree.lanes if not lane.admits(job)]
    groups = [closed] if len(closed) == len(tree.lanes) else [[lane] for lane in closed]
    problems = []
    for lanes in groups:
        total, kept = tree.total[0], sum(lane.size for lane in lanes)
        if lanes and asked > max(0, total - kept):
            left = max(0, total - kept) / WHOLE_COMPUTE
            detail = (
                f"asks for {_devices(asked / WHOLE_COMPUTE)}: the cluster has {total / WHOLE_COMPUTE:g}, of which "
                f"{' and '.join(map(_keeps, lanes))}, so {left:g} {'is' if left == 1 else 'are'} left"
            )
            problems.append(Problem("/gpus", detail))
    return problems


def _keeps(lane: BoundLane) -> str:
    small = f"jobs of at most {_devices(lane.max_devices)}"
    time = "" if lane.max_time_s == ENDLESS else f" and {lane.max_time_s} s"
    return f"lane {lane.name} keeps {lane.size / WHOLE_COMPUTE:g} for {small}{time}"
