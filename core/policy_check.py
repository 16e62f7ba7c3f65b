"""Whether what is configured is right: queues and the policy each by themselves, and the whole tree together.

Every problem names its field by a JSON pointer (RFC 6901): into what was given for one that is wrong by itself, into
``{"queues": {PATH: {...}}, "policy": {...}}`` for one of the tree.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from muster.core.conversion import PERCENTAGE, Problem, SpecError, convert, token
from muster.core.quantities import MILLION, percent_ppm, priority_number
from muster.core.queues import DEFAULT_QUEUE, Tree, resolve
from muster.core.spec_check import duration_problems, in_seconds
from muster.events.binding import WHOLE_COMPUTE
from muster.events.policy import Policy, Portion, QueueSpec

MOST_QUEUES: Final = 1000
_PORTION: Final = f'write a number of devices, or {PERCENTAGE}, such as "60%" or "12.5%"'
_PORTIONS: Final = ("guarantee", "limit", "borrow", "lend", "reclaim_step", "user_limit", "urgent_limit", "devices")
Bound = Literal["guarantee", "limit"]
T = TypeVar("T", bound=msgspec.Struct)


class QueuesDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Queues, each under its whole path."""

    queues: Annotated[list[QueueSpec], msgspec.Meta(max_length=MOST_QUEUES)]


def check_queues(raw: Any) -> list[QueueSpec]:
    """The queues in a decoded ``{"queues": [...]}``, their priorities as numbers. Raises SpecError."""
    found = _convert(raw, QueuesDocument).queues
    seen: dict[str, int] = {}
    problems = []
    for place, queue in enumerate(found):
        if seen.setdefault(queue.name, place) != place:
            detail = f"queue {queue.name} is there twice: also at /queues/{seen[queue.name]}"
            problems.append(Problem(f"/queues/{place}/name", detail))
    if problems:
        raise SpecError(problems)
    return [_in_numbers(queue) for queue in found]


def check_queue(raw: Any, name: str) -> QueueSpec:
    """The queue `name` from a decoded object, which need not repeat the name. Raises SpecError."""
    queue = _convert({"name": name, **raw} if isinstance(raw, dict) else raw, QueueSpec)
    if queue.name != name:
        raise SpecError([Problem("/name", f"this is about queue {name}, not {queue.name}: leave the name out")])
    return _in_numbers(queue)


def check_policy(raw: Any) -> Policy:
    """The policy in a decoded object, its durations in seconds. Raises SpecError."""
    policy = _convert(raw, Policy)
    problems = duration_problems("/half_life", policy.half_life)
    problems += duration_problems("/preemption/min_runtime", policy.preemption.min_runtime, above_nothing=False)
    problems += duration_problems("/health/window", policy.health.window)
    problems += duration_problems("/health/probation", policy.health.probation, above_nothing=False)
    problems += [
        Problem(f"/topology/{place}", "the name of a label is empty")
        for place, label in enumerate(policy.topology)
        if not label
    ]
    for place, lane in enumerate(policy.lanes):
        problems += duration_problems(f"/lanes/{place}/max_time", lane.max_time)
    if problems:
        raise SpecError(problems)
    return msgspec.structs.replace(
        in_seconds(policy, "half_life"),
        preemption=in_seconds(policy.preemption, "min_runtime"),
        lanes=[in_seconds(lane, "max_time") for lane in policy.lanes],
        health=in_seconds(policy.health, "window", "probation"),
    )


def _convert(raw: Any, kind: type[T]) -> T:
    """As `convert`, with a word on how portions are written."""
    try:
        return convert(raw, kind)
    except SpecError as error:
        raise SpecError([_in_words(problem) for problem in error.problems]) from error


def _in_words(problem: Problem) -> Problem:
    field = problem.pointer.rpartition("/")[2]
    form_is_wrong = PERCENTAGE in problem.detail or problem.detail.startswith("Expected `int | str")
    return problem._replace(detail=_PORTION) if form_is_wrong and field in _PORTIONS else problem


