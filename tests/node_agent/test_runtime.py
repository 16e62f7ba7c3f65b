"""What runs containers: command lines by their text, a stand-in engine for the life of one, and podman for real."""

import asyncio
import json
import os
import pwd
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, alive, start, stop

from muster.events.types import WorkerExited, WorkerRefused, WorkerStarted
from muster.node_agent.accounts import Account
from muster.node_agent.beside import worktrees
from muster.node_agent.launch import launch
from muster.node_agent.link import LogAsk
from muster.node_agent.refusal import RefusalError
from muster.node_agent.runtime import Engine, Limits, Program, container, find_engine, in_container
from muster.node_agent.worker import Worker
from muster.node_agent.worker_folder import WorkerFolder

UNLIMITED = Limits(0, (("memlock", -1, -1), ("nofile", 1024, 4096)))
DOCKER = Engine("docker", "/usr/bin/docker")
PODMAN = Engine("podman", "/usr/bin/podman")
FOLDER = "/data/workers/5.1.0"


def program(
    engine: Engine | None, account: Account | None = None, limits: Limits = UNLIMITED, **values: Any
) -> Program:
    command = start("life", values.pop("command", ["python", "train.py"]), image="pytorch:2", **values)
    plan = launch(command, {}, FOLDER, "c0ffee", "uuid")
    return container(engine, command, plan, FOLDER, {"PATH": "/bin", "HOME": "/root"}, account, limits)


def test_docker_gets_devices_by_uuid_and_limits() -> None:
    made = program(DOCKER, indices=[3, 1], cpus=16, memory_mib=2048, workdir="/home/ada/code")

    assert made.argv == [
        *("/usr/bin/docker", "run", "--rm", "--name", "muster-5.1.0-fb0288872031fc48"),
        *("--pull", "missing", "--log-driver", "none"),
        *("--network", "host", "--security-opt", "no-new-privileges"),
        *(
            "--ulimit",
            "memlock=-1:-1",
            "--ulimit",
            "nofile=1024:4096",
            "--shm-size",
            "2048m",
            "--cpus",
            "16",
            "--memory",
            "2048m",
        ),
        *("--mount", "type=bind,source=/data/workers/5.1.0/bin,target=/data/workers/5.1.0/bin"),
        *("--mount", "type=bind,source=/data/workers/5.1.0/cache,target=/data/workers/5.1.0/cache"),
        *("--mount", "type=bind,source=/data/workers/5.1.0/work,target=/data/workers/5.1.0/work"),
        *("--mount", "type=bind,source=/home/ada/code,target=/home/ada/code"),
        *("--workdir", "/home/ada/code", "--env-file", "/data/workers/5.1.0/variables"),
        *("--gpus", '"device=GPU-sim-node-1-1,GPU-sim-node-1-3"'),
        *("pytorch:2", "python", "train.py"),
    ]
    assert made.cleanup == ["/usr/bin/docker", "rm", "--force", "muster-5.1.0-fb0288872031fc48"]
    assert made.account is None


def test_podman_gets_devices_by_their_cdi_names_and_an_account() -> None:
    made = program(
        PODMAN,
        Account(1000, 100, [44, 100, 109]),
        Limits(512, (("memlock", 65_536, 1 << 20),)),
        indices=[0, 2],
        cpus=0,
        memory_mib=0,
        command="python train.py | tee log",
    )

    assert made.argv == [
        *("/usr/bin/podman", "run", "--rm", "--name", "muster-5.1.0-fb0288872031fc48"),
        *("--pull", "missing", "--log-driver", "none"),
        *("--network", "host", "--security-opt", "no-new-privileges", "--http-proxy=false"),
        *("--ulimit", "memlock=65536:1048576", "--shm-size", "64g", "--pids-limit", "512"),
        *("--user", "1000:100", "--group-add", "44", "--group-add", "109"),
        *("--mount", "type=bind,source=/data/workers/5.1.0/bin,target=/data/workers/5.1.0/bin"),
        *("--mount", "type=bind,source=/data/workers/5.1.0/cache,target=/data/workers/5.1.0/cache"),
        *("--mount", "type=bind,source=/data/workers/5.1.0/work,target=/data/workers/5.1.0/work"),
        *("--workdir", "/data/workers/5.1.0/work", "--env-file", "/data/workers/5.1.0/variables"),
        *("--device", "nvidia.com/gpu=GPU-sim-node-1-0", "--device", "nvidia.com/gpu=GPU-sim-node-1-2"),
        *("pytorch:2", "/bin/sh", "-c", "python train.py | tee log"),
    ]
    assert made.cleanup == ["/usr/bin/podman", "rm", "--force", "--ignore", "muster-5.1.0-fb0288872031fc48"]


