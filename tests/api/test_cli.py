"""The command line against a running server: what it prints, and how it ends."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from api_harness import Background, FakeOutputs, Harness
from click.testing import CliRunner, Result

from muster.api.cli import main
from muster.events import types as t

Muster = Callable[..., Result]


async def _run_to_end(harness: Harness, job: int, code: int) -> None:
    await harness.decide()
    await harness.start(job)
    await harness.end(job, code)


def test_submit_prints_the_job(muster: Muster) -> None:
    result = muster("submit", "--gpus", "2", "--name", "x", "--", "python", "train.py", "--fast")
    assert (result.exit_code, result.output) == (0, "job 2\n")
    job = json.loads(muster("show", "2", "--json").output)
    assert job["spec"]["command"] == ["python", "train.py", "--fast"]
    assert job["spec"]["workdir"] == os.getcwd()  # noqa: PTH109


def test_a_toml_file_with_flags_on_top(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('name = "a"\ncommand = "echo hi"\ngpus = 1\n[gpu]\nmemory = "40GiB"\n')
    assert muster("submit", "--name", "b", "--gpu-compute", "0.5", str(file)).exit_code == 0
    spec = json.loads(muster("show", "2", "--json").output)["spec"]
    assert (spec["name"], spec["gpu"]) == ("b", {"memory": 40960, "compute": 0.5})


def test_a_script_with_its_wishes_in_it(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text('#!/bin/sh\n#MUSTER gpus = 3\n#MUSTER gpu.memory = "20GiB"\necho "$1"\n')
    assert muster("submit", str(file), "hello").exit_code == 0
    spec = json.loads(muster("show", "2", "--json").output)["spec"]
    assert (spec["gpus"], spec["gpu"]["memory"], spec["name"]) == (3, 20480, "train")
    assert subprocess.run(spec["command"], capture_output=True, check=True).stdout == b"hello\n"


def test_a_broken_file_is_told_with_its_line(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text("#!/bin/sh\n\n#MUSTER gpus = = 3\n")
    result = muster("submit", str(file))
    assert result.exit_code == 2
    assert "line 3" in result.stderr


def test_only_named_variables_are_passed_on(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("UNWANTED", "no")
    muster("submit", "--gpus", "1", "--env", "WANTED", "--env", "SET=1", "--", "true")
    assert json.loads(muster("show", "2", "--json").output)["spec"]["env"] == {"WANTED": "yes", "SET": "1"}


def test_the_queue_is_a_table(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "8", "--name", "big", "--", "true")
    server.do(lambda harness: harness.decide())
    muster("submit", "--gpus", "1", "--name", "small", "--", "true")
    titles, big, small = muster("queue").output.splitlines()
    assert titles.split() == [
        "JOBID", "STATE", "USER", "QUEUE", "NAME", "GPUS", "PRIORITY", "SUBMITTED", "ELAPSED", "NODES", "WHY",
    ]  # fmt: skip
    assert big.split()[:2] == ["2", "STARTING(CF)"]
    assert big.split()[5:7] == ["8", "300"]
    assert small.split()[1] == "PENDING(PD)"
    assert "0 are idle" in small


def test_at_runs_a_command_in_the_past(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "1", "--", "true")
    server.do(lambda harness: _run_to_end(harness, 2, 0))
    assert len(muster("queue").output.splitlines()) == 1
    assert "PENDING(PD)" in muster("at", "2", "queue").output
    assert json.loads(muster("at", "2", "show", "2", "--json").output)["state"] == "PENDING"
    assert muster("at", "-3650d", "queue").exit_code == 2
    assert muster("at", "2", "submit", "--", "true").exit_code == 2


@pytest.mark.parametrize("code", [0, 7])
def test_wait_and_run_end_with_the_jobs_code(muster: Muster, server: Background, code: int) -> None:
    muster("submit", "--gpus", "1", "--", "true")
    assert muster("wait", "2", "--timeout", "0").exit_code == 124
    server.do(lambda harness: _run_to_end(harness, 2, code))
    assert muster("wait", "2").exit_code == code


@pytest.mark.parametrize(
    "words", ["submit", "queues apply", "policy apply", "audit --file", "replay --import", "whatif --from 1 --policy"]
)
def test_a_file_that_is_not_there_is_told_in_one_way(muster: Muster, tmp_path: Path, words: str) -> None:
    result = muster(*words.split(), str(tmp_path / "none.toml"))
    assert (result.exit_code, result.stderr) == (3, f"muster: {tmp_path}/none.toml: no such file\n")


def test_an_age_in_hours_is_a_moment_and_no_option(muster: Muster) -> None:
    result = muster("at", "-2h", "queue")
    assert result.exit_code == 2
    assert re.search(r"-2h \(20.* UTC\) is before the first entry of the log, which is of 20", result.stderr)


def test_options_behind_a_job_file_are_refused(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = "echo hi"\n')
    result = muster("submit", str(file), "--gpus", "1")
    assert result.exit_code == 2
    assert "takes no arguments; options stand before it" in result.stderr


def test_a_wish_for_nothing_names_the_options(muster: Muster) -> None:
    result = muster("submit", "python", "train.py", "--gpus", "1")
    assert result.exit_code == 2
    assert "--gpus N, or --cpus N" in result.stderr


def test_a_python_file_is_no_command(muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    result = muster("submit", "--gpus", "1", "train.py")
    assert result.exit_code == 2
    assert "write python3 train.py" in result.stderr


def test_every_wish_has_an_option_and_is_shown(muster: Muster) -> None:
    muster(
        "submit", "--gpus", "1", "--interconnect", "none", "--retry-on", "failed", "--max-attempts", "2", "--", "true"
    )
    spec = json.loads(muster("show", "2", "--json").output)["spec"]
    assert (spec["gpu"], spec["retry"]) == ({"interconnect": "none"}, {"max_attempts": 2, "on": ["failed"]})
    shown = muster("show", "2").output
    assert "interconnect = none" in shown
    assert "max_attempts = 2, on = failed" in shown


def test_a_script_is_shown_by_its_name(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text("#!/bin/sh\n#MUSTER gpus = 1\ntrue\n")
    muster("submit", str(file), "two words")
    assert f"/bin/sh -c (3 lines) {file} 'two words'" in muster("show", "2").output


def test_a_node_that_is_not_cordoned_is_not_uncordoned(muster: Muster) -> None:
    refused = muster("uncordon", "node-1")
    assert (refused.exit_code, refused.stderr) == (4, "muster: node-1 is not cordoned\n")
    assert json.loads(muster("state", "--json").output)["sequence"] == 1


def test_a_moment_is_written_as_lists_print_it(muster: Muster) -> None:
    muster("submit", "--gpus", "1", "--name", "first", "--", "true")
    submitted = muster("queue").output.splitlines()[1].split()[7]
    assert "first" in muster("at", submitted, "queue").output
    at = json.loads(muster("events", "--json").output)["events"][0]["time"]
    assert muster("at", f"{at[:10]} {at[11:23]}", "queue").exit_code == 0
    assert muster("at", "2000-01-01 00:00:00", "queue").exit_code == 2


def test_every_command_shows_its_examples_line_by_line(muster: Muster) -> None:
    def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            yield (*path, name)
            if isinstance(command, click.Group):
                yield from commands(command, *path, name)

    for path in commands(main):
        lines = muster(*path, "-h").output.splitlines()
        assert not [line for line in lines if line.count("muster ") > 1 and not line.startswith("  Muster")], path
        if "  Examples:" in lines:
            assert all(line.startswith("    muster ") for line in lines[lines.index("  Examples:") + 1 :]), path


def test_errors_are_said_once_and_in_the_command_lines_words(muster: Muster) -> None:
    for words, told in (
        (("submit", "--gpus", "64", "--", "true"), "ask for less, or --wait-for-capacity to wait for more"),
        (("submit", "--gpus", "1", "--signal", "X1", "--", "true"), "docs/jobs.md every field"),
        (("audit", "--expect", "64:deadbeef"), "the chain after it, which is 32 hexadecimal digits"),
        (("queues", "remove", "default"), "queue default stays"),
    ):
        said = muster(*words).stderr
        assert said.count(told) == 1
        assert "openapi" not in said
        assert "wait_for_capacity=1" not in said


def test_a_page_of_jobs_names_the_next_one_with_its_filters(muster: Muster) -> None:
    for _ in range(3):
        muster("submit", "--gpus", "1", "--", "true")
    result = muster("jobs", "-q", "default", "--limit", "2")
    assert result.stderr == "more: muster jobs --queue=default --limit=2 --after=3\n"
    assert muster(*result.stderr.split()[2:]).output.splitlines()[1].split()[0] == "2"


def test_exit_codes(muster: Muster) -> None:
    assert muster("show", "99").exit_code == 3
    assert muster("nodes", "node-9").exit_code == 3
    assert muster("submit", "--gpus", "64", "--", "true").exit_code == 6
    assert muster("submit", "--gpus", "64", "--wait-for-capacity", "--", "true").exit_code == 0
    assert muster("submit", "--gpus", "-1", "--", "true").exit_code == 2
    assert muster("submit").exit_code == 2
    assert muster("submit", "--key", "k", "--gpus", "1", "--", "true").exit_code == 0
    assert muster("submit", "--key", "k", "--gpus", "1", "--", "true").exit_code == 0
    assert muster("submit", "--key", "k", "--gpus", "2", "--", "true").exit_code == 4


def test_a_refusal_names_the_field_and_the_next_step(muster: Muster) -> None:
    result = muster("submit", "--gpus", "64", "--", "true")
    assert "/gpus: asks for 64; the whole cluster has 8" in result.stderr
    assert "--wait-for-capacity" in result.stderr


def test_cancelling_what_has_ended_is_a_conflict(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "1", "--", "true")
    server.do(lambda harness: _run_to_end(harness, 2, 0))
    assert muster("cancel", "2").exit_code == 4


def test_logs_go_to_stdout(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "1", "--", "true")
    outputs = server.harness.outputs
    assert isinstance(outputs, FakeOutputs)
    outputs.texts[2, 1, 0] = b"one\ntwo\n"
    server.do(lambda harness: _run_to_end(harness, 2, 0))
    assert muster("logs", "2").output == "one\ntwo\n"
    assert muster("logs", "-f", "2").output == "one\ntwo\n"


def test_logs_without_a_word_say_how_their_job_ended(muster: Muster, server: Background) -> None:
    outputs = server.harness.outputs
    assert isinstance(outputs, FakeOutputs)
    for job, code in ((2, 127), (7, 0)):
        muster("submit", "--gpus", "1", "--", "true")
        outputs.texts[job, 1, 0] = b""
        server.do(lambda harness, job=job, code=code: _run_to_end(harness, job, code))  # type: ignore[misc]
    for words in (("logs", "2"), ("logs", "-f", "2"), ("logs", "--all", "2"), ("logs", "2", "--attempt", "1")):
        result = muster(*words)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "muster: nothing was written: job 2 FAILED: worker 0 on node-1: exit code 127\n"
    assert muster("logs", "7").output == ""


def test_run_says_why_its_job_waits(muster: Muster, server: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    muster("submit", "--gpus", "6", "--", "true")
    server.do(lambda harness: harness.decide())
    job, told = len(server.harness.log.entries) + 1, []

    def hear(text: str, *, err: bool = False) -> None:
        told.append((text, err))
        if "has not started" in text:
            server.do(lambda harness: harness.append(t.JobCancelRequested(job, "ada"), "default"))

    monkeypatch.setattr("muster.api.cli_submit.WAITING_TOLD_S", 0)
    monkeypatch.setattr("muster.api.cli_submit.say", hear)
    assert muster("run", "--gpus", "8", "--", "true").exit_code == 1
    assert told == [
        (f"job {job}", True),
        (f"muster: job {job} has not started: waits for 8 devices; 2 are idle (muster explain {job} says more)", True),
    ]


def test_logs_of_what_waits_say_so(muster: Muster) -> None:
    muster("submit", "--gpus", "1", "--", "true")
    result = muster("logs", "2")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "job 2 waits" in result.stderr


def test_events_state_nodes_explain_audit(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "1", "--", "true")
    server.do(lambda harness: _run_to_end(harness, 2, 0))
    kinds = [line.split()[2] for line in muster("events", "--job", "2").output.splitlines()]
    assert kinds == ["JobSubmitted", "JobAllocated", "StartWorker", "WorkerStarted", "WorkerExited"]
    assert "A100-80GB" in muster("nodes").output
    shown = muster("at", "5", "nodes", "node-1").output  # while it runs
    titles, first, *_ = (line.split() for line in shown.partition("\n\n")[2].splitlines())
    assert dict(zip(titles, first, strict=True)) == {
        "DEV": "0",
        "MODEL": "A100-80GB",
        "MEMORY": "79.1GiB",
        "HELD": "79.1GiB",
        "COMPUTE": "100%",
        "USED": "-",
        "SM": "-",
        "TEMP": "-",
        "POWER": "-",
        "JOBS": "2",
        "CONDITION": "-",
        "BUS": "-",
    }
    assert "1 ready" in muster("state").output.replace("ready 1", "1 ready")
    assert muster("cordon", "node-1", "--reason", "fan").output == "node-1 is cordoned\n"
    assert muster("uncordon", "node-1").exit_code == 0
    assert "COMPLETED" in muster("explain", "2").output
    audit = muster("audit")
    assert (audit.exit_code, audit.output.splitlines()[-1]) == (0, "clean: everything is as it must be")


def test_text_from_outside_cannot_steer_the_terminal(muster: Muster) -> None:
    muster("submit", "--gpus", "1", "--name", "a\x1b[2Jb", "--", "true")
    for command in (("queue",), ("show", "2"), ("events",)):
        assert "\x1b" not in muster(*command).output


def test_no_server_is_told_with_what_to_do() -> None:
    result = CliRunner().invoke(main, ["queue", "--server", "http://127.0.0.1:9"])
    assert result.exit_code == 69
    assert "muster up" in result.stderr


def test_a_client_command_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom muster.api.cli import main\n"
        "main(['queue', '--server', 'http://127.0.0.1:9'], standalone_mode=False)"
    )
    heavy = "print(','.join(m for m in ('asyncio', 'aiohttp', 'nats', 'msgspec', 'sqlite3') if m in sys.modules))"
    program = f"import sys\ntry:\n exec({code!r})\nexcept Exception as e:\n assert e.exit_code == 69, e\n{heavy}"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == ""


def test_the_installed_program_runs(server: Background) -> None:
    program = Path(sys.executable).with_name("muster")
    found = subprocess.run(
        [program, "nodes", "--server", server.harness.url], capture_output=True, check=True, text=True
    )
    assert found.stdout.splitlines()[0].startswith("NODE")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("jobs", "--limit", "x"), "'x' is not a valid whole number."),
        (("top", "--interval", "x"), "'x' is not a valid number."),
        (("nodes", "--at", "-2 weeks"), "muster: at is wrong: "),
    ],
)
def test_a_value_that_is_none_is_called_so(muster: Muster, words: tuple[str, ...], said: str) -> None:
    refused = muster(*words)
    assert (refused.exit_code, said in refused.stderr) == (2, True)
