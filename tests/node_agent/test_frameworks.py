"""What each framework's launcher finds in its environment, word for word."""

import json
from typing import Any

import pytest
from agent_world import start

from muster.events.frameworks import framework_environment, thread_environment
from muster.events.types import Endpoint, StartWorker
from muster.node_agent.frameworks import interface_environment
from muster.node_agent.launch import launch


def worker(framework: str, rank: int, devices: list[int], **values: Any) -> StartWorker:
    """A worker of a gang whose nodes have so many devices each."""
    indices = list(range(devices[rank]))
    processes = [max(1, count) for count in devices]
    return start(
        "i",
        values.pop("command", "true"),
        framework=framework,
        rank=rank,
        world=len(devices),
        indices=indices,
        processes=sum(processes),
        first_process=sum(processes[:rank]),
        master_address="10.0.0.1",
        master_port=21_005,
        endpoints=[Endpoint(f"10.0.0.{node}", 21_005) for node in range(1, len(devices) + 1)],
        **values,
    )


# -- PyTorch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "devices", "nodes", "here"),
    [
        pytest.param(0, [4], "1", "4", id="one node"),
        pytest.param(1, [2, 2], "2", "2", id="two nodes"),
        pytest.param(0, [3, 1], "2", "3", id="uneven, the larger part"),
        pytest.param(1, [3, 1], "2", "1", id="uneven, the smaller part"),
        pytest.param(1, [0, 0], "2", "1", id="no devices"),
    ],
)
def test_torchrun_starts_a_process_for_each_device(rank: int, devices: list[int], nodes: str, here: str) -> None:
    assert framework_environment(worker("pytorch", rank, devices)) == {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": here,
        "PET_NODE_RANK": str(rank),
        "PET_RDZV_BACKEND": "static",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "21005",
        "PET_RDZV_ID": "5.1",
        "PET_MAX_RESTARTS": "0",
    }


# -- TensorFlow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "devices", "addresses"),
    [
        pytest.param(0, [4], ["10.0.0.1:21005"], id="one node"),
        pytest.param(1, [3, 1], ["10.0.0.1:21005", "10.0.0.2:21005"], id="uneven"),
        pytest.param(1, [0, 0], ["10.0.0.1:21005", "10.0.0.2:21005"], id="no devices"),
    ],
)
def test_tensorflow_has_one_task_a_node(rank: int, devices: list[int], addresses: list[str]) -> None:
    env = framework_environment(worker("tensorflow", rank, devices))
    assert env.keys() == {"TF_CONFIG"}
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": addresses},
        "task": {"type": "worker", "index": rank},
    }


# -- JAX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "devices", "local"),
    [
        pytest.param(0, [4], "0,1,2,3", id="one node"),
        pytest.param(0, [3, 1], "0,1,2", id="uneven, the larger part"),
        pytest.param(1, [3, 1], "0", id="uneven, the smaller part"),
        pytest.param(1, [0, 0], "0", id="no devices"),
    ],
)
def test_jax_has_one_process_a_node_that_sees_all_its_devices(rank: int, devices: list[int], local: str) -> None:
    assert framework_environment(worker("jax", rank, devices)) == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:21005",
        "JAX_LOCAL_DEVICE_IDS": local,
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_NODELIST": "10.0.0.1",
        "SLURM_NTASKS": str(len(devices)),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
    }