def test_no_variable_of_the_job_is_the_clients_and_none_stands_in_the_command_line() -> None:
    env = {"TOKEN": "s3cret", "LD_PRELOAD": "/tmp/evil.so", "NVIDIA_VISIBLE_DEVICES": "all", "QUOTED": '"a b" #c'}

    made = program(DOCKER, env=env, indices=[3])

    assert "s3cret" not in " ".join(made.argv)
    assert made.env == {"PATH": "/bin", "HOME": "/root", "MUSTER_WORKER": "c0ffee"}
    lines = made.variables.splitlines()
    assert {"TOKEN=s3cret", "LD_PRELOAD=/tmp/evil.so", 'QUOTED="a b" #c', "MUSTER_JOB_ID=5", "RANK=0"} <= set(lines)
    assert {"NVIDIA_VISIBLE_DEVICES=GPU-sim-node-1-3", "CUDA_VISIBLE_DEVICES=GPU-sim-node-1-3"} <= set(lines)
    assert "MUSTER_WORKER=c0ffee" in lines
    assert not [line for line in lines if line.startswith(("PATH=", "HOME="))]  # the image's own


@pytest.mark.parametrize("engine", [DOCKER, PODMAN])
def test_a_job_without_devices_sees_none_whatever_its_image_wants(engine: Engine) -> None:
    made = program(engine, indices=[])

    assert not {"--gpus", "--device"} & set(made.argv)
    assert {"NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES="} <= set(made.variables.splitlines())


@pytest.mark.parametrize(
    ("engine", "values", "words"),
    [
        (None, {}, "this node runs no containers"),
        (DOCKER, {"workdir": "/home/a,b"}, "cannot be mounted"),
        (DOCKER, {"workdir": "relative"}, "cannot be mounted"),
        (DOCKER, {"env": {"TEXT": "two\nlines"}}, "'TEXT' cannot be given to a container"),
        (PODMAN, {"env": {"TEXT": "x" * 65_530}}, "'TEXT' cannot be given to a container: it is longer than 64 KiB"),
    ],
)
def test_what_no_container_can_have_is_refused(engine: Engine | None, values: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusalError, match=words):
        program(engine, **values)


def test_an_image_is_no_option() -> None:
    command = start("life", "true", image="--privileged")
    plan = launch(command, {}, FOLDER, "c0ffee")

    with pytest.raises(RefusalError, match="no image's name"):
        container(DOCKER, command, plan, FOLDER, {}, None, UNLIMITED)


def test_an_agent_without_root_does_not_become_root_by_an_image() -> None:
    assert in_container(DOCKER, None, 1000, 100) == Account(1000, 100, [])
    assert in_container(DOCKER, None, 0, 0) is None
    assert in_container(PODMAN, None, 1000, 100) is None  # the image's root is that account already


def test_podman_comes_before_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_engine("auto") is None
    with pytest.raises(FileNotFoundError, match="docker is not on this machine"):
        find_engine("docker")
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_engine("auto") == Engine("podman", str(tmp_path / "podman"))
    assert find_engine("docker") == Engine("docker", str(tmp_path / "docker"))
    assert find_engine("none") is None


# -- an engine whose containers outlive their client ------------------------------------------------------------------

STAND_IN = """#!/bin/sh
# docker with a daemon of one shell: containers are processes that have left the client's tree
home=$(dirname "$0"); echo "$@" >> "$home/calls"
case $1 in
run)
    name=$4
    ( setsid sh -c 'exec sleep 1000' > /dev/null 2>&1 & echo $! > "$home/$name" )
    until test -s "$home/$name"; do sleep 0.01; done; echo started "$name"
    while test -e "$home/$name"; do sleep 0.05; done ;;
rm)
    if test -e "$home/busy"; then rm "$home/busy"; echo 'daemon: busy' >&2; exit 1; fi
    if ! test -e "$home/$3"; then echo "Error response from daemon: No such container: $3" >&2; exit 1; fi
    kill -9 "$(cat "$home/$3")"; rm "$home/$3" ;;
esac
"""


@pytest.fixture
def engine_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "docker").write_text(STAND_IN)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


async def first_line(link: FakeLink) -> str:
    """What the worker says first."""
    await link.fact(WorkerStarted, job=5)
    assert link.answer is not None
    async for chunk in link.answer(LogAsk(5, 1, 0, follow=True)):
        return chunk.decode()
    raise AssertionError


