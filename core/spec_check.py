"""Whether a specification is right by itself, and whether the cluster could ever place it; every problem names its
field by a JSON pointer (RFC 6901)."""

import re
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from muster.core.capacity import Capacity
from muster.core.placement import place
from muster.core.quantities import parse_size_mib
from muster.core.resources import Demand, demand_of
from muster.events.spec import JobSpec

QUEUES: Final = ("default",)
MOST_WORKERS: Final = 256
"""Most nodes of one gang: its allocation and commands must fit one atomic append."""
UNKNOWN_SHOWN: Final = 20
NAME_LENGTH: Final = 128
POINTER_LENGTH: Final = 256

_ANY_GPU: Final = JobSpec(command="true").gpu
T = TypeVar("T", bound=msgspec.Struct)


class Problem(NamedTuple):
    """What is wrong with one field."""

    pointer: str
    detail: str


class SpecError(Exception):
    """A specification that cannot be right."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.pointer or '/'}: {problem.detail}" for problem in problems))
        self.problems = problems


_AT: Final = re.compile(r" - at `\$([^`]*)`$")
_KEY_AT: Final = re.compile(r" - at `key` in `\$([^`]*)`$")
_MISSING: Final = re.compile(r"Object missing required field `([^`]*)`")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def check_spec(raw: Any) -> JobSpec:
    """The specification in a decoded TOML or JSON value, its sizes in MiB and its name the program's where it has
    none. Raises SpecError."""
    spec = convert(raw, JobSpec)
    if "name" not in raw:
        spec = msgspec.structs.replace(spec, name=_program_name(spec.command))
    problems = _own_problems(spec)
    if problems:
        raise SpecError(problems)
    return _with_sizes_in_mib(spec)


def convert(raw: Any, kind: type[T]) -> T:
    """A decoded TOML or JSON value as a Struct. Raises SpecError, which names every unknown field."""
    problems: list[Problem] = []
    known = _known_part(raw, kind, "", problems)
    if len(problems) > UNKNOWN_SHOWN:
        problems[UNKNOWN_SHOWN:] = [Problem("", f"and {len(problems) - UNKNOWN_SHOWN} more unknown fields")]
    try:
        converted = msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        problems.append(_problem_of(error, kind))
    if problems:
        raise SpecError(problems)
    return converted


def _known_part(raw: Any, kind: Any, pointer: str, unknown: list[Problem]) -> Any:
    """`raw` without the fields that `kind` does not have; those are added to `unknown`."""
    if not isinstance(raw, dict) or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return raw
    kinds = _fields(kind)
    known = {}
    for name, value in raw.items():
        place = f"{pointer}/{_token(name)}"
        if name in kinds:
            known[name] = _known_part(value, kinds[name], place, unknown)
        else:
            unknown.append(Problem(place, f"unknown field; known here: {', '.join(sorted(kinds))}"))
    return known


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _token(name: str) -> str:
    """A field's name within a pointer; one that is long beyond reason is cut."""
    return name[:POINTER_LENGTH].replace("~", "~0").replace("/", "~1")


def _program_name(command: str | list[str]) -> str:
    """The program's name without its folders: that of the first word which is no assignment of a variable."""
    words = command.split() if isinstance(command, str) else command[:1]
    program = next((word for word in words if not _ASSIGNMENT.match(word)), "")
    name = program.strip("\"'(){};&|").rstrip("/").rpartition("/")[2]
    return "".join(letter for letter in name[:NAME_LENGTH] if letter.isprintable()) or "job"


def _problem_of(error: msgspec.ValidationError, kind: Any) -> Problem:
    """A decoder's complaint as a problem: the path as a pointer, and the words that would do."""
    text = str(error)
    where = _AT.search(text) or _KEY_AT.search(text)
    path = where[1] if where else ""
    tokens = [token.strip("[].") for token in re.findall(r"\.[^.\[]+|\[[^\]]*\]", path)]
    pointer = "".join(f"/{token}" for token in tokens if token)  # a map's member is not named: then the map is
    detail = text[: where.start()] if where else text
    if missing := _MISSING.search(detail):
        return Problem(f"{pointer}/{missing[1]}", "this field is required")
    if detail.startswith("Invalid enum value") and (known := _choices(_type_at(pointer, kind))):
        detail += f"; known here: {', '.join(known)}"
    return Problem(pointer, detail)


def _type_at(pointer: str, kind: Any) -> Any:
    for token in pointer.split("/")[1:]:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = _fields(kind).get(token)
    return kind


def _choices(kind: Any) -> list[str]:
    """The words that a type takes, wherever they stand in it."""
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for part in get_args(kind) for word in _choices(part)]


def flaw(spec: JobSpec) -> str:
    """What makes a decoded specification unusable, in words; "" = nothing. Quick where all is well."""
    plain = spec.memory is None and spec.nodes is None and spec.gpu is _ANY_GPU
    if plain and (spec.gpus or spec.cpus) and spec.queue in QUEUES:
        return ""
    problems = _own_problems(spec)
    return f"{problems[0].pointer}: {problems[0].detail}" if problems else ""


def _own_problems(spec: JobSpec) -> list[Problem]:
    problems = []
    if spec.gpus == 0 and not spec.cpus:
        problems.append(
            Problem("/gpus", "asks for neither devices nor CPUs: set gpus, or cpus for a job without devices")
        )
    if spec.queue not in QUEUES:
        problems.append(Problem("/queue", f"there is no queue {spec.queue!r}; queues: {', '.join(QUEUES)}"))
    if isinstance(spec.nodes, int) and spec.gpus and spec.nodes > spec.gpus:
        problems.append(Problem("/nodes", f"{spec.gpus} devices cannot be spread over {spec.nodes} nodes"))
    if spec.nodes == "fewest" and not spec.gpus:
        problems.append(Problem("/nodes", '"fewest" is for jobs with devices: give a number of nodes'))
    if not spec.gpus and spec.gpu != _ANY_GPU:
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
    if spec.workdir is not None and not spec.workdir.startswith("/"):
        problems.append(Problem("/workdir", "must be an absolute path: nodes do not know where you are"))
    return problems


def _with_sizes_in_mib(spec: JobSpec) -> JobSpec:
    if isinstance(spec.memory, str):
        spec = msgspec.structs.replace(spec, memory=parse_size_mib(spec.memory))
    if isinstance(spec.gpu.memory, str):
        spec = msgspec.structs.replace(
            spec, gpu=msgspec.structs.replace(spec.gpu, memory=parse_size_mib(spec.gpu.memory))
        )
    return spec


def capacity_problems(spec: JobSpec, hardware: Capacity) -> list[Problem]:
    """Why no node, or not the whole cluster with nothing running, could ever hold the job; [] = it could.

    `hardware` is the room of all nodes with nothing claimed (`Cluster.hardware`).
    """
    demand = demand_of(spec)
    if place(hardware, demand) is not None:
        return []
    if not hardware.rooms:
        return [Problem("", "the cluster has no nodes yet")]
    return _device_problems(demand, hardware) or _host_problems(demand, hardware) or [_gang_problem(demand, hardware)]


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
