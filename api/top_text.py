"""What `muster top` shows, as text. Standard library only."""

from typing import Any, Final, NamedTuple

from muster.api.client import Json
from muster.api.device_text import ails, readings, sampled, status, to_do, usable, used_of_total
from muster.api.table import clean, cut, render

BAR_CELLS: Final = 10
BAR_WIDTH: Final = 110
"""The letters of a line from which on there is room for bars."""
_TITLES: Final = ("NODE", "DEV", "MODEL", "MEMORY", "SM", "TEMP", "POWER", "CONDITION", "JOBS")
_SPARE: Final = ("POWER", "TEMP", "MODEL", "SM")
"""Columns that a narrow terminal does not show, the first ones first."""
_LEAST: Final = 20
"""The letters of JOBS for which others are left out."""


class Shown(NamedTuple):
    """One moment (RFC 3339): the nodes, the jobs that run (rows by id), and how many run and wait in all. `unsampled`
    says why nothing sampled is shown of a past one ("" = it is), `over` why nothing can follow it ("" = something
    may)."""

    time: str
    nodes: list[Json]
    jobs: dict[int, Json]
    running: int
    waiting: int
    user: str | None = None
    is_past: bool = False
    unsampled: str = ""
    over: str = ""

    def has(self, device: Json) -> bool:
        """Whether a device is one that was asked for."""
        return self.user is None or any(job in self.jobs for job in device["jobs"])


def screen(shown: Shown, width: int, height: int, note: str = "") -> str:
    """At most `height` lines of at most `width` letters; 0 = no limit. A `note` stands under the first figures."""
    rows = [
        _row(shown, node, device, with_bar=not width or width >= BAR_WIDTH)
        for node in shown.nodes
        for device in node["devices"]
        if shown.has(device)
    ]
    table = render(_TITLES, rows, width=width, spare=_SPARE, least=_LEAST).split("\n") if rows else [_none(shown)]
    lines = [*_figures(shown, width), *([clean(note)] if note else []), *_nodes_without_work(shown), "", *table]
    if height and len(lines) > height:
        hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], f"and {hidden} more devices: --node or --user shows fewer"]
    return "\n".join(cut(line, width) for line in lines)


def _none(shown: Shown) -> str:
    return "no devices" if shown.user is None else clean(f"{shown.user}'s jobs hold no devices")


def _figures(shown: Shown, width: int) -> list[str]:
    held = sum(node["devices_held"] for node in shown.nodes)
    can = sum(map(usable, shown.nodes))
    devices = sum(len(node["devices"]) for node in shown.nodes)
    ready = sum(bool(node["available"]) for node in shown.nodes)
    parts = [
        f"{shown.time[:10]} {shown.time[11:19]} UTC" if shown.is_past else f"{shown.time[11:19]} UTC",
        f"nodes {ready} of {len(shown.nodes)} take work",
        f"devices {held} held, {can} of {devices} usable",
        f"jobs {shown.running} running, {shown.waiting} waiting",
    ]
    lines = [parts[0]]
    for part in parts[1:]:
        line = f"{lines[-1]}  {part}"
        if width and len(line) > width:
            lines.append(part)
        else:
            lines[-1] = line
    return lines


def _nodes_without_work(shown: Shown) -> list[str]:
    return [clean(f"{node['name']}: {word}") for node in shown.nodes if (word := _ailing(node))]


def _ailing(node: Json) -> str:
    """Why a node as a whole takes no work."""
    if node["available"]:
        return ""
    why = "; ".join(filter(None, (node["cordoned"], node["degraded"], to_do(node))))
    return f"{status(node)}{f' ({why})' if why else ''}"


def _row(shown: Shown, node: Json, device: Json, *, with_bar: bool) -> tuple[object, ...]:
    memory = used_of_total(device)
    bar = _bar(device) if with_bar else ""
    jobs = ", ".join(_job(shown, job) for job in device["jobs"])
    return (
        node["name"],
        device["index"],
        device["model"],
        f"{bar} {memory}" if bar else memory,
        *readings(device),
        ails(device),
        jobs,
    )


def _bar(device: Json) -> str:
    used, total = sampled(device, "memory_used_mib"), sampled(device, "memory_total_mib")
    if used is None or not total:
        return ""
    full = min(BAR_CELLS, -(-used * BAR_CELLS // total))
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}]"


def _job(shown: Shown, job: int) -> str:
    row: Any = shown.jobs.get(job)
    return str(job) if row is None else f"{job} {row['name']} ({row['user']})"


def json_of(shown: Shown, sequence: int) -> Json:
    """The same for a program."""
    return {
        "time": shown.time,
        "sequence": sequence,
        "unsampled": shown.unsampled,
        "running": shown.running,
        "waiting": shown.waiting,
        "nodes": shown.nodes,
        "jobs": list(shown.jobs.values()),
    }
