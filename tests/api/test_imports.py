"""An export, opened again, answers every read as the server did that it is from; and takes no writes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_harness import DEADLINE_S, Harness
from click.testing import CliRunner, Result

from muster.api.cli import main
from muster.api.imported import ImportOptions, imported
from muster.api.parts import Tasks
from muster.api.routes import ROUTES, WRITERS
from muster.api.times import rfc3339
from muster.events import types as t
from muster.events.policy import QueueSpec
from muster.projections.exports import ExportSource

NOT_OF_THE_LOG = {
    "/v1/jobs/{id}/logs",  # an import has no agents
    "/v1/jobs/{id}/wait",
    "/v1/audit",  # tells how quick it was
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/asyncapi.json",
}


@asynccontextmanager
async def opened(file: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with imported(ImportOptions(file, "127.0.0.1", 0), Tasks()) as (server, _):
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
            yield session


async def text_of(http: aiohttp.ClientSession, path: str, **parameters: Any) -> str:
    async with http.get(path, params=parameters) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def some_history(harness: Harness, http: aiohttp.ClientSession) -> int:
    """A job of each kind: one has completed, one has failed, one runs, one waits. Gives the last sequence."""
    await harness.add_node("node-1")
    await harness.append(t.QueueConfigured(QueueSpec("research", guarantee="50%"), "ada"))
    ids = []
    for name, gpus in (("first", 4), ("second", 2), ("third", 2)):
        body = {"command": "true", "name": name, "gpus": gpus, "retry": {"max_attempts": 1}}
        async with http.post("/v1/jobs", json=body, headers={"Muster-User": "ada"}) as answer:
            ids.append((await answer.json())["id"])
    await harness.decide()
    for job in ids:
        await harness.start(job)
    await harness.end(ids[0])
    await harness.end(ids[1], 3)
    async with http.post("/v1/jobs", json={"command": "true", "gpus": 8}) as answer:
        await answer.json()
    await harness.decide()
    await harness.append(t.NodeCordoned("node-1", "ada", "dust"))
    return len(harness.log.entries)


async def export(http: aiohttp.ClientSession, path: Path, **window: Any) -> Path:
    text = await text_of(http, "/v1/export", **window)
    await asyncio.to_thread(path.write_text, text)
    return path


def reads(first: int, last: int) -> list[tuple[str, dict[str, Any]]]:
    """Every read of the API, at moments of the log."""
    found: list[tuple[str, dict[str, Any]]] = []
    for route in ROUTES:
        if route.method != "GET" or route.path in NOT_OF_THE_LOG:
            continue
        path = route.path.replace("{id}", "3").replace("{name}", "node-1").replace("{path}", "research")
        if "at" in route.parameters:
            found += [(path, {"at": moment}) for moment in range(max(first, 3), last + 1, 4)]
        elif "from" in route.parameters:
            found.append((path, {"from": max(first, 3), "to": last}))
        else:
            found.append((path, {}))
    return found


async def test_every_read_of_an_import_is_that_of_the_log(
    harness: Harness, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    last = await some_history(harness, http)
    file = await export(http, tmp_path / "log.jsonl")
    asked = reads(1, last)
    assert len(asked) > 50
    async with opened(file) as copy:
        for path, parameters in asked:
            assert await text_of(copy, path, **parameters) == await text_of(http, path, **parameters), path
        everything = {"after": 0, "limit": 1000}
        assert await text_of(copy, "/v1/events", **everything) == await text_of(http, "/v1/events", **everything)
        assert await text_of(copy, "/v1/export") == file.read_text()
        report = await text_of(copy, "/v1/audit")
        assert '"ok":true' in report


@pytest.mark.parametrize("source", ["log", "mirror"])
async def test_a_window_that_was_cut_inside_a_pass_passes_its_audit_and_says_so(
    harness: Harness, http: aiohttp.ClientSession, tmp_path: Path, source: str
) -> None:
    """The three placements and the three commands that follow from them are one pass, entries 6 to 11."""
    await some_history(harness, http)
    lines = (await export(http, tmp_path / "log.jsonl", to=11)).read_text().splitlines()
    header = json.loads(lines[0])
    assert header["last"] == 11
    file = tmp_path / "cut.jsonl"
    await asyncio.to_thread(file.write_text, "\n".join([json.dumps({**header, "last": 8}), *lines[1:9], ""]))
    async with opened(file) as copy:
        report = json.loads(await text_of(copy, "/v1/audit", source=source))
    assert (report["ok"], report["report"]["passes"]["cut"]) == (True, 3)
    assert "the window ends inside a pass: its last 3 entries are not in it, and not compared" in report["text"]


async def test_a_window_begins_where_it_begins(harness: Harness, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    last = await some_history(harness, http)
    first = 9
    file = await export(http, tmp_path / "window.jsonl", **{"from": first})
    async with opened(file) as copy:
        for path, parameters in reads(first, last):
            if path.endswith("/events"):
                continue  # those before the window are not in it
            assert await text_of(copy, path, **parameters) == await text_of(http, path, **parameters), path
        assert await text_of(copy, "/v1/export") == file.read_text()
        assert '"ok":true' in await text_of(copy, "/v1/audit")
        assert '"ok":true' in await text_of(copy, "/v1/audit", source="mirror")
        async with copy.get("/v1/queue", params={"at": first - 2}) as answer:
            problem = await answer.json()
        assert (answer.status, problem["detail"]) == (
            400,
            "7 is before the first entry of the log, which is 9",
        )


async def test_the_present_of_an_import_is_its_last_entry(
    harness: Harness, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    last = await some_history(harness, http)
    file = await export(http, tmp_path / "log.jsonl")
    async with opened(file) as copy:
        for path in ("/v1/queue", "/v1/jobs", "/v1/history", "/v1/state"):
            assert await text_of(copy, path) == await text_of(copy, path, at=last)
        async with copy.get("/v1/state", params={"at": "-1s"}) as answer:
            assert answer.status in (200, 400)  # the whole log may be younger than a second
        async with copy.get("/v1/state", params={"at": last + 1}) as answer:
            assert (await answer.json())["detail"] == (
                f"entry {last + 1} is in the future: the log ends at entry {last}"
            )


async def test_an_import_takes_no_writes(harness: Harness, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    await some_history(harness, http)
    file = await export(http, tmp_path / "log.jsonl")
    before = file.read_text()
    async with opened(file) as copy:
        written = [route for route in ROUTES if route.handler in WRITERS]
        assert len(written) >= 10
        for route in written:
            path = route.path.replace("{id}", "3").replace("{name}", "node-1").replace("{path}", "research")
            async with copy.request(route.method, path.replace("{index}", "0"), json={"command": "true"}) as answer:
                problem = await answer.json()
            assert (answer.status, problem["code"]) == (409, "read_only"), route.path
            assert problem["detail"] == "this is an import of log.jsonl"
        async with copy.get("/v1/jobs/3/logs") as answer:
            assert answer.status == 503
        assert await text_of(copy, "/v1/export") == before


async def test_nothing_goes_on_in_an_import(harness: Harness, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Nobody waits there for what cannot come: a job's end, an entry, another picture."""
    last = await some_history(harness, http)
    file = await export(http, tmp_path / "log.jsonl")
    jobs = [job["id"] for job in (await (await http.get("/v1/jobs")).json())["jobs"]]

    async with imported(ImportOptions(file, "127.0.0.1", 0), Tasks()) as (server, _):

        async def muster(*words: str) -> Result:
            env = {"MUSTER_SERVER": server.url, "COLUMNS": None}
            return await asyncio.to_thread(CliRunner().invoke, main, list(words), env=env)

        waited = await muster("wait", str(jobs[0]))
        assert waited.exit_code == 4
        assert waited.stderr.splitlines() == [
            f"muster: job {jobs[0]} does not end here: this is an import of log.jsonl",
            "  muster show says how it stood at its end",
        ]
        assert (await muster("wait", str(jobs[-1]))).stdout.startswith(f"job {jobs[-1]} COMPLETED")
        followed = await muster("events", "--follow", "--after", str(last - 1))
        assert followed.stdout.count("\n") == 1
        top = await muster("top", "--interval", "60")
        lines = top.stdout.splitlines()
        of_last = rfc3339(harness.log.entries[-1].timestamp_ns)
        assert lines[0].startswith(f"{of_last[:10]} {of_last[11:19]} UTC  nodes ")
        assert lines[1] == f"this is an import of log.jsonl; as it was after entry {last}; no samples are kept"
        [picture] = (await muster("top", "--json", "--interval", "60")).stdout.splitlines()
        assert (json.loads(picture)["time"], json.loads(picture)["unsampled"]) == (of_last, "no samples are kept")


