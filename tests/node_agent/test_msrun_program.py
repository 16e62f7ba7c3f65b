"""Our msrun before MindSpore's, which is played here by a program of the same parts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.node_agent.worker_folder import Ticket, WorkerFolder

PROGRAM = Path(__file__).parents[2] / "node_agent" / "msrun_program.py"
PLACE = {
    "MUSTER_RANK": "0",
    "MUSTER_PROCESSES": "1",
    "MUSTER_LOCAL_PROCESSES": "1",
    "MUSTER_FIRST_PROCESS": "0",
    "MUSTER_MSRUN_LOGS": "/logs",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "21005",
}

MINDSPORE = """
import argparse, json, os

class _ProcessManager:
    def __init__(self, args):
        self.is_master = args.master_addr == "127.0.0.1"  # by address, as the real one judges
        self.log_dir, self.worker_log_name = args.log_dir, ""
        self.args = args

    def format_worker_log_name(self):
        return self.worker_log_name or "worker"

    def _get_node_id_and_log_path(self, index):
        node_id = self.args.node_rank * self.args.local_worker_num + index
        return node_id, os.path.join(self.log_dir, f"worker_{node_id}.log")

    def run(self):
        places = [self._get_node_id_and_log_path(index) for index in range(self.args.local_worker_num)]
        print(json.dumps({**vars(self.args), "is_master": self.is_master, "places": places}))

def main():
    parser = argparse.ArgumentParser()
    for name in ("worker_num", "local_worker_num", "master_port", "node_rank"):
        parser.add_argument("--" + name, type=int, default=8)
    for name in ("master_addr", "log_dir", "join"):
        parser.add_argument("--" + name, default="")
    parser.add_argument("task_script")
    parser.add_argument("task_script_args", nargs=argparse.REMAINDER)
    _ProcessManager(parser.parse_args()).run()
"""


@pytest.fixture
def mindspore(tmp_path: Path) -> Path:
    package = tmp_path / "mindspore" / "parallel" / "cluster"
    package.mkdir(parents=True)
    (package / "run.py").write_text(MINDSPORE)
    return tmp_path


def msrun(mindspore: Path, rank: int, devices: list[int], *words: str) -> dict[str, Any]:
    """What msrun takes from our program on one node of a gang with so many devices each."""
    variables = PLACE | {
        "MUSTER_RANK": str(rank),
        "MUSTER_PROCESSES": str(sum(devices)),
        "MUSTER_LOCAL_PROCESSES": str(devices[rank]),
        "MUSTER_FIRST_PROCESS": str(sum(devices[:rank])),
        "PYTHONPATH": str(mindspore),
    }
    command = [sys.executable, str(PROGRAM), *words]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_options_are_filled_in(mindspore: Path) -> None:
    taken = msrun(mindspore, 1, [2, 2], "train.py", "--epochs", "3")
    wanted = {
        "worker_num": 4,
        "local_worker_num": 2,
        "master_addr": "127.0.0.1",
        "master_port": 21005,
        "node_rank": 1,
        "log_dir": "/logs",
        "join": "True",
        "task_script": "train.py",
        "task_script_args": ["--epochs", "3"],
    }
    assert wanted.items() <= taken.items()


@pytest.mark.parametrize("devices", [[1, 3], [3, 1], [2, 3, 1]])
def test_processes_of_an_uneven_gang_are_numbered_without_a_gap(mindspore: Path, devices: list[int]) -> None:
    places = [place for rank in range(len(devices)) for place in msrun(mindspore, rank, devices, "t.py")["places"]]
    assert places == [[number, f"/logs/worker_{number}.log"] for number in range(sum(devices))]


def test_the_scheduler_is_rank_0_s_even_where_all_nodes_have_one_address(mindspore: Path) -> None:
    assert [msrun(mindspore, rank, [1, 1], "t.py")["is_master"] for rank in (0, 1)] == [True, False]


def test_what_is_typed_wins(mindspore: Path) -> None:
    taken = msrun(mindspore, 1, [2, 2], "--local_worker_num=1", "--worker_num=1", "--node_rank=0", "t.py")
    assert (taken["worker_num"], taken["local_worker_num"], taken["node_rank"]) == (1, 1, 0)
    assert taken["is_master"] is True  # as msrun judges by itself
    assert taken["places"] == [[0, "/logs/worker_0.log"]]


@pytest.mark.parametrize("name", ["python", "python3"])
def test_it_runs_in_whichever_python_is_there(mindspore: Path, name: str) -> None:
    (mindspore / "there").mkdir()
    (mindspore / "there" / name).symlink_to(sys.executable)
    folder = WorkerFolder(mindspore / "5.1.0")
    folder.prepare(Ticket(5, 1, 0, [], {}, "/", "t", "", "", 0, {}, 0), ["msrun"])

    variables = PLACE | {"PATH": str(mindspore / "there"), "PYTHONPATH": str(mindspore)}
    command = [str(mindspore / "5.1.0/bin/msrun"), "t.py"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["task_script"] == "t.py"


def test_without_mindspore_one_line_says_so() -> None:
    command = [sys.executable, "-S", str(PROGRAM), "t.py"]
    done = subprocess.run(command, env=os.environ | PLACE, capture_output=True, text=True, check=False)

    words = f"msrun: {sys.executable} has no MindSpore that works: No module named 'mindspore' "
    assert done.stderr == f"{words}(jobs get their agent's PATH: --env PATH passes yours on)\n"
    assert done.returncode == 1