def _in_numbers(queue: QueueSpec) -> QueueSpec:
    priority = None if queue.priority is None else priority_number(queue.priority)
    return msgspec.structs.replace(queue, priority=priority, urgent_from=priority_number(queue.urgent_from))


# -- the whole tree -------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A part of the cluster: so many devices, or such a share of everything."""

    devices: Fraction | None
    share: Fraction | None

    def exceeds(self, other: "_Part") -> bool:
        """Whether it is more than `other`, as far as the two can be compared before the cluster is known."""
        if self.devices is not None and other.devices is not None:
            return self.devices > other.devices
        return self.share is not None and other.share is not None and self.share > other.share

    def __str__(self) -> str:
        """For people: `8 devices`, `60 %`."""
        if self.devices is not None:
            return plural(float(self.devices), "device")
        return f"{float((self.share or 0) * 100):.6g} %"


_ALL: Final = _Part(None, Fraction(1))
_NOTHING: Final = _Part(Fraction(0), Fraction(0))


def plural(count: float, word: str) -> str:
    """`1 device`, `2 devices`, `0.5 devices`."""
    return f"{count:.6g} {word}{'' if count == 1 else 's'}"


def parent_of(name: str) -> str:
    """The path of the queue above ("" = it stands at the top)."""
    return name.rpartition("/")[0]


def tree_problems(queues: Mapping[str, QueueSpec], policy: Policy) -> list[Problem]:
    """What is wrong with all queues (by path) and the policy together; [] = nothing."""
    if len(queues) > MOST_QUEUES:
        return [Problem("/queues", f"{len(queues)} queues are more than {MOST_QUEUES}, which is the most")]
    problems = [problem for name in sorted(queues) for problem in _place_problems(name, queues)]
    if not problems:
        problems += [problem for name in sorted(queues) for problem in _bound_problems(name, queues)]
        problems += _sum_problems(queues)
    return [*problems, *_lane_problems(policy)]


def _pointer(name: str, field: str) -> str:
    return f"/queues/{token(name)}/{field}"


def _place_problems(name: str, queues: Mapping[str, QueueSpec]) -> list[Problem]:
    parent = parent_of(name)
    if parent.partition("/")[0] == DEFAULT_QUEUE:
        detail = f"{name} cannot be made: {DEFAULT_QUEUE} takes the jobs that name no queue, and has none below it"
        return [Problem(_pointer(name, "name"), detail)]
    if parent and parent not in queues:
        return [Problem(_pointer(name, "name"), f"there is no queue {parent} for {name} to stand under: make it too")]
    return []


def _part(portion: Portion | None, whole: _Part, left_out: _Part) -> _Part:
    """A portion of a whole; `left_out` where there is none."""
    if portion is None:
        return left_out
    if isinstance(portion, int):
        return _Part(Fraction(portion), None)
    share = Fraction(percent_ppm(portion), MILLION)
    return _Part(*(None if each is None else each * share for each in whole))


def _bound(name: str, field: Bound, queues: Mapping[str, QueueSpec]) -> _Part:
    """A queue's guarantee or limit; the cluster's is all of it."""
    if not name:
        return _ALL
    above = _bound(parent_of(name), field, queues)
    return _part(getattr(queues[name], field), above, _NOTHING if field == "guarantee" else above)


def _bound_problems(name: str, queues: Mapping[str, QueueSpec]) -> list[Problem]:
    """A guarantee fits the one above it, and the limit."""
    if queues[name].guarantee is None:
        return []
    pointer = _pointer(name, "guarantee")
    guarantee, limit, parent = _bound(name, "guarantee", queues), _bound(name, "limit", queues), parent_of(name)
    above = _bound(parent, "guarantee", queues)
    if above == _NOTHING and queues[name].guarantee not in (0, "0%"):
        detail = f"{name} cannot be guaranteed anything while {parent}, above it, has no guarantee"
        return [Problem(pointer, detail)]
    if guarantee.exceeds(above):
        return [Problem(pointer, f"{name} is guaranteed {guarantee}, more than the {above} of {parent} above it")]
    if guarantee.exceeds(limit):
        return [Problem(pointer, f"{name} is guaranteed {guarantee}, but limited to {limit}")]
    return []


