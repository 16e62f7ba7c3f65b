"""Bad input is named by its field, with what to do next."""

import signal
from typing import Any

import pytest
from cluster_script import Script

from muster.core.conversion import SpecError
from muster.core.quantities import duration_text, parse_duration_s
from muster.core.spec_check import capacity_problems, check_spec, flaw
from muster.events.spec import GpuSpec, JobSpec, LimitsSpec, PreemptionSpec


def problems(**fields: Any) -> list[tuple[str, str]]:
    raw: dict[str, Any] = {"command": ["true"], "gpus": 1, **fields}
    with pytest.raises(SpecError) as caught:
        check_spec({name: value for name, value in raw.items() if value is not ...})
    return [(problem.pointer, problem.detail) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"gpuz": 1}, "/gpuz", "unknown field; known here: command, cpus, env, framework, gpu, gpus"),
        ({"gpu": {"memroy": 1}}, "/gpu/memroy", "unknown field; known here: compute, interconnect, memory, model"),
        ({"gpus": -1}, "/gpus", ">= 0"),
        ({"gpus": "many"}, "/gpus", "Expected `int`"),
        ({"gpus": 0}, "/gpus", "neither devices nor CPUs"),
        ({"command": ...}, "/command", "required"),
        ({"command": []}, "/command", "this is empty"),
        ({"image": ""}, "/image", "this is empty"),
        ({"image": "x" * 513}, "/image", "this must have at most 512 letters"),
        ({"retry": {"on": ["failed"] * 9}}, "/retry/on", "this must have at most 8 entries"),
        ({"command": [""]}, "/command/0", "empty"),
        ({"command": ["a\0b"]}, "/command/0", "zero byte"),
        ({"command": "a\0b"}, "/command", "zero byte"),
        ({"env": {"A": "\0"}}, "/env/A", "zero byte"),
        ({"env": {"1A": "x"}}, "/env", "a variable's name is letters, digits and _"),
        ({"labels": {"a": 1}}, "/labels", "Expected `str`"),
        ({"name": "x" * 10_000_000}, "/name", "this must have at most 128 letters"),
        ({"name": "a\nb"}, "/name", "cannot be shown"),
        ({"workdir": "here"}, "/workdir", "absolute"),
        ({"framework": "caffe"}, "/framework", "known here: pytorch, tensorflow, mindspore, jax, none"),
        ({"image": "--privileged"}, "/image", "is no image's name"),
        ({"image": "nvcr.io/nvidia/pytorch 24.08"}, "/image", "is no image's name"),
        ({"image": "a:1", "env": {"A": "x", "B": "x\ny"}}, "/env/B", "has a line break, which no container"),
        ({"image": "a:1", "env": {"B": "x\ry"}}, "/env/B", "has a line break, which no container"),
        ({"image": "a:1", "env": {"B": "x" * 65_533}}, "/env/B", "is too long for a container"),
        ({"image": "a:1", "workdir": "/data/a,b"}, "/workdir", "cannot be mounted in a container"),
        ({"image": "oci-archive:/home/ada/private.tar"}, "/image", "is no image's name"),
        ({"image": "dir:/root"}, "/image", "is no image's name"),
        ({"image": "oci-archive:work.tar"}, "/image", "is no image's name"),
        ({"image": "docker://registry/image:1"}, "/image", "is no image's name"),
        ({"memory": "lots"}, "/memory", "is no size"),
        ({"memory": "0GiB"}, "/memory", "more than nothing"),
        ({"gpu": {"memory": "40 gigabytes"}}, "/gpu/memory", "is no size"),
        ({"gpu": {"compute": 1.5}}, "/gpu/compute", "<= 1"),
        ({"nodes": 0}, "/nodes", ">= 1"),
        ({"nodes": 4, "gpus": 2}, "/nodes", "2 devices cannot be spread over 4 nodes"),
        ({"queue": "Research"}, "/queue", "lower-case letters, digits, - and _"),
        ({"queue": "a/b/c/d/e/f/g/h/i"}, "/queue", "up to 8 names joined by /"),
        ({"priority": "P4"}, "/priority", "known here: P0, P1, P2, P3"),
        ({"priority": 1001}, "/priority", "<= 1000"),
        ({"priority": -1}, "/priority", ">= 0"),
        ({"limits": {"time_limit": "soon"}}, "/limits/time_limit", "is no duration"),
        ({"limits": {"time_limit": 0}}, "/limits/time_limit", "more than nothing"),
        ({"limits": {"time_limit": "0s"}}, "/limits/time_limit", "more than nothing"),
        ({"limits": {"estimate": "0m"}}, "/limits/estimate", "more than nothing"),
        ({"limits": {"time_limit": "99999d"}}, "/limits/time_limit", "longer than 3155760000 seconds"),
        (
            {"limits": {"time_limit": "1h", "estimate": 3601}},
            "/limits/estimate",
            "3601 s is longer than the time limit of",
        ),
        ({"limits": {"on_timeout": "suspend"}}, "/limits/on_timeout", "known here: requeue, kill"),
        (
            {"limits": {"walltime": 1}},
            "/limits/walltime",
            "unknown field; known here: estimate, on_timeout, time_limit",
        ),
        ({"preemption": {"grace": "long"}}, "/preemption/grace", "is no duration"),
        ({"preemption": {"signal": "USR3"}}, "/preemption/signal", "Linux has no signal 'USR3', such as"),
        ({"preemption": {"signal": "SIGUSR2@30"}}, "/preemption/signal", "Linux has no signal 'SIGUSR2': write USR2"),
        ({"preemption": {"signal": "KILL"}}, "/preemption/signal", "no program hears KILL"),
        ({"preemption": {"signal": "USR2@soon"}}, "/preemption/signal", '"USR2" or "USR2@120"'),
        ({"preemption": {"signal": "USR2@3601"}}, "/preemption/signal", "3601 s is more than 3600 s"),
        ({"preemption": {"grace": "601s"}}, "/preemption/grace", "601 s is more than 600 s"),
        ({"limits": {"on_timeout": "requeue"}}, "/limits/on_timeout", "set time_limit"),
        ({"preemption": {"signal": 12}}, "/preemption/signal", "Expected `str | null`"),
        ({"where": {"nodes": ["Node 1"]}}, "/where/nodes/0", "a name is lower-case letters, digits, - and _"),
        ({"retry": {"on": ["whim"]}}, "/retry/on/0", "known here: node_fail, device_fault, failed"),
        ({"nodes": "lots"}, "/nodes", "known here: any, fewest"),
        ({"gpu": {"interconnect": "ib"}}, "/gpu/interconnect", "known here: any, none"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(fields: dict[str, Any], pointer: str, words: str) -> None:
    found = problems(**fields)
    assert found[0][0] == pointer
    assert words in found[0][1]


@pytest.mark.parametrize(
    "image",
    [
        "busybox",
        "docker:24-cli",
        "team/train:7",
        "localhost:5000/team/train:v1.2_3",
        "nvcr.io/nvidia/pytorch:24.08-py3",
        "registry.example.org/a/b@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_names_of_images(image: str) -> None:
    assert check_spec({"command": "true", "cpus": 1, "image": image}).image == image


def test_every_unknown_field_is_named_and_so_is_what_else_is_wrong() -> None:
    found = problems(gpuz=1, gpu={"memroy": 1, "compute": 7}, retry={"tries": 2}, **{"a/b": 1})

    assert [pointer for pointer, _ in found] == ["/gpuz", "/gpu/memroy", "/retry/tries", "/a~1b", "/gpu/compute"]
    assert found[2][1] == "unknown field; known here: max_attempts, on"


def test_a_flood_of_unknown_fields_is_counted() -> None:
    found = problems(**{f"x{number}": 1 for number in range(1000)})

    assert len(found) == 21
    assert found[-1] == ("", "and 980 more unknown fields")


@pytest.mark.parametrize("raw", [None, 7, "x", [], [{}]])
def test_what_is_no_table_is_told(raw: Any) -> None:
    with pytest.raises(SpecError) as caught:
        check_spec(raw)
    assert caught.value.problems[0].detail.startswith("Expected `object`")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3", "src/train.py", "--epochs", "3"], "train.py"),
        (["torchrun", "--nproc-per-node", "2", "--log-dir=/x/y.sh", "train.py", "other.py"], "train.py"),
        ("LR=0.1 python3.12 'my/train.py' | tee log", "train.py"),
        (["bash", "job.sh"], "job.sh"),
        (["python", "-c", "import train.py"], "python"),
        (["python", "-m", "train"], "python"),
        (["rsync", "train.py", "there:"], "rsync"),
        (["./run.sh"], "run.sh"),
        ("OMP_NUM_THREADS=1 ./bin/train --fast | tee log", "train"),
        ("'/opt/my tools/x' y", "my"),
        ("(cd /tmp; ls)", "cd"),
        ("A=1 B=2", "job"),
        ("   ", "job"),
        (["/"], "job"),
        (["x" * 1000], "x" * 128),
        (["a\x1bb"], "ab"),
    ],
)
def test_a_job_without_a_name_has_its_programs(command: Any, name: str) -> None:
    assert check_spec({"command": command, "gpus": 1}).name == name
    assert check_spec({"command": command, "gpus": 1, "name": "mine"}).name == "mine"


def test_sizes_become_mib() -> None:
    spec = check_spec({"command": "x", "gpus": 1, "memory": "2GiB", "gpu": {"memory": "40GB"}})

    assert (spec.memory, spec.gpu.memory) == (2048, 40_960)


def test_durations_become_seconds_and_priorities_numbers() -> None:
    limits = {"time_limit": "1d12h", "estimate": "90m", "on_timeout": "requeue"}
    preemption = {"signal": "USR2@120", "grace": "30s"}
    spec = check_spec({"command": "x", "gpus": 1, "priority": "P1", "limits": limits, "preemption": preemption})

    assert (spec.priority, spec.limits.time_limit, spec.limits.estimate) == (600, 129_600, 5_400)
    assert (spec.limits.on_timeout, spec.preemption.signal, spec.preemption.grace) == ("requeue", "USR2@120", 30)
    assert check_spec({"command": "x", "gpus": 1, "priority": 0}).priority == 0
    assert check_spec({"command": "x", "gpus": 1}).priority is None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0:04", 4), ("5:00", 300), ("90:00", 5_400), ("1:00:00", 3_600), ("01:30:00", 5_400), ("1-00:00:00", 86_400)],
)
def test_durations_are_read_as_they_are_printed(written: str, seconds: int) -> None:
    assert parse_duration_s(written) == seconds
    assert parse_duration_s(duration_text(seconds)) == seconds


