"""Nodes, devices and `top` on the command line."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_harness import Background
from click.testing import CliRunner, Result

from muster.api import cli_top
from muster.api.cli import main
from muster.api.client import Client, RefusedError, UnreachableError
from muster.api.device_text import status, to_do
from muster.api.top_text import Shown, screen
from muster.events import types as t
from muster.events.telemetry import DeviceSample

Muster = Callable[..., Result]
PROGRAM = Path(sys.executable).with_name("muster")
LINKS = [["X", "NV12", "SYS"], ["NV12", "X", ""], ["SYS", "", "X"]]


@pytest.fixture
def muster(server: Background) -> Muster:
    """The command line, against a server with one node: two A100-80GB, the second ill, and an L4."""
    first = t.Device(
        0, "GPU-0", "A100-80GB", 81_154, 81_920, pci_bus_id="0000:07:00.0", minor=0, capability="8.0", numa=0,
    )  # fmt: skip
    devices = [
        first,
        t.Device(1, "GPU-1", "A100-80GB", 81_154, 81_920, numa=0),
        t.Device(2, "GPU-2", "L4", 24_064, 24_576),
    ]
    inventory = t.Inventory(devices, 64, 1 << 20, "10.0.0.1", fabric="lab", driver="550.54", topology=LINKS)
    fault = t.DeviceFault(1, "GPU-1", "xid", "quarantine", xid=64, detail="no spare row")
    server.do(lambda harness: harness.append(t.NodeRegistered("node-1", "life", inventory, [], 120_000)))
    server.do(lambda harness: harness.append(t.DeviceFaulted("node-1", "life", fault)))

    def call(*words: str) -> Result:
        env = {"MUSTER_SERVER": server.harness.url, "COLUMNS": None, "LOGNAME": "ada"}
        return CliRunner().invoke(main, list(words), env=env, catch_exceptions=False)

    return call


def sample(server: Background) -> None:
    """The first device is in use, of the second only its temperature is known, the third is idle."""
    samples = [
        DeviceSample(0, "GPU-0", 81_920, 40_960, sm_percent=45, temperature_c=61, power_w=291.6),
        DeviceSample(1, "GPU-1", temperature_c=33),
        DeviceSample(2, "GPU-2", 24_576, 0, sm_percent=0, temperature_c=30, power_w=12.0),
    ]
    server.do(lambda harness: harness.sample("node-1", *samples))


def run_half_a_card(muster: Muster, server: Background) -> None:
    muster("submit", "--gpus", "1", "--gpu-memory", "40GiB", "--gpu-compute", "0.5", "--name", "half", "--", "true")
    server.do(lambda harness: harness.decide())
    server.do(lambda harness: harness.start(3))


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_nodes_show_how_many_devices_take_work_and_what_is_wrong(muster: Muster, server: Background) -> None:
    run_half_a_card(muster, server)
    assert muster("nodes").output == (
        "NODE    STATUS  USABLE  HELD  MODEL         CPUS  MEMORY  FABRIC  TROUBLE       JOBS\n"
        "node-1  ready   2/3        1  A100-80GB,L4    64  1.0TiB  lab     1 quarantine  3\n"
    )


def test_a_degraded_node_takes_no_work(muster: Muster, server: Background) -> None:
    server.do(lambda harness: harness.append(t.NodeDegraded("node-1", "life", "driver_mismatch", "550 is not 560")))
    assert table(muster("nodes").output)[1][1:3] == ["degraded", "0/3"]
    assert (
        "degraded     driver_mismatch: 550 is not 560\nto do        restart the machine, or load its driver again\n"
    ) in muster("nodes", "node-1").output
    assert (
        "node-1: degraded (driver_mismatch: 550 is not 560; restart the machine, or load its driver again)\n"
    ) in muster("top", "--once").output


def _node(**values: Any) -> dict[str, Any]:
    return {"status": "ready", "available": False, "cordoned": "", "degraded": "", **values}


@pytest.mark.parametrize(
    ("node", "word", "step"),
    [
        (_node(available=True), "ready", ""),
        (_node(), "busy", ""),
        (_node(cordoned="by ada: a fan"), "cordoned", ""),
        (_node(degraded="reboot: device 0: Xid 79"), "degraded", "restart the machine"),
        (_node(cordoned="by ada", degraded="a reason of its own"), "cordoned,degraded", ""),
        (_node(status="lost"), "lost", ""),
        (
            _node(status="suspect", degraded="nvml_failed"),
            "suspect,degraded",
            "see what nvidia-smi says on the machine",
        ),
    ],
)
def test_a_status_says_what_keeps_work_away_and_what_heals_it(node: dict[str, Any], word: str, step: str) -> None:
    assert (status(node), to_do(node)) == (word, step)


def test_a_node_shows_its_devices_and_says_what_is_wrong_with_them(muster: Muster, server: Background) -> None:
    run_half_a_card(muster, server)
    sample(server)
    foreign = [t.ForeignUse(2, "GPU-2", 6144)]
    server.do(lambda harness: harness.append(t.ForeignUsageChanged("node-1", "life", foreign)))
    _, devices, notes = muster("nodes", "node-1").output.split("\n\n")
    assert devices == (
        "DEV  MODEL      MEMORY   HELD     COMPUTE  USED          SM   TEMP  POWER  JOBS  CONDITION   BUS\n"
        "  0  A100-80GB  79.3GiB  39.6GiB  50%      40.0/80.0GiB  45%  61C   292W   3     -           0000:07:00.0\n"
        "  1  A100-80GB  79.3GiB  -        -        -             -    33C   -      -     quarantine  -\n"
        "  2  L4         23.5GiB  -        -        0.0/24.0GiB   0%   30C   12W    -     foreign     -"
    )
    first, second = notes.splitlines()
    assert first.startswith("device 1: quarantine since ")
    assert first.endswith(": Xid 64: no spare row")
    assert second == "device 2: about 6.0GiB used by processes that are nobody's work here"


def test_narrow_terminals_show_fewer_columns_of_nodes_and_devices(
    muster: Muster, server: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_half_a_card(muster, server)
    sample(server)

    def titles(letters: int, *words: str) -> str:
        for module in ("cli_nodes", "cli_top"):
            monkeypatch.setattr(f"muster.api.{module}.width", lambda: letters)
        lines = muster(*words).output.split("\n\n")[-2 if words == ("nodes", "node-1") else -1].splitlines()
        assert not [line for line in lines if len(line) > letters or line.endswith("…")]
        return " ".join(lines[0].split())

    assert titles(80, "nodes", "node-1") == "DEV MODEL MEMORY HELD COMPUTE USED SM JOBS CONDITION"
    assert titles(60, "nodes", "node-1") == "DEV MEMORY HELD USED SM JOBS CONDITION"
    assert titles(80, "nodes") == "NODE STATUS USABLE HELD MODEL CPUS MEMORY TROUBLE JOBS"
    assert titles(60, "nodes") == "NODE STATUS USABLE HELD TROUBLE JOBS"
    assert titles(80, "top", "--once") == "NODE DEV MODEL MEMORY SM TEMP POWER CONDITION JOBS"
    assert titles(60, "top", "--once") == "NODE DEV MEMORY SM CONDITION JOBS"


def test_wide_shows_all_about_devices_however_narrow_the_terminal(
    muster: Muster, server: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = DeviceSample(0, "GPU-0", sm_clock_mhz=1410, memory_clock_mhz=1593, ecc_corrected=2, ecc_uncorrected=0)
    server.do(lambda harness: harness.sample("node-1", clocks))
    monkeypatch.setattr("muster.api.cli_nodes.width", lambda: 40)
    _, states, devices, _ = muster("nodes", "--wide").output.split("\n\n")
    assert states.splitlines()[0].split()[-2:] == ["CONDITION", "BUS"]
    assert devices == (
        "DEV  BUS           MINOR  UUID   CAPABILITY  NUMA  MIG  SM CLOCK  MEMORY CLOCK  ECC  DOMAIN\n"
        "  0  0000:07:00.0      0  GPU-0  8.0            0  off  1410MHz   1593MHz       2/0  -\n"
        "  1  -                 -  GPU-1  -              0  off  -         -             -    -\n"
        "  2  -                 -  GPU-2  -              -  off  -         -             -    -"
    )
    refused = muster("nodes", "--wide", "--smi")
    assert (refused.exit_code, refused.stderr.splitlines()[0]) == (2, "muster: --smi and --wide are 2 answers")


def test_a_sample_that_is_old_is_not_shown_and_its_age_is(muster: Muster, server: Background) -> None:
    old = DeviceSample(0, "GPU-0", 81_920, 40_960, sm_percent=45)
    server.do(lambda harness: harness.sample("node-1", old, age_s=75))
    shown = muster("nodes", "node-1").output
    assert "40.0" not in shown
    assert "device 0: its last sample is 1:15 old, or of an earlier life of its agent\n" in shown
    assert muster("nodes", "--smi").output.splitlines()[1] == "0, [N/A], [N/A], [N/A]"


def test_devices_are_printed_as_nvidia_smi_does(muster: Muster, server: Background) -> None:
    sample(server)
    expected = (
        "index, memory.total [MiB], memory.used [MiB], utilization.gpu [%]\n"
        "0, 81920 MiB, 40960 MiB, 45 %\n"
        "1, [N/A], [N/A], [N/A]\n"
        "2, 24576 MiB, 0 MiB, 0 %\n"
    )
    assert muster("nodes", "--smi").output == expected
    assert muster("nodes", "--smi", "node-1").output == expected
    server.do(lambda harness: harness.add_node("node-2", devices=1))
    assert muster("nodes", "--smi", "node-1").output == expected
    assert muster("nodes", "--smi").output == (
        "node, index, memory.total [MiB], memory.used [MiB], utilization.gpu [%]\n"
        "node-1, 0, 81920 MiB, 40960 MiB, 45 %\n"
        "node-1, 1, [N/A], [N/A], [N/A]\n"
        "node-1, 2, 24576 MiB, 0 MiB, 0 %\n"
        "node-2, 0, [N/A], [N/A], [N/A]\n"
    )


def test_nothing_was_sampled_in_the_past(muster: Muster, server: Background) -> None:
    sample(server)
    assert muster("at", "2", "nodes", "--smi").output.splitlines()[1] == "0, [N/A], [N/A], [N/A]"
    assert table(muster("nodes", "--at", "1").output)[1][8] == "-"


def test_connections_are_printed_as_nvidia_smi_does(muster: Muster, server: Background) -> None:
    matrix, legend = muster("nodes", "--topology").output.split("\n\n", 1)
    assert matrix == (
        "\tGPU0\tGPU1\tGPU2\tNUMA Affinity\nGPU0\t X \tNV12\tSYS\t0\nGPU1\tNV12\t X \tN/A\t0\nGPU2\tSYS\tN/A\t X \tN/A"
    )
    assert legend.startswith("Legend:\n")
    server.do(lambda harness: harness.add_node("node-2", devices=1))
    assert muster("nodes", "node-2", "--topology").output.startswith("\tGPU0\tNUMA Affinity\nGPU0\tN/A\tN/A\n")
    refused = muster("nodes", "--topology")
    assert (refused.exit_code, "node-1, node-2" in refused.stderr) == (2, True)
    assert muster("nodes", "--topology", "--smi").exit_code == 2


def test_a_device_is_cordoned_and_vouched_for(muster: Muster) -> None:
    assert muster("cordon", "node-1", "--device", "0", "--reason", "a loud fan").output == (
        "device 0 of node-1 is cordoned\n"
    )
    assert "device 0: cordoned by ada: a loud fan\n" in muster("nodes", "node-1").output
    assert "0 cordoned, 1 quarantine" in muster("nodes").output
    assert muster("uncordon", "node-1", "--device", "0").output == "device 0 of node-1 takes work\n"
    assert muster("uncordon", "node-1", "--device", "1").exit_code == 0
    assert table(muster("nodes").output)[1][2] == "3/3"
    again = muster("uncordon", "node-1", "--device", "1")
    assert (again.exit_code, "nothing is known to be wrong with it" in again.stderr) == (4, True)
    assert muster("cordon", "node-1", "--device", "3").exit_code == 3
    said = [line.strip().split("  ", 2)[-1] for line in muster("events").output.splitlines()[-3:]]
    assert said == [
        "DeviceCordoned       node=node-1 device=0 user=ada reason='a loud fan'",
        "DeviceUncordoned     node=node-1 device=0 user=ada",
        "DeviceUncordoned     node=node-1 device=1 user=ada",
    ]


def test_top_shows_devices_with_what_they_do_and_for_whom(muster: Muster, server: Background) -> None:
    run_half_a_card(muster, server)
    muster("submit", "--gpus", "8", "--wait-for-capacity", "--", "true")
    sample(server)
    head, *rest = muster("top", "--once").output.splitlines()
    assert head[8:] == " UTC  nodes 1 of 1 take work  devices 1 held, 2 of 3 usable  jobs 1 running, 1 waiting"
    assert rest == [
        "",
        "NODE    DEV  MODEL      MEMORY                     SM   TEMP  POWER  CONDITION   JOBS",
        "node-1    0  A100-80GB  [#####.....] 40.0/80.0GiB  45%  61C   292W   -           3 half (ada)",
        "node-1    1  A100-80GB  -                          -    33C   -      quarantine  -",
        "node-1    2  L4         [..........] 0.0/24.0GiB   0%   30C   12W    -           -",
    ]


def test_top_is_filtered_by_node_and_by_user(muster: Muster, server: Background) -> None:
    run_half_a_card(muster, server)
    server.do(lambda harness: harness.add_node("node-2", devices=1))
    assert [row[:2] for row in table(muster("top", "--once", "--node", "node-2").output)[3:]] == [["node-2", "0"]]
    assert [row[:2] for row in table(muster("top", "--once", "-u", "ada").output)[3:]] == [["node-1", "0"]]
    assert muster("top", "--once", "--user", "bob").output.splitlines()[2] == "bob's jobs hold no devices"
    assert muster("top", "--once", "--node", "node-9").exit_code == 3


def test_top_in_json_is_an_object_a_line(muster: Muster, server: Background) -> None:
    run_half_a_card(muster, server)
    sample(server)
    [line] = muster("top", "--once", "--json").output.splitlines()
    found = json.loads(line)
    assert (found["running"], found["waiting"], found["sequence"]) == (1, 0, len(server.harness.log.entries))
    assert [(row["id"], row["name"]) for row in found["jobs"]] == [(3, "half")]
    assert found["nodes"][0]["devices"][0]["sample"]["sm_percent"] == 45


def _shown(devices: int) -> Shown:
    sample = dict.fromkeys(("memory_total_mib", "memory_used_mib", "sm_percent", "temperature_c", "power_w"))
    device: dict[str, Any] = {"model": "L4", "jobs": [7], "condition": None, "cordoned": "", "foreign_mib": 0}
    node = {
        "name": "node-1", "available": True, "status": "ready", "devices_held": devices, "devices_usable": devices,
        "devices": [{**device, "index": index, "sample": sample} for index in range(devices)],
    }  # fmt: skip
    jobs = {7: {"name": "a-job-of-a-long-name\x1b[2J", "user": "ada"}}
    return Shown("2026-01-31T12:00:00Z", [node], jobs, 1, 0)


def test_a_screen_fits_the_terminal() -> None:
    lines = screen(_shown(40), width=60, height=12).split("\n")
    assert len(lines) == 12
    assert max(map(len, lines)) == 60
    assert lines[:2] == [
        "12:00:00 UTC  nodes 1 of 1 take work",
        "devices 40 held, 40 of 40 usable  jobs 1 running, 0 waiting",
    ]
    assert lines[-1] == "and 33 more devices: --node or --user shows fewer"
    assert len(screen(_shown(40), width=0, height=0).split("\n")) == 43


def test_a_screen_shows_no_control_characters() -> None:
    assert "\x1b" not in screen(_shown(1), width=0, height=0)


def test_top_goes_on_until_ctrl_c_and_ends_quietly(muster: Muster, server: Background) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"MUSTER_SERVER": server.harness.url, "TERM": "xterm"}
    words = [str(PROGRAM), "top", "--interval", "0.5"]
    top = subprocess.Popen(words, env=environment, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    seen = ""
    try:
        while seen.count("\x1b[H") < 3:
            seen += os.read(ours, 65_536).decode()
        top.send_signal(signal.SIGINT)
        _, errors = top.communicate(timeout=20)
    finally:
        top.kill()
        os.close(ours)
    assert (top.returncode, errors) == (0, "")
    assert "devices 0 held, 2 of 3 usable" in seen


def test_q_ends_top_and_the_terminal_is_as_it_was(muster: Muster, server: Background) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = os.environ | {"MUSTER_SERVER": server.harness.url, "TERM": "xterm"}
    words = ["setsid", "--ctty", "--wait", str(PROGRAM), "top", "--interval", "60"]
    top = subprocess.Popen(words, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True)
    seen = ""
    try:
        while "devices 0 held" not in seen:
            seen += os.read(ours, 65_536).decode()
        os.write(ours, b"xq")
        _, errors = top.communicate(timeout=20)
        assert (top.returncode, errors) == (0, "")
        assert termios.tcgetattr(theirs) == before
    finally:
        top.kill()
        os.close(ours)
        os.close(theirs)


def test_a_server_that_is_away_is_one_line_of_the_frame(capsys: pytest.CaptureFixture[str]) -> None:
    empty = Shown("2026-01-31T12:00:00Z", [], {}, 0, 0)
    looks: list[Shown | BaseException] = [
        empty,
        UnreachableError("no server at all", sent=False),
        RefusedError(503, {"title": "it is behind"}),
        empty,
        KeyboardInterrupt(),
    ]

    def look() -> tuple[Shown, int]:
        found = looks.pop(0)
        if isinstance(found, Shown):
            return found, 7
        raise found

    with pytest.raises(KeyboardInterrupt):
        cli_top._live(look, 0)
    head = "12:00:00 UTC  nodes 0 of 0 take work  devices 0 held, 0 of 0 usable  jobs 0 running, 0 waiting"
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        *(head, "", "no devices"),
        *(head, "no server at all; trying again, this is as it was at 12:00:00 UTC", "", "no devices"),
        *(head, "it is behind; trying again, this is as it was at 12:00:00 UTC", "", "no devices"),
        *(head, "", "no devices"),
    ]


def test_top_into_a_pipe_is_one_picture_unless_it_is_said_how_often(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on(_duration_s: float) -> None:
        raise AssertionError("it was to end")

    monkeypatch.setattr("muster.api.cli_top.time.sleep", go_on)
    assert muster("top").stdout.count("nodes 1 of 1 take work") == 1
    assert len(muster("top", "--json").stdout.splitlines()) == 1


def test_top_outlives_a_server_that_is_away(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    get = Client.get

    def nap(duration_s: float) -> None:
        naps.append(duration_s)
        if len(naps) == 4:
            raise KeyboardInterrupt

    def get_or_fail(client: Client, *words: Any, **options: Any) -> Any:
        if len(naps) in (1, 2):
            raise UnreachableError("no server at all", sent=False)
        return get(client, *words, **options)

    monkeypatch.setattr("muster.api.cli_top.time.sleep", nap)
    monkeypatch.setattr(Client, "get", get_or_fail)
    result = muster("top", "--interval", "7")
    assert (result.exit_code, naps) == (0, [7.0, 7.0, 7.0, 7.0])
    assert result.stdout.count("nodes 1 of 1 take work") == 2
    assert result.stderr == "muster: no server at all; trying again\n"


def test_top_of_an_empty_cluster() -> None:
    assert screen(Shown("2026-01-31T12:00:00Z", [], {}, 0, 0), 0, 0) == (
        "12:00:00 UTC  nodes 0 of 0 take work  devices 0 held, 0 of 0 usable  jobs 0 running, 0 waiting\n\nno devices"
    )
