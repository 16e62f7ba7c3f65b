"""The log as a story, over HTTP and on the command line; and the file that it is written to."""

import gzip
import json
import lzma
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_harness import Background, Harness
from click.testing import CliRunner, Result

from muster.api.cli import main
from muster.events import types as t
from muster.projections.audit import audit
from muster.projections.exports import ExportSource, entry_line
from muster.projections.mirror import MirrorRow

Muster = Callable[..., Result]


async def _history(harness: Harness) -> None:
    """After node-1 (entry 1): job 2 of ada in default runs to its end, job 7 of bob waits and is cancelled."""
    http = aiohttp.ClientSession(harness.url)
    async with http:
        for user, gpus in (("ada", 8), ("bob", 4)):
            body = {"command": "true", "name": f"of-{user}", "gpus": gpus}
            async with http.post("/v1/jobs", json=body, headers={"Muster-User": user}) as answer:
                job = (await answer.json())["id"]
            await harness.decide()
            if user == "ada":
                await harness.start(job)
        async with http.post(f"/v1/jobs/{job}/cancel", json={"reason": "typo"}, headers={"Muster-User": "eve"}) as _:
            pass
        await harness.end(2)
    await harness.append(t.NodeCordoned("node-1", "eve", "dust"))


@pytest.fixture
def told(muster: Muster, server: Background) -> Muster:
    server.do(_history)
    return muster


def sentences(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.strip().split("  ", 2)[2] for line in result.stdout.splitlines()]


STORY = [
    "node-1 is there with 8 A100-80GB",
    "job 2 'of-ada' of ada comes to default and asks for 8 GPUs",
    "job 2 'of-ada' of ada gets node-1[0-7] after a wait of 0s: best-fit: 8 idle on node-1",
    "worker 0 of job 2 'of-ada' of ada on node-1 runs",
    "job 6 'of-bob' of bob comes to default and asks for 4 GPUs",
    "eve asks for an end of job 6 'of-bob' of bob: typo; job 6 'of-bob' of bob is cancelled: cancelled by eve: typo",
    "worker 0 of job 2 'of-ada' of ada on node-1 has ended: exit code 0;"  # noqa: ISC004 - one sentence
    " job 2 'of-ada' of ada has completed after 0s on 8 GPUs",
    "eve keeps new work from node-1: dust",
]


def test_the_log_is_a_story(told: Muster) -> None:
    result = told("replay")
    assert sentences(result) == STORY
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == [1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--from", "5", "--to", "7"], [3, 4, 5]),
        (["--job", "6"], [4, 5]),
        (["-u", "bob"], [4, 5]),
        (["-u", "eve"], [5, 7]),
        (["-q", "default"], [1, 2, 3, 4, 5, 6]),
        (["-u", "bob,eve"], [4, 5, 7]),
        (["-u", "bob", "-u", "eve"], [4, 5, 7]),
        (["-q", "nope,default"], [1, 2, 3, 4, 5, 6]),
        (["--node", "node-1"], [0, 2, 3, 6, 7]),
        (["--kind", "JobSubmitted,node-cordoned"], [1, 4, 7]),
        (["--until-event", "JobCancelRequested"], [0, 1, 2, 3, 4, 5]),
        (["--until-event", "job-allocated"], [0, 1, 2]),
        (["--until-event", "6"], [0, 1, 2, 3, 4]),
        (["--until-event", "job-allocated", "--kind", "NodeRegistered,JobAllocated"], [0, 2]),
        (["--limit", "2"], [0, 1]),
        (["--from", "6", "--user", "ada"], [6]),
    ],
)
def test_a_story_is_told_in_part(told: Muster, words: list[str], chosen: list[int]) -> None:
    assert sentences(told("replay", *words)) == [STORY[number] for number in chosen]


def test_a_story_that_ends_at_its_limit_says_how_it_goes_on(told: Muster) -> None:
    result = told("replay", "-u", "ada", "--all", "--limit", "2")
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == [2, 3]
    assert result.stderr == "more: muster replay --all --from=4 --user=ada --limit=2\n"
    rest = told(*result.stderr.split()[2:])
    assert [int(line.split()[0]) for line in rest.stdout.splitlines()] == [4, 5]
    assert told("replay", "--limit", "8").stderr == ""  # that was all of it


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--user", "nobody"], 0, "nothing here is told with --user nobody"),
        (["--job", "6", "--to", "3"], 0, "nothing here is told with --job 6"),
        (["--job", "999"], 3, "no job 999"),
        (["--job", "3"], 3, "no job 3"),
        (["--queue", "nope"], 3, "no queue nope: there are default"),
        (["--node", "node-9"], 3, "no node node-9"),
        (["--until-event", "NodeLost"], 3, "no NodeLost came: this was all of it"),
        (["--until-event", "NodeLost", "--user", "nobody"], 3, "no NodeLost came: this was all of it"),
        (["--until-event", "jobpremted"], 2, "'jobpremted' is none of ClockAdvanced, "),
        (["--until-event", "10"], 2, "entry 10 is in the future: the log ends at entry 9"),
        (["--from", "5", "--until-event", "4"], 2, "entry 4 is before entry 5, at which it begins"),
    ],
)
def test_what_is_not_in_the_log_is_said(told: Muster, words: list[str], code: int, said: str) -> None:
    result = told("replay", *words)
    assert (result.exit_code, said in result.stderr) == (code, True), result.output