def test_an_ipv6_address_stands_in_brackets_before_a_port() -> None:
    command = start("i", "true", framework="jax", master_address="fd00::1", master_port=21_005)
    assert framework_environment(command)["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:21005"


# -- MindSpore ------------------------------------------------------------------------------------------------------


def test_msrun_is_ours_first_and_finds_the_gang_in_the_worker_s_own_variables() -> None:
    plan = launch(worker("mindspore", 1, [3, 1]), {"PATH": "/opt/ms/bin:/usr/bin"}, "/w", "t")
    assert plan.programs == ("msrun",)
    assert plan.env["PATH"] == "/w/bin:/opt/ms/bin:/usr/bin"
    wanted = {
        "MUSTER_MSRUN": "/w/bin/msrun",
        "MUSTER_MSRUN_LOGS": "/w/cache/msrun",
        "MUSTER_RANK": "1",
        "MUSTER_PROCESSES": "4",
        "MUSTER_LOCAL_PROCESSES": "1",
        "MUSTER_FIRST_PROCESS": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "21005",
    }
    assert wanted.items() <= plan.env.items()


def test_our_msrun_is_first_in_the_job_s_own_path_too() -> None:
    plan = launch(worker("mindspore", 0, [1], env={"PATH": "/home/ada/ms/bin"}), {"PATH": "/bin"}, "/w", "t")
    assert plan.env["PATH"] == "/w/bin:/home/ada/ms/bin"


def test_our_msrun_is_what_is_executed_where_a_container_has_a_path_of_its_own() -> None:
    command = worker("mindspore", 0, [1], command=["msrun", "train.py"], image="ms:2")
    assert launch(command, {}, "/w", "t").argv == ["/w/bin/msrun", "train.py"]
    command = worker("mindspore", 0, [1], command=["/opt/bin/msrun", "train.py"], image="ms:2")
    assert launch(command, {}, "/w", "t").argv == ["/opt/bin/msrun", "train.py"]


# -- all of them ----------------------------------------------------------------------------------------------------


def test_without_a_framework_nothing_of_one_is_set() -> None:
    assert framework_environment(worker("none", 0, [2])) == {}
    plan = launch(worker("none", 0, [2]), {"PATH": "/bin"}, "/w", "t")
    assert (plan.programs, plan.env["PATH"]) == ((), "/bin")


@pytest.mark.parametrize(
    ("framework", "devices", "cpus", "threads"),
    [
        ("pytorch", 4, 32, "8"),
        ("mindspore", 3, 8, "2"),
        ("pytorch", 4, 2, "1"),
        ("pytorch", 0, 6, "6"),
        ("tensorflow", 4, 32, "32"),
        ("jax", 4, 32, "32"),
        ("none", 4, 0, "1"),
    ],
)
def test_each_process_has_its_part_of_the_cpus(framework: str, devices: int, cpus: int, threads: str) -> None:
    command = worker(framework, 0, [devices], cpus=cpus)
    assert thread_environment(command) == {"OMP_NUM_THREADS": threads}


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("pytorch", {}),
        ("tensorflow", {}),
        ("jax", {"JAX_COMPILATION_CACHE_DIR": "/w/cache/jax"}),
        ("mindspore", {"MS_COMPILER_CACHE_PATH": "/w/cache/mindspore"}),
        ("none", {}),
    ],
)
def test_what_is_compiled_is_kept_below_the_worker_s_folder(framework: str, more: dict[str, str]) -> None:
    env = launch(worker(framework, 0, [1]), {}, "/w", "t").env
    every = {
        "TORCH_EXTENSIONS_DIR": "/w/cache/torch_extensions",
        "TORCHINDUCTOR_CACHE_DIR": "/w/cache/inductor",
        "TRITON_CACHE_DIR": "/w/cache/triton",
        "CUDA_CACHE_PATH": "/w/cache/cuda",
    }
    assert {name: value for name, value in env.items() if "CACHE" in name or name in every} == every | more


def test_workers_of_several_nodes_meet_on_the_network_of_their_address() -> None:
    assert interface_environment(worker("pytorch", 0, [2, 2]), "ib0") == {
        "NCCL_SOCKET_IFNAME": "=ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }
    assert interface_environment(worker("pytorch", 0, [2]), "ib0") == {}
    assert interface_environment(worker("pytorch", 0, [2, 2]), "") == {}


def test_the_job_s_own_variables_win() -> None:
    env = {"PET_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "3", "TRITON_CACHE_DIR": "/shared", "MUSTER_PROCESSES": "9"}
    plan = launch(worker("pytorch", 0, [4], env=env), {}, "/w", "t")
    assert plan.env["PET_NPROC_PER_NODE"] == "2"
    assert plan.env["OMP_NUM_THREADS"] == "3"
    assert plan.env["TRITON_CACHE_DIR"] == "/shared"
    assert plan.env["MUSTER_PROCESSES"] == "4"
