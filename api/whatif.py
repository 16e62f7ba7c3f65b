"""`/v1/whatif`: what would have been under other rules, and what would become of a job. Nothing is written to the
log."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Annotated, Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.bodies import read_json, read_spec
from muster.api.clients import CLIENTS, too_many
from muster.api.configuring import not_right, refused
from muster.api.explaining import explanation_lines
from muster.api.forecasting import beside_the_loop
from muster.api.parameters import flag, user_of
from muster.api.problems import ApiError, FieldError
from muster.api.progressing import Progress, wants_progress, with_progress
from muster.api.service import SERVICE, moment_of, range_of, see_mirrored
from muster.api.submissions import check_capacity, check_queue
from muster.api.times import rfc3339
from muster.api.whatif_program import Question, Reply
from muster.api.whatif_view import WhatIfView
from muster.core.conversion import Problem, SpecError, convert
from muster.core.explain import begin
from muster.core.explanation import Explanation, Victim, WorkerPlace
from muster.core.policy_check import check_policy, check_queues
from muster.core.state import State
from muster.events.codec import encode
from muster.events.log import Entry
from muster.events.policy import Policy, QueueSpec
from muster.events.spec import JobSpec, Name
from muster.events.subjects import subject_of
from muster.events.types import Inventory, JobSubmitted
from muster.node_agent.inventory import SimulatedDevices, Site, node_kinds
from muster.projections.fold import Fold
from muster.projections.whatif import Changes

WAITING_MOST: Final = 8
WINDOW_MOST: Final = 200_000
NODES_MOST: Final = 1000
DONE: Final = 100
REPLY_MOST: Final = 1 << 28
"""So many bytes a line of the process that works has at most."""
ANSWER_S: Final = 1700
"""So long a question is worked on, a little less than the command line waits."""


class Questions:
    """One question is worked on at a time, and a few may wait for their turn."""

    def __init__(self) -> None:
        self._lock: Final = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None, None]:
        """While a question is worked on. Raises ApiError where too many wait."""
        if self._waiting >= WAITING_MOST:
            raise too_many(f"{WAITING_MOST} questions wait for the one that is worked on")
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


ASKING: Final = web.AppKey("asking", Questions)


class WhatIfBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The window from one moment to another (the present if left out), and what is otherwise in it: a policy as
    `PUT /v1/policy` takes it, queues as `PUT /v1/queues` does, nodes more (`2x8xH100-80GB`), and nodes less, by their
    names or as a count."""

    begin: Annotated[str, msgspec.Meta(max_length=64)] = msgspec.field(name="from")
    end: Annotated[str, msgspec.Meta(max_length=64)] = msgspec.field(name="to", default="")
    policy: Policy | None = None
    queues: list[QueueSpec] | None = None
    add_nodes: Annotated[str, msgspec.Meta(max_length=256)] = ""
    remove_nodes: list[Name] | Annotated[int, msgspec.Meta(ge=0, le=NODES_MOST)] = 0


class SubmitView(msgspec.Struct, frozen=True):
    """What would become of a job: when it is expected to start (null = nobody knows), where, and who would be stopped
    for it; and why, as an explanation and in lines for a terminal."""

    starts: str | None
    starts_in_ms: int | None
    workers: list[WorkerPlace]
    stopped: list[Victim]
    explanation: Explanation
    text: list[str]


async def what_if(request: web.Request) -> web.StreamResponse:
    """Run a window of the log under other rules and compare. One such question is worked on at a time, in a process of
    its own."""
    service = request.app[SERVICE]
    body, policy, queues = _read(await read_json(request))
    asked = await range_of(service, body.begin, body.end or "now")
    first = max(asked.first - 1, service.store.origin + 1) if asked.began_ns else asked.first
    last, began_ns, until_ns = asked.last, asked.began_ns, asked.until_ns
    if first >= last:
        raise _wrong("/from", asked.empty or f"nothing happens in this window: entry {first} is its end too")
    if last - first > WINDOW_MOST:
        raise _wrong("/from", f"the window has {last - first} entries; at most {WINDOW_MOST} are run again")
    kinds = _kinds(body.add_nodes)
    names, less = (body.remove_nodes, 0) if isinstance(body.remove_nodes, list) else ([], body.remove_nodes)
    done = 0

    def told(percent: int) -> None:
        nonlocal done
        done = percent

    async def worked_out() -> WhatIfView:
        async with request.app[ASKING].turn():
            added = await _nodes(kinds, service.state)
            changes = Changes(policy, queues, added, list(dict.fromkeys(names)), less)
            await see_mirrored(service, last)
            reply = await _ask(Question(str(service.store.path), first, last, began_ns, until_ns, changes), told)
        if reply.view is None:
            if reply.refused:
                raise _wrong(reply.pointer, reply.error)
            raise ApiError(503, "not_answered", "the question could not be worked out", detail=reply.error)
        return reply.view

    async with request.app[CLIENTS].long_request():
        if wants_progress(request):
            return await with_progress(request, worked_out(), lambda: Progress(done, DONE), last)
        return answer(await worked_out(), last)


