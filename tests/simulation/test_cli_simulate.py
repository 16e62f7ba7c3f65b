"""`muster simulate`: what it answers, and how it refuses."""

import gzip
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from muster.api.cli import main

TRACE = "job_id,submission_time,duration,num_gpu\na,0,100,3\nb,1,10,2\nc,2,98,1\n"


NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,64000,2,A\nn2,8000,64000,2,B\n"
TASKS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nhalf,1000,1000,1,500\npair,1000,1000,2,1000\n"
FILLING = ["--tasks", "tasks", "--node-file", "nodes", "--arrivals", "orders"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "tasks.csv.gz").write_bytes(gzip.compress(TASKS.encode()))
    (tmp_path / "orders.json").write_text(json.dumps({"6": [1, 1, 1], "5": [0, 1, 1, 0]}))
    return path


def simulate(trace: Path, *arguments: str) -> Result:
    """Run the command where the traces are those beside this one."""
    return CliRunner().invoke(main, ["simulate", *arguments], env={"MUSTER_TRACES": str(trace.parent)})


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
    """One job of two GPUs for ten seconds, alone."""
    done = simulate(trace, "--trace", str(trace), "--nodes", "1", "--since", "1", "--until", "1")
    assert done.exit_code == 0
    titles, row = (line.split() for line in done.stdout.splitlines()[:2])
    assert dict(zip(titles, row, strict=True)) == {
        "USER": "all", "JOBS": "1", "GPU_HOURS": "0", "WAIT_MEAN_S": "0", "WAIT_P50_S": "0", "WAIT_P95_S": "0",
        "WAIT_P99_S": "0", "JCT_MEAN_S": "10", "JCT_P99_S": "10",
    }  # fmt: skip


def test_large_numbers_of_the_table_have_their_thousands_apart(trace: Path) -> None:
    trace.write_text("job_id,submission_time,duration,num_gpu\na,0,1234567,8\n")
    done = simulate(trace, "--trace", "jobs", "--nodes", "1")
    assert done.stdout.splitlines()[1].split()[-2:] == ["1,234,567", "1,234,567"]
    assert "makespan     1,234,567 s" in done.stdout


def test_names_are_looked_up_in_the_folder(trace: Path) -> None:
    assert simulate(trace, "--trace", "jobs", "--nodes", "1").exit_code == 0


def test_a_folder_stands_for_its_usual_trace_and_says_so(trace: Path) -> None:
    (trace.parent / "itp").mkdir()
    for name in ("cluster02.csv", "cluster06.csv", "README.md"):
        (trace.parent / "itp" / name).write_text(TRACE)
    done = simulate(trace, "--trace", "itp", "--nodes", "1", "--json")
    assert json.loads(done.stdout)["trace"] == "itp/cluster06"
    assert "itp/cluster06 is taken" in done.stderr
    missing = simulate(trace, "--trace", "itp/cluster99", "--nodes", "1")
    assert missing.exit_code == 3
    assert "itp has cluster02, cluster06" in missing.stderr
    (trace.parent / "itp").rename(trace.parent / "ours")
    other = simulate(trace, "--trace", "ours", "--nodes", "1")
    assert other.exit_code == 3
    assert "it is a folder of cluster02, cluster06" in other.stderr


def test_jobs_are_stopped_for_free_or_not_at_all(trace: Path) -> None:
    """On 3 GPUs, c and b stop a for 10 s and more: b ends at 11, c at 100, and a has run for 1 s before that."""
    arguments = ["--trace", "jobs", "--nodes", "1", "--gpus-per-node", "3", "--policy", "srtf", "--json"]
    free = json.loads(simulate(trace, *arguments).stdout)
    assert (free["preemption"], free["preemptions"], free["makespan_s"]) == ("free", 1, 199.0)
    none = json.loads(simulate(trace, *arguments, "--preemption", "none").stdout)
    assert (none["preemption"], none["preemptions"], none["makespan_s"]) == ("none", 0, 198.0)


@pytest.mark.parametrize("policy", ["fifo", "fjf", "easy", "conservative", "sjf", "srtf", "srsf", "las", "fair"])
@pytest.mark.parametrize("placement", ["best-fit", "spread", "fragmentation", "tight"])
def test_every_policy_goes_with_every_placement(trace: Path, policy: str, placement: str) -> None:
    done = simulate(trace, "--trace", "jobs", "--nodes", "1", "--policy", policy, "--placement", placement, "--json")
    answer = json.loads(done.stdout)
    assert (answer["policy"], answer["placement"], answer["jobs"]) == (policy, placement, 3)


