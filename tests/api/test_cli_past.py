"""The past on the command line: at with one word or two, what has no past, and diff."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from api_harness import Background
from click.testing import Result

Muster = Callable[..., Result]


async def run_to_start(harness: object, job: int) -> None:
    await harness.decide()  # type: ignore[attr-defined]
    await harness.start(job)  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [("now",), ("-0s",), ("2",)])
def test_at_takes_a_moment_of_one_word(muster: Muster, words: tuple[str, ...]) -> None:
    muster("submit", "--gpus", "1", "--name", "early", "--", "true")
    shown = muster("at", *words, "queue")
    assert (shown.exit_code, "early" in shown.output) == (0, True)


def test_at_takes_a_moment_of_two_words(muster: Muster) -> None:
    for when in (("yesterday", "14:05"), ("2026-01-31", "14:05:00"), ("2026-01-31", "14:05:00", "UTC"), ("yesterday",)):
        result = muster("at", *when, "queue")
        assert result.exit_code == 2
        assert f"{' '.join(when)} is before the first entry of the log" in result.stderr


def test_what_is_no_moment_is_told_with_the_forms(muster: Muster) -> None:
    result = muster("at", "someday", "queue")
    assert result.exit_code == 2
    assert "'someday' is no moment: write a sequence (1042), a time" in result.stderr
    assert "what is to be run as of yesterday 14:05?" in muster("at", "yesterday", "14:05").stderr


@pytest.mark.parametrize(
    ("command", "step"),
    [("logs", "kept as a whole"), ("wait", "muster show"), ("audit", "--from"), ("submit", "reading commands can")],
)
def test_what_cannot_be_run_in_the_past_says_what_can(muster: Muster, command: str, step: str) -> None:
    result = muster("at", "1", command, "2")
    assert result.exit_code == 2
    assert f"{command} cannot be run in the past" in result.stderr
    assert step in result.stderr


def test_top_of_a_past_moment_is_one_picture(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "8", "--name", "big", "--", "true")
    before = len(server.harness.log.entries)
    server.do(lambda harness: run_to_start(harness, 2))
    assert "devices 8 held" in muster("top", "--once").output
    shown = muster("at", str(before), "top").output
    assert "devices 0 held" in shown
    assert f"as it was after entry {before}; no samples are kept" in shown
    told = json.loads(muster("top", "--at", str(before), "--json").output)
    assert (told["sequence"], told["unsampled"], told["waiting"]) == (before, "no samples are kept", 1)


def test_nodes_say_where_samples_of_then_are_gone(muster: Muster) -> None:
    [then, why] = muster("at", "1", "nodes", "node-1").stderr.splitlines()
    assert (then.startswith("muster: as it was after entry 1, "), why) == (True, "muster: no samples are kept")
    assert "samples" not in muster("at", "1", "nodes").stderr
    assert muster("nodes", "node-1").stderr == ""


@pytest.mark.parametrize("command", ["queue", "jobs", "nodes", "history"])
def test_lists_of_the_past_say_which_entry_they_are_of(muster: Muster, command: str) -> None:
    for _ in range(2):
        muster("submit", "--gpus", "1", "--", "true")
    assert re.fullmatch(
        r"muster: as it was after entry 2, ([0-9-]{10} )?[0-9:]{8} UTC\n", muster("at", "2", command).stderr
    )
    assert muster(command).stderr == ""
    assert json.loads(muster(command, "--at", "2", "--json").stdout)["sequence"] == 2
    assert muster(command, "--at", "2", "--json").stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["at", "1", "queue", "--at", "2"], "at 1 and --at are two moments"),
        (["at", "1", "queue", "--at=2"], "at 1 and --at are two moments"),
        (["at", "1", "events", "--follow"], "--follow goes on from the present"),
        (["at", "2", "minutes", "ago", "queue"], "'2' is taken as the moment, and one of more words is quoted"),
        (["queue", "--at", "yesterday", "14:05"], "a moment of two words is quoted: 'yesterday 14:05'"),
        (["whatif", "--from", "yesterday", "14:05"], "a moment of two words is quoted: 'yesterday 14:05'"),
        (["diff", "10m"], "T1 is wrong: '10m' is no moment: did you mean -10m?"),
        (["diff", "1", "soon"], "T2 is wrong"),
    ],
)
def test_moments_that_are_written_wrongly_say_what_is_right(muster: Muster, words: list[str], said: str) -> None:
    result = muster(*words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_time_of_day_that_was_before_the_log_says_which_it_is(muster: Muster, server: Background) -> None:
    begun = datetime.fromtimestamp(server.harness.log.entries[0].timestamp_ns // 10**9 - 60, UTC)
    said = muster("at", f"{begun:%H:%M:%S}", "queue").stderr
    assert f"{begun:%H:%M:%S} ({begun:%Y-%m-%d %H:%M:%S} UTC) is before the first entry of the log" in said


@pytest.mark.parametrize("command", ["at", "diff"])
def test_help_tells_of_h(muster: Muster, command: str) -> None:
    assert "-h, --help" in muster(command, "-h").output


def test_diff_shows_jobs_devices_and_queues_in_tables(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "4", "--name", "big", "--", "true")
    server.do(lambda harness: run_to_start(harness, 2))
    lines = [line.split() for line in muster("diff", "2", "now").output.splitlines()]
    assert lines[0][-2:] == ["entry", "2"]
    assert ["jobs", "1", "started"] in lines
    job = next(line for line in lines if line[:1] == ["2"])
    assert job[2:] == ["big", "default", "4", "PENDING", "RUNNING", "started", "node-1[0-3]"]
    assert ["node-1", "0-3", "jobs", "-", "2"] in lines
    assert ["default", "pending", "1", "0"] in lines
    assert ["default", "held", "0", "4"] in lines
    told = json.loads(muster("diff", "2", "--json").output)
    assert [change["id"] for change in told["jobs"]] == [2]
    server.do(lambda harness: harness.end(2, 3))
    assert "RUNNING  FAILED (exit 3)  ended" in muster("diff", str(told["after"]["sequence"])).output


def test_diff_of_one_moment_with_itself_and_of_too_many(muster: Muster) -> None:
    muster("submit", "--gpus", "4", "--", "true")
    assert muster("diff", "2", "2").output.splitlines()[-1].split() == ["changed", "nothing"]
    assert "given last, but the earlier one" in muster("diff", "now", "1").output
    result = muster("diff", "1", "2", "3")
    assert (result.exit_code, "'3' is left over" in result.stderr) == (2, True)
    whole = muster("diff", "-1h30m", "now")
    assert (whole.exit_code, "1 came" in whole.output, "the log begins later" in whole.output) == (0, True, True)
    assert "--limit" in muster("diff", "--help").output
