"""`muster simulate`: what it answers, and how it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.api.cli import main

TRACE = "job_id,submission_time,duration,num_gpu\na,0,100,3\nb,1,10,2\nc,2,98,1\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


def test_json_has_the_figures(trace: Path) -> None:
    arguments = ["--nodes", "1", "--gpus-per-node", "4", "--policy", "easy", "--json"]
    done = CliRunner().invoke(main, ["simulate", "--trace", str(trace), *arguments])
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    wanted = {"jobs": 3, "mean_wait_s": 33.0, "p99_jct_s": 109.0, "makespan_s": 110.0, "preemptions": 0}
    assert wanted.items() <= answer.items()
    assert (answer["trace"], answer["policy"], answer["placement"]) == (str(trace), "easy", "best-fit")
    assert answer["utilization"] == pytest.approx((300 + 20 + 98) / 440)
    assert answer["wall_s"] >= 0


def test_a_window_and_a_table(trace: Path) -> None:
    done = CliRunner().invoke(main, ["simulate", "--trace", str(trace), "--nodes", "1", "--since", "1", "--until", "1"])
    assert done.exit_code == 0
    assert "all      1" in " ".join(done.stdout.splitlines()[1:2])


def test_names_are_looked_up_in_the_folder(trace: Path) -> None:
    environment = {"MUSTER_TRACES": str(trace.parent)}
    done = CliRunner().invoke(main, ["simulate", "--trace", "jobs", "--nodes", "1"], env=environment)
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--trace", "nowhere", "--nodes", "1"], 3, "no trace nowhere"),
        (["--trace", "jobs"], 2, "say what the cluster is"),
        (["--trace", "jobs", "--nodes", "1", "--since", "noon"], 2, "since 'noon'"),
        (["--trace", "jobs", "--node-file", "missing.csv"], 2, "missing.csv cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(trace: Path, arguments: list[str], code: int, message: str) -> None:
    done = CliRunner().invoke(main, ["simulate", *arguments], env={"MUSTER_TRACES": str(trace.parent)})
    assert done.exit_code == code
    assert message in done.stderr
