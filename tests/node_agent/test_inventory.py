"""Simulated devices, models' names, and what a host has besides devices."""

import pytest

from muster.node_agent.inventory import Site, simulated
from muster.node_agent.readings import Worktree


async def test_simulated_nodes_are_numbered_through_all_groups() -> None:
    nodes = simulated("2x8xA100-80GB, 1x4xH800", Site(fabric="ib0"))
    assert list(nodes) == ["node-1", "node-2", "node-3"]
    third = await nodes["node-3"].inventory()
    assert [(d.index, d.uuid, d.model, d.nominal_mib) for d in third.devices] == [
        (i, f"GPU-sim-node-3-{i}", "H800", 81_920) for i in range(4)
    ]
    assert all(device.memory_mib < device.nominal_mib for device in third.devices)
    assert (third.cpus, third.memory_mib, third.fabric) == (128, 1_048_576, "ib0")


async def test_simulated_nodes_share_no_port() -> None:
    inventories = [await node.inventory() for node in simulated("3x1xT4", Site(first_port=100, last_port=198)).values()]
    assert [(i.first_port, i.last_port) for i in inventories] == [(100, 132), (133, 165), (166, 198)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8xA100-80GB", "NODESxDEVICESxMODEL"),
        ("", "NODESxDEVICESxMODEL"),
        ("1x8xA1000", "A1000"),
        ("0x8xT4", "1 to"),
        ("99999x1xT4", "1 to"),
        ("1x999xT4", "at most"),
    ],
)
def test_what_cannot_be_simulated_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulated(text, Site())


async def test_simulated_samples_follow_the_claims() -> None:
    work = [
        Worktree(5, 1, {"GPU-sim-node-1-1": 3_000}, frozenset()),
        Worktree(6, 1, {"GPU-sim-node-1-1": 5_000}, frozenset()),
    ]
    samples = (await simulated("1x2xT4", Site())["node-1"].look(work)).samples
    assert [sample.memory_total_mib for sample in samples] == [16_384, 16_384]
    assert [(sample.index, sample.memory_used_mib, sample.healthy) for sample in samples] == [
        (0, 0, True),
        (1, 8_000, True),
    ]
