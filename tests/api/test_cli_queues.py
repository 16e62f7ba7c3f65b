"""Queues and policy on the command line."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from api_harness import Background
from click.testing import CliRunner, Result

from muster.api import cli_base
from muster.api.cli import main

ONLY_SAID = "a dry run: nothing was changed\n"
Muster = Callable[..., Result]
CLUSTER = """
[[queue]]
name = "research"
guarantee = "60%"

[[queue]]
name = "research/vision"
limit = 2

[policy]
ageing = 20
lanes = [{ name = "small", devices = 1, max_time = "1h" }]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    return str(file)


def test_one_file_serves_queues_and_policy(muster: Muster, cluster: str) -> None:
    assert muster("queues", "apply", cluster).output == "queue research: made\nqueue research/vision: made\n"
    assert muster("queues", "apply", cluster).output == "queue research: unchanged\nqueue research/vision: unchanged\n"
    assert muster("policy", "apply", cluster).output == (
        "policy: changed: ageing 10 -> 20, lanes.small.devices none -> 1, lanes.small.max_devices none -> 1,"
        " lanes.small.max_time none -> 1h\n"
    )
    assert muster("policy", "apply", cluster).output == "policy: unchanged\n"
    assert json.loads(muster("state", "--json").output)["sequence"] == 4  # a node, two queues, a policy


