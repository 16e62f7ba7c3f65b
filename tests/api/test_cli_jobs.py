"""Commands over several jobs, filters, and what is shown of many workers."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from api_harness import Background, FakeOutputs, Harness
from click.testing import CliRunner, Result

from muster.api import cli_base, cli_jobs
from muster.api.cli import main
from muster.api.times import moment, to_ms
from muster.events.types import ExitStatus, JobRequeued, WorkerExited, WorkerStarted

Muster = Callable[..., Result]


def _state(muster: Muster, job: int) -> str:
    return str(json.loads(muster("show", str(job), "--json").output)["state"])


async def _run_to_end(harness: Harness, code: int, jobs: list[int]) -> None:
    await harness.decide()
    for job in jobs:
        await harness.start(job)
        await harness.end(job, code)


def _submit(muster: Muster, name: str, gpus: int = 1) -> None:
    assert muster("submit", "--gpus", str(gpus), "--name", name, "--", "true").exit_code == 0


# -- several jobs ---------------------------------------------------------------------------------------------------


def test_wait_takes_several_jobs_and_ends_with_the_first_code_that_is_not_0(muster: Muster, server: Background) -> None:
    for code in (0, 7, 9):
        _submit(muster, f"code-{code}")
        server.do(partial(_run_to_end, code=code, jobs=[len(server.harness.log.entries)]))
    listed = json.loads(muster("jobs", "--json").output)["jobs"]
    nine, seven, zero = (str(job["id"]) for job in listed)

    assert muster("wait", zero).exit_code == 0
    result = muster("wait", zero, nine, seven)
    assert result.exit_code == 9
    assert [line.split()[2].rstrip(":") for line in result.output.splitlines()] == ["COMPLETED", "FAILED", "FAILED"]
    assert muster("wait", seven, nine, "--timeout", "0").exit_code == 7


def test_wait_gives_all_jobs_one_time(muster: Muster, server: Background) -> None:
    _submit(muster, "done")
    server.do(partial(_run_to_end, code=0, jobs=[2]))
    _submit(muster, "waits")
    waits = json.loads(muster("queue", "--json").output)["pending"][0]["id"]
    result = muster("wait", "2", str(waits), "--timeout", "0")
    assert result.exit_code == 124
    assert "job 2 COMPLETED" in result.stdout
    assert f"job {waits} has not ended in time" in result.stderr


def test_cancel_takes_several_jobs(muster: Muster) -> None:
    for name in ("a", "b", "c"):
        _submit(muster, name)
    assert muster("cancel", "2", "4").output == "job 2: cancellation asked for\njob 4: cancellation asked for\n"
    assert [_state(muster, job) for job in (2, 3, 4)] == ["CANCELLED", "PENDING", "CANCELLED"]


@pytest.mark.parametrize("word", ["abc", "0", "-1", "1.5", "9" * 40])
def test_what_is_no_job_id_is_told(muster: Muster, word: str) -> None:
    result = muster("show", "--", word)
    assert result.exit_code == 2
    assert "is no job id: a job's id is the number that `muster queue` shows" in result.stderr


# -- cancel by filters ----------------------------------------------------------------------------------------------


def test_cancel_by_filters_takes_what_matches_all_of_them(
    muster: Muster, server: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_jobs, "PAGE", 2)
    _submit(muster, "sweep", 8)
    server.do(lambda harness: harness.decide())
    for name in ("sweep", "other", "sweep", "sweep"):
        _submit(muster, name)
    pending = json.loads(muster("queue", "--json").output)["pending"]
    wanted = [job["id"] for job in pending if job["name"] == "sweep"]

    result = muster("cancel", "--name", "sweep", "--state", "pd", "--yes")

    assert result.output.splitlines() == [f"job {job}: cancellation asked for" for job in wanted]
    assert len(wanted) == 3
    assert _state(muster, 2) == "STARTING"
    assert [job["name"] for job in json.loads(muster("queue", "--json").output)["pending"]] == ["other"]


def test_cancel_by_filters_asks_first(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    _submit(muster, "a")
    asked = muster("cancel", "--name", "a")
    assert asked.exit_code == 2
    assert "this would cancel 1 job: 2" in asked.stderr
    assert "--yes" in asked.stderr
    assert _state(muster, 2) == "PENDING"

    answers = iter([False, True])

    def confirm(question: str, **_: object) -> None:
        assert question == "cancel 1 job (2)?"
        if not next(answers):
            sys.exit(1)

    monkeypatch.setattr(cli_base, "is_terminal", lambda: True)
    monkeypatch.setattr("click.confirm", confirm)
    assert muster("cancel", "--name", "a").exit_code == 1
    assert _state(muster, 2) == "PENDING"
    assert muster("cancel", "--name", "a").exit_code == 0
    assert _state(muster, 2) == "CANCELLED"


def test_an_empty_filter_does_not_cancel_everything(muster: Muster) -> None:
    _submit(muster, "a")
    for words in (("--user", ""), ("--state", ""), ("--user", ",")):
        result = muster("cancel", *words, "--yes")
        assert (result.exit_code, "it names nothing" in result.stderr) == (2, True), words
    assert _state(muster, 2) == "PENDING"


def test_cancel_by_filters_that_nothing_matches(muster: Muster, server: Background) -> None:
    _submit(muster, "a")
    server.do(partial(_run_to_end, code=0, jobs=[2]))
    for words in (("--user", "nobody"), ("--name", "a"), ("--state", "CD")):
        result = muster("cancel", *words)
        assert (result.exit_code, result.stdout, result.stderr) == (
            0,
            "",
            "nothing to cancel: no job that has not ended matches\n",
        )


def test_cancel_says_which_jobs_it_needs(muster: Muster) -> None:
    assert muster("cancel").exit_code == 2
    assert muster("cancel", "2", "--user", "ada").exit_code == 2
    assert "is none of PENDING (PD)" in muster("cancel", "--state", "asleep", "--yes").stderr


# -- lists ----------------------------------------------------------------------------------------------------------


def test_the_queue_is_filtered(muster: Muster, server: Background) -> None:
    _submit(muster, "runs", 8)
    server.do(lambda harness: harness.decide())
    _submit(muster, "waits")
    user = json.loads(muster("show", "2", "--json").output)["user"]

    def names(*words: str) -> list[str]:
        return [line.split()[4] for line in muster("queue", *words).output.splitlines()[1:]]

    assert names() == ["runs", "waits"]
    assert names("-t", "pending") == names("--state", "PD") == ["waits"]
    assert names("-t", "pd,starting") == names("-u", user, "-q", "default") == ["runs", "waits"]
    assert names("-u", "nobody") == []
    assert muster("queue", "-q", "other").exit_code == 3
    assert json.loads(muster("queue", "-t", "CF", "--json").output)["pending_count"] == 0


def test_a_wrong_state_is_told_with_names_and_codes(muster: Muster) -> None:
    for command in ("jobs", "queue"):
        result = muster(command, "--state", "asleep")
        assert result.exit_code == 2
        assert "'ASLEEP' is none of PENDING (PD), STARTING (CF), RUNNING (R)" in result.stderr
    assert muster("jobs", "--state", "pd, R").exit_code == 0


def test_when_a_job_was_submitted_is_in_the_queue(muster: Muster) -> None:
    before = f"{datetime.now(UTC):%H:%M:%S}"
    _submit(muster, "a")
    told = muster("queue").output.splitlines()[1].split()[7]
    assert json.loads(muster("show", "2", "--json").output)["submitted"][11:19] == told
    assert len(told) == len(before) == 8


def test_times_for_people() -> None:
    written = "2026-01-31T12:00:00.123456789Z"
    assert moment(written, "2026-01-31") == "12:00:00"
    assert moment(written, "2026-02-01") == "2026-01-31 12:00:00"
    assert to_ms(written) == "2026-01-31T12:00:00.123Z"
    assert to_ms(None) is None


def test_show_gives_times_to_the_millisecond(muster: Muster) -> None:
    _submit(muster, "a")
    [line] = [line for line in muster("show", "2").output.splitlines() if line.startswith("submitted")]
    assert len(line.split()[1]) == len("2026-01-31T12:00:00.123Z")


def test_show_gives_framework_and_image_where_a_job_has_them(muster: Muster) -> None:
    words = ("--framework", "pytorch", "--image", "registry/torch:2", "--wait-for-capacity")
    assert muster("submit", "--gpus", "1", *words, "--", "true").exit_code == 0
    rows = [line.split() for line in muster("show", "2").output.splitlines()]
    assert [row for row in rows if row[:1] in (["framework"], ["image"])] == [
        ["framework", "pytorch"],
        ["image", "registry/torch:2"],
    ]
    _submit(muster, "plain")
    plain = muster("show", "3").output.splitlines()
    assert not [line for line in plain if line.startswith(("framework", "image"))]


def test_a_job_without_a_name_is_listed_by_its_program(muster: Muster) -> None:
    assert muster("submit", "--gpus", "1", "--", "/usr/bin/python3", "x.py").exit_code == 0
    assert json.loads(muster("show", "2", "--json").output)["name"] == "x.py"


# -- queue ----------------------------------------------------------------------------------------------------------


def test_queue_shows_expected_starts_where_they_are_asked_for(muster: Muster, server: Background) -> None:
    _submit(muster, "first", 8)
    _submit(muster, "second", 8)
    server.do(lambda harness: harness.decide())
    lines = [line.split("  ") for line in muster("queue", "--start").output.splitlines()]
    assert "EXPECTED START" in lines[0]
    assert "EXPECTED START" not in muster("queue").output
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert "STARTING(CF)" in cells[1]
    assert "unknown" in cells[2]


# -- explain --------------------------------------------------------------------------------------------------------


def test_explain_full_shows_all_steps_of_a_job_that_was_placed(muster: Muster, server: Background) -> None:
    server.do(lambda harness: harness.add_node("node-2", 2))
    _submit(muster, "a", 4)
    server.do(partial(_run_to_end, code=0, jobs=[3]))

    brief = muster("explain", "3").output.splitlines()
    assert [line[0] for line in brief if line[0].isdigit()] == ["3", "4"]
    full = muster("explain", "3", "--full").output
    assert "steps 1 and 2 as they were after entry 3" in full
    assert "1 of 2 nodes could hold a worker then: node-1" in full
    assert "place 1 of 1" in full
    assert json.loads(muster("explain", "3", "--full", "--json").output)["basis"] == 3


def test_explain_says_why_a_job_waits_what_would_let_it_start_and_when(muster: Muster, server: Background) -> None:
    assert muster("submit", "--gpus", "8", "--estimate", "1h", "--", "true").exit_code == 0
    _submit(muster, "waits", 8)
    server.do(lambda harness: harness.decide())
    server.do(lambda harness: harness.start(2))
    text = muster("explain", "3").output.splitlines()
    assert text[0].startswith("job 3 PENDING at entry ")
    assert text[0].endswith(": waits for 8 devices; 0 are idle")
    titles = [line[:15].strip() for line in text if line[0] != " "]
    assert titles[1:] == [
        "1 filter", "2 order", "3 allocation", "4 environment", "why it waits", "nobody stopped", "to start", "expected"
    ]  # fmt: skip
    assert "to start       job 2 ends: then there is room for 8 A100-80GB on node-1" in text
    assert " UTC, in " in text[-1]


def test_explain_full_of_a_job_that_waits_is_its_explanation(muster: Muster) -> None:
    _submit(muster, "a", 4)
    assert muster("explain", "2", "--full").output == muster("explain", "2").output


# -- logs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gang(muster: Muster, server: Background) -> str:
    """A job of two workers that has ended, with what they wrote."""
    outputs = server.harness.outputs
    assert isinstance(outputs, FakeOutputs)
    server.do(lambda harness: harness.add_node("node-2", fabric=""))
    words = ("--gpus", "16", "--nodes", "2", "--interconnect", "none")
    assert muster("submit", *words, "--", "true").output == "job 3\n"
    outputs.texts[3, 1, 0] = b"one\ntwo\n"
    outputs.texts[3, 1, 1] = b"caf\xc3\xa9\n\xff without an end"
    server.do(partial(_run_to_end, code=0, jobs=[3]))
    return "3"


def test_logs_of_all_workers_stand_behind_their_ranks(muster: Muster, gang: str) -> None:
    expected = [b"0: one", b"0: two", b"1: caf\xc3\xa9", b"1: \xff without an end"]
    assert muster("logs", "--all", gang).stdout_bytes.splitlines() == expected
    assert sorted(muster("logs", "--all", "--follow", gang).stdout_bytes.splitlines()) == sorted(expected)
    assert muster("logs", "--all", "--rank", "1", gang).exit_code == 2


def test_logs_as_json_are_an_object_for_each_line(muster: Muster, gang: str) -> None:
    def told(*words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in muster("logs", gang, "--json", *words).output.splitlines()]

    second = [{"rank": 1, "text": "café"}, {"rank": 1, "text": "\ufffd without an end"}]
    assert told("--rank", "1") == second
    assert told("--all") == [{"rank": 0, "text": "one"}, {"rank": 0, "text": "two"}, *second]


def test_logs_of_all_workers_of_what_waits_say_so(muster: Muster) -> None:
    _submit(muster, "a")
    result = muster("logs", "--all", "2")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "job 2 waits" in result.stderr


async def _lose(harness: Harness, job: int = 2) -> None:
    """A job's only worker is lost, which makes it wait again."""
    attempt = harness.service.state.jobs[job].attempt
    assert attempt is not None
    worker = attempt.workers[0]
    await harness.append(WorkerExited(worker.node, worker.incarnation, job, 1, 0, ExitStatus("lost")))
    requeued, *_ = await harness.decide()
    assert isinstance(requeued, JobRequeued)


