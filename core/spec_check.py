"""Whether a specification is right by itself, and whether the cluster could ever place it; every problem names its
field by a JSON pointer (RFC 6901)."""

import re
from itertools import dropwhile
from typing import Any, Final, TypeVar

import msgspec

from muster.core.capacity import Capacity
from muster.core.commands import GRACE_MOST_MS, NOTICE_MOST_MS
from muster.core.conversion import Problem, SpecError, convert
from muster.core.placement import place
from muster.core.quantities import parse_duration_s, parse_size_mib, priority_number
from muster.core.resources import Demand, demand_of
from muster.events.binding import VARIABLE_LINE_BYTES
from muster.events.spec import JobSpec, LimitsSpec, PreemptionSpec

MOST_WORKERS: Final = 256
"""Most nodes of one gang: its allocation and commands must fit one atomic append."""
NAME_LENGTH: Final = 128
LONGEST_S: Final = 3_155_760_000
SIGNALS: Final = frozenset(
    ("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "IOT", "BUS", "FPE", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
     "STKFLT", "CHLD", "CLD", "CONT", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
     "POLL", "PWR", "SYS", "RTMIN", "RTMAX")
)  # fmt: skip
"""What a process on Linux can be told and can answer to; of KILL and STOP it never hears."""

_ANY: Final = JobSpec(command="true")
T = TypeVar("T", bound=msgspec.Struct)
_IMAGE: Final = re.compile(
    r"(?!(?:dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):)"
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?"
    r"[A-Za-z0-9][A-Za-z0-9._/-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@[A-Za-z0-9+._-]+:[0-9A-Fa-f]+)?"
)
"""A name of a registry or of the node's store: no engine's `TRANSPORT:PATH`, by which one could read others' files."""
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_LAUNCHER: Final = re.compile(r"(python|pypy)[0-9.]*|(ba|da|z)?sh|torchrun|msrun|accelerate|deepspeed|mpirun|srun")
_SCRIPT: Final = re.compile(r"[^-=\s][^=\s]*\.(py|sh)")
_QUOTES: Final = "\"'(){};&|"


def check_spec(raw: Any) -> JobSpec:
    """The specification in a decoded TOML or JSON value, in numbers (MiB, seconds), and its name the program's where it
    has none. Raises SpecError."""
    spec = convert(raw, JobSpec)
    if "name" not in raw:
        spec = msgspec.structs.replace(spec, name=_program_name(spec.command))
    problems = [*_own_problems(spec), *_new_problems(spec)]
    if problems:
        raise SpecError(problems)
    return _in_numbers(spec)


def _program_name(command: str | list[str]) -> str:
    """The program's name without its folders: that of the first word which is no assignment of a variable, or of the
    script that it starts."""
    words = command.split() if isinstance(command, str) else command
    program, *arguments = [*dropwhile(_ASSIGNMENT.match, words)] or [""]
    name = _file_name(program)
    if _LAUNCHER.fullmatch(name):
        scripts = (_file_name(word) for word in arguments if _SCRIPT.fullmatch(word.strip(_QUOTES)))
        name = next(scripts, name)
    return "".join(letter for letter in name[:NAME_LENGTH] if letter.isprintable()) or "job"


def _file_name(word: str) -> str:
    return word.strip(_QUOTES).rstrip("/").rpartition("/")[2]


def flaw(spec: JobSpec) -> str:
    """What makes a decoded specification unusable by itself, in words; "" = nothing. Quick where all is well."""
    if (
        (spec.gpus or spec.cpus)
        and spec.memory is None
        and spec.nodes is None
        and spec.gpu is _ANY.gpu
        and spec.limits is _ANY.limits
        and spec.preemption is _ANY.preemption
    ):
        return ""
    problems = _own_problems(spec)
    return f"{problems[0].pointer}: {problems[0].detail}" if problems else ""


