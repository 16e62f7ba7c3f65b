"""Nodes and devices in text for a terminal. Standard library only: the command line is made of it."""

from collections.abc import Sequence
from typing import Any, Final

from muster.api.client import Json
from muster.api.table import clean, fields, render
from muster.api.times import elapsed, mib, moment, to_ms
from muster.events.numbers import ranges

NOT_KNOWN: Final = "[N/A]"
_MIB_IN_GIB: Final = 1024
_NODE_TITLES: Final = ("NODE", "STATUS", "USABLE", "HELD", "MODEL", "CPUS", "MEMORY", "FABRIC", "TROUBLE", "JOBS")
_NODE_SPARE: Final = ("FABRIC", "MEMORY", "CPUS", "MODEL")
_DEVICE_TITLES: Final = (
    "DEV", "MODEL", "MEMORY", "HELD", "COMPUTE", "USED", "SM", "TEMP", "POWER", "JOBS", "CONDITION", "BUS",
)  # fmt: skip
_DEVICE_SPARE: Final = ("BUS", "POWER", "TEMP", "COMPUTE", "MODEL", "MEMORY")
"""Columns that a narrow terminal does not show, the first ones first."""
_LEAST: Final = 24
"""The letters of the last column for which others are left out."""
_WIDE_TITLES: Final = (
    "DEV", "BUS", "MINOR", "UUID", "CAPABILITY", "NUMA", "MIG", "SM CLOCK", "MEMORY CLOCK", "ECC", "DOMAIN",
)  # fmt: skip
_TO_DO: Final = {
    "reboot": "restart the machine",
    "driver_mismatch": "restart the machine, or load its driver again",
    "nvml_hung": "restart the machine, unless its driver answers again",
    "nvml_failed": "see what nvidia-smi says on the machine",
    "fabric": "see to the machine's fabric manager",
}
"""What heals a node that is degraded, by the cause that its reason begins with."""
_SMI_TITLES: Final = ("index", "memory.total [MiB]", "memory.used [MiB]", "utilization.gpu [%]")
_LEGEND: Final = """
Legend:

  X    = the device itself
  SYS  = through PCIe and between the NUMA nodes
  NODE = through PCIe and between the host bridges of a NUMA node
  PHB  = through a PCIe host bridge, which is usually the CPU
  PXB  = through several PCIe switches, and no host bridge
  PIX  = through one PCIe switch at most
  NV#  = through so many NVLinks
"""


def usable(node: Json) -> int:
    """How many devices of a node take new work."""
    return int(node["devices_usable"]) if node["available"] else 0


def models(node: Json) -> str:
    """The models of a node's devices."""
    return ",".join(dict.fromkeys(device["model"] for device in node["devices"]))


def ails(device: Json) -> str:
    """What keeps work from a device, in a word or two; "" = nothing."""
    words = [device["condition"]["action"]] if device["condition"] else []
    words += ["cordoned"] if device["cordoned"] else []
    words += ["foreign"] if device["foreign_mib"] else []
    return ",".join(words)


def trouble(node: Json) -> str:
    """What ails which of a node's devices: `3 quarantine, 5-6 probation`."""
    numbers: dict[str, list[int]] = {}
    for device in node["devices"]:
        if word := ails(device):
            numbers.setdefault(word, []).append(device["index"])
    return ", ".join(f"{ranges(found)} {word}" for word, found in numbers.items())


def status(node: Json) -> str:
    """A node's status, with what else keeps work from it."""
    more = [word for word in ("cordoned", "degraded") if node[word]]
    if node["status"] != "ready":
        more.insert(0, node["status"])
    return ",".join(more) or ("ready" if node["available"] else "busy")


def to_do(node: Json) -> str:
    """What heals a node that is degraded; "" = nobody knows, or it is not."""
    return _TO_DO.get(node["degraded"].partition(":")[0], "")


def node_table(found: list[Json], width: int) -> str:
    """All nodes, a line each."""
    rows = [
        (
            node["name"],
            status(node),
            f"{usable(node)}/{len(node['devices'])}",
            node["devices_held"],
            models(node),
            node["cpus"],
            mib(node["memory_mib"]),
            node["fabric"],
            trouble(node),
            ",".join(map(str, node["jobs"])),
        )
        for node in found
    ]
    return render(_NODE_TITLES, rows, width=width, spare=_NODE_SPARE, least=_LEAST)


def node_text(node: Json, day: str, width: int, *, wide: bool = False) -> str:
    """One node and its devices; `wide`: with all about them."""
    text = fields(
        [
            ("node", node["name"]),
            ("status", status(node)),
            ("cordoned", node["cordoned"]),
            ("degraded", node["degraded"]),
            ("to do", to_do(node)),
            ("address", node["address"]),
            ("addresses", _pairs(node["addresses"])),
            ("fabric", node["fabric"]),
            ("labels", _pairs(node["labels"])),
            ("cpus", node["cpus"]),
            ("memory", mib(node["memory_mib"])),
            ("driver", node["driver"]),
            ("absent", ", ".join(f"{len(node['devices']) + i} {uuid}" for i, uuid in enumerate(node["absent"]))),
            ("registered", to_ms(node["registered"])),
            ("incarnation", node["incarnation"]),
        ]
    )
    if not node["devices"]:
        return text
    rows = [_device_row(device) for device in node["devices"]]
    parts = [text, render(_DEVICE_TITLES, rows, width=0 if wide else width, spare=_DEVICE_SPARE, least=_LEAST)]
    if wide:
        parts.append(render(_WIDE_TITLES, [_wide_row(device) for device in node["devices"]]))
    notes = [line for device in node["devices"] for line in device_notes(device, day)]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def _pairs(table: Json) -> str:
    return ", ".join(f"{name}={value}" for name, value in table.items())