async def _again(harness: Harness, job: int) -> None:
    """Its second attempt runs."""
    await harness.decide()
    attempt = harness.service.state.jobs[job].attempt
    assert attempt is not None
    worker = attempt.workers[0]
    await harness.append(WorkerStarted(worker.node, worker.incarnation, job, 2, 0, 4243))


async def _run_twice(harness: Harness) -> None:
    await harness.decide()
    await harness.start(3)
    await _lose(harness, 3)
    await _again(harness, 3)


def test_the_output_of_an_earlier_attempt(muster: Muster, server: Background) -> None:
    outputs = server.harness.outputs
    assert isinstance(outputs, FakeOutputs)
    server.do(lambda harness: harness.add_node("node-2"))
    assert muster("submit", "--gpus", "1", "--", "true").output == "job 3\n"
    outputs.texts |= {(3, 1, 0): b"first\n", (3, 2, 0): b"second\n"}
    server.do(_run_twice)
    assert json.loads(muster("show", "3", "--json").output)["attempts"] == 2

    assert muster("logs", "3").output == muster("logs", "3", "--attempt", "2").output == "second\n"
    assert muster("logs", "3", "--attempt", "1").output == "first\n"
    result = muster("logs", "3", "--attempt", "3")
    assert (result.exit_code, "it had attempts 1 to 2" in result.stderr) == (3, True)
    result = muster("logs", "3", "--attempt", "1", "--rank", "1")
    assert (result.exit_code, "it has ranks 0 to 0" in result.stderr) == (3, True)
    del outputs.texts[3, 1, 0]
    assert muster("logs", "3", "--attempt", "1").exit_code == 69
    assert muster("logs", "3", "--attempt", "1", "--all").exit_code == 2