def _own_problems(spec: JobSpec) -> list[Problem]:
    problems = []
    if spec.gpus == 0 and not spec.cpus:
        problems.append(
            Problem("/gpus", "asks for neither devices nor CPUs: set gpus, or cpus for a job without devices")
        )
    if isinstance(spec.nodes, int) and spec.gpus and spec.nodes > spec.gpus:
        problems.append(Problem("/nodes", f"{spec.gpus} devices cannot be spread over {spec.nodes} nodes"))
    if spec.nodes == "fewest" and not spec.gpus:
        problems.append(Problem("/nodes", '"fewest" is for jobs with devices: give a number of nodes'))
    if not spec.gpus and spec.gpu != _ANY.gpu:
        problems.append(Problem("/gpu", "asks for a kind of device but for no device: set gpus"))
    problems += _text_problems(spec)
    for pointer, size in (("/memory", spec.memory), ("/gpu/memory", spec.gpu.memory)):
        if size is None:
            continue
        try:
            if parse_size_mib(size) <= 0:
                problems.append(Problem(pointer, "must be more than nothing: leave it out for the default"))
        except ValueError as error:
            problems.append(Problem(pointer, str(error)))
    return [*problems, *_limits_problems(spec.limits), *_preemption_problems(spec.preemption)]


def _new_problems(spec: JobSpec) -> list[Problem]:
    """What is not accepted any more, although the log may have it: there a stop takes no longer than the most, and a
    node refuses what no container can be given."""
    problems = _container_problems(spec) if spec.image is not None else []
    if spec.limits.on_timeout == "requeue" and spec.limits.time_limit is None:
        problems.append(
            Problem("/limits/on_timeout", "says what follows a time limit, and there is none: set time_limit")
        )
    grace = spec.preemption.grace
    if grace is not None and not duration_problems("", grace, above_nothing=False):
        grace_s, most_s = parse_duration_s(grace), GRACE_MOST_MS // 1000
        if grace_s > most_s:
            detail = f"{grace_s} s is more than {most_s} s, the longest that a job may take to end"
            problems.append(Problem("/preemption/grace", detail))
    notice = (spec.preemption.signal or "").partition("@")[2]
    most_s = NOTICE_MOST_MS // 1000
    if notice and int(notice) > most_s:
        detail = f"{int(notice)} s is more than {most_s} s, the longest that a job may take to save"
        problems.append(Problem("/preemption/signal", detail))
    return problems


def _container_problems(spec: JobSpec) -> list[Problem]:
    problems = [
        Problem(f"/env/{name}", "has a line break, which no container's variable may have")
        for name, value in spec.env.items()
        if {"\n", "\r"} & set(value)
    ]
    problems += [
        Problem(f"/env/{name}", "is too long for a container: 64 KiB with its name and a line's end are the most")
        for name, value in spec.env.items()
        if len(f"{name}={value}\n".encode(errors="replace")) >= VARIABLE_LINE_BYTES
    ]
    if {",", '"', "\n"} & set(spec.workdir or ""):
        problems.append(
            Problem("/workdir", "cannot be mounted in a container: it has a comma, a quote or a line break")
        )
    return problems


def duration_problems(pointer: str, duration: int | str | None, *, above_nothing: bool = True) -> list[Problem]:
    """What is wrong with a duration."""
    if duration is None:
        return []
    try:
        length_s = parse_duration_s(duration)
    except ValueError as error:
        return [Problem(pointer, str(error))]
    if length_s > LONGEST_S:
        return [Problem(pointer, f"{duration!r} is longer than {LONGEST_S} seconds, which is the most")]
    if above_nothing and length_s == 0:
        return [Problem(pointer, "must be more than nothing: leave it out where there is none")]
    return []