async def test_what_would_become_of_a_job_can_be_asked_of_an_import(
    harness: Harness, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await harness.add_node("node-1")
    file = await export(http, tmp_path / "log.jsonl")
    async with (
        opened(file) as copy,
        copy.post("/v1/whatif/submit", json={"command": "true", "gpus": 1}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert (await answer.json())["workers"] == [{"rank": 0, "node": "node-1", "devices": [0]}]
        assert await text_of(copy, "/v1/export") == file.read_text()


def folders_of_imports(folder: Path) -> list[Path]:
    return [each for each in folder.glob("muster-import-*") if not each.is_symlink()]


async def test_what_a_killed_import_left_goes_and_one_in_use_stays(
    harness: Harness, http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await harness.add_node("node-1")
    file = await export(http, tmp_path / "log.jsonl")
    left = tmp_path / "muster-import-left"
    left.mkdir()
    (left / "import.sqlite").write_text("old")
    (tmp_path / "muster-import-link").symlink_to(tmp_path)
    os.utime(left, (0, 0))

    async with opened(file):
        (used,) = folders_of_imports(tmp_path)
        assert used != left
        os.utime(used, (0, 0))
        async with opened(file) as copy:
            assert (used / "import.sqlite").exists()
            assert await text_of(copy, "/v1/export") == file.read_text()
    assert folders_of_imports(tmp_path) == []
    assert (tmp_path / "muster-import-link").is_symlink()
    assert file.exists()


async def test_an_export_while_the_log_grows_is_whole(
    harness: Harness, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """What the mirror has not got yet follows what it has."""
    await harness.add_node("node-1")
    growing = asyncio.create_task(_grow(harness))
    for number in range(5):
        file = await export(http, tmp_path / f"{number}.jsonl")
        async with opened(file) as copy:
            position = ExportSource(file).position()
            assert f'"sequence":{position},' in await text_of(copy, "/v1/state")
    await growing


async def _grow(harness: Harness) -> None:
    for _ in range(200):
        await harness.append(t.ClockAdvanced())


@pytest.mark.parametrize(("window", "words"), [({"from": 2, "to": 1}, "entry 1 is before entry 2"), ({"to": 99}, "99")])
async def test_a_window_that_is_none_is_told(
    harness: Harness, http: aiohttp.ClientSession, window: dict[str, int], words: str
) -> None:
    await harness.add_node("node-1")
    await harness.add_node("node-2")
    for path in ("/v1/export", "/v1/replay"):
        async with http.get(path, params=window) as answer:
            problem = await answer.json()
        assert (answer.status, problem["errors"][0]["pointer"]) == (400, "to")
        assert words in problem["detail"]
