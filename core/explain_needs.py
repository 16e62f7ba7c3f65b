"""Explanations, needs: what would have to happen for a waiting job to start, in sentences."""

from typing import Final

from muster.core.explain_bounds import keepers, kept_in_all, lane_size, lasting_bounds
from muster.core.explain_nodes import ill_devices
from muster.core.explain_room import RoomNeeded
from muster.core.explain_turn import Turn
from muster.core.explain_words import SHOWN, jobs_named, listed, quantity
from muster.core.explanation import Amount, Reason, ReasonKind
from muster.core.node_room import Share
from muster.core.placement import Allotment
from muster.core.queues import Vector

_ENDS: Final[dict[ReasonKind, str]] = {
    "kept": "other jobs end",
    "lane": "other jobs end",
    "user_limit": "jobs of that user end",
    "urgent_limit": "some of them end",
    "queue_limit": "jobs in it end",
}
"""Whose ends would do instead, where a bound would let the job in with nothing held."""


def needs_of(turn: Turn, reasons: list[Reason], needed: RoomNeeded | None, claims: list[Vector]) -> list[str]:
    """What would have to happen, all of it, in sentences; `claims` is what the job would have in some place."""
    found: list[str] = []
    lasting = lasting_bounds(turn, claims) if any(reason.kind in _ENDS for reason in reasons) else set()
    for reason in reasons:
        sentence = _need(turn, reason, needed)
        name = "" if reason.kind == "kept" else reason.name
        if reason.kind in _ENDS and (reason.kind, name) not in lasting:
            sentence += f", or {_ENDS[reason.kind].replace('that user', turn.job.user)}"
        if sentence:
            found.append(sentence)
    return found


def _need(turn: Turn, reason: Reason, needed: RoomNeeded | None) -> str:
    match reason.kind:
        case "capacity":
            return "nodes come that can hold it"
        case "order":
            return f"{jobs_named(reason.jobs)} starts or is cancelled" if reason.jobs else ""
        case "room" | "fabric":
            return _need_of_room(turn, needed) if needed is not None and needed.ends else ""
        case "devices":
            return _healed(turn, needed.found) if needed is not None and needed.healed else ""
        case "cordon" | "silent" | "degraded" | "strays" | "excluded":
            return _opened(turn, reason, needed) if needed is not None and needed.opened else ""
        case "reservation":
            dropped = needed.reservations if needed is not None else []
            return f"{jobs_named(dropped)} has started and ended, or is cancelled" if dropped else ""
        case "port":
            return "one of the jobs that hold a rendezvous port there ends"
        case "kept":
            return _lent(turn, reason)
        case "lane":
            return _less_lane(turn, reason)
        case "job_limit":
            return f"queue {reason.name} lets one job hold {_over(reason)} more"
        case "user_limit":
            return f"queue {reason.name} lets each user hold {_over(reason)} more"
        case "urgent_limit":
            return f"queue {reason.name} lets urgent jobs hold {_over(reason)} more"
        case "queue_limit":
            return f"queue {reason.name} may hold {_over(reason)} more"
        case _:
            return ""


def _opened(turn: Turn, reason: Reason, needed: RoomNeeded) -> str:
    """The nodes of its place that are closed to it, or the devices that would do instead."""
    used = {share.node for share in needed.found.shares}
    names = [name for name in reason.nodes if name in used]
    if not names:
        return ""
    commands = [f"`muster uncordon {name}`" for name in names] if reason.kind == "cordon" else []
    sentence = f"{listed(names)} {'takes' if len(names) == 1 else 'take'} work of it again" + _by(commands)
    instead = _healed(turn, needed.instead) if needed.instead is not None else ""
    return f"{sentence}, or {instead}" if instead else sentence


def _healed(turn: Turn, found: Allotment) -> str:
    """The devices of a place that take no work of it as they are."""
    words, commands = [], []
    for share in found.shares:
        node = turn.cluster.state.nodes[share.node]
        ill = ill_devices(node, turn.asker.demand)
        numbers = [index for index in share.devices if index in ill]
        if numbers:
            words.append(f"device{'' if len(numbers) == 1 else 's'} {listed(numbers)} of {share.node}")
        if shut := [index for index in numbers if node.inventory.devices[index].uuid in node.device_cordons]:
            commands.append(f"`muster uncordon {share.node} --device {','.join(map(str, shut))}`")
    if not words:
        return ""
    takes = "takes" if len(words) == 1 and words[0].startswith("device ") else "take"
    return f"{listed(words)} {takes} work of it again" + _by(commands)


def _by(commands: list[str]) -> str:
    return f" ({listed(commands)})" if commands else ""


def _lent(turn: Turn, reason: Reason) -> str:
    """Queues lend no more than they keep: what is lacking beyond that lacks of the nodes too."""
    names = listed(keepers(turn))
    if any(_missing(amount) > kept_in_all(turn, amount.resource) for amount in reason.amounts):
        return f"{names} lends all that is kept"
    return f"{names} lends {_over(reason)} more"


def _less_lane(turn: Turn, reason: Reason) -> str:
    """A lane, likewise, can be made smaller by no more than it has."""
    if _missing(reason.amounts[0]) >= lane_size(turn, reason.name):
        return f"lane {reason.name} is taken away"
    return f"lane {reason.name} is made smaller by {_over(reason)}"


def _missing(amount: Amount) -> int:
    return amount.held + amount.adds - amount.bound


def _over(reason: Reason) -> str:
    return " and ".join(quantity(amount.resource, _missing(amount)) for amount in reason.amounts)


def _need_of_room(turn: Turn, needed: RoomNeeded) -> str:
    where = " and ".join(
        f"{len(share.devices)} {_models(turn, share)} on {share.node}" if share.devices else f"its CPUs on {share.node}"
        for share in needed.found.shares[:SHOWN]
    )
    more = " and so on" if len(needed.found.shares) > SHOWN else ""
    ends = "ends" if len(needed.ends) == 1 else "end"
    return f"{jobs_named(needed.ends)} {ends}: then there is room for {where}{more}"


def _models(turn: Turn, share: Share) -> str:
    inventory = turn.cluster.state.nodes[share.node].inventory.devices
    return " or ".join(sorted({inventory[index].model for index in share.devices}))
