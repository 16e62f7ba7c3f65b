"""The two streams and the lease's bucket: how they must be made, and the check that they are.

Rules: an existing stream that was made otherwise is never changed and never used: `StreamMismatchError` names each
difference. Every server must write with `sync_interval: always`. Only the operator's credential can create.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.events.connection import ApiError, Connection, Credential, NoAnswerError, Reply
from muster.events.credentials import OPERATOR, SYSTEM, lease_bucket, log_stream, telemetry_stream
from muster.events.log import LogUnavailableError, StreamMismatchError
from muster.events.subjects import DEFAULT_PREFIX, LOG_CLASSES, TELEMETRY_CLASSES

GIB: Final = 1 << 30
SECOND_NS: Final = 1_000_000_000
DUPLICATE_WINDOW_S: Final = 120
DEFAULT_LOG_MAX_BYTES: Final = 16 * GIB
DEFAULT_TELEMETRY_MAX_BYTES: Final = 1 * GIB
DEFAULT_TELEMETRY_MAX_AGE_S: Final = 24 * 3600
DEFAULT_LEASE_TTL_S: Final = 10
LEASE_MAX_BYTES: Final = 16 * 1024 * 1024
READY_TIMEOUT_S: Final = 20.0

_NO_SUCH_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058


class StreamLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, ages in seconds. Where `..._max_bytes` is None, an existing stream keeps the size that it was
    made with, and a new one gets `new_..._max_bytes`."""

    log_max_bytes: int | None = None
    telemetry_max_bytes: int | None = None
    new_log_max_bytes: int = DEFAULT_LOG_MAX_BYTES
    new_telemetry_max_bytes: int = DEFAULT_TELEMETRY_MAX_BYTES
    telemetry_max_age_s: int = DEFAULT_TELEMETRY_MAX_AGE_S
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S


