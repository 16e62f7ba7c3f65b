"""Who runs training programs: an installed framework, and a site of two agents to run it on."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Final

from integration.processes import MUSTER
from integration.site import Site

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = ROOT / "examples" / "frameworks"
INSTALLED: Final = ROOT / ".venv-frameworks"
RUN_S: Final = 240
"""MindSpore takes half a minute to come up on two busy cores."""


def path_of(framework: str) -> str:
    """The PATH with the framework's own environment first. It must be installed."""
    programs = INSTALLED / framework / "bin"
    assert (INSTALLED / framework / ".installed").exists(), (
        f"{framework} is not installed: make test-frameworks does it"
    )
    return f"{programs}:{os.environ['PATH']}"


async def muster_run(site: Site, framework: str, *words: str, status: int = 0) -> str:
    """What `muster run` prints to a user who has activated the framework's environment; it must end with `status`."""
    environment = os.environ | {"MUSTER_SERVER": site.url(), "PATH": path_of(framework), "TRACE": str(site.folder)}
    command = [MUSTER, "run", "--framework", framework, "--env", "PATH", "--env", "TRACE", *words]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=RUN_S, cwd=PROGRAMS
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


async def said(site: Site, job: int, workers: int) -> str:
    """What all workers of a job wrote, one after the other."""
    return "".join([await site.muster("logs", str(job), "--rank", str(rank)) for rank in range(workers)])
