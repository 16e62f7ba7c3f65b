"""How a node's devices are connected, as a matrix of `Link`s: of readings, and of simulated devices."""

from collections.abc import Sequence
from typing import Final

from muster.events.types import Link
from muster.node_agent.nvml_read import SWITCH
from muster.node_agent.readings import DeviceReading

SELF: Final = "X"
PATHS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's common ancestors; two devices on one board are closer than a switch, and have no word of their own."""
_SWITCHED: Final = {"A100": 12, "A800": 8, "H100": 18, "H200": 18, "H800": 8, "H20": 18, "B200": 18, "B300": 18}
_PCIE: Final = ("A10", "A30", "L4", "L40S", "T4")
_SWITCHED_MOST: Final = 8


def links_between(devices: Sequence[DeviceReading], paths: Sequence[Sequence[int | None]]) -> list[list[Link]]:
    """The links of devices that can be read, in their order; `paths` are by NVML's index."""
    return [
        [SELF if one is two else _link(one, two, _path(paths, one.nvml_index, two.nvml_index)) for two in devices]
        for one in devices
    ]


def is_unknown(links: Sequence[Sequence[Link]]) -> bool:
    """Whether nothing is known of any two devices."""
    return not any(link not in ("", SELF) for row in links for link in row)


def simulated_links(model: str, count: int) -> list[list[Link]]:
    """NVSwitches where the model is usually sold with them, else pairs on a PCIe switch and fours on a socket; [] for
    models of which neither is usual."""
    series = model.partition("-")[0]
    if series in _SWITCHED and count <= _SWITCHED_MOST:
        return [[SELF if one == two else f"NV{_SWITCHED[series]}" for two in range(count)] for one in range(count)]
    if series in _PCIE:
        return [[_in_tree(one, two) for two in range(count)] for one in range(count)]
    return []


def _in_tree(one: int, two: int) -> Link:
    if one == two:
        return SELF
    return "PIX" if one // 2 == two // 2 else "NODE" if one // 4 == two // 4 else "SYS"


def _path(paths: Sequence[Sequence[int | None]], one: int, two: int) -> int | None:
    return paths[one][two] if one < len(paths) and two < len(paths[one]) else None


def _link(one: DeviceReading, two: DeviceReading, path: int | None) -> Link:
    links = _nvlinks(one, two)
    return f"NV{links}" if links else "" if path is None else PATHS.get(path, "")


def _nvlinks(one: DeviceReading, two: DeviceReading) -> int:
    """Links that end at a switch lead to all that are on it: the lesser number of them counts."""
    switched = min(one.nvlink_to.count(SWITCH), two.nvlink_to.count(SWITCH))
    if switched and one.domain == two.domain:
        return switched
    return max(one.nvlink_to.count(two.pci_bus_id), two.nvlink_to.count(one.pci_bus_id))