def test_what_is_above_what_the_cluster_has_is_told_beside_the_answer(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    lanes = '[policy]\nlanes = [{ name = "a", devices = 5 }, { name = "b", devices = "50%" }]'
    file.write_text(f'[[queue]]\nname = "large"\nguarantee = 12\n{lanes}')

    queues, policy = muster("queues", "apply", str(file), "--dry-run"), muster("policy", "apply", str(file))

    assert queues.exit_code == policy.exit_code == 0
    assert queues.stderr == "warning: queue large is guaranteed 12 devices; the cluster has 8 devices now\n"
    assert policy.stderr == "warning: the lanes keep 9 devices together (a 5 + b 50%); the cluster has 8 devices now\n"
    assert "warning" not in queues.stdout + policy.stdout


def test_queues_are_shown_as_a_tree(muster: Muster, cluster: str) -> None:
    muster("queues", "apply", cluster)
    muster("submit", "--queue", "research/vision", "--gpus", "2", "--", "true")
    titles, default, research, vision = muster("queues").output.splitlines()
    assert titles.split()[:7] == ["QUEUE", "WEIGHT", "GUARANTEE", "LIMIT", "ORDER", "RUNNING", "PENDING"]
    assert default.split()[0] == "default"
    assert research.split()[:4] == ["research", "1", "60%", "(4.8)"]
    assert vision.startswith("  vision ")
    assert vision.split()[3:7] == ["2", "priority", "0", "1"]
    assert [row["name"] for row in json.loads(muster("queues", "--json").output)["queues"]] == [
        "default", "research", "research/vision",
    ]  # fmt: skip
    assert len(muster("at", "1", "queues").output.splitlines()) == 2


def test_a_queue_is_removed_and_pruned(muster: Muster, cluster: str, tmp_path: Path) -> None:
    muster("queues", "apply", cluster)
    result = muster("queues", "remove", "research")
    assert (result.exit_code, "queues below it: research/vision" in result.stderr) == (4, True)
    assert muster("queues", "remove", "research/vision").output == "queue research/vision: removed\n"
    assert muster("queues", "remove", "research/vision").exit_code == 3
    assert muster("queues", "remove", "default").exit_code == 4
    other = tmp_path / "other.json"
    other.write_text('{"queue": [{"name": "ops"}]}')
    refused = muster("queues", "apply", str(other), "--prune")
    assert (refused.exit_code, "this would remove 1 queue: research" in refused.stderr) == (2, True)
    told = "queue ops: made\nqueue research: removed\n"
    assert muster("queues", "apply", str(other), "--prune", "--dry-run").output == f"{told}{ONLY_SAID}"
    assert muster("queues", "apply", str(other), "--prune", "--yes").output == told


def test_pruning_asks_first(muster: Muster, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    muster("queues", "apply", cluster)
    other = tmp_path / "other.toml"
    other.write_text('[[queue]]\nname = "research"\nguarantee = "60%"\n')
    asked: list[str] = []
    monkeypatch.setattr(cli_base, "is_terminal", lambda: True)
    monkeypatch.setattr("click.confirm", lambda question, **_: asked.append(question))

    assert muster("queues", "apply", str(other), "--prune").output.splitlines()[1] == "queue research/vision: removed"
    assert muster("queues", "apply", str(other), "--prune").exit_code == 0
    assert asked == ["remove 1 queue (research/vision)?"]


def test_what_changes_is_told_and_can_be_tried(muster: Muster, cluster: str, tmp_path: Path) -> None:
    muster("queues", "apply", cluster)
    muster("policy", "apply", cluster)
    other = tmp_path / "other.toml"
    other.write_text(
        '[[queue]]\nname = "research"\nguarantee = "50%"\npriority = "P1"\n[[queue]]\nname = "research/vision"\n'
        '[policy]\nhalf_life = "7d"\nlanes = [{ name = "small", devices = 2, max_time = "90m" }]\n'
    )
    queues = (
        "queue research: changed: guarantee 60% -> 50%, priority none -> 600\n"
        "queue research/vision: changed: limit 2 -> none\n"
    )
    policy = (
        "policy: changed: ageing 20 -> 10, half_life 24h -> 7d, lanes.small.devices 1 -> 2,"
        " lanes.small.max_time 1h -> 1h30m\n"
    )
    for command, told in (("queues", queues), ("policy", policy)):
        assert muster(command, "apply", str(other), "--dry-run").output == f"{told}{ONLY_SAID}"
        before = json.loads(muster("state", "--json").output)["sequence"]
        assert muster(command, "apply", str(other)).output == told
        assert json.loads(muster("state", "--json").output)["sequence"] > before
        assert ": unchanged" in muster(command, "apply", str(other), "--dry-run").output
    assert json.loads(muster("state", "--json").output)["sequence"] == 7  # 1 node, 4 of queues, 2 of the policy


def test_a_queue_is_shown_in_full(muster: Muster, server: Background, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[[queue]]\nname = "a"\nguarantee = "75%"\nlend = 2\nlimit = 7\nuser_limit = "50%"\n[[queue]]\nname = "a/b"\n'
    )
    muster("queues", "apply", str(file))
    muster("submit", "--queue", "a/b", "--gpus", "2", "--", "true")
    muster("submit", "--queue", "a/b", "--gpus", "3", "--", "true")
    server.do(lambda harness: harness.decide())
    shown = muster("queues", "a").output
    assert muster("queues", "show", "a").output == shown

    lines = {line[:15].strip(): line[17:] for line in shown.splitlines()}
    assert lines["takes jobs"] == "no: they wait in the queues below it"
    assert (lines["running"], lines["pending"]) == ("1", "1")
    assert lines["holds"].startswith("2 devices, 25.0% of the cluster")
    assert (lines["guarantee"], lines["lend"]) == ("75% (6 devices)", "2 (it keeps 4 devices)")
    assert (lines["limit"], lines["user_limit"]) == ("7", "50% (3.5 devices)")
    assert (lines["borrow"], lines["reclaim"], lines["urgent_from"]) == ("all", "preempt", "900")
    assert shown.splitlines()[-2].split() == ["USER", "RUNNING", "PENDING", "HELD"]
    assert shown.splitlines()[-1].split()[1:] == ["1", "1", "2"]
    row = json.loads(muster("queues", "a", "--json").output)
    assert (row["bounds_milli"]["kept"], row["bounds_milli"]["borrow"]) == (4_000, None)
    assert json.loads(muster("at", "3", "queues", "a", "--json").output)["users"] == []
    result = muster("queues", "nope")
    assert (result.exit_code, "no queue nope: there are a, a/b, default" in result.stderr) == (3, True)
    assert "No such command 'aply'" in muster("queues", "aply", str(file)).stderr


def test_a_wrong_file_is_told_with_its_places(muster: Muster, tmp_path: Path) -> None:
    def told(command: str, text: str, name: str = "x.toml") -> str:
        (tmp_path / name).write_text(text)
        result = muster(command, "apply", str(tmp_path / name))
        assert result.exit_code == 2
        return result.stderr

    assert "/queue/1/wieght: unknown field" in told("queues", '[[queue]]\nname="a"\n[[queue]]\nname="b"\nwieght=1\n')
    assert "/queue/0/name: there is no queue a" in told("queues", '[[queue]]\nname = "a/b"\n')
    assert "/queue/0/limit" in told("queues", '[[queue]]\nname = "a"\nlimit = 2026-01-31\n')
    assert "/policy/preemption/mode: Invalid" in told("policy", '[policy.preemption]\nmode = "warm"\n')
    assert "/policy/lanes/0/max_time" in told("policy", '[[policy.lanes]]\nname="a"\ndevices=1\nmax_time="x"\n')
    assert "/policy: Expected `object`" in told("policy", "policy = 1\n")
    assert "write [[queue]]" in told("queues", "[queue]\n")
    assert "/queues: unknown; a file has [[queue]]" in told("queues", "[[queues]]\n")
    assert "has no queues" in told("queues", "[policy]\n")
    assert "has no policy" in told("policy", "[[queue]]\n")
    assert "line 2" in told("queues", "[[queue]]\nname = = 1\n")
    assert "line 1" in told("queues", '{"queue": [}', "x.json")
    assert "must be an object" in told("queues", "[]", "x.json")
    assert muster("queues", "apply", str(tmp_path / "absent.toml")).exit_code == 3
    assert json.loads(muster("state", "--json").output)["sequence"] == 1


def test_the_policy_is_shown_as_a_file(muster: Muster, cluster: str, tmp_path: Path) -> None:
    assert "the default is" not in muster("policy").output
    muster("policy", "apply", cluster)
    shown = muster("policy").output
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "ageing = 20 # the default is 10" in lines
    assert 'backfill.mode = "easy" # the default' in lines
    assert tomllib.loads(shown)["policy"]["lanes"] == [
        {"name": "small", "devices": 1, "max_devices": 1, "max_time": "1h"}
    ]
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert muster("policy", "apply", str(again)).output == "policy: unchanged\n"
    assert json.loads(muster("policy", "--json").output)["policy"]["ageing"] == 20


def test_options_stand_before_or_after_the_subcommand(server: Background, cluster: str) -> None:
    def call(*words: str) -> Result:
        return CliRunner().invoke(main, list(words), env={"MUSTER_SERVER": "http://127.0.0.1:9"})

    url = server.harness.url
    assert call("queues", "--server", url, "apply", cluster).exit_code == 0
    assert call("queues", "apply", cluster, "--server", url).exit_code == 0
    assert json.loads(call("policy", "--json", "apply", cluster, "--server", url).output)["already"] is False
    assert call("queues", "apply", cluster).exit_code == 69
    assert "the past cannot be changed" in call("at", "1", "queues", "apply", cluster).stderr


def test_what_a_job_says_of_its_place_and_its_end(muster: Muster, tmp_path: Path) -> None:
    words = ("--priority", "P1", "--time-limit", "2h", "--estimate", "1:00:00", "--on-timeout", "requeue",
             "--no-preempt", "--signal", "USR2@120", "--grace", "30s")  # fmt: skip
    assert muster("submit", "--gpus", "1", *words, "--", "true").exit_code == 0
    job = json.loads(muster("show", "2", "--json").output)
    assert job["priority"] == 600
    assert job["spec"]["limits"] == {"time_limit": 7200, "estimate": 3600, "on_timeout": "requeue"}
    assert job["spec"]["preemption"] == {"allowed": False, "signal": "USR2@120", "grace": 30}
    shown = muster("show", "2").output
    assert "expected    1:00:00" in shown.replace("01:00:00", "1:00:00")
    assert "time_limit = 02:00:00" in shown

    for option in ("--time-limit", "--estimate", "--grace"):
        result = muster("submit", "--gpus", "1", option, "30", "--", "true")
        assert (result.exit_code, f"write {option} 30s for seconds" in result.stderr) == (2, True)

    script = tmp_path / "train.sh"
    script.write_text('#!/bin/sh\n#MUSTER gpus = 1\n#MUSTER priority = 42\n#MUSTER limits.time_limit = "90s"\ntrue\n')
    muster("submit", str(script))
    job = json.loads(muster("show", "3", "--json").output)
    assert (job["priority"], job["time_limit_s"], job["expected_from"]) == (42, 90, "time_limit")


def test_an_unknown_queue_is_refused_with_its_field(muster: Muster, cluster: str) -> None:
    muster("queues", "apply", cluster)
    result = muster("submit", "--queue", "visoin", "--gpus", "1", "--", "true")
    assert result.exit_code == 2
    assert "/queue: there is no queue 'visoin'; queues: default, research/vision" in result.stderr
    result = muster("submit", "--queue", "research/vision", "--gpus", "3", "--", "true")
    assert result.exit_code == 6
    assert "/gpus: asks for 3 devices; queue research/vision is limited to 2 devices" in result.stderr
    result = muster("submit", "--gpus", "1", "--signal", "USR9", "--", "true")
    assert (result.exit_code, "/preemption/signal: Linux has no signal" in result.stderr) == (2, True)


def test_when_devices_are_trusted_is_a_part_of_the_policy(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[policy.health]\nerrors = 5\nprobation = "10m"\n')
    assert muster("policy", "apply", str(file)).output == (
        "policy: changed: health.errors 3 -> 5, health.probation 1h -> 10m\n"
    )
    shown = tomllib.loads(muster("policy").output)["policy"]["health"]
    assert shown == {"errors": 5, "window": "24h", "probation": "10m"}
    file.write_text('[policy.health]\nwindow = "long"\n')
    refused = muster("policy", "apply", str(file))
    assert (refused.exit_code, "/policy/health/window" in refused.stderr) == (2, True)
