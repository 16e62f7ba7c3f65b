"""A machine with GPUs, described for the stand-in library of `nvml_standin/nvml.c`: the real bindings load that.

machine = a100x8(tmp_path)
machine.write()                      # again after each change: what runs sees it
subprocess.Popen(..., env=os.environ | machine.env)
machine.xid(machine.gpus[3], 79)
"""

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from muster.node_agent.nvml import NvmlSettings

SOURCE: Final = Path(__file__).parent / "nvml_standin" / "nvml.c"
LIBRARY: Final = "libnvidia-ml.so.1"
PIX, PXB, PHB, NODE, SYS = 10, 20, 30, 40, 50
NO_LINKS: Final[tuple[str, ...]] = ()
Fabric = tuple[int, int, str, int]
"""State (3 = completed), status (0 = well), the cluster's uuid (32 hex digits), the clique."""


@functools.cache
def standin() -> Path:
    """The library, built once a session; where there is no compiler the test is skipped."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stand-in for NVML with")
    folder = Path(tempfile.mkdtemp(prefix="muster-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", folder / LIBRARY, SOURCE, "-lpthread", "-ldl"], check=True)
    return folder / LIBRARY


@dataclass
class Gpu:
    """One device. None: not supported. `processes` are (pid, MiB or -1 = not told); `failures` are (function or "*",
    NVML's code or "hang" or "segfault" or "slow")."""

    bus: str
    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    minor: int | None = 0
    memory_mib: tuple[int, int, int] | None = (81_920, 766, 0)  # total, reserved, used without the reserved
    capability: str | None = "8.0"
    numa: int | None = 0
    mig: int | None = 0
    recovery: int | None = 0
    remap: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    ecc: tuple[int, int] | None = (0, 0)  # corrected, uncorrected
    fabric: Fabric | None = None
    links: tuple[str, ...] = NO_LINKS  # the remote's bus id, "switch" or "down"
    sm_percent: int | None = 0
    temperature_c: int | None = 30
    power_mw: int | None = 50_000
    sm_clock_mhz: int | None = 210
    memory_clock_mhz: int | None = 1_593
    processes: list[tuple[int, int]] = field(default_factory=list)
    failures: list[tuple[str, int | str]] = field(default_factory=list)

    def lose(self) -> None:
        """It has fallen off the bus."""
        self.failures = [("*", 15)]

    def lines(self) -> Iterable[str]:
        """Its part of the description."""
        yield f"device {self.bus} {self.uuid}"
        for key in (
            *("name", "minor", "memory_mib", "capability", "numa", "mig", "recovery", "remap", "ecc", "fabric"),
            *("sm_percent", "temperature_c", "power_mw", "sm_clock_mhz", "memory_clock_mhz"),
        ):
            value = getattr(self, key)
            if value is not None:
                yield f"{key} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        yield from (f"link {remote}" for remote in self.links)
        yield from (f"process {pid} {mib}" for pid, mib in self.processes)
        yield from (f"fail {function} {what}" for function, what in self.failures)


@dataclass
class Machine:
    """A machine in a folder of its own; `gpus` are in NVML's order. `kernel_driver` is what the loaded module says."""

    folder: Path
    gpus: list[Gpu] = field(default_factory=list)
    driver: str = "570.86.10"
    kernel_driver: str | None = "570.86.10"
    init: int = 0
    failures: list[tuple[str, int | str]] = field(default_factory=list)
    path: Callable[[Gpu, Gpu], int | None] = lambda _one, _two: SYS

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / LIBRARY).symlink_to(standin())

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {"LD_LIBRARY_PATH": str(self.folder)}

    @property
    def version_file(self) -> Path:
        """In place of /proc/driver/nvidia/version."""
        return self.folder / "version"

    def settings(self, **values: float) -> NvmlSettings:
        """For an NvmlProcess on this machine."""
        return NvmlSettings(
            library_path=str(self.folder), version_file=str(self.version_file), sysfs=str(self.folder / "sys"), **values
        )

    def write(self) -> None:
        """Make it so, at once."""
        if self.kernel_driver is None:
            self.version_file.unlink(missing_ok=True)
        else:
            line = (
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.kernel_driver}  Fri Jan 10 00:00:00 UTC 2025\n"
            )
            _replace(self.version_file, line)
        lines = [f"driver {self.driver}", f"init {self.init}"]
        lines += [f"fail {function} {what}" for function, what in self.failures]
        for position, one in enumerate(self.gpus):
            for two in self.gpus[position + 1 :]:
                level = self.path(one, two)
                lines += [] if level is None else [f"path {one.bus} {two.bus} {level}"]
        _replace(
            self.folder / "machine.txt", "\n".join([*lines, *(line for gpu in self.gpus for line in gpu.lines()), ""])
        )

    def xid(self, gpu: Gpu, xid: int) -> None:
        """The driver tells of an error."""
        with (self.folder / "events.txt").open("a") as file:
            file.write(f"{gpu.bus} {xid}\n")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def a100x8(folder: Path) -> Machine:
    """8 x A100-80GB on NVSwitches, 12 links each; 4 on each of two NUMA nodes, two on each PCIe switch."""
    buses = ("07", "0F", "47", "4E", "87", "90", "B7", "BD")
    gpus = [
        Gpu(f"00000000:{bus}:00.0", f"GPU-a100-{number}", minor=number, numa=number // 4, links=("switch",) * 12)
        for number, bus in enumerate(buses)
    ]
    return Machine(folder, gpus, path=_tree(gpus))


def pcie8(folder: Path) -> Machine:
    """8 x L40S without NVLink: two on each PCIe switch, two switches on each of two sockets."""
    buses = ("01", "02", "21", "22", "81", "82", "A1", "A2")
    gpus = [
        Gpu(
            f"00000000:{bus}:00.0",
            f"GPU-l40s-{number}",
            "NVIDIA L40S",
            minor=number,
            memory_mib=(46_068, 584, 0),
            capability="8.9",
            numa=number // 4,
            mig=None,
        )
        for number, bus in enumerate(buses)
    ]
    return Machine(folder, gpus, path=_tree(gpus))


def mixed(folder: Path) -> Machine:
    """An A100-40GB, two V100-32GB that are joined by two links, and a T4, each on a host bridge of its own but for the
    V100s, which share one."""
    gpus = [
        Gpu("00000000:3B:00.0", "GPU-t4", "Tesla T4", 0, (15_360, 424, 0), "7.5", mig=None, remap=None),
        Gpu("00000000:1A:00.0", "GPU-a100", "NVIDIA A100-PCIE-40GB", 1, (40_960, 588, 0)),
        Gpu("00000000:5E:00.0", "GPU-v100-0", "Tesla V100-SXM2-32GB", 2, (32_768, 344, 0), "7.0", mig=None, remap=None),
        Gpu("00000000:5F:00.0", "GPU-v100-1", "Tesla V100-SXM2-32GB", 3, (32_768, 344, 0), "7.0", mig=None, remap=None),
    ]
    gpus[2].links, gpus[3].links = (gpus[3].bus,) * 2, (gpus[2].bus,) * 2
    return Machine(folder, gpus, path=lambda one, two: PHB if one.name == two.name else NODE)


def _tree(gpus: list[Gpu]) -> Callable[[Gpu, Gpu], int]:
    """Pairs on a PCIe switch, fours on a socket, in this order."""
    place = {gpu.bus: number for number, gpu in enumerate(gpus)}

    def path(one: Gpu, two: Gpu) -> int:
        a, b = place[one.bus], place[two.bus]
        return PIX if a // 2 == b // 2 else NODE if a // 4 == b // 4 else SYS

    return path