def limits_for(folder: Path) -> StreamLimits:
    """Limits whose new streams fit the volume of `folder` as it is: a full volume would stop every stream."""
    free = shutil.disk_usage(folder).free
    return StreamLimits(
        new_log_max_bytes=min(DEFAULT_LOG_MAX_BYTES, free * 60 // 100),
        new_telemetry_max_bytes=min(DEFAULT_TELEMETRY_MAX_BYTES, free * 5 // 100),
    )


def log_config(prefix: str, replicas: int, max_bytes: int | None) -> dict[str, Any]:
    """The log: kept for ever, refuses what does not fit, lets nobody delete."""
    return {
        "name": log_stream(prefix),
        "subjects": [f"{prefix}.{kind}.>" for kind in LOG_CLASSES],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "discard": "new",
        "max_bytes": max_bytes,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_age": 0,
        "compression": "s2",
        "duplicate_window": DUPLICATE_WINDOW_S * SECOND_NS,
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "allow_atomic": True,
        "allow_rollup_hdrs": False,
    }


def telemetry_config(prefix: str, replicas: int, max_bytes: int | None, max_age_s: int) -> dict[str, Any]:
    """Telemetry: the oldest makes room for the newest."""
    return {
        "name": telemetry_stream(prefix),
        "subjects": [f"{prefix}.{kind}.*" for kind in TELEMETRY_CLASSES],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "discard": "old",
        "max_bytes": max_bytes,
        "max_age": max_age_s * SECOND_NS,
        "compression": "s2",
        "duplicate_window": DUPLICATE_WINDOW_S * SECOND_NS,
        "allow_direct": True,
    }


def lease_config(prefix: str, replicas: int, ttl_s: float) -> dict[str, Any]:
    """The lease's bucket: one value a key, gone after `ttl_s` without any marker left behind."""
    ttl_ns = int(ttl_s * SECOND_NS)
    return {
        "name": f"KV_{lease_bucket(prefix)}",
        "subjects": [f"$KV.{lease_bucket(prefix)}.>"],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "discard": "new",
        "max_bytes": LEASE_MAX_BYTES,
        "max_msgs_per_subject": 1,
        "max_age": ttl_ns,
        "duplicate_window": min(ttl_ns, DUPLICATE_WINDOW_S * SECOND_NS),
        "allow_direct": False,
        "deny_delete": True,
    }


async def ensure_streams(
    connection: Connection,
    system: Connection,
    *,
    prefix: str = DEFAULT_PREFIX,
    replicas: int = 1,
    limits: StreamLimits | None = None,
) -> None:
    """Create what is missing and check the rest. `connection` is the operator's, `system` the system user's.

    Raises StreamMismatchError naming each difference, or LogUnavailableError when the brokers do not answer.
    """
    limits = limits or StreamLimits()
    await check_sync(system, replicas)
    wanted = [
        (log_config(prefix, replicas, limits.log_max_bytes), limits.new_log_max_bytes),
        (
            telemetry_config(prefix, replicas, limits.telemetry_max_bytes, limits.telemetry_max_age_s),
            limits.new_telemetry_max_bytes,
        ),
        (lease_config(prefix, replicas, limits.lease_ttl_s), LEASE_MAX_BYTES),
    ]
    differences: list[str] = []
    for config, default_max_bytes in wanted:
        actual = await _find_or_create(connection, config, default_max_bytes)
        differences += differences_of(config, actual)
    if differences:
        raise StreamMismatchError("; ".join(differences))


async def set_up(
    servers: Sequence[str],
    credentials: Mapping[str, Credential],
    *,
    prefix: str = DEFAULT_PREFIX,
    replicas: int = 1,
    limits: StreamLimits | None = None,
) -> None:
    """`ensure_streams` with connections of its own, made with the operator's and the system user's credentials."""
    operator = await Connection.open(servers, credentials[OPERATOR], "muster set-up")
    try:
        system = await Connection.open(servers, credentials[SYSTEM], "muster set-up, system")
        try:
            await ensure_streams(operator, system, prefix=prefix, replicas=replicas, limits=limits)
        finally:
            await system.close()
    finally:
        await operator.close()


async def check_log(connection: Connection, prefix: str) -> None:
    """Check the log's stream as far as every reader needs it. Raises StreamMismatchError, LogUnavailableError."""
    config = log_config(prefix, 0, None)
    info = await _patiently(connection, f"STREAM.INFO.{config['name']}", None)
    if info is None:
        raise StreamMismatchError(
            f"there is no stream {config['name']}: `muster server --create-streams N` creates it (N is the"
            " number of brokers)"
        )
    del config["num_replicas"]
    differences = differences_of(config, info)
    if differences:
        raise StreamMismatchError("; ".join(differences))


def differences_of(config: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """What an existing stream has otherwise, one sentence each. `max_bytes` None asks only that there is a limit."""
    name = config["name"]
    found = []
    for key, value in config.items():
        has = actual.get(key, False if isinstance(value, bool) else 0)
        if key == "max_bytes" and value is None:
            if has <= 0:
                found.append(f"stream {name}: max_bytes is not limited")
        elif key == "subjects":
            if sorted(has or []) != sorted(value):
                found.append(f"stream {name}: subjects are {has}, must be {value}")
        elif has != value:
            found.append(f"stream {name}: {key} is {has!r}, must be {value!r}")
    if actual.get("sources") or actual.get("mirror"):
        found.append(f"stream {name}: it has sources or is a mirror")
    if actual.get("persist_mode", "default") not in {"", "default"}:
        found.append(f"stream {name}: persist_mode is {actual['persist_mode']!r}, must be the default")
    if actual.get("sealed"):
        found.append(f"stream {name}: it is sealed")
    return found


async def check_sync(system: Connection, servers: int) -> None:
    """Ask every server whether it syncs each write. Raises StreamMismatchError or LogUnavailableError."""
    deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
    while True:
        states = await _sync_states(system, servers)
        wrong = sorted(name for name, is_always in states.items() if not is_always)
        if wrong:
            raise StreamMismatchError(f"sync_interval is not `always` on {', '.join(wrong)}")
        if len(states) >= servers:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise LogUnavailableError(f"only {len(states)} of {servers} servers answer: {sorted(states)}")
        await asyncio.sleep(0.1)


async def _sync_states(system: Connection, servers: int) -> dict[str, bool]:
    """Server name → whether it syncs always, of those that answered."""
    states: dict[str, bool] = {}

    def is_last(answer: Reply) -> bool:
        body = msgspec.json.decode(answer.payload)
        jetstream = body.get("data", {}).get("jetstream", {})
        if "config" in jetstream:
            states[body["server"]["name"]] = jetstream["config"].get("sync_always", False)
        return len(states) >= servers

    try:
        await system.request_many("$SYS.REQ.SERVER.PING.VARZ", b"", is_last, timeout_s=2.0)
    except NoAnswerError:
        return states
    return states


async def _find_or_create(connection: Connection, config: Mapping[str, Any], default_max_bytes: int) -> dict[str, Any]:
    name = config["name"]
    found = await _patiently(connection, f"STREAM.INFO.{name}", None)
    if found is not None:
        return found
    max_bytes = config["max_bytes"] or default_max_bytes
    created = await _patiently(connection, f"STREAM.CREATE.{name}", {**config, "max_bytes": max_bytes})
    if created is None:
        raise LogUnavailableError(f"the stream {name} is gone again")
    await _patiently(connection, f"STREAM.INFO.{name}", None)
    return created


async def _patiently(connection: Connection, name: str, body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Call until there is an answer; the stream's configuration in it, or None where there is no such stream."""
    deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
    while True:
        try:
            answer = await connection.api(name, body, timeout_s=1.0)
        except ApiError as error:
            if error.code == _NO_SUCH_STREAM:
                return None
            if error.code == _NAME_IN_USE:
                body, name = None, name.replace("STREAM.CREATE", "STREAM.INFO")
                continue
            if not _is_passing(error) or asyncio.get_running_loop().time() > deadline:
                raise StreamMismatchError(f"{name}: {error}") from None
        except NoAnswerError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise LogUnavailableError(f"{name}: {error}") from None
        else:
            config: dict[str, Any] = answer["config"]
            return config
        await asyncio.sleep(0.1)


def _is_passing(error: ApiError) -> bool:
    """Whether a cluster that just started gives this answer and soon another."""
    return error.code in {10005, 10008, 10009, 10118, 10074}
