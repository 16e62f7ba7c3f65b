"""Resetting a device, by NVIDIA's own program. Nothing may hold the device meanwhile: NVML is let go before."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from typing import Final, Self

import msgspec

logger = logging.getLogger(__name__)

NVIDIA_SMI: Final = "nvidia-smi"
RESET_S: Final = 120.0
_KILLED_S: Final = 5.0
_LAST_LINE_LIMIT: Final = 300
_OUTPUT_BYTES: Final = 8192
_PIPE_BYTES: Final = 1 << 16
_TOGETHER: Final = "nvlink"
"""Stands in what the program says where linked devices can only be reset together."""


class ResetSettings(msgspec.Struct, frozen=True):
    """Whether devices are reset (only root can), by which program, and how long it may take."""

    allowed: bool = True
    program: str = NVIDIA_SMI
    timeout_s: float = RESET_S

    def may_reset(self) -> bool:
        """Whether this process resets devices at all."""
        return self.allowed and os.geteuid() == 0


async def reset_device(settings: ResetSettings, bus_id: str) -> str:
    """Reset the device at `bus_id`; "" = done, otherwise why not, in words for the operator."""
    code, output = await _run([settings.program, "--gpu-reset", "-i", bus_id], settings.timeout_s)
    if code == 0:
        logger.warning("device %s was reset", bus_id)
        return ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1][-_LAST_LINE_LIMIT:] if lines else f"{settings.program} ended with code {code}"
    if _TOGETHER in output.lower():
        return f"it can only be reset together with the devices linked to it, by hand once they are idle: {last}"
    return f"its reset failed: {last}"


async def _run(argv: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """The exit code, and the end of the output. What the program leaves behind is not waited for."""
    with _Tail() as tail:
        code, trouble = await _exit_code(argv, timeout_s, tail.input)
        return code, trouble or tail.text()


async def _exit_code(argv: Sequence[str], timeout_s: float, output: int) -> tuple[int, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except OSError as error:
        return 1, f"{argv[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait(), ""
    except TimeoutError:
        _kill(process)
        with contextlib.suppress(TimeoutError):  # it may hang in the driver
            async with asyncio.timeout(_KILLED_S):
                await process.wait()
        return 1, f"{argv[0]} did not end within {timeout_s:g} s"
    finally:
        _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class _Tail:
    """The end of what is written into a pipe. It is read up to now only: who else has the pipe may keep it open."""

    def __init__(self) -> None:
        self._descriptor, self.input = os.pipe()
        os.set_blocking(self._descriptor, False)
        self._kept = b""

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        os.close(self.input)

    def text(self) -> str:
        """What it is now."""
        self._read()
        return self._kept.decode("utf-8", "replace")

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            part = os.read(self._descriptor, _PIPE_BYTES)
            self._kept = (self._kept + part)[-_OUTPUT_BYTES:]
