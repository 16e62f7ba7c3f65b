"""What differs between a decision that follows and the one that was found, in words: the first field that does."""

from collections.abc import Sequence
from typing import Any, Final

from muster.events import codec
from muster.events import types as t
from muster.events.numbers import ranges

_LONGEST: Final = 200


def difference(expected: t.Event, found: bytes) -> str:
    """The first thing in which a payload is not `expected`."""
    try:
        other = codec.decode(found)
    except codec.UnreadableEventError as error:
        return f"expected {phrase(expected)}; what stands there cannot be read: {error}"
    if type(other) is not type(expected):
        return f"expected {phrase(expected)}, found {phrase(other)}"
    for name in _fields(expected):
        ours, theirs = getattr(expected, name), getattr(other, name)
        if ours != theirs:
            return _differing(expected, other, name)
    return f"{_subject(expected)}: the same {type(expected).__name__}, in other bytes"


def phrase(event: t.Event) -> str:
    """An event in a few words: what it is, of whom, and where."""
    words = [type(event).__name__, "of", _subject(event)]
    match event:
        case t.JobAllocated() | t.RoomReserved():
            words.append(f"on {_places(event.placements)} ({event.why})")
        case t.StartWorker() | t.StopWorker():
            words.append(f"on {event.node}")
        case t.StopOrdered() | t.JobRequeued():
            words.append(f"({event.cause})")
        case t.JobPreempted():
            words.append(f"for job {event.beneficiary} ({event.cause})")
        case _:
            pass
    return " ".join(words)


def _fields(event: t.Event) -> Sequence[str]:
    """Who and where before why, and the basis last."""
    names = event.__struct_fields__
    return sorted(names, key=lambda name: (name == "basis", name == "why", names.index(name)))


def _differing(expected: t.Event, found: t.Event, name: str) -> str:
    subject = _subject(expected)
    if name == "placements":
        assert isinstance(expected, t.JobAllocated | t.RoomReserved)
        assert isinstance(found, t.JobAllocated | t.RoomReserved)
        ours, theirs = _places(expected.placements), _places(found.placements)
        if ours == theirs:
            return f"{subject}: the same places in another life of a node"
        return f"{subject}: expected {ours} ({expected.why}), found {theirs} ({found.why})"
    return f"{subject}: {name}: expected {_value(getattr(expected, name))}, found {_value(getattr(found, name))}"


def _subject(event: t.Event) -> str:
    job: int | None = getattr(event, "job", None)
    if job is None:
        return str(getattr(event, "node", "") or "the cluster")
    rank: int | None = getattr(event, "rank", None)
    return f"job {job}" if rank is None else f"job {job} rank {rank}"


def _places(placements: Sequence[t.Placement]) -> str:
    return " ".join(f"{each.node}[{ranges(each.devices)}]" for each in placements) or "nowhere"


def _value(value: Any) -> str:
    text = str(value) if isinstance(value, str | int) else codec.encode(value).decode()
    return (text[:_LONGEST] + "...") if len(text) > _LONGEST else text or "nothing"
