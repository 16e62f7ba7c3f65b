"""Simulated devices, models' names, and what a host has besides devices."""

from pathlib import Path

import pytest

from muster.node_agent.host import Host, addresses
from muster.node_agent.inventory import Site, simulated
from muster.node_agent.models import model_of, nominal_mib
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
    async def work() -> list[Worktree]:
        return [
            Worktree(5, 1, {"GPU-sim-node-1-1": 3_000}, frozenset()),
            Worktree(6, 1, {"GPU-sim-node-1-1": 5_000}, frozenset()),
        ]

    samples = (await simulated("1x2xT4", Site())["node-1"].look(work)).samples
    assert [sample.memory_total_mib for sample in samples] == [16_384, 16_384]
    assert [(sample.index, sample.memory_used_mib, sample.healthy) for sample in samples] == [
        (0, 0, True),
        (1, 8_000, True),
    ]


@pytest.mark.parametrize(
    ("model", "links"),
    [
        ("A100-80GB", ["X", "NV12", "NV12", "NV12", "NV12", "NV12", "NV12", "NV12"]),
        ("H200", ["X", "NV18", "NV18", "NV18", "NV18", "NV18", "NV18", "NV18"]),
        ("L4", ["X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]),
    ],
)
async def test_simulated_devices_are_connected_as_they_usually_are(model: str, links: list[str]) -> None:
    inventory = await simulated(f"1x8x{model}", Site())["node-1"].inventory()
    assert inventory.topology[0] == links
    assert inventory.topology == [list(column) for column in zip(*inventory.topology, strict=True)]


@pytest.mark.parametrize("nodes", ["1x8xV100-32GB", "1x16xH100-80GB"])
async def test_of_other_simulated_devices_no_links_are_known(nodes: str) -> None:
    assert (await simulated(nodes, Site())["node-1"].inventory()).topology == []


@pytest.mark.parametrize(
    ("name", "total_mib", "model", "nominal"),
    [
        ("NVIDIA A100-SXM4-80GB", 81_920, "A100-80GB", 81_920),
        ("NVIDIA A100 80GB PCIe", 81_920, "A100-80GB", 81_920),
        ("NVIDIA A100-PCIE-40GB", 40_960, "A100-40GB", 40_960),
        ("NVIDIA A800-SXM4-80GB", 81_920, "A800-80GB", 81_920),
        ("NVIDIA H100 80GB HBM3", 81_559, "H100-80GB", 81_920),
        ("NVIDIA H100 PCIe", 81_559, "H100-80GB", 81_920),
        ("NVIDIA H100 NVL", 95_830, "H100-94GB", 96_256),
        ("NVIDIA H20", 97_871, "H20-96GB", 98_304),
        ("NVIDIA GH200 480GB", 97_871, "GH200-96GB", 98_304),
        ("Tesla V100-PCIE-16GB", 16_384, "V100-16GB", 16_384),
        ("Tesla T4", 15_360, "T4", 16_384),
        ("NVIDIA GeForce RTX 4090", 24_564, "RTX-4090", 24_576),
        ("NVIDIA RTX 6000 Ada Generation", 49_140, "RTX-6000-Ada", 49_152),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97_887, "RTX-PRO-6000", 98_304),
        ("NVIDIA B300 SXM6 AC", 275_040, "B300", 276_480),
        ("NVIDIA A100-SXM4-80GB", 0, "A100-80GB", 81_920),
        ("NVIDIA Zeus", 33_000, "Zeus", 33_792),
        ("NVIDIA Zeus 48GB", 48_500, "Zeus-48GB", 49_152),
    ],
)
def test_names_are_as_users_write_them(name: str, total_mib: int, model: str, nominal: int) -> None:
    assert model_of(name, total_mib) == model
    assert nominal_mib(model, total_mib) == nominal


def test_a_host_s_memory_is_without_that_of_its_devices(tmp_path: Path) -> None:
    for path, text in {
        "proc/meminfo": "MemTotal:       700000000 kB\nMemAvailable:   600000000 kB\n",
        "sys/devices/system/node/node0/cpulist": "0-71\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       500000000 kB\n",
        "sys/devices/system/node/node1/cpulist": "\n",
        "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       98304000 kB\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    host = Host(tmp_path / "proc", tmp_path / "sys")
    assert host.memory_mib() == (700_000_000 - 98_304_000) // 1024
    assert host.meminfo_mib() == (683_593, 585_937)


def test_loopback_is_an_address_only_where_the_node_is_there() -> None:
    assert addresses("127.0.0.1").get("lo") == "127.0.0.1"
    assert "127.0.0.1" not in addresses("10.0.0.1").values()
