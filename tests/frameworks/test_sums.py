"""Each framework's own way of starting, with nothing typed but its program: an all-reduce of 1 to n, which is known."""

import re
from pathlib import Path

import pytest
from frameworks.framework_user import muster_run, said
from integration.site import Site

pytestmark = pytest.mark.frameworks

TWO_NODES = "--gpus 2 --nodes 2"
ONE_NODE = "--gpus 2 --nodes 1"


def sums(text: str) -> list[tuple[int, int, int]]:
    """What the processes say: their numbers, of how many, the sums. Unbuffered, as torchrun starts them, they write the
    end of a line apart, and another's line can come before it."""
    found = re.findall(r"(?:process|worker) (\d+) of (\d+), the sum is (\d+)", text)
    return sorted((int(number), int(count), int(total)) for number, count, total in found)


def expected(count: int) -> list[tuple[int, int, int]]:
    return [(number, count, count * (count + 1) // 2) for number in range(count)]


@pytest.mark.parametrize(
    ("framework", "words", "devices", "workers", "processes"),
    [
        pytest.param("pytorch", f"{TWO_NODES} -- torchrun pytorch_sum.py", (8, 8), 2, 2, id="torchrun on two nodes"),
        pytest.param("pytorch", f"{ONE_NODE} -- torchrun pytorch_sum.py", (8, 8), 1, 2, id="torchrun on one node"),
        pytest.param("pytorch", "--gpus 4 -- torchrun pytorch_sum.py", (3, 1), 2, 4, id="torchrun on uneven nodes"),
        pytest.param("pytorch", f"{TWO_NODES} -- python pytorch_sum.py", (8, 8), 2, 2, id="torch without a launcher"),
        pytest.param("tensorflow", f"{TWO_NODES} -- python tensorflow_sum.py", (8, 8), 2, 2, id="two of tensorflow"),
        pytest.param("tensorflow", f"{ONE_NODE} -- python tensorflow_sum.py", (8, 8), 1, 1, id="one of tensorflow"),
        pytest.param("jax", f"{TWO_NODES} -- python jax_sum.py", (8, 8), 2, 2, id="two of jax"),
        pytest.param("jax", f"{ONE_NODE} -- python jax_sum.py", (8, 8), 1, 1, id="one of jax"),
        pytest.param("mindspore", f"{TWO_NODES} -- msrun mindspore_sum.py", (8, 8), 2, 2, id="msrun on two nodes"),
        pytest.param("mindspore", f"{ONE_NODE} -- msrun mindspore_sum.py", (8, 8), 1, 2, id="msrun on one node"),
        pytest.param("mindspore", "--gpus 3 -- msrun mindspore_sum.py", (2, 1), 2, 3, id="msrun on uneven nodes"),
    ],
)
async def test_all_reduce(
    tmp_path: Path, framework: str, words: str, devices: tuple[int, int], workers: int, processes: int
) -> None:
    async with Site(tmp_path, devices=devices) as site:
        shown = await muster_run(site, framework, *words.split())
        [job] = (await site.get("/v1/jobs"))["jobs"]
        assert len(job["nodes"]) == workers
        everything = await said(site, job["id"], workers)
        assert sums(everything) == expected(processes)
        assert set(sums(shown)) <= set(expected(processes))
        assert "clean" in await site.muster("audit")


async def test_a_process_that_fails_ends_the_gang_at_once_and_the_job_with_its_code(tmp_path: Path) -> None:
    fails = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(1000)"
    (tmp_path / "fails.py").write_text(fails)
    async with Site(tmp_path) as site:
        program = str(tmp_path / "fails.py")
        await muster_run(site, "pytorch", *TWO_NODES.split(), "--", "torchrun", program, status=1)
        [job] = (await site.get("/v1/jobs"))["jobs"]
        assert job["state"] == "FAILED"
        assert site.processes() == []
