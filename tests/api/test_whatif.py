"""`/v1/whatif` and `muster whatif`: windows that are run again in a process beside the server, and jobs foreseen."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_harness import Background, Harness, background
from click.testing import CliRunner, Result
from msgspec.structs import replace

from muster.api import progressing
from muster.api.cli import main
from muster.api.cli_base import Exit
from muster.api.cli_whatif import measured
from muster.api.whatif import WAITING_MOST
from muster.events import types as t
from muster.events.policy import Backfill, Policy, Preemption, QueueSpec
from muster.events.spec import JobSpec, LimitsSpec

FIFO = Policy(order="fifo", backfill=Backfill(mode="none"), preemption=Preemption(mode="none"))
SJF = '[policy]\norder = "sjf"\nbackfill = { mode = "none" }\npreemption = { mode = "none" }\n'


def spec(estimate_s: int, priority: int | None = None) -> JobSpec:
    return JobSpec(command="true", name="job", gpus=1, limits=LimitsSpec(estimate=estimate_s), priority=priority)


async def record(harness: Harness) -> tuple[int, list[int]]:
    """A node of one device, on which a first job ran for 100 s while a long and a short one waited; the long one has
    run for 50 s since. Gives the window's beginning and the jobs."""
    harness.clock.behind_s = 150
    await harness.add_node("node-1", 1)
    first = await harness.append(t.PolicyChanged(FIFO, "ada"))
    jobs = [await harness.append(t.JobSubmitted("ada", spec(seconds)), "default") for seconds in (50, 500, 1)]
    await harness.decide()
    await harness.start(jobs[0])
    harness.clock.behind_s = 50
    await harness.end(jobs[0])
    await harness.decide()
    await harness.start(jobs[1])
    harness.clock.behind_s = 0
    return first, jobs