def test_elapsed_is_of_the_present_attempt(muster: Muster, server: Background) -> None:
    assert muster("submit", "--gpus", "1", "--", "true").output == "job 2\n"
    server.do(lambda harness: harness.decide())
    server.do(lambda harness: harness.start(2))
    first = json.loads(muster("show", "2", "--json").output)
    assert first["attempt_started"] == first["started"]
    assert " first, " not in muster("show", "2").output
    server.do(_lose)
    waits = json.loads(muster("show", "2", "--json").output)
    assert (waits["state"], waits["attempts"], waits["started"]) == ("PENDING", 1, first["started"])
    assert (waits["attempt_started"], waits["elapsed_ms"]) == (None, None)
    server.do(partial(_again, job=2))
    second = json.loads(muster("show", "2", "--json").output)
    assert (second["state"], second["started"]) == ("RUNNING", first["started"])
    assert second["attempt_started"] > first["started"]
    assert f"{to_ms(second['attempt_started'])} in attempt 2" in muster("show", "2").output


# -- nodes ----------------------------------------------------------------------------------------------------------


def test_a_cordon_without_a_reason_has_none(muster: Muster, server: Background) -> None:
    assert muster("cordon", "node-1").exit_code == 0
    assert b"reason" not in server.harness.log.entries[-1].payload
    [line] = [line for line in muster("nodes", "node-1").output.splitlines() if line.startswith("cordoned")]
    assert line.split()[1] == "by"
    assert len(line.split()) == 3