def _sum_problems(queues: Mapping[str, QueueSpec]) -> list[Problem]:
    """What is guaranteed to the queues below one is no more than what is guaranteed to it."""
    problems = []
    below: dict[str, list[str]] = {}
    for name in sorted(queues):
        below.setdefault(parent_of(name), []).append(name)
    for parent, names in below.items():
        where = f"below {parent}" if parent else "at the top"
        pointer = _pointer(names[-1], "guarantee")
        percentages = {name: text for name in names if isinstance(text := queues[name].guarantee, str)}
        if sum(map(percent_ppm, percentages.values())) > MILLION:
            terms = _terms(percentages.items())
            problems.append(Problem(pointer, f"the guarantees {where} are more than 100 %: {terms}"))
            continue
        above = _bound(parent, "guarantee", queues).devices
        given = {name: part for name in names if (part := _bound(name, "guarantee", queues)).devices}
        if above is not None and sum(part.devices or 0 for part in given.values()) > above:
            terms = _terms(given.items())
            problems.append(Problem(pointer, f"the guarantees {where} are more than its {_Part(above, None)}: {terms}"))
    return problems


def _terms(parts: Iterable[tuple[str, object]]) -> str:
    """`a 60% + b 50%`, the first ten of them."""
    terms = [f"{name} {part}" for name, part in parts]
    return " + ".join(terms[:10]) + (f" + {len(terms) - 10} more" if len(terms) > 10 else "")  # noqa: PLR2004 - a line


def size_warnings(tree: Tree) -> list[str]:
    """What may be as it is, but is more than the cluster has now: nothing where there is no node yet."""
    whole = tree.total[0]
    if not whole:
        return []
    has = f"the cluster has {_devices(whole)} now"
    numbers = [queue for queue in tree.queues.values() if isinstance(queue.spec.guarantee, int)]
    warnings = [
        f"queue {queue.path} is guaranteed {_devices(queue.guarantee[0])}; {has}"
        for queue in numbers
        if queue.guarantee[0] > whole
    ]
    top = [queue for queue in tree.root.children if queue.guarantee[0]]
    if not warnings and sum(queue.guarantee[0] for queue in top) > whole:
        terms = _terms((queue.path, queue.spec.guarantee) for queue in top)
        together = _devices(sum(queue.guarantee[0] for queue in top))
        warnings.append(f"the queues at the top are guaranteed {together} together ({terms}); {has}")
    return [*warnings, *_lane_warnings(tree, has)]


def _lane_warnings(tree: Tree, has: str) -> list[str]:
    whole = tree.total[0]
    sizes = [(lane, resolve(lane.devices, tree.total)[0]) for lane in tree.policy.lanes]
    over = [f"lane {lane.name} keeps {_devices(size)}; {has}" for lane, size in sizes if size > whole]
    if over or sum(size for _, size in sizes) <= whole:
        return over
    terms = _terms((lane.name, lane.devices) for lane, _ in sizes)
    return [f"the lanes keep {_devices(sum(size for _, size in sizes))} together ({terms}); {has}"]


def _devices(milli: int) -> str:
    return plural(milli / WHOLE_COMPUTE, "device")


def _lane_problems(policy: Policy) -> list[Problem]:
    problems = []
    names = [lane.name for lane in policy.lanes]
    for place, name in enumerate(names):
        if name in names[:place]:
            problems.append(Problem(f"/policy/lanes/{place}/name", f"lane {name} is there twice"))
    percentages = [(lane.name, lane.devices) for lane in policy.lanes if isinstance(lane.devices, str)]
    if sum(percent_ppm(text) for _, text in percentages) >= MILLION:
        pointer = f"/policy/lanes/{len(names) - 1}/devices"
        detail = f"lanes may keep less than 100 % of the cluster: {_terms(percentages)}"
        problems.append(Problem(pointer, detail))
    return problems
