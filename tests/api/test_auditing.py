"""The audit over HTTP and on the command line: ranges, progress, exports."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_harness import Background, Harness
from click.testing import CliRunner, Result

from muster.api import auditing, progressing
from muster.api.audit_parts import audit_log
from muster.api.cli import main
from muster.events.spec import JobSpec
from muster.events.types import JobSubmitted
from muster.projections.audit_report import AuditReport

Muster = Callable[..., Result]
GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0"


async def _busy(harness: Harness) -> None:
    """A node, and a job that runs to its end."""
    await harness.add_node("node-1")
    job = await harness.append(JobSubmitted("ada", JobSpec(command=["true"], gpus=2)), "default")
    await harness.decide()
    await harness.start(job)
    await harness.end(job, 0)


async def _audit(http: aiohttp.ClientSession, status: int, query: dict[str, str]) -> Any:
    async with http.get("/v1/audit", params=query) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json(content_type=None)


async def test_a_range_over_http(harness: Harness, http: aiohttp.ClientSession) -> None:
    await _busy(harness)
    last = len(harness.log.entries)
    for source in ("log", "mirror"):
        report = (await _audit(http, 200, {"source": source, "from": "3", "to": str(last)}))["report"]
        assert report["first"] <= 3
        assert report["first"] + report["entries"] - 1 == last
        assert report["findings"] == []


async def test_a_range_that_begins_before_the_log_begins_with_its_first_entry(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    await _busy(harness)
    last = len(harness.log.entries)
    report = (await _audit(http, 200, {"from": "-2h"}))["report"]
    assert (report["first"], report["entries"], report["findings"]) == (1, last, [])
    async with http.get("/v1/replay", params={"from": "-2h", "all": "true"}) as told:
        lines = [json.loads(line) async for line in told.content]
    assert told.status == 200
    assert (int(lines[0]["sequence"]), int(lines[-1]["sequence"])) == (1, last)
    nothing = await _audit(http, 200, {"from": "-3h", "to": "-2h"})
    assert (nothing["ok"], nothing["report"]["entries"]) == (True, 0)
    assert nothing["text"] == ["nothing happened between -3h and -2h: there is nothing to audit"]
    told_of = await _audit(http, 200, {"to": "-2h", "expect": f"9:{'0' * 32}"})
    assert (told_of["ok"], told_of["report"]["findings"][0]["kind"]) == (False, "expect")


@pytest.mark.parametrize(
    ("query", "where", "what"),
    [
        ({"from": "5", "to": "3"}, "to", "entry 3 is before entry 5"),
        ({"from": "soon"}, "from", "is no moment"),
        ({"to": "999"}, "to", "in the future"),
        ({"expect": "3:abc"}, "expect", "SEQUENCE:CHAIN"),
        ({"source": "disk"}, "source", "neither log nor mirror"),
    ],
)
async def test_what_is_wrong_with_a_range_is_said_of_its_parameter(
    harness: Harness, http: aiohttp.ClientSession, query: dict[str, str], where: str, what: str
) -> None:
    await _busy(harness)
    problem = await _audit(http, 400, query)
    [error] = problem["errors"]
    assert error["pointer"] == where
    assert what in error["detail"]


async def test_progress_comes_as_lines_before_the_report(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _busy(harness)
    seen = threading.Event()

    def slow(*what: Any, **more: Any) -> AuditReport:
        assert seen.wait(10)
        return audit_log(*what, **more)

    monkeypatch.setattr(progressing, "TELL_S", 0.01)
    monkeypatch.setattr(auditing, "audit_log", slow)
    async with http.get("/v1/audit", headers={"Accept": "application/x-ndjson"}) as answer:
        assert answer.content_type == "application/x-ndjson"
        first = json.loads(await answer.content.readline())
        assert first == {"reached": 0, "last": len(harness.log.entries)}
        seen.set()
        lines = [json.loads(line) async for line in answer.content]
    assert lines[-1]["ok"] is True
    assert all("reached" in line for line in lines[:-1])


def test_ranges_on_the_command_line(muster: Muster, server: Background) -> None:
    server.do(_busy)
    result = muster("audit", "--from", "2", "--to", "4")
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "clean: everything is as it must be")
    assert "entries 1 to " in result.output
    late = muster("audit", "--from", "3", "--to", "1")
    assert late.exit_code == 2
    assert "is before entry" in late.stderr


@pytest.mark.parametrize("name", ["jobs", "policies"])
def test_an_export_is_audited_without_a_server(name: str) -> None:
    path = str(GOLDEN / f"{name}.jsonl.xz")
    result = CliRunner().invoke(main, ["audit", "--file", path, "--server", "http://127.0.0.1:1"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].startswith(f"audited the export {name}.jsonl.xz: entries 1 to ")
    part = CliRunner().invoke(main, ["audit", "--file", path, "--to", "40", "--json"])
    assert json.loads(part.output)["report"]["last"] >= 40


def test_a_range_that_is_not_in_an_export_is_refused() -> None:
    path = str(GOLDEN / "jobs.jsonl.xz")
    for words, what in (
        (["--from", "9999"], "are not in the log"),
        (["--from", "9", "--to", "5"], "--to: 5 is before 9, at which it begins"),
        (
            ["--from", "1969-12-31T00:00:00Z", "--to", "1969-12-30T00:00:00Z"],
            "1969-12-30T00:00:00Z is before 1969-12-31",
        ),
    ):
        result = CliRunner().invoke(main, ["audit", "--file", path, *words])
        assert (result.exit_code, what in result.stderr) == (2, True), result.stderr
    early = CliRunner().invoke(main, ["audit", "--file", path, "--from", "1969-12-31T00:00:00Z"])
    assert (early.exit_code, "entries 1 to " in early.output) == (0, True)
    nothing = CliRunner().invoke(main, ["audit", "--file", path, "--to", "1969-12-31T00:00:00Z"])
    assert nothing.output == "nothing had happened by 1969-12-31T00:00:00Z: there is nothing to audit\n"


def test_a_file_that_is_no_export_and_options_that_do_not_go_together(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text("notes\n")
    for words, what in (
        (["--file", str(file)], "is no export"),
        (["--file", str(file), "--mirror"], "it goes without --mirror"),
    ):
        result = CliRunner().invoke(main, ["audit", *words])
        assert (result.exit_code, what in result.stderr) == (2, True), result.stderr
    missing = CliRunner().invoke(main, ["audit", "--file", str(tmp_path / "none.jsonl")])
    assert (missing.exit_code, "none.jsonl: no such file" in missing.stderr) == (3, True)
