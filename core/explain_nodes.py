"""Explanations, filter: which nodes could hold a worker of a job now, and why each of the others cannot."""

from typing import Final, Literal, NamedTuple

from muster.core.capacity import Capacity
from muster.core.explain_turn import Turn
from muster.core.explain_words import jobs_named, quantity, span
from muster.core.explanation import Check, FilterStep
from muster.core.health import SOUND, ailing, ailments_of
from muster.core.node_room import NodeRoom
from muster.core.placement import place
from muster.core.resources import Demand
from muster.core.spec_check import capacity_problems
from muster.core.state import Node
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib

EXAMPLES: Final = 5

RefusalKind = Literal["cordon", "silent", "degraded", "strays", "excluded", "never", "devices", "room", "reservation"]


class Refused(NamedTuple):
    """A node that cannot hold a worker now; `matches` says whether it could with nothing else on it."""

    node: str
    kind: RefusalKind
    reason: str
    matches: bool


def filter_step(turn: Turn, refused: list[Refused]) -> FilterStep:
    """The nodes, counted by reason."""
    shut = {each.node for each in refused}
    nodes = turn.cluster.state.nodes
    by_reason: dict[str, list[str]] = {}
    for each in refused:
        by_reason.setdefault(each.reason, []).append(each.node)
    checks = [Check(reason, len(names), sorted(names)[:EXAMPLES]) for reason, names in by_reason.items()]
    checks.sort(key=lambda check: (-check.nodes, check.reason))
    return FilterStep(len(nodes), sorted(name for name in nodes if name not in shut), checks)


def refused_nodes(turn: Turn) -> list[Refused]:
    """The nodes that cannot hold a worker of the job now."""
    demand = turn.asker.demand
    devices = _devices_of_a_worker(turn)
    return [each for node in turn.cluster.state.nodes.values() if (each := _refusal(turn, node, demand, devices))]