def _wrong(pointer: str, detail: str) -> ApiError:
    return refused("invalid_whatif", "this cannot be asked of the log", [FieldError(pointer, detail)])


def _read(raw: object) -> tuple[WhatIfBody, Policy | None, list[QueueSpec]]:
    """A body, its policy and its queues, checked. Raises ApiError."""
    problems: list[Problem] = []
    policy, queues = None, list[QueueSpec]()
    found = dict(raw) if isinstance(raw, dict) else raw
    if isinstance(found, dict):
        given, tables = found.pop("policy", None), found.pop("queues", None)
        try:
            policy = check_policy(given) if given is not None else None
        except SpecError as error:
            problems += [Problem(f"/policy{each.pointer}", each.detail) for each in error.problems]
        try:
            queues = check_queues({"queues": tables}) if tables is not None else []
        except SpecError as error:
            problems += error.problems
    try:
        body = convert(found, WhatIfBody)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise not_right(SpecError(problems), "this cannot be asked of the log", "invalid_whatif")
    return body, policy, queues


def _kinds(text: str) -> list[tuple[int, str]]:
    """Devices and model of each node of `2x8xH100-80GB,...`. Raises ApiError."""
    try:
        kinds = node_kinds(text) if text else []
    except ValueError as error:
        raise _wrong("/add_nodes", str(error)) from error
    if len(kinds) > NODES_MOST:
        raise _wrong("/add_nodes", f"at most {NODES_MOST} nodes can be added")
    return kinds


async def _nodes(kinds: list[tuple[int, str]], state: State) -> dict[str, Inventory]:
    """These nodes, under names that no node has, on the fabric of most nodes."""
    fabrics = sorted(node.inventory.fabric for node in state.nodes.values())
    fabric = max(fabrics, key=fabrics.count, default="")
    names = (name for number in count(1) if (name := f"added-{number}") not in state.nodes)
    added = {}
    for name, (devices, model) in zip(names, kinds, strict=False):
        added[name] = await SimulatedDevices(name, devices, model, Site(address=name, fabric=fabric)).inventory()
        await asyncio.sleep(0)  # a thousand of them take a while, in which others are answered
    return added


async def _ask(question: Question, told: Callable[[int], object]) -> Reply:
    """Have it worked out; `told` has the percent that is done. Whoever asked and leaves ends the process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-m", "muster.api.whatif_program",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True, limit=REPLY_MOST,
    )  # fmt: skip
    try:
        async with asyncio.timeout(ANSWER_S):
            return await _reply(process, question, told)
    except TimeoutError:
        return Reply(error=f"it took longer than {ANSWER_S} s: ask about a shorter window")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _reply(process: asyncio.subprocess.Process, question: Question, told: Callable[[int], object]) -> Reply:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write(msgspec.json.encode(question))
        await process.stdin.drain()
    process.stdin.close()
    async for line in process.stdout:
        if line.endswith(b"\n"):  # it may have been killed in the middle of one
            reply = msgspec.json.decode(line, type=Reply)
            if reply.done == DONE:
                return reply
            told(reply.done)
    return Reply(error=f"its process ended with status {await process.wait()}")


# -- a job ------------------------------------------------------------------------------------------------------------


async def what_if_submitted(request: web.Request) -> web.Response:
    """What would become of a job that were submitted now, or at a past moment: its explanation."""
    user, waits = user_of(request), flag(request, "wait_for_capacity")
    spec = await read_spec(request)
    moment = await moment_of(request)
    check_queue(moment.cluster, spec)
    if not waits:
        check_capacity(moment.cluster, spec)
    now_ns = max(moment.now_ns, moment.state.timestamp_ns)
    with moment.as_of_now() as cluster:
        state_bytes, sequence = Fold(cluster).state_bytes(), cluster.state.sequence
    view = await beside_the_loop(lambda: _foresee(state_bytes, now_ns, user, spec))
    return answer(view, sequence)


def _foresee(state_bytes: bytes, now_ns: int, user: str, spec: JobSpec) -> SubmitView:
    """What becomes of a job that is put into a copy of the state."""
    fold = Fold.restore(state_bytes)
    state = fold.cluster.state
    state.timestamp_ns = now_ns  # the state is as of now already
    event = JobSubmitted(user=user, spec=spec)
    fold.apply(Entry(state.sequence + 1, now_ns, subject_of(event), encode(event)))
    begun = begin(fold.cluster, state.sequence)
    found = begun.finish()
    in_ms = found.expected.in_ms if found.expected is not None else None
    starts = None if in_ms is None else rfc3339(now_ns + in_ms * 1_000_000)
    workers = begun.expected_workers() if in_ms is not None else []
    victims = [victim for victim in found.victims if victim.work_lost_ms is not None]
    lines = list(explanation_lines(found, None, now_ns))[1:]
    return SubmitView(starts, in_ms, workers, victims, found, [found.summary, *lines])
