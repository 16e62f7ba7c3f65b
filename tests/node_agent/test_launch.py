"""From a command to what is executed."""

from agent_world import start

from muster.events.types import DeviceBinding
from muster.node_agent.launch import launch


def test_a_text_is_a_shell_s_and_a_list_is_nobody_s() -> None:
    assert launch(start("i", "a; b $C"), {}, "/w", "t").argv == ["/bin/sh", "-c", "a; b $C"]
    assert launch(start("i", ["a; b", "$C"]), {}, "/w", "t").argv == ["a; b", "$C"]


def test_devices_are_named_in_pci_order_or_by_uuid_and_never_left_unset() -> None:
    command = start("i", "true", devices=[DeviceBinding(10, "GPU-k"), DeviceBinding(2, "GPU-c")])
    assert launch(command, {}, "/w", "t").env["CUDA_VISIBLE_DEVICES"] == "2,10"
    assert launch(command, {}, "/w", "t", "uuid").env["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-k"
    assert launch(start("i", "true", devices=[]), {}, "/w", "t").env["CUDA_VISIBLE_DEVICES"] == ""


def test_the_job_s_variables_win_over_the_agent_s_but_not_over_muster_s() -> None:
    own = {"PATH": "/agent", "HOME": "/root", "AWS_SECRET_ACCESS_KEY": "x"}
    env = {"HOME": "/home/ada", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "MUSTER_ANYTHING": "1", "MASTER_PORT": "1"}
    result = launch(start("i", "true", env=env), own, "/w", "t")
    assert result.env["PATH"] == "/agent"
    assert result.env["HOME"] == "/home/ada"
    assert result.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert result.env["MASTER_PORT"] == "1"
    assert "MUSTER_ANYTHING" not in result.env
    assert "AWS_SECRET_ACCESS_KEY" not in result.env


def test_the_working_directory_is_the_worker_s_own_unless_the_job_names_one() -> None:
    assert launch(start("i", "true"), {}, "/w", "t").cwd == "/w/work"
    assert launch(start("i", "true", workdir="/data"), {}, "/w", "t").cwd == "/data"