async def in_the_engine(link: FakeLink, folder: Path) -> tuple[str, int]:
    """The container's name and the pid of what is in it."""
    name = (await first_line(link)).split()[1]
    return name, int((folder / name).read_text())


def pids_of_the_worker(path: Path) -> frozenset[int]:
    """What the agent takes for the worker's processes where it tells its own from foreign ones."""
    folder = WorkerFolder(path)
    ticket = folder.claimed()
    assert ticket is not None
    [found] = worktrees([Worker(ticket, folder, 0, "")])
    return found.pids


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_stopped_worker_has_ended_when_its_container_is_removed(
    new_node: NewNode, link: FakeLink, engine_folder: Path, tmp_path: Path, tries: int
) -> None:
    life = (await new_node(container_runtime="docker").registered()).incarnation
    await link.command(start(life, "train", image="pytorch:2", indices=[]))
    name, inside = await in_the_engine(link, engine_folder)
    async with asyncio.timeout(DEADLINE_S):
        while inside not in pids_of_the_worker(tmp_path / "data/workers/5.1.0"):  # noqa: ASYNC110  # in exec
            await asyncio.sleep(0.01)
    if tries > 1:
        (engine_folder / "busy").touch()

    await link.command(stop(life, grace_ms=0))
    exited = await link.fact(WorkerExited, job=5)

    assert exited.exit.reason == "stopped"
    assert not alive(inside)
    assert not (engine_folder / name).exists()
    calls = (engine_folder / "calls").read_text().splitlines()
    assert calls[0].startswith(f"run --rm --name {name} ")
    assert calls[1:] == [f"rm --force {name}"] * tries


async def test_the_container_of_a_keeper_that_was_killed_is_removed_by_the_agent(
    new_node: NewNode, link: FakeLink, engine_folder: Path, tmp_path: Path
) -> None:
    life = (await new_node(container_runtime="docker").registered()).incarnation
    await link.command(start(life, "train", image="pytorch:2", indices=[]))
    name, inside = await in_the_engine(link, engine_folder)

    os.kill(int((tmp_path / "data/workers/5.1.0/lock").read_text()), 9)
    exited = await link.fact(WorkerExited, job=5)

    assert exited.exit.reason == "lost"
    assert not alive(inside)
    assert not (engine_folder / name).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_an_account_brings_no_folder_that_it_could_not_enter_itself(
    new_node: NewNode, link: FakeLink, engine_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "open").mkdir(mode=0o755)
    life = (await new_node(container_runtime="docker", run_as="daemon").registered()).incarnation

    workdir = str(tmp_path / "closed" / "open")
    await link.command(start(life, "true", image="pytorch:2", indices=[], workdir=workdir))
    refused = await link.fact(WorkerRefused, job=5)

    assert refused.reason.endswith("is closed to others")
    assert not (engine_folder / "calls").exists()


async def test_an_image_on_a_node_without_an_engine_is_refused(new_node: NewNode, link: FakeLink) -> None:
    registered = await new_node(container_runtime="none").registered()

    await link.command(start(registered.incarnation, "true", image="pytorch:2"))
    refused = await link.fact(WorkerRefused, job=5)

    assert refused.reason == "the job wants the image pytorch:2, and this node runs no containers"
    assert not registered.inventory.containers


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        (125, "docker could not start it, unless its program ends so itself (see muster logs)"),
        (126, "docker could not start it, unless its program ends so itself (see muster logs)"),
        (127, "docker could not start it, unless its program ends so itself (see muster logs)"),
        (124, ""),
    ],
)
async def test_an_exit_code_of_the_engine_is_told_as_such(
    new_node: NewNode, link: FakeLink, engine_folder: Path, code: int, detail: str
) -> None:
    (engine_folder / "docker").write_text(f"#!/bin/sh\ntest $1 = rm || exit {code}\n")
    life = (await new_node(container_runtime="docker").registered()).incarnation

    await link.command(start(life, "train", image="pytorch:2", indices=[]))
    exited = await link.fact(WorkerExited, job=5)

    assert (exited.exit.reason, exited.exit.exit_code, exited.exit.detail) == ("exited", code, detail)


async def test_simulated_devices_are_not_given_to_a_container(
    new_node: NewNode, link: FakeLink, engine_folder: Path
) -> None:
    registered = await new_node(container_runtime="docker").registered()

    await link.command(start(registered.incarnation, "true", image="pytorch:2"))
    refused = await link.fact(WorkerRefused, job=5)

    assert refused.reason == "simulated devices cannot be given to a container"
    assert (registered.inventory.containers, registered.inventory.devices_in_containers) == (True, False)
    assert not (engine_folder / "calls").exists()


# -- podman -----------------------------------------------------------------------------------------------------------