def test_a_filling_answers_by_column(trace: Path) -> None:
    """Of 4 GPUs: two halves and one pair are in use once all has come, and the second pair found no room."""
    answer = json.loads(simulate(trace, *FILLING, "--json").stdout)
    wanted = {"tasks": "tasks", "placement": "best-fit", "seed": 5, "nodes": 2, "gpus": 4, "arrivals": 4, "placed": 3}
    assert wanted.items() <= answer.items()
    assert answer["end"]["allocation_pct"] == 75.0
    crowded = json.loads(simulate(trace, *FILLING, "--seed", "6", "--json").stdout)
    assert (crowded["allocation_pct"], crowded["fragmented_pct"]) == (
        {"50": 50.0, "100": 100.0},
        {"50": 0.0, "100": 0.0},
    )
    assert "3 of 4 found room" in simulate(trace, *FILLING).stdout


def test_a_picture_of_each(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    path.write_text("an older one")
    done = simulate(trace, "--trace", "jobs", "--nodes", "1", "--plot", str(path))
    assert (done.exit_code, done.stderr) == (0, f"muster: drawn in {path}\n")
    assert {"jobs that wait", "GPUs in use, of 8", "jobs, fifo, best-fit"} <= texts(path)
    assert simulate(trace, *FILLING, "--placement", "tight", "--plot", str(path)).exit_code == 0
    assert {"in use", "fragmented", "tasks, tight, seed 5"} <= texts(path)


def texts(picture: Path) -> set[str]:
    return {element.text or "" for element in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--trace", "nowhere", "--nodes", "1"], 3, "no trace nowhere"),
        (["--trace", "nowhere", "--nodes", "1"], 3, "has jobs, nodes, orders, tasks"),
        (["--trace", "jobs", "--nodes", "1", "--since", "3"], 2, "its 3 jobs came from 0 s to 2 s"),
        (["--trace", "jobs", "--nodes", "1", "--since", "2", "--until", "1"], 2, "no job of the trace was submitted"),
        (["--trace", "jobs", "--nodes", "1", "--plot", "waits.png"], 2, "--plot waits.svg"),
        (["--trace", "jobs"], 2, "say what the cluster is"),
        (["--trace", "jobs", "--nodes", "1", "--since", "noon"], 2, "since 'noon'"),
        (["--trace", "jobs", "--nodes", "1", "--node-file", "nodes.csv"], 2, "say what the cluster is"),
        (["--trace", "jobs", "--node-file", "missing.csv"], 3, "no node file missing.csv"),
        (["--trace", "jobs", "--node-file", "jobs"], 2, "no list of nodes has the columns job_id"),
        ([], 2, "say what is to run"),
        (["--trace", "jobs", "--tasks", "jobs"], 2, "say what is to run"),
        (["--trace", "jobs", "--nodes", "1", "--preemption", "free"], 2, "nobody is stopped under fifo"),
        (["--trace", "jobs", "--nodes", "1", "--placement", "random"], 2, "--placement random is for --tasks"),
        (["--trace", "jobs", "--nodes", "1", "--seed", "1"], 2, "--seed is for --tasks"),
        (["--trace", "jobs", "--nodes", "1", "--plot", "no/such/folder.svg"], 2, "there is no folder"),
        (["--tasks", "tasks", "--nodes", "3"], 2, "the cluster that tasks fill is a --node-file"),
        (["--tasks", "tasks", "--policy", "easy"], 2, "--policy is for --trace"),
        (["--tasks", "tasks", "--arrivals", "orders"], 2, "--node-file FILE, the cluster, goes with --tasks"),
        (["--tasks", "tasks", "--node-file", "nodes"], 2, "--arrivals FILE, the orders of arrival, goes with --tasks"),
        ([*FILLING, "--seed", "2"], 2, "seed 2: there are orders of arrival for 5, 6"),
        (["--tasks", "jobs", "--node-file", "nodes", "--arrivals", "orders"], 2, "no column cpu_milli"),
        (["--tasks", "tasks", "--node-file", "nodes", "--arrivals", "jobs"], 2, "is not JSON"),
    ],
)
def test_what_cannot_be_is_refused(trace: Path, arguments: list[str], code: int, message: str) -> None:
    done = simulate(trace, *arguments)
    assert done.exit_code == code
    assert message in done.stderr
