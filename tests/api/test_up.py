"""`muster up` as a person runs it: real broker, real processes, signals and all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from nvml_machine import Machine, a100x8, pcie8

from muster.api.cli import main

MUSTER = str(Path(sys.executable).with_name("muster"))
DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
DEADLINE_S = 30


def until(truth: Callable[[], Any], what: str) -> Any:
    """Look again and again until it is so."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := truth()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)
    return found


class Up:
    """A running `muster up`."""

    def __init__(self, data: Path, *more: str) -> None:
        self.data = data
        ports = f"{20_000 + os.getpid() % 10_000}-{20_099 + os.getpid() % 10_000}"
        words = [MUSTER, "up", "--data", str(data), "--port", "0", "--ports", ports, *more]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until(lambda: (data / "up.json").exists() or self.process.poll() is not None, "up is not ready")
        assert self.process.poll() is None, self.process.communicate()[0]
        self.told = json.loads((data / "up.json").read_text())

    def call(self, *words: str, code: int = 0) -> str:
        environment = os.environ | {"MUSTER_SERVER": self.told["url"]}
        done = subprocess.run(
            [MUSTER, *words], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def submit(self, *words: str) -> str:
        return self.call("submit", "--gpus", "1", "--", *words).split()[1]

    def worker(self, job: str) -> int:
        """The process of a job's only worker, once it runs."""

        def pid() -> int:
            workers = json.loads(self.call("show", job, "--json"))["workers"]
            return int(workers[0]["pid"]) if workers else 0

        return int(until(pid, f"job {job} does not start"))

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode


@contextmanager
def running(data: Path, *more: str) -> Iterator[Up]:
    up = Up(data, *more)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.end()


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits to be reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def broker_of(up: Up) -> int:
    """The broker's process: the child of `up` that is the server."""
    children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
    return next(int(pid) for pid in children if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_ctrl_c_ends_everything_jobs_too(tmp_path: Path) -> None:
    with running(tmp_path / "data") as up:
        pid = up.worker(up.submit("sleep", "600"))
        broker = broker_of(up)
        assert alive(pid)
        assert up.end() == 0
        until(lambda: not alive(pid) and not alive(broker), "something outlives Ctrl-C")
        assert not (up.data / "up.json").exists()
    with running(tmp_path / "data") as up:
        [ended] = json.loads(up.call("jobs", "--json"))["jobs"]
        assert (ended["state"], ended["why"]) == ("CANCELLED", f"ended with its agent on {ended['nodes'][0]}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_everything_also_where_nobody_reads_what_it_says(tmp_path: Path, number: signal.Signals) -> None:
    """As with `muster up 2>&1 | tee log`: Ctrl-C ends the reader too."""
    with running(tmp_path / "data") as up:
        pid = up.worker(up.submit("sleep", "600"))
        assert up.process.stdout is not None
        up.process.stdout.close()
        up.process.send_signal(number)
        assert up.process.wait(DEADLINE_S) == 0
        until(lambda: not alive(pid), "the job outlives Ctrl-C")


def test_kill_9_leaves_jobs_to_be_adopted(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with running(tmp_path / "data") as up:
        job = up.submit("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; echo done; exit 7")
        pid = up.worker(job)
        up.end(signal.SIGKILL)
        (up.data / "up.json").unlink()
    assert alive(pid)
    with running(tmp_path / "data") as up:
        assert up.worker(job) == pid
        go.touch()
        up.call("wait", job, code=7)
        assert up.call("logs", job) == "done\n"
        assert json.loads(up.call("show", job, "--json"))["attempts"] == 1
        up.call("audit")
        up.call("audit", "--mirror")


def test_a_broker_that_dies_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "data") as up:
        first = up.submit("sh", "-c", "sleep 1; exit 3")
        up.worker(first)
        broker = broker_of(up)
        os.kill(broker, signal.SIGKILL)
        second = up.submit("sh", "-c", "exit 4")
        up.call("wait", first, code=3)
        up.call("wait", second, code=4)
        assert broker_of(up) != broker
        up.call("audit")


def test_the_worked_case_with_real_processes(tmp_path: Path) -> None:
    """X holds node 1's 0-3 and Y node 2's 0-1: P (8, whole) gets 4-7 and 2-5, and Q (4 of 40 GB) waits with 2 free."""
    show = "echo $MUSTER_NODE $CUDA_VISIBLE_DEVICES; exec sleep 600"

    def submit(up: Up, *words: str) -> str:
        return up.call("submit", *words, "--", "sh", "-c", show).split()[1]

    with running(tmp_path / "data") as up:
        x = submit(up, "--gpus", "4", "--node", "node-1")
        up.worker(x)
        y = submit(up, "--gpus", "2", "--node", "node-2")
        up.worker(y)
        p = submit(up, "--gpus", "8", "--nodes", "any")
        q = submit(up, "--gpus", "4", "--gpu-memory", "40GiB")
        up.worker(p)
        assert until(lambda: up.call("logs", p, "--rank", "0"), "no output") == "node-1 4,5,6,7\n"
        assert until(lambda: up.call("logs", p, "--rank", "1"), "no output") == "node-2 2,3,4,5\n"
        told = up.call("explain", q).splitlines()
        assert "waits for 4 devices; 2 are idle" in told[0]
        assert [line.split()[1] for line in told if line[0].isdigit()] == [
            "filter",
            "order",
            "allocation",
            "environment",
        ]
        assert "0 of 2 nodes" in told[1]
        environment = up.call("explain", p)
        assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in environment
        assert "CUDA_VISIBLE_DEVICES=2,3,4,5" in environment
        up.call("cancel", x, y, p)
        up.worker(q)
        up.call("audit")


def test_what_devices_do_is_shown_as_nvidia_smi_and_top_show_it(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--simulate", "1x2xA100-80GB") as up:
        words = ("--gpus", "1", "--gpu-memory", "40GiB", "--gpu-compute", "0.5", "--name", "half")
        job = up.call("submit", *words, "--", "sleep", "600").split()[1]
        up.worker(job)
        expected = (
            "index, memory.total [MiB], memory.used [MiB], utilization.gpu [%]\n"
            "0, 81920 MiB, 40577 MiB, 100 %\n"
            "1, 81920 MiB, 0 MiB, 0 %\n"
        )
        until(lambda: up.call("nodes", "--smi") == expected, "--smi does not show the job's memory")
        head, _, titles, first, second = up.call("top", "--once").splitlines()
        assert head.endswith("nodes 1 of 1 take work  devices 1 held, 2 of 2 usable  jobs 1 running, 0 waiting")
        assert titles.split() == ["NODE", "DEV", "MODEL", "MEMORY", "SM", "TEMP", "POWER", "CONDITION", "JOBS"]
        bar = "[#####.....]"
        assert first.split()[:9] == ["node-1", "0", "A100-80GB", bar, "39.6/80.0GiB", "100%", "60C", "300W", "-"]
        assert first.split()[9:11] == [job, "half"]
        assert second.split()[3:] == ["[..........]", "0.0/80.0GiB", "0%", "30C", "50W", "-", "-"]
        assert up.call("nodes", "--topology").splitlines()[1] == "GPU0\t X \tNV12\tN/A"
        up.call("cordon", "node-1", "--device", "1", "--reason", "a test")
        assert up.call("nodes").splitlines()[1].split()[2:4] == ["1/2", "1"]


def test_only_one_up_uses_a_folder(tmp_path: Path) -> None:
    with running(tmp_path / "data") as up:
        words = [MUSTER, "up", "--data", str(up.data), "--port", "0"]
        second = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert second.returncode == 1
        assert "another `muster up` runs" in second.stderr
        assert "--data" in second.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--host", "0.0.0.0"), 2, "not a loopback address"),  # the point: it is refused
        (("--simulate", "8 big ones"), 2, "NODESxDEVICESxMODEL"),
        (("--simulate", "1x8xH1000"), 2, "'H1000' is not a model that can be simulated: A10"),
        (("--ports", "all"), 2, "FIRST-LAST"),
        (("--data", "/proc/muster"), 1, "give another folder with --data"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, words: tuple[str, ...], code: int, text: str) -> None:
    command = [MUSTER, "up", "--data", str(tmp_path / "data"), "--port", "0", *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert found.returncode == code
    assert found.stderr.count(text) == 1
    assert found.stderr.count("DEVICESxMODEL") == (text == "NODESxDEVICESxMODEL")


CLUSTER = """
[[queue]]
name = "research"
guarantee = "60%"

[[queue]]
name = "research/vision"
max_job_devices = 1

[policy]
ageing = 20
"""


def test_queues_and_policy_from_a_file_outlive_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    with running(tmp_path / "data", "--config", str(file)) as up:
        assert up.call("queues", "apply", str(file)) == "queue research: unchanged\nqueue research/vision: unchanged\n"
        job = up.call("submit", "--queue", "research/vision", "--gpus", "1", "--", "true").split()[1]
        up.call("wait", job)
        up.call("submit", "--queue", "research/vision", "--gpus", "2", "--", "true", code=6)
        up.call("submit", "--queue", "nobody", "--gpus", "1", "--", "true", code=2)
    with running(tmp_path / "data") as up:
        assert [row["name"] for row in json.loads(up.call("queues", "--json"))["queues"]] == [
            "default", "research", "research/vision",
        ]  # fmt: skip
        assert json.loads(up.call("policy", "--json"))["policy"]["ageing"] == 20
        assert up.call("policy", "apply", str(file)) == "policy: unchanged\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[queue]]\nname = "a"\nwieght = 2\n', "/queue/0/wieght: unknown field"),
        ('[[queue]]\nname = "a/b"\n', "/queue/0/name: there is no queue a"),
        ('[[queue]]\nname = "a"\n[policy]\nhalf_life = "long"\n', "/policy/half_life: 'long' is no duration"),
        ('[policy]\nlanes = [{name = "x", devices = "100%"}]\n', "/policy/lanes/0/devices: lanes may keep less than"),
        ("queue = = 1\n", "line 1"),
        ("[queues]\n", "/queues: unknown"),
    ],
)
def test_a_bad_file_ends_it_before_anything_starts(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["up", "--data", str(tmp_path / "data"), "--config", str(file)])
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "data").exists()


def test_ctrl_c_cancels_a_run(tmp_path: Path) -> None:
    with running(tmp_path / "data") as up:
        environment = os.environ | {"MUSTER_SERVER": up.told["url"]}
        words = [MUSTER, "run", "--gpus", "1", "--", "sh", "-c", "echo begun; exec sleep 600"]
        run = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=DEADLINE_S)
        assert run.returncode == 130
        assert "cancelled" in errors
        [job] = json.loads(up.call("jobs", "--json"))["jobs"]
        ended = json.loads(up.call("wait", str(job["id"]), "--json", code=1))
        assert ended["state"] == "CANCELLED"


def test_the_parts_run_apart(tmp_path: Path) -> None:
    with running(tmp_path / "data") as up:
        credentials = up.data / "broker" / "credentials.json"
        apart = ["--connect", up.told["broker"], "--credentials", str(credentials), "--data", str(tmp_path / "apart")]
        server = subprocess.Popen([MUSTER, "server", "--port", "0", *apart], stdout=subprocess.PIPE, text=True)
        scheduler = subprocess.Popen([MUSTER, "scheduler", *apart], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            assert scheduler.stdout is not None
            url = server.stdout.readline().split()[-1]
            assert "stands" in scheduler.stdout.readline()
            job = up.submit("true")
            up.call("wait", job)
            shown = up.call("wait", job, "--json", "--server", url)
            assert json.loads(shown)["state"] == "COMPLETED"
            node = [MUSTER, "agent", "--node", "node-1", "--simulate", "8xA100-80GB", *apart]
            assert subprocess.run([*node[:3], "nobody", *node[4:]], capture_output=True, check=False).returncode == 1
        finally:
            for part in (server, scheduler):
                part.send_signal(signal.SIGTERM)
                part.communicate(timeout=DEADLINE_S)
                assert part.returncode == 0


def test_a_machine_without_a_driver_is_simulated_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a100x8(tmp_path / "machine")
    machine.init = 9  # the driver is not loaded
    machine.write()
    monkeypatch.setenv("LD_LIBRARY_PATH", machine.env["LD_LIBRARY_PATH"])
    with running(tmp_path / "data") as up:
        assert up.told["nodes"] == ["node-1", "node-2"]
        up.process.send_signal(signal.SIGINT)
        told, _ = up.process.communicate(timeout=DEADLINE_S)
        assert (told.startswith("Muster "), "WARNING" in told) == (True, False)


@pytest.mark.parametrize("in_path", [True, False])
def test_the_next_commands_can_be_typed_as_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_path: bool
) -> None:
    folder = Path(MUSTER).parent
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if in_path else "/usr/bin:/bin")
    with running(tmp_path / "data") as up:
        up.process.send_signal(signal.SIGINT)
        told, _ = up.process.communicate(timeout=DEADLINE_S)
    needed = not in_path and (folder / "activate").exists()
    assert (f"\n  . {folder}/activate\n" in told) == needed


