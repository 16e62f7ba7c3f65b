"""The worked case of the documentation, with real processes: who gets which devices, and what its workers see."""

from pathlib import Path

from integration.evidence import Expected, prove
from integration.jobs import go, prepare, work
from integration.processes import until_answer
from integration.site import Site

SEES = "echo sees $CUDA_VISIBLE_DEVICES"


async def test_two_linked_nodes(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with Site(tmp_path) as site:
        x = await site.submit(work(tmp_path, nap="wait"), "x", name="x", gpus=4, where={"nodes": ["node-1"]})
        y = await site.submit(
            "while [ ! -e $TRACE/never ]; do sleep 0.1; done", "y", gpus=2, where={"nodes": ["node-2"]}
        )
        await site.job_in(x, "RUNNING")
        await site.job_in(y, "RUNNING")
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
        go(tmp_path)
        await site.job_in(x, "COMPLETED")
        await site.job_in(q, "COMPLETED")
        assert await site.muster("logs", str(q)) == "sees 0,1,2,3\n"
        (tmp_path / "never").touch()
        await site.all_ended(4)
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