# -- the width ------------------------------------------------------------------------------------------------------


def test_a_narrow_terminal_shows_fewer_columns_and_the_reason_in_short(
    muster: Muster, server: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    _submit(muster, "runs", 8)
    server.do(lambda harness: harness.decide())
    _submit(muster, "waits")

    def shown(letters: int) -> list[str]:
        monkeypatch.setattr(cli_jobs, "width", lambda: letters)
        lines: list[str] = muster("queue").output.splitlines()
        assert not letters or max(map(len, lines)) <= letters
        return lines

    assert shown(0)[0].split()[-2:] == ["NODES", "WHY"]
    assert shown(200) == shown(0)
    for letters, left_out in (
        (109, {"PRIORITY", "QUEUE"}),
        (99, {"PRIORITY", "QUEUE", "SUBMITTED"}),
        (60, {"PRIORITY", "QUEUE", "SUBMITTED", "NODES"}),
    ):
        titles, _, waits = shown(letters)
        assert {"PRIORITY", "QUEUE", "SUBMITTED", "NODES"} - set(titles.split()) == left_out
        assert titles.split()[-2:] == ["REASON", "WHY"]
        assert "  room    wa" in waits


def test_columns_count_off_a_terminal_too(muster: Muster, server: Background) -> None:
    _submit(muster, "a")
    told = {"MUSTER_SERVER": server.harness.url}
    full = CliRunner().invoke(main, ["queue"], env={**told, "COLUMNS": None}).output.splitlines()
    cut = CliRunner().invoke(main, ["queue"], env={**told, "COLUMNS": "60"}).output.splitlines()
    assert max(map(len, full)) > 60
    assert max(map(len, cut)) == 60
