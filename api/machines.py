"""Which nodes a program is the agent of, from its options: this machine's, or simulated ones."""

from collections.abc import Sequence
from typing import Final

from muster.api.process import StartError
from muster.events.types import Inventory
from muster.node_agent.devices import DeviceSource
from muster.node_agent.inventory import (
    MODELS,
    SIMULATED_DEVICES_LIMIT,
    NvmlDevices,
    SimulatedDevices,
    Site,
    has_driver,
    node_name,
    simulated,
)

DEFAULT_SIMULATION: Final = "2x8xA100-80GB"
LOWEST_PORT: Final = 1024
HIGHEST_PORT: Final = 65535
LONGEST_LABEL: Final = 128


def site(ports: str, address: str = "127.0.0.1", fabric: str = "", labels: Sequence[str] = ()) -> Site:
    """Where a node stands; `ports` is FIRST-LAST, a label NAME=VALUE. Raises StartError."""
    first, _, last = ports.partition("-")
    if not (first.isdecimal() and last.isdecimal() and LOWEST_PORT <= int(first) <= int(last) <= HIGHEST_PORT):
        raise StartError(f"{ports!r} is no range of ports", "write FIRST-LAST, such as 21000-21999")
    named = {}
    for label in labels:
        name, equals, value = label.partition("=")
        if not (name and equals) or max(len(name), len(value)) > LONGEST_LABEL:
            raise StartError(f"{label!r} is no label", "write NAME=VALUE, such as rack=r7")
        named[name] = value
    return Site(address=address, fabric=fabric, labels=named, first_port=int(first), last_port=int(last))


def all_nodes(simulate: str | None, ports: str) -> dict[str, DeviceSource]:
    """The nodes of `muster up`: this machine if it has a driver, otherwise simulated ones on one fabric. May block.
    Raises StartError."""
    if simulate is None and has_driver():
        return {node_name(): NvmlDevices(site(ports))}
    try:
        return dict(simulated(simulate or DEFAULT_SIMULATION, site(ports, fabric="simulated")))
    except ValueError as error:
        raise StartError(str(error), f"write NODESxDEVICESxMODEL, such as {DEFAULT_SIMULATION}") from error


def equipment(inventory: Inventory) -> str:
    """What a node has, in words: `8 x A100-80GB`."""
    devices = inventory.devices
    return f"{len(devices)} x {devices[0].model}" if devices else "no devices"


def one_node(node: str, simulate: str | None, where: Site) -> DeviceSource:
    """The devices of one node: this machine's, or `8xA100-80GB`. Raises StartError."""
    if simulate is None:
        return NvmlDevices(where)
    count, _, model = simulate.partition("x")
    if not count.isdecimal() or int(count) > SIMULATED_DEVICES_LIMIT or model not in MODELS:
        raise StartError(
            f"{simulate!r} cannot be simulated", f"write DEVICESxMODEL; models: {', '.join(sorted(MODELS))}"
        )
    return SimulatedDevices(node, int(count), model, where)
