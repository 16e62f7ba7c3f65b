"""Resetting a device, by NVIDIA's own program. Nothing may hold the device meanwhile: NVML is let go before."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

NVIDIA_SMI: Final = "nvidia-smi"
RESET_S: Final = 120.0
_LAST_LINE_LIMIT: Final = 300
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
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return 1, f"{argv[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
            return process.returncode or 0, output.decode("utf-8", "replace")
    except TimeoutError:
        return 1, f"{argv[0]} did not end within {timeout_s:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