def test_an_aside_ends_a_story_and_is_told(told: Muster) -> None:
    result = told("replay", "--until-event", "StartWorker")
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == [1, 2, 3, 4]


def test_commands_are_told_where_they_are_asked_for(told: Muster) -> None:
    everything = sentences(told("replay", "--all"))
    assert everything[3] == "node-1 is to start worker 0 of job 2 'of-ada' of ada"
    assert [*everything[:3], *everything[4:]] == STORY
    assert sentences(told("replay", "--kind", "StartWorker")) == [everything[3]]


def test_json_gives_the_events_with_their_sentences(told: Muster) -> None:
    events = [json.loads(line) for line in told("replay", "--json", "--job", "2").output.splitlines()]
    assert [(event["sequence"], event["type"]) for event in events][:2] == [
        ("2", "muster.JobSubmitted.1"),
        ("3", "muster.JobAllocated.1"),
    ]
    assert events[0]["text"] == STORY[1]
    assert events[0]["data"]["spec"]["gpus"] == 8


def test_pauses_are_told(muster: Muster, server: Background) -> None:
    async def wait(harness: Harness) -> None:
        last_ns = harness.log.entries[-1].timestamp_ns
        harness.log._clock = lambda: last_ns + 200 * 10**9
        await harness.append(t.NodeCordoned("node-1", "eve"))

    server.do(wait)
    assert [line.strip() for line in muster("replay").output.splitlines()][1] == "-- 3:20 later --"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kind", "Nonsense"], "'Nonsense' is none of ClockAdvanced, "),
        (["--from", "rubbish"], "from is wrong"),
        (["--export", "x", "--import", "y"], "exclude each other"),
        (["--export", "x", "--job", "2"], "it goes without --job"),
        (["--export", "x", "--until-event", "2"], "it goes without --until-event"),
        (["--export", "x", "--limit", "2"], "it goes without --limit"),
        (["--import", "x", "--from", "2"], "an import is opened whole"),
        (["--listen", "127.0.0.1:7000"], "--listen says where an import listens"),
        (["--import", "x", "--listen", "nowhere"], "'nowhere' is no address"),
    ],
)
def test_what_cannot_be_told_is_a_wrong_command(muster: Muster, words: list[str], said: str) -> None:
    result = muster("replay", *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_import_says_in_json_where_it_listens(told: Muster, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert told("replay", "--export", str(path)).exit_code == 0
    command = [sys.executable, "-c", "from muster.api.cli import main; main()"]
    words = ["replay", "--json", "--import", str(path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as opened:
        assert opened.stdout is not None
        said = json.loads("".join(iter(opened.stdout.readline, "}\n")) + "}")
        urllib.request.urlopen(f"{said['url']}/healthz").close()
        opened.terminate()
    assert (said["file"], said["first"], said["last"]) == (str(path), 1, 9)
    assert said["url"].startswith("http://127.0.0.1:")


def test_an_import_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    for words, said in (
        (["x.jsonl"], "is no export"),
        (["nothing.jsonl"], "nothing.jsonl: no such file"),
        (["x.jsonl", "--listen", "10.0.0.1:7000"], "10.0.0.1 is not a loopback address"),
    ):
        result = CliRunner().invoke(main, ["replay", "--import", str(tmp_path / words[0]), *words[1:]])
        assert result.exit_code in (1, 2, 3)
        assert said in result.stderr


# -- exports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "unpack"), [("x.jsonl", bytes), ("x.gz", gzip.decompress), ("x.xz", lzma.decompress)])
def test_an_export_is_a_file_that_proves_itself(
    told: Muster, tmp_path: Path, name: str, unpack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    result = told("replay", "--export", str(path))
    assert result.exit_code == 0, result.output
    assert result.output == f"{path}: entries 1 to 9, {path.stat().st_size:,} bytes\n"
    lines: list[dict[str, Any]] = [json.loads(line) for line in unpack(path.read_bytes()).splitlines()]
    assert (lines[0]["muster_export"], lines[0]["first"], lines[0]["last"], lines[0]["chain"]) == (1, 1, 9, "0" * 32)
    assert [line["sequence"] for line in lines[1:]] == list(range(1, 10))
    assert lines[-1]["payload"] == {"type": "NodeCordoned.1", "node": "node-1", "user": "eve", "reason": "dust"}
    assert lines[-1]["chain"] == json.loads(told("state", "--json").output)["chain"]
    assert audit(ExportSource(path)).ok
    assert [each.name for each in tmp_path.iterdir() if "x." in each.name] == [name]
    assert path.stat().st_mode & 0o777 == 0o600  # jobs' variables are in it
    again = told("replay", "--export", str(path))
    assert (again.exit_code, "is there already" in again.stderr) == (4, True)


def test_an_export_goes_into_a_pipe(told: Muster, server: Background, tmp_path: Path) -> None:
    path = tmp_path / "piped.jsonl"
    with path.open("wb") as file:
        program = [sys.executable, "-c", "from muster.api.cli import main; main()"]
        words = ["replay", "--export", "-", "--server", server.harness.url]
        done = subprocess.run([*program, *words], stdout=file, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "muster: entries 1 to 9 are written\n")
    assert audit(ExportSource(path)).ok


def test_an_export_of_a_window_has_the_state_before_it(told: Muster, server: Background, tmp_path: Path) -> None:
    path = tmp_path / "window.jsonl"
    answer = json.loads(told("replay", "--export", str(path), "--from", "5", "--to", "8", "--json").output)
    assert {name: answer[name] for name in ("first", "last", "entries")} == {"first": 5, "last": 8, "entries": 4}
    source = ExportSource(path)
    state = source.base().cluster.state
    assert (state.sequence, state.jobs[2].phase) == (4, "STARTING")


@pytest.mark.parametrize("end", ["3", "4"])
def test_an_export_goes_on_to_the_end_of_the_pass_and_says_so(told: Muster, tmp_path: Path, end: str) -> None:
    """Entries 3 and 4 are one pass: job 2 is placed, and its worker is to start."""
    path = tmp_path / "x.jsonl"
    result = told("replay", "--export", str(path), "--to", end)
    assert result.stdout.startswith(f"{path}: entries 1 to 4, ")
    assert ("; entry 3 is inside a pass, which ends with entry 4" in result.stdout) is (end == "3")
    found = told("audit", "--file", str(path))
    assert (found.exit_code, "inside a pass" in found.stdout) == (0, False)


def test_an_export_without_entries_or_as_what_it_is_not_is_refused(told: Muster, tmp_path: Path) -> None:
    for name, window, said in (
        ("x.jsonl", ["--from", "2020-01-01", "--to", "2020-01-02"], "happened between 2020-01-01 and 2020-01-02"),
        ("x.jsonl", ["--from", "now"], "nothing has happened since now"),
        ("x.zip", [], "an export is JSON Lines, and no .zip file"),
    ):
        refused = told("replay", "--export", str(tmp_path / name), *window)
        assert (refused.exit_code, said in refused.stderr) == (2, True)
        assert not (tmp_path / name).exists()


def test_a_story_in_which_nothing_happened_says_so(told: Muster) -> None:
    nothing = told("replay", "--from", "2020-01-01", "--to", "2020-01-02")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing happened between 2020-01-01 and 2020-01-02" in nothing.stderr
    assert "(--all tells commands and time going by too)" in told("replay", "--from", "4", "--to", "4").stderr


def test_an_export_that_breaks_off_leaves_no_file(
    told: Muster, server: Background, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_row: object) -> bytes:
        return b""

    monkeypatch.setattr("muster.api.replaying.entry_line", broken)
    result = told("replay", "--export", str(tmp_path / "x.jsonl"))
    assert (result.exit_code, "ended the export after 0 entries" in result.stderr) == (69, True)
    assert not [path for path in tmp_path.iterdir() if "x." in path.name]
    unwritable = told("replay", "--export", str(tmp_path / "no" / "folder.jsonl"))
    assert (unwritable.exit_code, "cannot be written" in unwritable.stderr) == (1, True)


def test_an_export_writes_over_nothing(
    told: Muster, server: Background, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.jsonl.part").write_text("mine")
    (tmp_path / "x.jsonl").symlink_to(tmp_path / "nowhere")
    refused = told("replay", "--export", str(tmp_path / "x.jsonl"))
    assert (refused.exit_code, "is there already" in refused.stderr) == (4, True)
    assert told("replay", "--export", str(tmp_path / "y.jsonl")).exit_code == 0

    def late(row: MirrorRow) -> bytes:
        (tmp_path / "z.jsonl").write_text("somebody else was quicker")
        return entry_line(row)

    monkeypatch.setattr("muster.api.replaying.entry_line", late)
    refused = told("replay", "--export", str(tmp_path / "z.jsonl"))
    assert (refused.exit_code, "is there already" in refused.stderr) == (4, True)
    assert (tmp_path / "z.jsonl").read_text() == "somebody else was quicker"
    assert sorted(each.name for each in tmp_path.glob("*.part")) == ["x.jsonl.part"]
    assert (tmp_path / "x.jsonl.part").read_text() == "mine"