def _devices_of_a_worker(turn: Turn) -> int:
    """How many devices a node must have for the least worker of the job."""
    demand = turn.asker.demand
    if not demand.gpus:
        return 0
    if isinstance(demand.nodes, int):
        return max(1, demand.gpus // demand.nodes)
    single = demand.nodes is None and place(turn.cluster.hardware, demand._replace(nodes=1)) is not None
    return demand.gpus if single else 1


def node_matches(node: Node, demand: Demand) -> bool:
    """Whether a node is one of those asked for, with a device of a model asked for, and runs such work."""
    inventory = node.inventory
    if demand.node_names and node.name not in demand.node_names:
        return False
    if any(inventory.labels.get(label) != value for label, value in demand.labels):
        return False
    if not demand.runs_on(inventory):
        return False
    return not demand.gpus or any(not demand.models or each.model in demand.models for each in inventory.devices)


def _refusal(turn: Turn, node: Node, demand: Demand, devices: int) -> Refused | None:
    empty = NodeRoom(node.inventory)
    never = _where(node, demand) or _device_reason(empty, demand, devices) or _host_reason(empty, demand, devices)
    kind, reason = _closed(turn, node)
    if kind is not None:
        return Refused(node.name, kind, reason, matches=not never)
    if never:
        return Refused(node.name, "never", never, matches=False)
    ill = ill_devices(node, demand)
    if ill and _device_reason(NodeRoom(node.inventory, ailments_of(node)), demand, devices):
        return Refused(node.name, "devices", ill_in_words(node, ill, turn.now_at), matches=True)
    room = turn.draft.room.rooms[node.name]
    full = _device_reason(room, demand, devices) or _host_reason(room, demand, devices)
    if not full:
        return None
    if ill:
        full += f"; {ill_in_words(node, ill, turn.now_at)}"
    reserved = turn.draft.reserved_on(node.name)
    if reserved:
        now = room.emptied()
        for _, (share, claimed) in turn.claims_on(node.name):
            now.claim(share, claimed)
        if not (_device_reason(now, demand, devices) or _host_reason(now, demand, devices)):
            return Refused(
                node.name, "reservation", f"its room is reserved for {jobs_named(sorted(reserved))}", matches=True
            )
    return Refused(node.name, "room", full, matches=True)


def _closed(turn: Turn, node: Node) -> tuple[RefusalKind | None, str]:
    """Why a node takes no new work, or none of this job."""
    if node.cordoned:
        return "cordon", "cordoned"
    if node.status != "ready":
        return "silent", f"{node.status}: its agent is silent"
    if node.degraded:
        return "degraded", f"degraded: {node.degraded}"
    if node.strays:
        return "strays", "a worker of an earlier attempt still runs there"
    if node.name in turn.asker.excluded:
        return "excluded", "refused to start this job a while ago"
    return None, ""


def ill_devices(node: Node, demand: Demand) -> list[int]:
    """The devices of a node that a demand would fit on, were nothing wrong with them."""
    ailments = ailments_of(node)
    if ailments is SOUND or not demand.gpus:
        return []
    sound, room = NodeRoom(node.inventory), NodeRoom(node.inventory, ailments)
    models = [model for model in sound.idle if not demand.models or model in demand.models]
    fitting = {index for model in models for index in room.fitting(model, demand)}
    return [index for model in models for index in sound.fitting(model, demand) if index not in fitting]


def ill_in_words(node: Node, devices: list[int], now_at: int) -> str:
    """What is wrong with devices that take no work of a job: "2 of 8 devices take no work of it: device 3: ..."."""
    many = len(node.inventory.devices)
    takes = "takes" if len(devices) == 1 else "take"
    more = f" and {len(devices) - EXAMPLES} more" if len(devices) > EXAMPLES else ""
    words = ailing(node, sorted(devices)[:EXAMPLES], now_at)
    return f"{len(devices)} of {many} device{'' if many == 1 else 's'} {takes} no work of it: {words}{more}"


def _where(node: Node, demand: Demand) -> str:
    if demand.node_names and node.name not in demand.node_names:
        return "not one of the nodes asked for"
    wrong = [f"{label} = {value}" for label, value in demand.labels if node.inventory.labels.get(label) != value]
    if wrong:
        return f"has not the label {wrong[0]}"
    if demand.runs_on(node.inventory):
        return ""
    return "gives no devices to containers" if node.inventory.containers else "runs no containers"


def _device_reason(room: NodeRoom, demand: Demand, devices: int) -> str:
    if not devices:
        return ""
    inventory = room.inventory.devices
    of_model = [device for device in inventory if not demand.models or device.model in demand.models]
    if not of_model:
        return f"has no {' or '.join(demand.models) or 'devices'}"
    large = [d for d in of_model if device_claim_mib(d, demand.device_memory_mib) <= d.memory_mib]
    if len(large) < devices:
        return f"has {_count(len(large), demand)}, of {devices} asked for"
    models = sorted({device.model for device in of_model})
    fitting = {model: len(room.fitting(model, demand)) for model in models}
    best = max(models, key=lambda model: (fitting[model], model))
    if fitting[best] >= devices:
        return ""
    with_compute = sum(room.device_compute[d.index] >= demand.compute for d in large if d.model == best)
    if with_compute >= devices:
        return _too_few(fitting[best], devices, ("has", "have"), "the memory free")
    if demand.compute == WHOLE_COMPUTE:
        return _too_few(fitting[best], devices, ("is", "are"), "idle")
    return _too_few(fitting[best], devices, ("has", "have"), f"{demand.compute} thousandths of compute free")


def _too_few(found: int, asked: int, verbs: tuple[str, str], what: str) -> str:
    """Of how many devices something holds, where a worker asks for more."""
    if not found:
        return f"no device {verbs[0]} {what}"
    return f"{found} device{'' if found == 1 else 's'} {verbs[found > 1]} {what}, of {asked} asked for"


def _count(devices: int, demand: Demand) -> str:
    size = f" with {demand.device_memory_mib} MiB" if demand.device_memory_mib else ""
    return f"{devices} device{'' if devices == 1 else 's'}{size}"


def _host_reason(room: NodeRoom, demand: Demand, devices: int) -> str:
    cpus, memory_mib = demand.host_share(devices, demand.nodes if isinstance(demand.nodes, int) else 1)
    if room.cpus < cpus:
        return f"{quantity('cpus', room.cpus)} free, {cpus} asked for"
    if room.memory_mib < memory_mib:
        return f"{room.memory_mib} MiB of host memory free, {memory_mib} asked for"
    return ""


def free_devices(room: Capacity, demand: Demand) -> int:
    """How many devices of nodes that take new work have the room asked of each."""
    rooms = [each for each in room.rooms.values() if each.available]
    return sum(
        len(each.fitting(model, demand))
        for each in rooms
        for model in each.idle
        if not demand.models or model in demand.models
    )


def _ill_and_idle(turn: Turn) -> int:
    """How many devices would be free for it, were nothing wrong with them."""
    nodes, demand = turn.cluster.state.nodes, turn.asker.demand
    count = 0
    for name, room in turn.draft.room.rooms.items():
        if room.ailments is not SOUND and room.available:
            shut, left = room.ailments.shut, room.device_compute
            ill = ill_devices(nodes[name], demand)
            count += sum(left[index] == (0 if index in shut else WHOLE_COMPUTE) for index in ill)
    return count


def what_is_missing(turn: Turn, free: int) -> str:
    """Why a job has no place, in a line."""
    demand, room = turn.asker.demand, turn.draft.room
    problem = never_fits(turn)
    if problem:
        return f"can never be placed as the cluster is: {problem}"
    if turn.unported is not None:
        return "waits for a rendezvous port"
    if turn.cluster.is_refused(turn.job):
        return f"waits since {turn.job.reason or 'it was refused'}; {refused_by_all(turn)}"
    if not demand.gpus:
        memory = f" and {quantity('memory', demand.memory_mib)}" if demand.memory_mib else ""
        return f"waits for a node with {quantity('cpus', demand.cpus)}{memory} free"
    asked = f"waits for {demand.gpus} device{'s' if demand.gpus > 1 else ''}"
    are_free = (
        ("is idle" if free == 1 else "are idle")
        if demand.exclusive
        else ("has" if free == 1 else "have") + " room for it"
    )
    ill = _ill_and_idle(turn)
    if ill:
        are_free += f" ({ill} more {'takes' if ill == 1 else 'take'} no work of it)"
    if demand.linked and place(room, demand._replace(linked=False), turn.asker.excluded) is not None:
        return f"{asked} on nodes of one fabric: {free} {are_free}, but not on linked nodes"
    if free < demand.gpus:
        return f"{asked}; {free} {are_free}"
    if place(room, demand) is not None:
        return f"{asked} on a node that has not refused it: {free} {are_free}"
    most = _most_on_a_node(turn)
    if _devices_of_a_worker(turn) == demand.gpus and most < demand.gpus:
        return f"{asked} on one node; {free} {are_free}, at most {most} on one"
    return f"{asked} together; {free} {are_free}, but not where its other needs are met"


def refused_by_all(turn: Turn) -> str:
    """What follows from it that every node that could hold a job has refused it."""
    until_at = min(turn.job.excluded[name] for name in turn.asker.excluded)
    return f"no other node could hold it, and it is tried again in {span(until_at - turn.now_at)}"


def _most_on_a_node(turn: Turn) -> int:
    """How many devices of one model have room for it on the best of the nodes that take new work."""
    demand = turn.asker.demand
    rooms = (each for each in turn.draft.room.rooms.values() if each.available)
    counts = (
        len(each.fitting(model, demand))
        for each in rooms
        for model in each.idle
        if not demand.models or model in demand.models
    )
    return max(counts, default=0)


def never_fits(turn: Turn) -> str:
    """Why no state of the cluster's nodes could hold the job ("" = one could)."""
    if turn.cluster.could_hold(turn.job):
        return ""
    problems = capacity_problems(turn.job.spec, turn.cluster.hardware)
    return problems[0].detail if problems else ""