def _limits_problems(limits: LimitsSpec) -> list[Problem]:
    problems = duration_problems("/limits/time_limit", limits.time_limit)
    problems += duration_problems("/limits/estimate", limits.estimate)
    if problems or limits.time_limit is None or limits.estimate is None:
        return problems
    limit_s, estimate_s = parse_duration_s(limits.time_limit), parse_duration_s(limits.estimate)
    if estimate_s <= limit_s:
        return []
    return [Problem("/limits/estimate", f"{estimate_s} s is longer than the time limit of {limit_s} s")]


def _preemption_problems(preemption: PreemptionSpec) -> list[Problem]:
    problems = duration_problems("/preemption/grace", preemption.grace, above_nothing=False)
    name = (preemption.signal or "TERM").partition("@")[0]
    if name in ("KILL", "STOP"):
        problems.append(Problem("/preemption/signal", f"no program hears {name}: give one that it can act on, as USR2"))
    elif name not in SIGNALS:
        hint = f": write {name[3:]}" if name.removeprefix("SIG") in SIGNALS else ', such as "USR2" or "USR2@120"'
        problems.append(Problem("/preemption/signal", f"Linux has no signal {name!r}{hint}"))
    return problems


def _text_problems(spec: JobSpec) -> list[Problem]:
    """What no program can be given: a zero byte ends every text there."""
    problems = []
    arguments = (
        {"/command": spec.command}
        if isinstance(spec.command, str)
        else {f"/command/{place}": argument for place, argument in enumerate(spec.command)}
    )
    texts = {**arguments, **{f"/env/{name}": value for name, value in spec.env.items()}, "/workdir": spec.workdir or ""}
    problems += [Problem(pointer, "has a zero byte") for pointer, text in texts.items() if "\0" in text]
    if isinstance(spec.command, list) and not spec.command[0]:
        problems.append(Problem("/command/0", "the program's name is empty"))
    if not spec.name.isprintable():
        problems.append(Problem("/name", "has characters that cannot be shown"))
    if spec.image is not None and not _IMAGE.fullmatch(spec.image):
        problems.append(Problem("/image", "is no image's name: write [HOST[:PORT]/]NAME[:TAG][@DIGEST]"))
    if spec.workdir is not None and not spec.workdir.startswith("/"):
        problems.append(Problem("/workdir", "must be an absolute path: nodes do not know where you are"))
    return problems


def _in_numbers(spec: JobSpec) -> JobSpec:
    """A checked specification with its sizes in MiB, its durations in seconds and its priority as a number."""
    changed: dict[str, Any] = {}
    if isinstance(spec.memory, str):
        changed["memory"] = parse_size_mib(spec.memory)
    if isinstance(spec.priority, str):
        changed["priority"] = priority_number(spec.priority)
    if isinstance(spec.gpu.memory, str):
        changed["gpu"] = msgspec.structs.replace(spec.gpu, memory=parse_size_mib(spec.gpu.memory))
    changed["limits"] = in_seconds(spec.limits, "time_limit", "estimate")
    changed["preemption"] = in_seconds(spec.preemption, "grace")
    return msgspec.structs.replace(spec, **changed)


def in_seconds(part: T, *names: str) -> T:
    """A part of a configuration with those durations in seconds that were written as text."""
    texts = {name: value for name in names if isinstance(value := getattr(part, name), str)}
    return (
        msgspec.structs.replace(part, **{name: parse_duration_s(text) for name, text in texts.items()})
        if texts
        else part
    )


def capacity_problems(spec: JobSpec, hardware: Capacity) -> list[Problem]:
    """Why no node, or not the whole cluster with nothing running, could ever hold the job; [] = it could.

    `hardware` is the room of all nodes with nothing claimed (`Cluster.hardware`).
    """
    demand = demand_of(spec)
    if place(hardware, demand) is not None:
        return []
    if not hardware.rooms:
        return [Problem("", "the cluster has no nodes yet")]
    if demand.contained and place(hardware, demand._replace(contained=False)) is not None:
        return [_image_problem(demand, hardware)]
    return _device_problems(demand, hardware) or _host_problems(demand, hardware) or [_gang_problem(demand, hardware)]