def _device_row(device: Json) -> tuple[object, ...]:
    held = bool(device["jobs"])
    return (
        device["index"],
        device["model"],
        mib(device["memory_mib"]) if device["memory_mib"] else "",
        mib(device["memory_held_mib"]) if held else "",
        f"{device['compute_held_milli'] / 10:g}%" if held else "",
        used_of_total(device),
        *readings(device),
        ",".join(map(str, device["jobs"])),
        ails(device),
        device["pci_bus_id"] or "",
    )


def _wide_row(device: Json) -> tuple[object, ...]:
    ecc = [sampled(device, name) for name in ("ecc_corrected", "ecc_uncorrected")]
    return (
        device["index"],
        device["pci_bus_id"] or "",
        device["minor"],
        device["uuid"],
        device["capability"] or "",
        device["numa"],
        "on" if device["mig"] else "off",
        *(_clock(sampled(device, name)) for name in ("sm_clock_mhz", "memory_clock_mhz")),
        "" if ecc == [None, None] else "/".join("-" if count is None else str(count) for count in ecc),
        device["domain"] or "",
    )


def _clock(mhz: int | None) -> str:
    return "" if mhz is None else f"{mhz}MHz"


def sampled(device: Json, name: str) -> Any:
    """What a device's sample says; None where nobody knows."""
    return device["sample"][name] if device["sample"] else None


def readings(device: Json) -> tuple[str, str, str]:
    """How busy, how hot and how hungry a device is; "" where nobody knows."""
    sm, temperature, power = (sampled(device, name) for name in ("sm_percent", "temperature_c", "power_w"))
    return (
        "" if sm is None else f"{sm}%",
        "" if temperature is None else f"{temperature}C",
        "" if power is None else f"{power:.0f}W",
    )


def used_of_total(device: Json) -> str:
    """`40.0/80.0GiB`; `-` stands for what nobody knows, "" where that is both."""
    used, total = (sampled(device, f"memory_{name}_mib") for name in ("used", "total"))
    if used is None and total is None:
        return ""
    texts = ["-" if each is None else f"{each / _MIB_IN_GIB:.1f}" for each in (used, total)]
    return f"{'/'.join(texts)}GiB"


def device_notes(device: Json, day: str) -> list[str]:
    """What a word in a table leaves out, a line each."""
    notes = []
    condition = device["condition"]
    if condition:
        until = f" until {moment(condition['until'], day)}" if condition["until"] else ""
        since = moment(condition["since"], day)
        notes.append(f"{condition['action']} since {since}{until}: {condition['text']}")
    if device["cordoned"]:
        notes.append(f"cordoned {device['cordoned']}")
    if device["foreign_mib"]:
        notes.append(f"about {mib(device['foreign_mib'])} used by processes that are nobody's work here")
    if device["sample"] and device["sample"]["stale"]:
        notes.append(
            f"its last sample is {elapsed(device['sample']['age_ms'])} old, or of an earlier life of its agent"
        )
    return [clean(f"device {device['index']}: {note}") for note in notes]


# -- as nvidia-smi has it -------------------------------------------------------------------------------------------


def smi(found: Sequence[Json], *, named: bool) -> str:
    """The devices as `nvidia-smi --query-gpu=index,memory.total,memory.used,utilization.gpu --format=csv` prints them;
    `named`: behind the names of their nodes."""
    lines = [", ".join((*(["node"] if named else []), *_SMI_TITLES))]
    for node in found:
        for device in node["devices"]:
            cells = [
                str(device["index"]),
                _with_unit(sampled(device, "memory_total_mib"), "MiB"),
                _with_unit(sampled(device, "memory_used_mib"), "MiB"),
                _with_unit(sampled(device, "sm_percent"), "%"),
            ]
            lines.append(", ".join((*([clean(node["name"])] if named else []), *cells)))
    return "\n".join(lines)


def _with_unit(value: int | None, unit: str) -> str:
    return NOT_KNOWN if value is None else f"{value} {unit}"


def topology(node: Json) -> str:
    """How a node's devices are connected, like `nvidia-smi topo -m`."""
    devices, links = node["devices"], node["topology"]
    names = [f"GPU{device['index']}" for device in devices]
    lines = ["\t".join(["", *names, "NUMA Affinity"])]
    for row, device in enumerate(devices):
        cells = [(_link(links[row][column]) if links else "N/A") for column in range(len(devices))]
        numa = "N/A" if device["numa"] is None else str(device["numa"])
        lines.append("\t".join([names[row], *cells, numa]))
    return "\n".join([*lines, _LEGEND.rstrip()])


def _link(link: str) -> str:
    return " X " if link == "X" else link or "N/A"
