"""The worked case of the documentation, with real processes: who gets which devices, and what its workers see."""

from pathlib import Path

from integration.evidence import Expected, prove
from integration.jobs import go, prepare, work
from integration.processes import until_answer
from integration.site import Site

SEES = "echo sees $CUDA_VISIBLE_DEVICES"
HELD = "81920 MiB, 81154 MiB, 100 %"
HALF = "81920 MiB, 40577 MiB, 100 %"
FREE = "81920 MiB, 0 MiB, 0 %"


async def smi_says(site: Site, devices: dict[str, list[str]]) -> None:
    """Wait until `muster nodes --smi` prints exactly this."""
    rows = [f"{node}, {index}, {row}" for node, rows in devices.items() for index, row in enumerate(rows)]
    titles = "node, index, memory.total [MiB], memory.used [MiB], utilization.gpu [%]"
    expected = "\n".join([titles, *rows]) + "\n"

    async def printed() -> bool:
        return await site.muster("nodes", "--smi") == expected

    await until_answer(printed, f"--smi prints {expected}")


async def test_two_linked_nodes(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path) as site:
        x = await site.submit(work(tmp_path, nap="wait"), "x", name="x", gpus=4, where={"nodes": ["node-1"]})
        y = await site.submit(
            "while [ ! -e $TRACE/never ]; do sleep 0.1; done", "y", gpus=2, where={"nodes": ["node-2"]}
        )
        await site.job_in(x, "RUNNING")
        await site.job_in(y, "RUNNING")
        await smi_says(site, {"node-1": [*[HELD] * 4, *[FREE] * 4], "node-2": [*[HELD] * 2, *[FREE] * 6]})
        p = await site.submit(
            f"{SEES}; while [ ! -e $TRACE/never ]; do sleep 0.1; done", "p", name="p", gpus=8, nodes="any"
        )
        q = await site.submit(f"{SEES}", "q", name="q", gpus=4, gpu={"memory": "40GiB"})
        shown = await site.job_in(p, "RUNNING")
        assert [(worker["node"], worker["devices"]) for worker in shown["workers"]] == [
            ("node-1", [4, 5, 6, 7]),
            ("node-2", [2, 3, 4, 5]),
        ]
        for rank, devices in (("0", "4,5,6,7"), ("1", "2,3,4,5")):

            async def seen(rank: str = rank) -> str:
                return await site.muster("logs", str(p), "--rank", rank)

            assert await until_answer(seen, f"rank {rank} of P says what it sees") == f"sees {devices}\n"
        await site.job_in(q, "PENDING")
        explained = await site.muster("explain", str(q))
        assert "waits for 4 devices; 2 are idle" in explained, explained
        for step in ("1 filter", "2 order", "3 allocation", "4 environment"):
            assert step in explained
        environment = await site.muster("explain", str(p))
        assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in environment
        assert "CUDA_VISIBLE_DEVICES=2,3,4,5" in environment
        await smi_says(site, {"node-1": [HELD] * 8, "node-2": [*[HELD] * 6, *[FREE] * 2]})
        go(tmp_path)
        await site.job_in(x, "COMPLETED")
        await site.job_in(q, "COMPLETED")
        assert await site.muster("logs", str(q)) == "sees 0,1,2,3\n"
        (tmp_path / "never").touch()
        await site.all_ended(4)
        assert "clean" in await site.muster("audit")


async def test_two_half_cards_share_a_device(tmp_path: Path) -> None:
    prepare(tmp_path)
    half = {"memory": "40GiB", "compute": 0.5}
    async with Site(tmp_path) as site:
        await smi_says(site, {"node-1": [FREE] * 8, "node-2": [FREE] * 8})
        a, b, c = [
            await site.submit(
                f"{SEES}; while [ ! -e $TRACE/go ]; do sleep 0.1; done", name, name=name, gpus=1, gpu=half
            )
            for name in ("a", "b", "c")
        ]
        for job in (a, b, c):
            await site.job_in(job, "RUNNING")
        await smi_says(site, {"node-1": [HELD, HALF, *[FREE] * 6], "node-2": [FREE] * 8})
        shown = await site.get("/v1/nodes/node-1")
        held = [(each["jobs"], each["memory_held_mib"], each["compute_held_milli"]) for each in shown["devices"][:3]]
        assert held == [([a, b], 81_154, 1000), ([c], 40_577, 500), ([], 0, 0)]
        top = await site.muster("top", "--once")
        assert "devices 2 held, 16 of 16 usable  jobs 3 running, 0 waiting" in top.splitlines()[0]
        assert [line.split()[:3] for line in top.splitlines() if f"{a} a (" in line] == [["node-1", "0", "A100-80GB"]]
        go(tmp_path)
        await site.all_ended(3)
        await smi_says(site, {"node-1": [FREE] * 8, "node-2": [FREE] * 8})
        assert "clean" in await site.muster("audit")


async def test_nodes_that_are_not_linked(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path, fabrics=("", "")) as site:
        x = await site.submit(work(tmp_path, nap="wait"), "x", gpus=4, where={"nodes": ["node-1"]})
        y = await site.submit(work(tmp_path, nap="wait"), "y", gpus=2, where={"nodes": ["node-2"]})
        await site.job_in(x, "RUNNING")
        await site.job_in(y, "RUNNING")
        p = await site.submit(work(tmp_path), "p", gpus=8, nodes="any")

        async def explained() -> str:
            shown = await site.job(p)
            return str(shown["why"])

        why = await until_answer(explained, "P says why it waits")
        assert "linked" in why, why
        assert (await site.job(p))["state"] == "PENDING"
        go(tmp_path)
        shown = await site.job_in(p, "COMPLETED")
        assert [worker["node"] for worker in shown["workers"]] in (["node-1"], ["node-2"])
        await prove(site, [Expected("x", x, 0), Expected("y", y, 0), Expected("p", p, 0)])
