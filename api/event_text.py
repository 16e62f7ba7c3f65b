"""An event of the log in one line for a terminal: what happened to whom, without what only programs need."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from muster.api.table import clean
from muster.api.times import elapsed, mib, moment
from muster.events.numbers import ranges

_LEFT_OUT: Final = frozenset(
    ("type", "spec", "inventory", "basis", "env", "incarnation", "key", "command", "workdir", "name",
     "device_memory_mib", "compute", "cpus", "memory_mib", "start_by_ns", "leased", "lease_ms", "agent_version",
     "master_address", "master_port", "endpoints", "processes", "first_process")
)  # fmt: skip

_KIND_LETTERS: Final = len("ForeignUsageChanged")
_NAMES: Final = {"beneficiary": "for", "work_lost_ms": "work_lost", "victims": "stopped", "index": "device"}


def event_line(event: dict[str, Any], day: str) -> str:
    """`SEQUENCE TIME EVENT WORDS`; a time that is not of `day` (`2026-01-31`) with its date."""
    data = event["data"] if isinstance(event["data"], dict) else {}
    kind = str(event["type"]).removeprefix("muster.").rsplit(".", 1)[0]
    words = _words(kind, data)
    time = moment(event["time"], day, milliseconds=True)
    return clean(f"{event['sequence']:>6}  {time}  {kind:<{_KIND_LETTERS}}  {' '.join(words)}").rstrip()


def _words(kind: str, data: dict[str, Any]) -> list[str]:
    match kind:
        case "QueueConfigured":
            return [f"user={data.get('user')}", *settings(data.get("queue") or {})]
        case "QueueRemoved":
            return [f"user={data.get('user')}", f"name={data.get('name')}"]
        case "PolicyChanged":
            return [f"user={data.get('user')}", *(settings(data.get("policy") or {}) or ["all as by default"])]
        case "DeviceFaulted":
            return [f"node={data.get('node')}", *_plain(data.get("fault") or {}, without=("uuid",))]
        case "DeviceRecovered":
            return _plain(data, without=("uuid",))
        case "DeviceCordoned" | "DeviceUncordoned" | "DeviceReadmitted" if data.get("index") is not None:
            words = _plain(data, without=("uuid", "node", "index"))
            return [f"node={data.get('node')}", f"device={data['index']}", *words]
        case "ForeignUsageChanged":
            return [f"node={data.get('node')}", f"foreign={_foreign(data.get('foreign') or []) or 'none'}"]
    words = _plain(data)
    if kind == "JobSubmitted":
        words += _wishes(data.get("spec") or {})
    if kind == "NodeRegistered":
        words += _equipment(data.get("inventory") or {})
    return words


def _plain(table: dict[str, Any], without: Collection[str] = ()) -> list[str]:
    """What a table says, name by name."""
    return [
        f"{_NAMES.get(name, name)}={_value(name, value)}"
        for name, value in table.items()
        if name not in _LEFT_OUT and name not in without and value != []
    ]


def _foreign(uses: list[dict[str, Any]]) -> str:
    return ",".join(f"{use['index']}:{mib(use['memory_mib'])}" for use in uses)


def settings(table: dict[str, Any], prefix: str = "") -> list[str]:
    """What a configuration says, by dotted names; what it leaves at its default is not in an entry."""
    found: list[str] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += settings(value, f"{prefix}{name}.")
        elif name == "lanes":
            found += [word for lane in value for word in settings(lane, f"lane.{lane.get('name')}.")]
        elif not (prefix.startswith("lane.") and name == "name"):
            found.append(f"{prefix}{name}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return found


def _value(name: str, value: Any) -> str:
    if name == "placements":
        return " ".join(f"{place['node']}[{ranges(place['devices'])}]" for place in value)
    if name == "devices":
        return f"[{ranges([device['index'] for device in value])}]"
    if name == "exit":
        detail = f" ({value['detail']})" if value.get("detail") else ""
        return f"{value['reason']}:{value.get('exit_code', '?')}{detail}"
    if name == "workers":
        return ",".join(f"{worker.get('job', '')}#{worker['rank']}" for worker in value)
    if name == "work_lost_ms":
        return f"'{elapsed(value)} of device time'"
    if name == "faults":
        return ",".join(f"{fault['index']}:{fault['action']}" for fault in value)
    if name == "foreign":
        return _foreign(value)
    if name in ("ended", "victims"):
        return ",".join(f"{attempt['job']}.{attempt['attempt']}" for attempt in value)
    return repr(value) if isinstance(value, str) and " " in value else str(value)


def _wishes(spec: dict[str, Any]) -> list[str]:
    return [f"{name}={spec[name]}" for name in ("name", "queue", "priority", "gpus", "nodes", "cpus") if name in spec]


def _equipment(inventory: dict[str, Any]) -> list[str]:
    devices = inventory.get("devices") or []
    models = Counter(device["model"] for device in devices)
    return [f"devices={','.join(f'{count}x{model}' for model, count in models.items()) or 0}"]