IMAGE = "localhost/muster-test:1"
CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "{runtime}"
"""
STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/images"
runroot = "{folder}/running"
"""


@pytest.fixture
def podman(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The image of one static program, made without any registry, in a storage of the test's own. Its path is short:
    it has sockets."""
    runtime = next((name for name in ("runc", "crun") if shutil.which(name)), None)
    busybox = shutil.which("busybox")
    if os.geteuid() != 0 or shutil.which("podman") is None or runtime is None or busybox is None:
        pytest.skip("needs root, podman, runc or crun, and a static busybox")
    folder = Path(tempfile.mkdtemp(prefix="podman-"))
    (folder / "containers.conf").write_text(CONTAINERS.format(runtime=runtime))
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    monkeypatch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
    make_image(busybox, folder / "image.tar")
    for command in (
        ["podman", "import", "--quiet", str(folder / "image.tar"), IMAGE],
        ["podman", "run", "--rm", "--network", "host", IMAGE, "/bin/id"],
    ):
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if tried.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"podman does not run here: {tried.stderr.strip()[-200:]}")
    yield IMAGE
    shutil.rmtree(folder, ignore_errors=True)


def make_image(busybox: str, path: Path) -> None:
    with tarfile.open(path, "w") as image:
        image.add(busybox, "bin/busybox")
        for name in ("sh", "id", "env", "cat", "sleep", "grep", "echo"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            image.addfile(link)


def left_in_podman() -> list[dict[str, object]]:
    listed = subprocess.run(["podman", "ps", "--all", "--format", "json"], capture_output=True, check=True, timeout=60)
    found: list[dict[str, object]] = json.loads(listed.stdout)
    return [one for one in found if str(one["Names"]).startswith("['muster-5.1.0")]


async def test_podman_runs_a_worker_with_its_variables_and_its_folder(
    new_node: NewNode, link: FakeLink, podman: str, tmp_path: Path
) -> None:
    life = (await new_node(container_runtime="podman").registered()).incarnation
    script = "echo $TOKEN $MUSTER_JOB_ID; grep NoNewPrivs /proc/self/status; echo made > made; exit 7"

    await link.command(
        start(life, script, image=podman, indices=[], cpus=1, memory_mib=256, env={"TOKEN": "a 'b' \"c\" #d"})
    )
    exited = await link.fact(WorkerExited, job=5)

    folder = tmp_path / "data/workers/5.1.0"
    assert (folder / "output").read_text().split("\n") == ["a 'b' \"c\" #d 5", "NoNewPrivs:\t1", ""]
    assert exited.exit.exit_code == 7
    assert (folder / "work/made").read_text() == "made\n"
    assert left_in_podman() == []


async def test_podman_keeps_its_own_variables_from_a_worker(
    new_node: NewNode, link: FakeLink, podman: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://agent:s3cret@proxy.example")
    life = (await new_node(container_runtime="podman").registered()).incarnation

    await link.command(start(life, "env", image=podman, indices=[], cpus=1, memory_mib=256))
    await link.fact(WorkerExited, job=5)

    output = (tmp_path / "data/workers/5.1.0/output").read_text()
    assert "MUSTER_JOB_ID=5" in output
    assert "s3cret" not in output


async def test_podman_runs_a_worker_as_its_account(
    new_node: NewNode, link: FakeLink, podman: str, tmp_path: Path
) -> None:
    entry = pwd.getpwnam("daemon")
    life = (await new_node(container_runtime="podman", run_as="daemon").registered()).incarnation

    await link.command(
        start(life, "id -u; id -g; cat ../claimed; echo made > made", image=podman, indices=[], cpus=1, memory_mib=256)
    )
    exited = await link.fact(WorkerExited, job=5)

    folder = tmp_path / "data/workers/5.1.0"
    lines = (folder / "output").read_text().splitlines()
    assert lines[:2] == [str(entry.pw_uid), str(entry.pw_gid)]
    assert "No such file" in lines[2]
    assert (exited.exit.exit_code, (folder / "work/made").stat().st_uid) == (0, entry.pw_uid)


async def test_podman_ends_with_its_worker(new_node: NewNode, link: FakeLink, podman: str) -> None:
    life = (await new_node(container_runtime="podman").registered()).incarnation
    await link.command(start(life, "echo started here; sleep 1000", image=podman, indices=[], cpus=1, memory_mib=256))
    assert await first_line(link) == "started here\n"

    await link.command(stop(life, grace_ms=500))
    exited = await link.fact(WorkerExited, job=5)

    assert exited.exit.reason == "stopped"
    assert left_in_podman() == []
