"""A program that resets, or does not, whatever it leaves behind and however much it says."""

import os
from pathlib import Path

import pytest

from muster.node_agent.resets import ResetSettings, reset_device

BUS = "00000000:44:00.0"


def program(folder: Path, *lines: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o700)
    return str(path)


async def test_a_program_that_leaves_a_child_has_still_succeeded(tmp_path: Path) -> None:
    left = tmp_path / "left"
    path = program(tmp_path, "sleep 600 &", f"echo $! > {left}", "exit 0")
    try:
        assert await reset_device(ResetSettings(program=path), BUS) == ""
    finally:
        os.kill(int(left.read_text()), 9)


async def test_of_much_output_the_end_counts(tmp_path: Path) -> None:
    path = program(
        tmp_path, "head -c 8000000 /dev/zero | tr '\\0' x", "echo", "echo In use by another client >&2", "exit 3"
    )
    assert await reset_device(ResetSettings(program=path), BUS) == "its reset failed: In use by another client"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["exit 5"], "ended with code 5"),
        (["echo begun", "exec sleep 600"], "did not end within 0.2 s"),
    ],
)
async def test_why_it_failed_is_told(tmp_path: Path, lines: list[str], words: str) -> None:
    path = program(tmp_path, *lines)
    assert await reset_device(ResetSettings(program=path, timeout_s=0.2), BUS) == f"its reset failed: {path} {words}"


async def test_a_program_that_is_not_there_has_failed(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    told = await reset_device(ResetSettings(program=path), BUS)
    assert told == f"its reset failed: {path}: No such file or directory"