def test_the_demonstration_proves_itself() -> None:
    found = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "all of it is so" in found.stdout
    assert "in another terminal" not in found.stdout


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ([], "GPU-a100-5"),
        (["--visible-devices", "index"], "0"),
    ],
)
def test_jobs_see_this_machine_s_devices_by_uuid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], visible: str
) -> None:
    machine = a100x8(tmp_path / "machine")
    machine.gpus = machine.gpus[5:6]
    machine.write()
    monkeypatch.setenv("LD_LIBRARY_PATH", machine.env["LD_LIBRARY_PATH"])
    with running(tmp_path / "data", *options) as up:
        told = up.call("run", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert visible in told.splitlines()
        [node] = json.loads(up.call("nodes", "--json"))["nodes"]
        assert [(device["uuid"], device["model"]) for device in node["devices"]] == [("GPU-a100-5", "A100-80GB")]


def linked_job(up: Up, gpus: int) -> list[int]:
    """Start a job that stays, and give the numbers of the devices that it sees."""
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 600")
    job = up.call("submit", "--gpus", str(gpus), "--cpus", "0", "--", *show)  # this machine may have few CPUs
    seen = until(lambda: up.call("logs", job.split()[1]).split(), "the job has said which devices it sees")
    return [int(uuid.rpartition("-")[2]) for uuid in seen[0].split(",")]


@pytest.mark.parametrize(
    ("machine", "second", "devices"),
    [
        # Two devices on each PCIe switch, two switches on each socket. The second job leaves the other half of the
        # first one's pair alone and takes a whole pair, the third one a whole socket.
        (pcie8, "PIX", [[0], [2, 3], [4, 5, 6, 7], [1]]),
        # Behind NVSwitches all pairs are alike.
        (a100x8, "NV12", [[0], [1, 2], [3, 4, 5, 6], [7]]),
    ],
)
def test_work_gets_devices_that_are_connected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: Callable[[Path], Machine],
    second: str,
    devices: list[list[int]],
) -> None:
    described = machine(tmp_path / "machine")
    described.write()
    monkeypatch.setenv("LD_LIBRARY_PATH", described.env["LD_LIBRARY_PATH"])
    with running(tmp_path / "data") as up:
        assert [linked_job(up, gpus) for gpus in (1, 2, 4, 1)] == devices
        [first] = [line.split() for line in up.call("nodes", "--topology").splitlines() if line.startswith("GPU0")]
        assert first[:3] == ["GPU0", "X", second]
