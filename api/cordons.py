"""Cordons: which nodes and devices people keep new work from, and what they vouch for.

Rules: what changes nothing appends nothing. Each change looks at the state with all that the log had by then, and is
seen in it before the next one begins. What can be read as wrong at this moment nobody can vouch for.
"""

import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.appending import append
from muster.api.bodies import read_body
from muster.api.parameters import INDEX_DIGITS, user_of
from muster.api.problems import ApiError, no_such
from muster.api.service import MIN_SEQ_WAIT_S, SERVICE, Service
from muster.core.health import LASTING, in_words
from muster.core.state import Condition, Node
from muster.events.types import (
    DeviceCordoned,
    DeviceUncordoned,
    Event,
    FaultCause,
    NodeCordoned,
    NodeUncordoned,
)

REASON_LENGTH: Final = 200
_READ: Final[dict[FaultCause, str]] = {
    "lost": "it is on probation, and then takes work, once it is there again: restart the machine, or replace it",
    "unreadable": "it is on probation, and then takes work, once it can be read: restart the machine, or replace it",
    "memory_unknown": "it takes work by itself once its memory can be read",
    "mig": "it takes work by itself once its MIG mode is off (nvidia-smi -mig 0)",
}
"""What can be read as wrong now, and what to do: its agent tells when it is over."""


class CordonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a node or a device is cordoned. Left out where it is cordoned already, the reason stays as it is."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH)] = ""


class CordonSet(msgspec.Struct, frozen=True):
    """A node, or a device of it (None = the node), is cordoned, or is not any more, as of `sequence`. `already`: it was
    so before, and nothing was appended. `still`: what keeps work from it all the same ("" = nothing)."""

    sequence: int
    node: str
    device: int | None
    already: bool = False
    still: str = ""


async def cordon(request: web.Request) -> web.Response:
    """Give a node no new work."""
    user, body = user_of(request), await read_body(request, CordonBody)
    async with _looked(request) as (service, node):
        already = _is_cordoned(node.cordoned, body.reason)
        event = NodeCordoned(node=node.name, user=user, reason=body.reason)
        return await _set(service, None if already else event, node.name, None)


async def uncordon(request: web.Request) -> web.Response:
    """Give a node work again."""
    user = user_of(request)
    async with _looked(request) as (service, node):
        if not node.cordoned:
            raise _nothing_to_lift(f"{node.name} is not cordoned", "", _closed(node), node.name)
        return await _set(service, NodeUncordoned(node=node.name, user=user), node.name, None)


async def cordon_device(request: web.Request) -> web.Response:
    """Give a device no new work."""
    user, body = user_of(request), await read_body(request, CordonBody)
    async with _looked(request) as (service, node):
        index, uuid = _device_in(request, [device.uuid for device in node.inventory.devices])
        already = _is_cordoned(node.device_cordons.get(uuid, ""), body.reason)
        event = DeviceCordoned(node=node.name, uuid=uuid, user=user, reason=body.reason, index=index)
        return await _set(service, None if already else event, node.name, index)


async def uncordon_device(request: web.Request) -> web.Response:
    """Give a device work again, whatever was wrong with it: somebody vouches for it."""
    user = user_of(request)
    async with _looked(request) as (service, node):
        index, uuid = _device_in(request, node.uuids())
        name, condition = f"device {index} of {node.name}", node.conditions.get(uuid)
        if not any(uuid in known for known in (node.device_cordons, node.conditions, node.device_errors)):
            detail = "nothing is known to be wrong with it"
            raise _nothing_to_lift(f"{name} is not cordoned", detail, _closed_to(node, index), node.name)
        if condition is not None and index < len(node.inventory.devices):
            _check_over(name, condition)
        event = DeviceUncordoned(node=node.name, uuid=uuid, user=user, index=index)
        return await _set(service, event, node.name, index)


@asynccontextmanager
async def _looked(request: web.Request) -> AsyncGenerator[tuple[Service, Node], None]:
    """The node in the path, with all that the log has of it, for as long as nobody else changes what people set."""
    service, name = request.app[SERVICE], request.match_info["name"]
    async with service.configuring:
        await service.follower.wait_for(await service.log.last_sequence(), MIN_SEQ_WAIT_S)
        node = service.state.nodes.get(name)
        if node is None:
            raise no_such("node", name, "muster nodes lists the nodes")
        yield service, node


def _device_in(request: web.Request, uuids: list[str]) -> tuple[int, str]:
    """The device whose number is in the path: that, and its uuid."""
    name, digits = request.match_info["name"], request.match_info["index"]
    index = int(digits) if len(digits) <= INDEX_DIGITS else len(uuids)
    if index >= len(uuids):
        raise no_such("device", f"{digits[:40]} of {name}", f"muster nodes {name} lists its devices")
    return index, uuids[index]


def _is_cordoned(cordoned: str, reason: str) -> bool:
    """Whether it is cordoned (`by ada: a loud fan`), for that reason or without another one."""
    return bool(cordoned) and reason in ("", cordoned.partition(": ")[2])


def _check_over(name: str, condition: Condition) -> None:
    if condition.action in LASTING and condition.cause in _READ:
        words = in_words(condition.cause, condition.xid, condition.detail)
        title = f"nobody can vouch for {name} as it is"
        raise ApiError(409, "still_wrong", title, detail=words, next_step=_READ[condition.cause])


def _nothing_to_lift(title: str, detail: str, still: str, node: str) -> ApiError:
    words = [detail] if detail else []
    words += [f"it takes no work all the same: {still}"] if still else []
    step = f"muster nodes {node} says more" if still else ""
    return ApiError(409, "nothing_to_lift", title, detail="; ".join(words), next_step=step)


async def _set(service: Service, event: Event | None, name: str, index: int | None) -> web.Response:
    """Append what changes (None = nothing does), and answer with what is so then."""
    sequence = service.state.sequence
    if event is not None:
        sequence = (await append(service.log, event)).sequence
        with contextlib.suppress(TimeoutError):  # it is in the log, which is what the answer says
            await service.follower.wait_for(sequence, MIN_SEQ_WAIT_S)
    node = service.state.nodes[name]
    lifted = isinstance(event, NodeUncordoned | DeviceUncordoned)
    still = (_closed(node) if index is None else _closed_to(node, index)) if lifted else ""
    return answer(CordonSet(sequence, name, index, already=event is None, still=still), sequence)


def _closed(node: Node) -> str:
    """What keeps new work from a node, but for its cordon."""
    if node.status != "ready":
        return f"{node.status}: its agent is silent"
    if node.degraded:
        return f"degraded: {node.degraded}"
    return "a worker of an earlier attempt still runs there" if node.strays else ""


def _closed_to(node: Node, index: int) -> str:
    """What keeps new work from a device that nothing is wrong with."""
    if index >= len(node.inventory.devices):
        return f"{node.name} has it no more"
    if node.cordoned:
        return f"{node.name} is cordoned {node.cordoned}"
    closed = _closed(node)
    return f"{node.name} is {closed}" if closed and not node.strays else closed
