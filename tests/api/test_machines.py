"""Which nodes a program is the agent of."""

from pathlib import Path

import pytest

from muster.api.machines import equipment, one_node, site
from muster.api.process import StartError
from muster.events.types import Device, Inventory


async def test_labels_become_the_nodes(tmp_path: Path) -> None:
    where = site("21000-21999", "10.0.0.1", "ib-1", ["rack=r7", "zone=a=b"])

    source = one_node("node-1", "8xA100-80GB", where, tmp_path)
    assert (await source.inventory()).labels == {"rack": "r7", "zone": "a=b"}


@pytest.mark.parametrize(
    ("simulate", "words"),
    [
        ("nonsense", "'nonsense' is not DEVICESxMODEL, like 8xA100-80GB"),
        ("8x", "'8x' is not DEVICESxMODEL, like 8xA100-80GB"),
        ("99999999999xL4", "is more than can be simulated: at most "),
        ("8xH1000", "'8xH1000' names no model that can be simulated: A10, "),
    ],
)
def test_what_cannot_be_simulated_is_a_wrong_command(tmp_path: Path, simulate: str, words: str) -> None:
    with pytest.raises(StartError) as refused:
        one_node("node-1", simulate, site("21000-21999"), tmp_path)
    assert words in str(refused.value)
    assert (refused.value.next_step, refused.value.is_usage) == ("", True)


@pytest.mark.parametrize("label", ["rack", "=r7", "rack=" + "x" * 129])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(StartError, match="is no label"):
        site("21000-21999", labels=[label])


@pytest.mark.parametrize("ports", ["21000", "9-8", "80-90", "a-b", "1-70000"])
def test_what_is_no_range_of_ports_is_refused(ports: str) -> None:
    with pytest.raises(StartError, match="is no range of ports"):
        site(ports)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "no devices"),
        (["L4"] * 8, "8 x L4"),
        (["A100-40GB", "T4", "V100", "V100"], "1 x A100-40GB, 1 x T4, 2 x V100"),
    ],
)
def test_what_a_node_has_is_counted_by_model(models: list[str], words: str) -> None:
    devices = [Device(index, f"GPU-{index}", model, 1024, 1024) for index, model in enumerate(models)]
    assert equipment(Inventory(devices, 8, 1024, "10.0.0.1")) == words
