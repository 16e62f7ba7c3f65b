"""What `muster diff` shows, as text. Standard library only."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final

from muster.api.changes import value_text
from muster.api.client import Json
from muster.api.table import fields, render
from muster.api.times import mib, moment
from muster.events.numbers import ranges

_ORDER: Final = ("came", "placed", "started", "preempted", "requeued", "stopping", "ended", "changed")
_JOB_TITLES: Final = ("JOBID", "USER", "NAME", "QUEUE", "GPUS", "THEN", "NOW", "WHAT", "WHERE")
_JOB_SPARE: Final = ("QUEUE", "NAME", "USER")
_LEAST: Final = 24
"""The letters of WHERE for which others are left out."""
_NODE_TITLES: Final = ("NODE", "DEVICES", "WHAT", "THEN", "NOW")
_RULE_TITLES: Final = ("QUEUE", "WHAT", "THEN", "NOW")
_NODE_WORDS: Final = {"incarnation": "agent's life", "memory_mib": "memory"}
_DEVICE_WORDS: Final = {"foreign_mib": "foreign memory"}
_MILLI: Final = 1000


def diff_text(found: Json, day: str, width: int) -> str:
    """All that changed, as tables; `width` 0 = no limit."""
    nodes = sorted([*_node_rows(found["nodes"]), *_device_rows(found["devices"])], key=itemgetter(0))
    rules = [*_queue_rows(found["queues"]), *(("(policy)", *row) for row in _field_rows(found["policy"]))]
    tables = [
        render(_JOB_TITLES, list(map(_job_row, found["jobs"])), width=width, spare=_JOB_SPARE, least=_LEAST)
        if found["jobs"]
        else "",
        render(_NODE_TITLES, nodes, width=width) if nodes else "",
        render(_RULE_TITLES, rules, width=width) if rules else "",
    ]
    return "\n\n".join(filter(None, [_head(found, day, is_all=not any(tables)), *tables]))


def _head(found: Json, day: str, *, is_all: bool) -> str:
    before, after = found["before"], found["after"]
    entries = after["sequence"] - before["sequence"]
    later = f", {entries:,} {'entry' if entries == 1 else 'entries'} later" if after["sequence"] else ""
    ended = ", ".join(f"{count} {state}" for state, count in found["ended"].items())
    counts = [
        f"{found['what'][word]} {word}{f' ({ended})' if word == 'ended' else ''}"
        for word in _ORDER
        if word in found["what"]
    ]
    more = found["jobs_changed"] - len(found["jobs"])
    return fields(
        [
            ("from", f"{_entry(before, day)}{'  (given last, but the earlier one)' if found['swapped'] else ''}"),
            ("to", f"{_entry(after, day)}{later}"),
            ("jobs", ", ".join(counts)),
            ("not listed", f"{more:,} older jobs that changed: --limit shows more" if more else None),
            ("passed over", "more jobs that came and ended in between" if found["passed_over"] else None),
            ("changed", "nothing" if is_all else None),
        ]
    )


def _entry(entry: Json, day: str) -> str:
    if entry["sequence"] == 0:
        return f"{moment(entry['time'], day)} UTC, when nothing was there: the log begins later"
    return (f"{moment(entry['time'], day)} UTC, " if entry["time"] else "") + f"entry {entry['sequence']}"


def _job_row(job: Json) -> tuple[object, ...]:
    then, now = job["before"], job["after"]
    exit_code = f" (exit {now['exit_code']})" if now["exit_code"] else ""
    return (
        job["id"], job["user"], job["name"], job["queue"], job["gpus"], then and then["state"],
        f"{now['state']}{exit_code}", ", ".join(job["what"]), _where(then, now),
    )  # fmt: skip


def _where(then: Json | None, now: Json) -> str:
    """Where it is, or was where it is nowhere; both where it has moved."""
    old, new = _places(then["place"] if then else []), _places(now["place"])
    if old and new and old != new:
        return f"{old} -> {new}"
    return new or (f"was {old}" if old else "")


def _places(held: list[Json]) -> str:
    return " ".join(f"{each['node']}[{ranges(each['devices'])}]" for each in held)


def _node_rows(changes: list[Json]) -> Iterator[tuple[str, ...]]:
    for change in changes:
        then, now = change["before"], change["after"]
        if then is None or now is None:
            side = now or then
            has = f"{side['status']}, {side['devices']} devices"
            yield (change["node"], "", "came" if then is None else "gone", *(("", has) if then is None else (has, "")))
            continue
        for field in _unlike(then, now):
            shown = mib if field == "memory_mib" else str
            yield change["node"], "", _NODE_WORDS.get(field, field), shown(then[field]), shown(now[field])


def _device_rows(changes: list[Json]) -> Iterator[tuple[str, ...]]:
    for change in changes:
        place = (change["node"], ranges(change["devices"]))
        then, now = change["before"], change["after"]
        if then is None or now is None:
            yield (*place, "came" if then is None else "gone", "", "")
        for field in _unlike(then or _IDLE, now or _IDLE):
            texts = (_device_field(field, side[field]) for side in (then or _IDLE, now or _IDLE))
            yield (*place, _DEVICE_WORDS.get(field, field), *texts)


_IDLE: Final[Json] = {"jobs": [], "condition": "", "cordoned": "", "foreign_mib": 0}


def _device_field(field: str, value: Any) -> str:
    if field == "foreign_mib":
        return mib(value) if value else ""
    return ",".join(map(str, value)) if field == "jobs" else str(value)


def _unlike(then: Json, now: Json) -> Iterable[str]:
    return [field for field in now if then[field] != now[field]]


def _queue_rows(changes: list[Json]) -> Iterator[tuple[str, ...]]:
    for change in changes:
        then, now = change["before"], change["after"]
        if then is None or now is None:
            yield change["name"], "made" if then is None else "removed", "", ""
        for row in _field_rows(change["changes"]):
            yield change["name"], *row
        for field in _unlike(then or _EMPTY, now or _EMPTY):
            name = "held" if field == "devices_held_milli" else field
            yield change["name"], name, *(_count(field, (side or _EMPTY)[field]) for side in (then, now))


_EMPTY: Final[Json] = {"running": 0, "pending": 0, "devices_held_milli": 0}


def _count(field: str, value: int) -> str:
    return f"{value / _MILLI:g}" if field == "devices_held_milli" else str(value)


def _field_rows(changes: list[Json]) -> Iterator[tuple[str, str, str]]:
    for each in changes:
        yield each["field"], value_text(each["field"], each["before"]), value_text(each["field"], each["after"])
