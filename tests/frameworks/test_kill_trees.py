"""Launchers whose processes are sessions of their own, and outlive them: after a cancellation none lives, and until
then their devices are held."""

import json
from pathlib import Path

import pytest
from frameworks.framework_user import path_of
from integration.processes import processes_with, until_answer
from integration.site import Site

pytestmark = pytest.mark.frameworks

STUBBORN = Path(__file__).with_name("stubborn.py")


def cgroups(folder: Path) -> list[Path]:
    """The cgroups of all workers of a site, where this machine has any: their keepers' tickets name them."""
    tickets = folder.glob("node-*/data/agents/*/workers/*/claimed")
    return [Path(named) for ticket in tickets if (named := json.loads(ticket.read_text())["cgroup"])]


@pytest.mark.parametrize(
    ("framework", "launcher", "processes"),
    [
        pytest.param("pytorch", "torchrun", 6, id="torchrun"),  # a launcher and two processes on each node
        pytest.param("mindspore", "msrun", 11, id="msrun"),  # also a scheduler, and tail for each process
    ],
)
async def test_cancelled(tmp_path: Path, framework: str, launcher: str, processes: int) -> None:
    async with Site(tmp_path) as site:
        job = await site.submit(
            [launcher, str(STUBBORN)],
            "stubborn",
            framework=framework,
            gpus=4,
            nodes=2,
            env={"PATH": path_of(framework)},
            preemption={"grace": "3s"},
        )
        marker = f"MUSTER_ALLOCATION={job}.1"

        def alive() -> set[int]:
            return set(site.processes()) & set(processes_with(marker))

        async def all_there() -> bool:
            return len(alive()) >= processes

        await until_answer(all_there, f"{launcher} has started its processes", 120)
        held_by = cgroups(tmp_path)
        assert len(held_by) in (0, 2)
        assert all(cgroup.is_dir() for cgroup in held_by)
        await site.muster("cancel", str(job))
        held = 0

        async def ended() -> bool:
            nonlocal held
            workers = (await site.job(job))["workers"]
            left = alive()
            for worker in workers:
                of_worker = left.intersection(processes_with(f"MUSTER_RANK={worker['rank']}"))
                if worker["phase"] == "gone":
                    assert not of_worker, f"rank {worker['rank']} holds nothing any more, and lives"
                else:
                    held += bool(of_worker)
            return all(worker["phase"] == "gone" for worker in workers)

        await until_answer(ended, "the job is over", 60)
        await site.job_in(job, "CANCELLED")
        assert held
        assert alive() == set()
        for node in (await site.get("/v1/nodes"))["nodes"]:
            assert node["devices_held"] == 0
        assert not any(cgroup.exists() for cgroup in held_by)
        assert "clean" in await site.muster("audit")