def _image_problem(demand: Demand, hardware: Capacity) -> Problem:
    """It would fit if it needed no container."""
    inventories = [room.inventory for room in hardware.rooms.values()]
    if not any(inventory.containers for inventory in inventories):
        return Problem("/image", "no node runs containers: none has podman or docker")
    if not any(demand.runs_on(inventory) for inventory in inventories):
        return Problem("/image", "no node can give devices to a container: simulated ones are on paper only")
    what = "give no devices to containers" if demand.gpus else "run no containers"
    return Problem("/image", f"the nodes that could hold it {what}")


def _device_problems(demand: Demand, hardware: Capacity) -> list[Problem]:
    rooms = hardware.rooms
    unknown = sorted(demand.node_names - rooms.keys())
    if unknown and not demand.node_names & rooms.keys():
        return [Problem("/where/nodes", f"no node of that name: {', '.join(unknown)}")]
    for label, value in demand.labels:
        if all(room.inventory.labels.get(label) != value for room in rooms.values()):
            return [Problem(f"/where/labels/{label}", f"no node has the label {label} = {value}")]
    devices = [device for room in rooms.values() for device in room.inventory.devices]
    of_model = [device for device in devices if not demand.models or device.model in demand.models]
    if demand.models and not of_model:
        known = ", ".join(sorted({device.model for device in devices})) or "none"
        return [Problem("/gpu/model", f"no node has such a device; models here: {known}")]
    if demand.gpus > len(of_model):
        what = " or ".join(demand.models) or "devices"
        return [Problem("/gpus", f"asks for {demand.gpus}; the whole cluster has {len(of_model)} {what}")]
    if demand.device_memory_mib:
        most = max((device.nominal_mib for device in of_model), default=0)
        if demand.device_memory_mib > most:
            asked = _gib(demand.device_memory_mib)
            return [Problem("/gpu/memory", f"asks for {asked} per device; the largest device has {_gib(most)}")]
    return []


def _host_problems(demand: Demand, hardware: Capacity) -> list[Problem]:
    inventories = [room.inventory for room in hardware.rooms.values()]
    workers = demand.nodes if isinstance(demand.nodes, int) else 1
    devices = -(-demand.gpus // workers) if demand.gpus and (demand.nodes in (None, 1) or workers > 1) else 1
    largest = max(len(inventory.devices) for inventory in inventories)
    cpus, memory_mib = demand.host_share(min(devices, largest) if demand.gpus else 0, workers)
    most_cpus = max(inventory.cpus for inventory in inventories)
    most_mib = max(inventory.memory_mib for inventory in inventories)
    if cpus > most_cpus:
        return [Problem("/cpus", f"a worker needs {cpus} CPUs; the largest node has {most_cpus}")]
    if memory_mib > most_mib:
        return [Problem("/memory", f"a worker needs {_gib(memory_mib)}; the largest node has {_gib(most_mib)}")]
    return []


def _gang_problem(demand: Demand, hardware: Capacity) -> Problem:
    largest = max(len(room.inventory.devices) for room in hardware.rooms.values())
    if demand.nodes == 1 and demand.gpus > largest:
        return Problem("/gpus", f"asks for {demand.gpus} devices on one node; the largest node has {largest}")
    if isinstance(demand.nodes, int) and demand.nodes > len(hardware.rooms):
        return Problem("/nodes", f"asks for {demand.nodes} nodes; the cluster has {len(hardware.rooms)}")
    if demand.linked and place(hardware, demand._replace(linked=False)) is not None:
        return Problem(
            "/gpu/interconnect",
            'the nodes that could hold it are not linked by one fabric; interconnect = "none" waives the link',
        )
    return Problem("", "no set of nodes could hold it all at once, even with nothing running")


def _gib(mib: int) -> str:
    return f"{mib / 1024:.4g} GiB"
