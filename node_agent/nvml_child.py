"""The NVML process: the one place where NVIDIA's library is loaded, so that its hanging or crashing takes nobody along.

``python -m muster.node_agent.nvml_child`` answers questions on stdin, one at a time, on stdout (see `nvml_messages`),
and tells of Xids as they happen. It says which device it is about to touch, so that the parent knows which one made it
hang or crash. It ends with its parent, and when stdin does.
"""

import argparse
import ctypes
import importlib
import logging
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.node_agent import tree
from muster.node_agent.nvml_messages import Answer, Ask, Told, Touching, Trouble, TroubleKind, Xid
from muster.node_agent.nvml_read import Reader
from muster.node_agent.readings import DeviceReading, MachineReading, XidEvent
from muster.node_agent.readings import Trouble as ReadingTrouble

WAIT_MS: Final = 2_000
AGAIN_S: Final = 1.0
_VERSION: Final = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b")
_logger = logging.getLogger("muster.nvml")


class TroubleError(Exception):
    """NVML cannot be asked."""

    def __init__(self, kind: TroubleKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: TroubleKind = kind


class Speaker:
    """Writes to the parent, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def tell(self, told: Told) -> None:
        """One line. Raises OSError once the parent listens no more."""
        line = msgspec.json.encode(told) + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


class Library:
    """NVML, initialised: which devices there are, and in which order, does not change from then on."""

    def __init__(self, nvml: Any, speaker: Speaker, sysfs: Path, kernel_driver: str) -> None:
        self._nvml = nvml
        self._speaker = speaker
        self._kernel_driver = kernel_driver
        self._reader = Reader(nvml, sysfs)
        self._errors = (nvml.NVMLError, nvml.NVMLLibraryMismatchError)
        self._seen: dict[int, DeviceReading] = {}  # by NVML's index, when it could be read
        self.handles: dict[int, Any] = {}  # by NVML's index, of devices that could be had at the last reading
        self.bus_ids: dict[int, str] = {}  # by the handle's address: a lost device does not tell it

    def read(self, ask: Ask) -> MachineReading:
        """Answer a question. Raises TroubleError."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._errors as error:
            raise TroubleError("nvml_failed", f"the devices cannot be counted: {error}") from error
        self.handles = {}
        devices = [self._device(index, frozenset(ask.skip)) for index in range(count)]
        paths = self._paths(devices) if ask.kind == "inventory" else []
        self._speaker.tell(Touching(""))
        return MachineReading(
            driver=self._reader.driver,
            kernel_driver=self._kernel_driver,
            devices=devices,
            paths=paths,
        )

    def _device(self, index: int, skip: frozenset[str]) -> DeviceReading:
        if f"#{index}" in skip:
            return self._without(index, "unreadable")
        self._speaker.tell(Touching(f"#{index}"))
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = self._reader.bus_id(handle)
        except self._errors as error:
            return self._without(index, self._reader.handle_trouble(error))
        self.bus_ids[_address(handle)] = bus_id
        if bus_id in skip:
            return self._without(index, "unreadable", bus_id)
        self._speaker.tell(Touching(bus_id))
        reading = self._reader.device(handle, index, bus_id)
        if reading.trouble is not None:
            return self._without(index, reading.trouble, bus_id)
        self.handles[index] = handle
        self._seen[index] = reading
        return reading

    def _without(self, index: int, trouble: ReadingTrouble, bus_id: str = "") -> DeviceReading:
        """A device that cannot be read now; who it is may be known from before."""
        seen = self._seen.get(index)
        uuid, bus_id = (seen.uuid, seen.pci_bus_id) if seen is not None else ("", bus_id)
        return DeviceReading(nvml_index=index, uuid=uuid, pci_bus_id=bus_id, trouble=trouble)

    def _paths(self, devices: list[DeviceReading]) -> list[list[int | None]]:
        paths: list[list[int | None]] = [[None] * len(devices) for _ in devices]
        for one, first in self.handles.items():
            self._speaker.tell(Touching(devices[one].pci_bus_id))
            for two, second in self.handles.items():
                if two < one:
                    paths[one][two] = paths[two][one] = self._reader.path(first, second)
        return paths


class Events:
    """Xids, told as they happen. What cannot be waited for is registered for again."""

    def __init__(self, nvml: Any, library: Library, speaker: Speaker) -> None:
        self._nvml = nvml
        self._library = library
        self._speaker = speaker
        self._errors = (nvml.NVMLError, nvml.NVMLLibraryMismatchError)

    def start(self) -> None:
        """Register for what happens from now on, and tell of it on a thread."""
        events = self._register(touching=True)
        threading.Thread(target=self._run, args=(events,), daemon=True).start()

    def _run(self, events: Any | None) -> None:
        while True:
            if events is not None:
                try:
                    self._wait(events)
                except self._errors as error:
                    _logger.warning("errors of devices cannot be waited for: %s", error)
                except OSError:  # the parent listens no more
                    return
                self._free(events)
            time.sleep(AGAIN_S)
            events = self._register()

    def _wait(self, events: Any) -> None:
        """For ever. Raises an error of NVML's, or OSError."""
        while True:
            try:
                event = self._nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except self._nvml.NVMLError_Timeout:
                continue
            if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                bus_id = self._library.bus_ids.get(_address(event.device), "")
                self._speaker.tell(Xid(XidEvent(bus_id, int(event.eventData))))

    def _register(self, *, touching: bool = False) -> Any | None:
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._errors as error:
            _logger.warning("errors of devices are not told: %s", error)
            return None
        for handle in list(self._library.handles.values()):
            if touching:
                self._speaker.tell(Touching(self._library.bus_ids[_address(handle)]))
            try:
                self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
            except self._errors as error:
                _logger.info("a device does not tell of its errors: %s", error)
        if touching:
            self._speaker.tell(Touching(""))
        return events

    def _free(self, events: Any) -> None:
        try:
            self._nvml.nvmlEventSetFree(events)
        except self._errors:
            return


def load(kernel_driver: str) -> Any:
    """NVIDIA's bindings with NVML initialised. Raises TroubleError."""
    nvml = importlib.import_module("pynvml")
    if not hasattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3"):
        raise TroubleError("nvml_failed", f"{nvml.__file__} is not NVIDIA's: install nvidia-ml-py in its place")
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
        raise TroubleError("absent", str(error)) from error
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise TroubleError("nvml_failed", f"NVML does not start: {error}") from error
        try:
            version = nvml.nvmlSystemGetNVMLVersion()
        except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
            version = "unknown"
        detail = f"NVML is of version {version}, the loaded driver of version {kernel_driver or 'unknown'}"
        raise TroubleError("driver_mismatch", detail) from error
    return nvml


def kernel_driver_version(path: Path) -> str:
    """What the loaded kernel module says of itself; "" where there is none."""
    try:
        found = _VERSION.search(path.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def serve(speaker: Speaker, version_file: Path, sysfs: Path) -> None:
    """Answer until stdin ends. Raises TroubleError, and OSError once the parent listens no more."""
    decode = msgspec.json.Decoder(Ask).decode
    library: Library | None = None
    for line in sys.stdin.buffer:
        ask = decode(line)
        kernel_driver = kernel_driver_version(version_file)
        if library is None:
            nvml = load(kernel_driver)
            library = Library(nvml, speaker, sysfs, kernel_driver)
            machine = library.read(ask)
            Events(nvml, library, speaker).start()
        else:
            machine = library.read(ask)
        speaker.tell(Answer(machine))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version-file", type=Path, default=Path("/proc/driver/nvidia/version"))
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"))
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    tree.die_with_parent()
    if os.getppid() != options.parent:
        return
    logging.basicConfig(format="nvml: %(message)s")
    speaker = Speaker(os.dup(1))
    os.dup2(2, 1)  # whatever else is printed is for the log
    try:
        serve(speaker, options.version_file, options.sysfs)
    except TroubleError as error:
        speaker.tell(Trouble(error.kind, str(error)))
    os._exit(0)  # without waiting for a thread that is inside NVML


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


if __name__ == "__main__":
    main()
