"""What a change of the configuration changes, field by field, and how that is told. Standard library only: the command
line tells it too."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from muster.core.quantities import duration_text

DURATIONS: Final = frozenset(("half_life", "min_runtime", "max_time", "window", "probation"))
_WORDS: Final = ("made", "changed", "unchanged", "removed")


def flat(table: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a table and of those in it, by dotted names; of a list of tables by their names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{under}{key}.")
        elif key == "lanes":
            for lane in value:
                named = {name: part for name, part in lane.items() if name != "name"}
                yield from flat(named, f"{under}{key}.{lane['name']}.")
        else:
            yield f"{under}{key}", value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(field, before, after) of each field in which two tables differ; None = it is not there."""
    old, new = dict(flat(before)), dict(flat(after))
    for field in old | new:
        if old.get(field) != new.get(field):
            yield field, old.get(field), new.get(field)


def value_text(field: str, value: Any) -> str:
    """A field's value in words."""
    if value is None:
        return "none"
    if isinstance(value, int) and field.rpartition(".")[2] in DURATIONS:
        return duration_text(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def queue_lines(changed: Mapping[str, Any]) -> Iterator[str]:
    """A line for each queue in an answer of `PUT /v1/queues`."""
    words = {name: word for word in _WORDS for name in changed[word]}
    for name in sorted(words, key=lambda name: name.split("/")):
        yield f"queue {name}: {words[name]}{_details(changed['changes'].get(name, []))}"


def policy_line(changed: Mapping[str, Any]) -> str:
    """A line about an answer of `PUT /v1/policy`."""
    return "policy: unchanged" if changed["already"] else f"policy: changed{_details(changed['changes'])}"


def _details(changes: list[Mapping[str, Any]]) -> str:
    words = [
        f"{each['field']} {value_text(each['field'], each['before'])} -> {value_text(each['field'], each['after'])}"
        for each in changes
    ]
    return f": {', '.join(words)}" if words else ""
