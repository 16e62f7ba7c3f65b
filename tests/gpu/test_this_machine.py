"""On a machine with GPUs: what Muster says of them against what nvidia-smi says, and what a job sees of its devices.

Run with `make test-gpu`; a few seconds on an idle machine. Nothing here changes a setting of a device.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.node_agent.inventory import Site
from muster.node_agent.nvml_devices import NvmlDevices

pytestmark = pytest.mark.gpu
MUSTER = str(Path(sys.executable).with_name("muster"))
DEADLINE_S = 60
CUDA_PROGRAM = """
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")

def check(code):
    assert code == 0, f"CUDA says {code}"

check(cuda.cuInit(0))
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
uuid = (ctypes.c_ubyte * 16)()
check(cuda.cuDeviceGetUuid(uuid, 0))
digits = bytes(uuid).hex()
print(count.value, "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))
"""


def query(*fields: str) -> list[list[str]]:
    """What nvidia-smi says of each device, in PCI order; the first field must be the bus id."""
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("there is no nvidia-smi here, so no driver to compare with")
    words = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        pytest.skip(f"the driver does not answer: {done.stdout.strip()}")
    return sorted([value.strip() for value in line.split(",")] for line in done.stdout.splitlines())


def has_file(minor: int) -> bool:
    return Path(f"/dev/nvidia{minor}").exists()


@pytest.fixture
async def devices(tmp_path: Path) -> AsyncIterator[NvmlDevices]:
    query("pci.bus_id")
    found = NvmlDevices(Site(), tmp_path)
    yield found
    await found.close()


async def test_the_inventory_is_what_nvidia_smi_says(devices: NvmlDevices) -> None:
    inventory = await devices.inventory()
    told = query("pci.bus_id", "uuid", "driver_version")
    assert [[device.pci_bus_id, device.uuid, inventory.driver] for device in inventory.devices] == told
    assert [device.index for device in inventory.devices] == list(range(len(told)))
    for device, (_, total, reserved, capability) in zip(
        inventory.devices, query("pci.bus_id", "memory.total", "memory.reserved", "compute_cap"), strict=True
    ):
        assert device.capability == capability
        if total.isdecimal() and reserved.isdecimal():
            assert abs(device.memory_mib - (int(total) - int(reserved))) <= 1
            assert device.memory_mib <= device.nominal_mib
        assert device.minor is None or has_file(device.minor)
    assert all(row[place] == "X" for place, row in enumerate(inventory.topology))


async def test_a_look_is_what_nvidia_smi_says(devices: NvmlDevices) -> None:
    await devices.inventory()
    look = await devices.look([])
    assert (look.degraded, look.changed) == (None, False)
    told = query("pci.bus_id", "uuid", "memory.total", "memory.used", "temperature.gpu")
    for sample, (_, uuid, total, used, temperature) in zip(look.samples, told, strict=True):
        assert sample.uuid == uuid
        if total.isdecimal():
            assert sample.memory_total_mib == int(total)
        if used.isdecimal() and sample.memory_used_mib is not None:
            assert abs(sample.memory_used_mib - int(used)) <= 512, "others may use it meanwhile"
        if temperature.isdecimal() and sample.temperature_c is not None:
            assert abs(sample.temperature_c - int(temperature)) <= 10


async def test_letting_go_ends_the_process(devices: NvmlDevices) -> None:
    await devices.inventory()
    (pid,) = devices.own_pids
    await devices.close()
    assert devices.own_pids == frozenset()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[str]:
    """`muster up` on this machine; gives its address."""
    query("pci.bus_id")
    data = tmp_path / "data"
    words = [MUSTER, "up", "--data", str(data), "--port", "0"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
    end_s = time.monotonic() + DEADLINE_S
    while not (data / "up.json").exists():
        assert process.poll() is None, (tmp_path / "output").read_text()
        assert time.monotonic() < end_s, "`muster up` is not up in time"
        time.sleep(0.05)
    yield json.loads((data / "up.json").read_text())["url"]
    process.send_signal(signal.SIGINT)
    process.wait(DEADLINE_S)


def muster(url: str, *words: str) -> str:
    environment = os.environ | {"MUSTER_SERVER": url}
    done = subprocess.run(
        [MUSTER, *words], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def registered(url: str) -> list[dict[str, Any]]:
    [node] = json.loads(muster(url, "nodes", "--json"))["nodes"]
    devices: list[dict[str, Any]] = node["devices"]
    return devices


def test_a_job_sees_its_device_and_no_other(up: str) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"CUDA's driver library cannot be loaded: {error}")
    told = muster(up, "run", "--gpus", "1", "--", sys.executable, "-c", CUDA_PROGRAM).splitlines()
    uuids = {device["uuid"] for device in registered(up)}
    [(count, uuid)] = [line.split() for line in told if line.partition(" ")[2].startswith("GPU-")]
    assert count == "1"
    assert uuid in uuids


async def test_what_is_known_of_devices_outlives_the_agent(devices: NvmlDevices, tmp_path: Path) -> None:
    before = await devices.inventory()
    again = NvmlDevices(Site(), tmp_path)
    try:
        assert await again.inventory() == before
    finally:
        await again.close()
