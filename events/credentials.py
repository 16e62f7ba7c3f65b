"""The users of the broker, one per role, and what each may do there.

Rules: a running role may write only its own class of subjects, and nobody who runs may delete, purge, change or restore
a stream. An agent reads its own node's commands and registrations, hears its
own node's beats, and nothing else. Passwords live in files of mode 0600 only.

A subject to publish is checked by the broker, a reply subject is not: whoever may ask JetStream's API can have the
answer, a stored entry too, sent to where it may not publish, and a stream that listens there stores it. So the reader,
who is an outsider, has an account of its own: it asks through imports, and its reply subjects mean nothing elsewhere.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from muster.events.connection import JETSTREAM_API, Credential
from muster.events.subjects import DEFAULT_PREFIX, LOG_CLASSES, TELEMETRY_CLASSES, kebab, registration_subject
from muster.events.types import NodeFact

API: Final = "api"
SCHEDULER: Final = "scheduler"
READER: Final = "reader"
OPERATOR: Final = "operator"
SYSTEM: Final = "system"
ROLES: Final = (API, SCHEDULER, READER, OPERATOR, SYSTEM)

OUTSIDE_API: Final = "MUSTER.API"
"""Where the reader finds JetStream's API, in its own account."""

NEVER: Final = tuple(
    f"$JS.API.STREAM.{verb}.>" for verb in ("DELETE", "PURGE", "UPDATE", "RESTORE", "MSG.DELETE", "LEADER", "PEER")
)
"""What no user may publish: it would change or destroy the log."""


class Permissions(msgspec.Struct, frozen=True):
    """Subjects a user may publish and subscribe to."""

    publish: list[str]
    subscribe: list[str]


def agent_role(node: str) -> str:
    """The name of the user of a node's agent."""
    return f"agent-{node}"


def log_stream(prefix: str = DEFAULT_PREFIX) -> str:
    """The name of the log's stream."""
    return f"{prefix.upper()}_LOG"


def telemetry_stream(prefix: str = DEFAULT_PREFIX) -> str:
    """The name of the telemetry's stream."""
    return f"{prefix.upper()}_TELEMETRY"


def lease_bucket(prefix: str = DEFAULT_PREFIX) -> str:
    """The name of the key-value bucket of the leader's lease."""
    return f"{prefix.upper()}_LEASE"


def command_consumer(node: str) -> str:
    """The name of the consumer through which a node's agent reads its commands."""
    return f"commands-{node}"


def readback_consumer(node: str) -> str:
    """The name of the consumer through which a node's agent reads back what it wrote."""
    return f"readback-{node}"


def registration_consumer(node: str) -> str:
    """The name of the consumer through which a node's agent learns who else registers its node."""
    return f"registrations-{node}"


def _inbox(role: str) -> str:
    return f"{Credential(role, '').inbox}.>"


def _reading(prefix: str, api: str = JETSTREAM_API) -> list[str]:
    allowed = []
    for stream in (log_stream(prefix), telemetry_stream(prefix)):
        allowed += [
            f"{api}.STREAM.INFO.{stream}",
            f"{api}.STREAM.MSG.GET.{stream}",
            f"{api}.DIRECT.GET.{stream}",
            f"{api}.DIRECT.GET.{stream}.>",
            f"{api}.CONSUMER.CREATE.{stream}",
            f"{api}.CONSUMER.CREATE.{stream}.>",
            f"{api}.CONSUMER.INFO.{stream}.*",
            f"{api}.CONSUMER.MSG.NEXT.{stream}.*",
            f"$JS.FC.{stream}.>",
        ]
    return allowed


def _agent(node: str, prefix: str) -> Permissions:
    stream = log_stream(prefix)
    publish = [
        *(f"{prefix}.node.{node}.{kebab(kind.__name__)}" for kind in NodeFact.__args__),
        f"{prefix}.heartbeat.{node}",
        f"{prefix}.gpu.{node}",
        f"{prefix}.answer.{node}.>",
    ]
    for consumer, subject in (
        (command_consumer(node), f"{prefix}.command.{node}"),
        (readback_consumer(node), f"{prefix}.node.{node}.>"),
        (registration_consumer(node), registration_subject(node, prefix)),
    ):
        publish += [
            f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{subject}",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}",
        ]
    heard = [f"{prefix}.ask.{node}", f"{prefix}.ask.{node}.>", f"{prefix}.heartbeat.{node}"]
    return Permissions(publish, [_inbox(agent_role(node)), *heard])


def _heard_outside(prefix: str) -> list[str]:
    classes = [f"{prefix}.{kind}.>" for kind in LOG_CLASSES]
    return [_inbox(READER), *classes, *(f"{prefix}.{kind}.*" for kind in TELEMETRY_CLASSES)]


class Shared(msgspec.Struct, frozen=True):
    """What the account of Muster shares with the reader's. `services`: subject here → subject there."""

    services: dict[str, str]
    streams: list[str]


def shared_outside(prefix: str = DEFAULT_PREFIX) -> Shared:
    """All that the reader can ask and hear."""
    pairs = zip(_reading(prefix), _reading(prefix, OUTSIDE_API), strict=True)
    return Shared(dict(pairs), _heard_outside(prefix))


def permissions_of(role: str, prefix: str = DEFAULT_PREFIX) -> Permissions:
    """What a role may do. Raises KeyError for a role that there is not."""
    reads = _reading(prefix)
    lease = lease_bucket(prefix)
    hears = [f"{prefix}.{kind}.*" for kind in TELEMETRY_CLASSES]
    if role.startswith("agent-"):
        return _agent(role.removeprefix("agent-"), prefix)
    return {
        API: Permissions(
            [f"{prefix}.submission.*", f"{prefix}.job.*.*", f"{prefix}.admin.*", f"{prefix}.ask.>", *reads],
            [_inbox(API), f"{prefix}.answer.>", *hears],
        ),
        SCHEDULER: Permissions(
            [
                f"{prefix}.decision.*.*",
                f"{prefix}.command.*",
                f"$KV.{lease}.>",
                f"$JS.API.STREAM.MSG.GET.KV_{lease}",
                *reads,
            ],
            [_inbox(SCHEDULER), *hears],
        ),
        READER: Permissions(_reading(prefix, OUTSIDE_API), _heard_outside(prefix)),
        OPERATOR: Permissions(
            ["$JS.API.STREAM.CREATE.>", "$JS.API.STREAM.INFO.>", f"{prefix}.>", *reads], [_inbox(OPERATOR)]
        ),
    }[role]


def new_password() -> str:
    """A random password that every configuration language reads as a word."""
    return f"p{secrets.token_hex(20)}"


def make_credentials(roles: Iterable[str], known: Mapping[str, Credential]) -> dict[str, Credential]:
    """A credential for each role: the known one, or a new one with a random password."""
    made = {role: known.get(role) or Credential(role, new_password()) for role in roles}
    if READER in made:
        made[READER] = msgspec.structs.replace(made[READER], api=OUTSIDE_API)
    return made


def read_credentials(path: Path) -> dict[str, Credential]:
    """The credentials of a file, by role. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Credential])


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; from its first byte on only its owner may read it."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_credentials(path: Path, credentials: Mapping[str, Credential]) -> None:
    """Write a credentials file (mode 0600)."""
    encoded = msgspec.json.format(msgspec.json.encode(credentials, order="sorted"), indent=2)
    write_private(path, encoded.decode() + "\n")