class Site:
    """A recorded window behind a server, and the command line before it."""

    def __init__(self, server: Background, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.first, self.jobs = server.do(record)

    def muster(self, *words: object) -> Result:
        environment = {"MUSTER_SERVER": self.server.harness.url}
        return CliRunner().invoke(main, ["whatif", *map(str, words)], env=environment)

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def entries(self) -> int:
        return len(self.server.harness.log.entries)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with background(tmp_path) as server:
        yield Site(server, tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for all that is refused."""
    folder = tmp_path_factory.mktemp("shared")
    with background(folder) as server:
        yield Site(server, folder)


def answer_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == Exit.OK, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_shortest_first_starts_the_short_job_and_the_long_one_waits(site: Site) -> None:
    before = site.entries()
    answer = answer_of(site.muster("--policy", site.file("sjf.toml", SJF), "--from", site.first, "--json"))

    # the first has started before the others come; then the short one goes before the long one
    short = answer["gained"][0]
    assert short["job"] == site.jobs[2]
    assert (short["recorded_wait_s"], short["whatif_wait_s"]) == (
        pytest.approx(150, abs=10),
        pytest.approx(100, abs=10),
    )
    assert (short["recorded_waits_on"], short["whatif_waits_on"]) == (True, False)
    assert answer["jobs"]["jobs"] == 3
    assert answer["left_at"] == site.first
    assert site.entries() == before


def test_what_is_shown_as_before_and_after_differs_by_what_is_shown_as_change() -> None:
    rows = [
        measured("share", 34.24, 10.86, " %"),
        measured("wait", 0.023, 0.009, " s"),
        measured("wait", 8.0, 6.0, " s"),
        measured("wait", 100.001, 100.0, " s"),
        measured("wait", None, 3.0, " s"),
        measured("lost", 0.004, 1.5, " device-hours", digits=2),
        measured("preemptions", 2, 5),
        measured("fairness", None, 1.0, digits=3),
    ]
    assert rows == [
        ("share", "34.2 %", "10.9 %", "-23.3"),
        ("wait", "0.0 s", "0.0 s", "+0.0"),
        ("wait", "8.0 s", "6.0 s", "-25.0 %"),
        ("wait", "100.0 s", "100.0 s", "+0.0 %"),
        ("wait", "-", "3.0 s", ""),
        ("lost", "0.00 device-hours", "1.50 device-hours", "+1.50"),
        ("preemptions", "2", "5", "+3"),
        ("fairness", "-", "1.000", ""),
    ]


def test_who_waits_on_is_marked_and_where_no_job_ended_nothing_is_told(site: Site) -> None:
    result = site.muster("--policy", site.file("sjf.toml", SJF), "--from", site.first)
    assert re.search(r"job +1 +>2:3\d +1:4\d$", result.output, re.MULTILINE)
    assert "> it still waits when the window ends" in result.output

    last = site.entries()
    result = site.muster("--remove-nodes", "1", "--from", site.jobs[0], "--to", last - 4)
    assert re.search(r"^submission to end, mean +- +- +-$", result.output, re.MULTILINE), result.output


def test_under_the_same_policy_nothing_changes_and_it_says_so(site: Site) -> None:
    text = '[policy]\norder = "fifo"\nbackfill = { mode = "none" }\npreemption = { mode = "none" }\n'
    result = site.muster("--policy", site.file("fifo.toml", text), "--from", site.first)

    assert result.exit_code == Exit.OK, result.output
    assert "2 of the 2 that began had the same devices in both" in result.output
    assert "nowhere: 2 passes came out the same" in result.output
    assert "no pass comes out otherwise" in result.output


def test_a_node_more_runs_both_and_the_picture_shows_both_courses(site: Site) -> None:
    picture = site.folder / "whatif.svg"
    result = site.muster("--add-nodes", "1x1xA100-80GB", "--from", site.first, "--plot", picture)

    assert result.exit_code == Exit.OK, result.output
    assert "1 node more is there from the beginning on, with 1 x A100-80GB" in result.output
    drawn = picture.read_text()
    assert drawn.startswith("<svg ")
    assert drawn.count('class="line"') == 4


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--from", "4"], Exit.USAGE, "what if what?"),
        (["--policy", __file__, "submit", "--gpus", "1"], Exit.USAGE, "--policy is no option of `whatif submit`"),
        (["--from", "4", "submit", "--gpus", "1"], Exit.USAGE, "`muster whatif submit --at WHEN`"),
        (["--add-nodes", "1x1xA", "--from", "2", "--plot", "a.png"], Exit.USAGE, "--plot a.svg"),
        (["--add-nodes", "1x1xA100-80GB"], Exit.USAGE, "--from WHEN"),
        (["--add-nodes", "1x1xA100-80GB", "--from", "4", "--to", "3"], Exit.USAGE, "entry 3 is before entry 4"),
        (["--add-nodes", "1x1xA100-80GB", "--from", "soon"], Exit.USAGE, "'soon' is no moment"),
        (["--add-nodes", "plenty", "--from", "2"], Exit.USAGE, "--add-nodes: 'plenty' is not NODESxDEVICESxMODEL"),
        (["--add-nodes", "9x9x9", "--from", "2"], Exit.USAGE, "'9' is not a model"),
        (["--remove-nodes", "node-9", "--from", "2"], Exit.USAGE, "--remove-nodes: there was no node node-9"),
        (
            ["--remove-nodes", "2", "--from", "2"],
            Exit.USAGE,
            "--remove-nodes: there was only 1 node that took work, not 2",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_by_the_option(shared: Site, words: list[str], code: Exit, told: str) -> None:
    result = shared.muster(*words)
    assert result.exit_code == code
    assert told in result.output


def test_a_wrong_file_is_refused_with_its_place_in_it(shared: Site) -> None:
    wrong = shared.file("wrong.toml", '[policy]\norder = "best"\n')
    result = shared.muster("--policy", wrong, "--from", shared.first)
    assert result.exit_code == Exit.USAGE
    assert f"{wrong}: /policy/order" in result.output

    tree = shared.file(
        "tree.toml", '[[queue]]\nname = "a"\nguarantee = "60%"\n[[queue]]\nname = "b"\nguarantee = "60%"\n'
    )
    result = shared.muster("--queues", tree, "--from", shared.first)
    assert result.exit_code == Exit.USAGE
    assert "the guarantees at the top are more than 100 %" in result.output

    orphan = shared.file("orphan.toml", '[[queue]]\nname = "a/b"\n')
    result = shared.muster("--queues", orphan, "--from", shared.first)
    assert result.exit_code == Exit.USAGE
    assert f"{orphan}: /queue/a~1b/name: there is no queue a for a/b to stand under" in result.output


def test_refusals_end_with_what_a_person_at_a_terminal_can_do(shared: Site) -> None:
    result = shared.muster("--remove-nodes", "2", "--from", shared.first)
    assert "openapi" not in result.output
    assert result.output.splitlines()[-1].startswith("  `muster whatif --help`")


def test_server_and_json_before_submit_hold_for_it(shared: Site) -> None:
    result = shared.muster("--json", "submit", "--gpus", 1)
    assert json.loads(result.stdout)["workers"][0]["node"] == "node-1"


def test_jobs_that_cannot_be_compared_are_told_of(site: Site) -> None:
    async def submitted_to_a_lab(harness: Harness) -> int:
        first = await harness.append(t.QueueConfigured(QueueSpec("lab"), "ada"))
        for queue in ("lab", "default"):
            await harness.append(t.JobSubmitted("ada", replace(spec(1), queue=queue)), queue)
        return first

    first = site.server.do(submitted_to_a_lab)
    result = site.muster("--queues", site.file("lab.toml", '[[queue]]\nname = "lab/vision"\n'), "--from", first)
    assert result.exit_code == Exit.OK, result.output
    assert "not compared     1 job whose submission is refused under these rules" in result.output


async def test_who_reads_lines_has_the_answer_in_the_last_one_and_is_refused_as_always(
    harness: Harness, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progressing, "TELL_S", 0.01)
    first, _ = await record(harness)
    body: dict[str, Any] = {"from": str(first), "to": str(len(harness.log.entries)), "add_nodes": "1x1xA100-80GB"}
    lines = {"Accept": "application/x-ndjson"}
    async with http.post("/v1/whatif", json=body, headers=lines) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
        *progress, last = [json.loads(line) async for line in answer.content]
    assert progress
    assert all(0 <= each["reached"] < each["last"] == 100 for each in progress)
    async with http.post("/v1/whatif", json=body) as answer:
        assert (await answer.json() | {"wall_s": 0}) == last | {"wall_s": 0}

    async with http.post("/v1/whatif", json=body | {"add_nodes": "plenty"}, headers=lines) as answer:
        assert (answer.status, answer.content_type) == (422, "application/problem+json")


async def test_of_many_questions_at_once_a_few_wait_and_the_others_are_told_to_come_again(
    harness: Harness, http: aiohttp.ClientSession
) -> None:
    first, _ = await record(harness)

    async def ask() -> int:
        body = {"from": str(first), "remove_nodes": ["node-9"]}
        async with http.post("/v1/whatif", json=body) as answer:
            assert (answer.status == 503) == ("Retry-After" in answer.headers)
            return answer.status

    answers = await asyncio.gather(*(ask() for _ in range(WAITING_MOST + 3)))
    assert sorted(answers) == [422] * (WAITING_MOST + 1) + [503] * 2


def test_a_job_that_would_wait_is_told_when_and_where_it_would_start(site: Site) -> None:
    before = site.entries()
    answer = answer_of(site.muster("submit", "--json", "--gpus", 1, "--estimate", "10s"))

    # the long one has 500 s to run, and the short one goes before it
    assert 400_000 < answer["starts_in_ms"] <= 501_000
    assert answer["workers"] == [{"rank": 0, "node": "node-1", "devices": [0]}]
    assert answer["stopped"] == []
    assert site.entries() == before


def test_a_job_in_the_past_would_have_started_at_once(site: Site) -> None:
    result = site.muster("submit", "--at", site.first, "--gpus", 1)
    assert result.exit_code == Exit.OK, result.output
    assert result.output.splitlines()[:2] == ["starts  at once", "on      node-1, devices 0"]


def test_an_urgent_job_is_told_whom_it_would_stop(site: Site) -> None:
    rules = Policy(preemption=Preemption(min_runtime=0))
    site.server.do(lambda harness: harness.append(t.PolicyChanged(rules, "ada")))
    answer = answer_of(site.muster("submit", "--json", "--gpus", 1, "--priority", "P0"))

    assert [victim["job"] for victim in answer["stopped"]] == [site.jobs[1]]
    assert answer["workers"] == [{"rank": 0, "node": "node-1", "devices": [0]}]


def test_a_job_that_never_fits_is_refused_as_its_submission_would_be(shared: Site) -> None:
    result = shared.muster("submit", "--gpus", 64)
    assert result.exit_code == Exit.NEVER_FITS
    assert "asks for 64" in result.output

    result = shared.muster("submit", "--gpus", 64, "--wait-for-capacity")
    assert result.exit_code == Exit.OK, result.output
    assert result.output.startswith("starts  nobody knows when")