@pytest.mark.parametrize("written", ["30", "1:60", "1-2:03", "1:2:03", ":30", "1:", "-1:00", "1h:30"])
def test_durations_that_could_mean_two_things_are_none(written: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration_s(written)


def test_durations_are_told_with_their_units() -> None:
    texts = [duration_text(seconds) for seconds in (0, 90, 120, 3_600, 5_400, 3_601, 86_400, 90_000, 604_800)]
    assert texts == ["0s", "90s", "2m", "1h", "1h30m", "1h1s", "24h", "1d1h", "7d"]


def test_the_longest_stops_are_accepted() -> None:
    preemption = {"signal": "USR2@3600", "grace": "10m"}

    found = check_spec({"command": "x", "gpus": 1, "preemption": preemption}).preemption

    assert found == PreemptionSpec(signal="USR2@3600", grace=600)


def test_every_signal_of_this_machine_that_can_be_heard_is_known() -> None:
    names = {each.name.removeprefix("SIG") for each in signal.Signals} - {"KILL", "STOP"}
    for name in sorted(names):
        assert check_spec({"command": "x", "gpus": 1, "preemption": {"signal": name}}).preemption.signal == name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": 0}, "/gpus: asks for neither"),
        ({"limits": LimitsSpec(time_limit="later")}, "/limits/time_limit: 'later' is no duration"),
        ({"limits": LimitsSpec(time_limit=60, estimate="2m")}, "/limits/estimate: 120 s is longer"),
        ({"preemption": PreemptionSpec(signal="NONE")}, "/preemption/signal: Linux has no signal 'NONE'"),
        ({"queue": "a/queue/that/nobody/made"}, ""),
        ({"limits": LimitsSpec(on_timeout="requeue")}, ""),
        ({"preemption": PreemptionSpec(signal="USR2@99999", grace=10_000_000)}, ""),
        ({"limits": LimitsSpec(time_limit="1h")}, ""),
        ({}, ""),
    ],
)
def test_a_specification_from_the_log_is_looked_at_by_itself(fields: dict[str, Any], words: str) -> None:
    found = flaw(JobSpec(**{"command": "x", "gpus": 1, **fields}))

    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"gpus": 17}, "/gpus", "asks for 17; the whole cluster has 16 devices"),
        ({"gpus": 9, "nodes": 1}, "/gpus", "9 devices on one node; the largest node has 8"),
        ({"gpu": {"memory": "96GiB"}}, "/gpu/memory", "asks for 96 GiB per device; the largest device has 80 GiB"),
        ({"gpu": {"model": ["H800"]}}, "/gpu/model", "models here: A100-80GB"),
        ({"cpus": 129}, "/cpus", "129 CPUs; the largest node has 128"),
        ({"memory": "2TiB"}, "/memory", "a worker needs 2048 GiB; the largest node has 1024 GiB"),
        ({"where": {"nodes": ["node-9"]}}, "/where/nodes", "node-9"),
        ({"where": {"labels": {"rack": "r1"}}}, "/where/labels/rack", "no node has the label rack = r1"),
        ({"gpus": 3, "nodes": 3}, "/nodes", "asks for 3 nodes; the cluster has 2"),
    ],
)
def test_what_could_never_be_placed_is_refused_with_the_sum(fields: dict[str, Any], pointer: str, words: str) -> None:
    script = Script()
    script.node("node-1", fabric="f")
    script.node("node-2", fabric="f")

    (problem,) = capacity_problems(check_spec({"command": "x", "gpus": 1, **fields}), script.cluster.hardware)

    assert problem.pointer == pointer
    assert words in problem.detail


def test_a_gang_over_nodes_that_are_not_linked_says_how_to_waive_the_link() -> None:
    script = Script()
    script.node("node-1")
    script.node("node-2")

    (problem,) = capacity_problems(check_spec({"command": "x", "gpus": 16}), script.cluster.hardware)
    waived = check_spec({"command": "x", "gpus": 16, "gpu": {"interconnect": "none"}})

    assert (problem.pointer, 'interconnect = "none"' in problem.detail) == ("/gpu/interconnect", True)
    assert waived.gpu == GpuSpec(interconnect="none")
    assert capacity_problems(waived, script.cluster.hardware) == []


def test_a_cluster_without_nodes_says_so() -> None:
    (problem,) = capacity_problems(check_spec({"command": "x", "gpus": 1}), Script().cluster.hardware)

    assert problem.detail == "the cluster has no nodes yet"
