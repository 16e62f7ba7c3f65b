"""Changes of queues and policy: what is asked for against what there is, as facts, or a problem and nothing.

Rules: whatever changes nothing appends nothing. One change at a time looks at the state, with all that the log had by
then, and is seen in it before the next one begins. All of a change is one append.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.api.appending import append_all
from muster.api.changes import differences
from muster.api.problems import ApiError, FieldError, no_such
from muster.api.queue_views import spelled_out
from muster.api.service import MIN_SEQ_WAIT_S, Service
from muster.core.conversion import Problem, SpecError
from muster.core.policy_check import parent_of, size_warnings, tree_problems
from muster.core.queues import DEFAULT_QUEUE, Tree
from muster.core.state import ENDED, State
from muster.events.log import BATCH_LIMIT, Ack
from muster.events.policy import Policy, QueueSpec
from muster.events.types import Event, PolicyChanged, QueueConfigured, QueueRemoved

WARNINGS_MOST: Final = 20
Pointers = Callable[[str, str], str]
"""(queue, field) → where that stands in the body."""


class FieldChange(msgspec.Struct, frozen=True):
    """A field and its value before and after; None = nothing was, or is, said."""

    field: str
    before: Any
    after: Any


class QueuesChanged(msgspec.Struct, frozen=True):
    """What became of the queues asked for, by path, or after a `dry_run` would become of them; of those that changed
    also the fields. `sequence` is that of the last entry; `warnings` are guarantees above what the cluster has now."""

    sequence: int
    made: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    removed: list[str] = []
    changes: dict[str, list[FieldChange]] = {}
    dry_run: bool = False
    warnings: list[str] = []


class PolicySet(msgspec.Struct, frozen=True):
    """The policy asked for is the one in force, or would be after a `dry_run`; `already` = it was before; `warnings`
    are lanes above what the cluster has now."""

    sequence: int
    already: bool = False
    changes: list[FieldChange] = []
    dry_run: bool = False
    warnings: list[str] = []


def field_changes(before: QueueSpec | Policy, after: QueueSpec | Policy) -> list[FieldChange]:
    """The settings in which two queues, or two policies, differ."""
    return [FieldChange(*each) for each in differences(spelled_out(before), spelled_out(after))]


def refused(code: str, title: str, errors: Sequence[FieldError]) -> ApiError:
    """A configuration that cannot be: every problem with its field."""
    step = "correct the fields named in errors; /openapi.json describes all of them"
    return ApiError(422, code, title, next_step=step, errors=list(errors))


def not_right(error: SpecError, title: str, code: str) -> ApiError:
    """Problems of a document by itself."""
    return refused(code, title, [FieldError(each.pointer, each.detail) for each in error.problems])


async def set_queues(
    service: Service,
    wanted: Sequence[QueueSpec],
    user: str,
    pointers: Pointers,
    *,
    prune: bool = False,
    dry_run: bool = False,
) -> QueuesChanged:
    """Make or change the queues named; with `prune`, remove those not named; with `dry_run`, only say what that would
    change. Raises ApiError."""
    async with service.configuring:
        state = await _state(service)
        before = {DEFAULT_QUEUE: QueueSpec(DEFAULT_QUEUE), **state.queues}
        named = {queue.name: queue for queue in wanted}
        gone = {name for name in state.queues if name not in named} if prune else set()
        after = {name: queue for name, queue in {**state.queues, **named}.items() if name not in gone}
        _check_tree(tree_problems(after, state.policy), pointers)
        _check_jobs(state, after, gone - {DEFAULT_QUEUE}, pointers)
        news = sorted(name for name, queue in named.items() if before.get(name) != queue)
        events: list[Event] = [QueueRemoved(name=name, user=user) for name in sorted(gone, reverse=True)]
        events += [QueueConfigured(queue=named[name], user=user) for name in news]
        changed = [name for name in news if name in before] + [DEFAULT_QUEUE] * (DEFAULT_QUEUE in gone)
        unsaid = {DEFAULT_QUEUE: QueueSpec(DEFAULT_QUEUE)}
        changes = {name: field_changes(before[name], (named if name in named else unsaid)[name]) for name in changed}
        return QueuesChanged(
            await _append(service, events, dry_run=dry_run),
            made=[name for name in news if name not in before],
            changed=changed,
            unchanged=sorted(named.keys() - set(news)),
            removed=sorted(gone - {DEFAULT_QUEUE}),
            changes=changes,
            dry_run=dry_run,
            warnings=_warnings(service, after, Policy()) if named else [],
        )


async def remove_queue(service: Service, name: str, user: str) -> QueuesChanged:
    """Remove a queue with nothing in it. Raises ApiError."""
    async with service.configuring:
        state = await _state(service)
        if name == DEFAULT_QUEUE:
            raise _in_use(f"queue {name} stays: jobs that name no queue wait there", "muster queues apply changes it")
        if name not in state.queues:
            raise no_such("queue", name, "muster queues lists the queues")
        below = sorted(each for each in state.queues if parent_of(each) == name)
        if below:
            raise _in_use(f"queue {name} has queues below it: {_some(below)}", "remove those first")
        _check_jobs(state, {}, {name}, lambda *_: "")
        return QueuesChanged(await _append(service, [QueueRemoved(name=name, user=user)]), removed=[name])


async def set_policy(service: Service, policy: Policy, user: str, *, dry_run: bool = False) -> PolicySet:
    """Decide by these rules from now on; with `dry_run`, only say what that would change. Raises ApiError."""
    async with service.configuring:
        state = await _state(service)
        problems = [each for each in tree_problems({}, policy) if each.pointer.startswith("/policy")]
        if problems:
            errors = [FieldError(each.pointer.removeprefix("/policy"), each.detail) for each in problems]
            raise refused("invalid_policy", "this is no policy that Muster can follow", errors)
        warnings = _warnings(service, {}, policy)
        if policy == state.policy:
            return PolicySet(state.sequence, already=True, dry_run=dry_run, warnings=warnings)
        changes = field_changes(state.policy, policy)
        sequence = await _append(service, [PolicyChanged(policy=policy, user=user)], dry_run=dry_run)
        return PolicySet(sequence, changes=changes, dry_run=dry_run, warnings=warnings)


def _warnings(service: Service, queues: Mapping[str, QueueSpec], policy: Policy) -> list[str]:
    """What of these is more than the cluster has now."""
    total = service.cluster.ledger().tree.total
    return size_warnings(Tree(queues, policy, total))[:WARNINGS_MOST]


async def _state(service: Service) -> State:
    """The state with all that the log has now."""
    await service.follower.wait_for(await service.log.last_sequence(), MIN_SEQ_WAIT_S)
    return service.state


async def _append(service: Service, events: Sequence[Event], *, dry_run: bool = False) -> int:
    """Append and see it folded, where it is no `dry_run`; gives the sequence that the answer stands for."""
    if len(events) > BATCH_LIMIT:
        detail = f"it would change {len(events)} queues; at most {BATCH_LIMIT} can be changed at once"
        raise refused("too_many", "too many changes at once", [FieldError("/queues", detail)])
    if dry_run or not events:
        return service.state.sequence
    acks = await append_all(service.log, events)
    with contextlib.suppress(TimeoutError):  # it is in the log, which is what the answer says
        await service.follower.wait_for(acks[-1].sequence, MIN_SEQ_WAIT_S)
    _check_applied(service.state, acks)
    return acks[-1].sequence


def _check_applied(state: State, acks: Sequence[Ack]) -> None:
    """Something else may have come between the look and the append: then the fold has refused what no longer held."""
    sequences = {ack.sequence for ack in acks}
    refusals = [refusal.reason for refusal in state.refusals if refusal.sequence in sequences]
    if refusals:
        raise ApiError(409, "changed_meanwhile", "something changed meanwhile", detail=_some(refusals))


def _check_tree(problems: Sequence[Problem], pointers: Pointers) -> None:
    if not problems:
        return
    errors = []
    for problem in problems:
        _, _, queue, field = (*problem.pointer.split("/", 3), "", "", "")[:4]
        errors.append(FieldError(pointers(queue.replace("~1", "/").replace("~0", "~"), field), problem.detail))
    raise refused("invalid_queues", "these queues cannot be", errors)


def _check_jobs(state: State, after: Mapping[str, QueueSpec], gone: Collection[str], pointers: Pointers) -> None:
    """Queues that go, or that others come to stand below, must have no jobs that wait or run."""
    parents = {parent_of(name) for name in after} - {""}
    if not parents and not gone:
        return
    jobs: dict[str, int] = {}
    for job in state.jobs.values():
        if job.phase not in ENDED:
            jobs[job.spec.queue] = jobs.get(job.spec.queue, 0) + 1
    errors = []
    for name in sorted({*gone, *parents} & jobs.keys()):
        wish = "be removed" if name in gone else "have queues below it"
        count = "1 job that waits or runs" if jobs[name] == 1 else f"{jobs[name]} jobs that wait or run"
        below = next((each for each in sorted(after) if parent_of(each) == name), name)
        pointer = "" if name in gone else pointers(below, "name")
        errors.append(FieldError(pointer, f"queue {name} has {count}: it cannot {wish}"))
    if errors:
        step = f"muster queue --queue {errors[0].detail.split()[1]} lists them"
        raise ApiError(409, "queue_in_use", errors[0].detail, next_step=step, errors=errors)


def _in_use(detail: str, next_step: str) -> ApiError:
    return ApiError(409, "queue_in_use", detail, next_step=next_step)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")  # noqa: PLR2004 - what fits a line
