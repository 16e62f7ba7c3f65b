"""The users of the broker, one per role, and what each may do there.

Rules: a running role may write only its own class of subjects, and nobody who runs may delete, purge, change or restore
a stream. An agent reads its own node's commands and registrations, hears its
own node's beats, and nothing else. Passwords live in files of mode 0600 only.

A subject to publish is checked by the broker, a reply subject is not: whoever may ask JetStream's API can have the
answer, a stored entry too, sent to where it may not publish, and a stream that listens there stores it. So those who
are not trusted with the whole log, the reader and each node's agent, have an account of their own each: they ask and
publish through imports, and their reply subjects mean nothing elsewhere.
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
"""Where readers and agents find JetStream's API, in their own accounts."""
AGENT_PREFIX: Final = "agent-"

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
    return f"{AGENT_PREFIX}{node}"


def is_outside(role: str) -> bool:
    """Whether a role has an account of its own, apart from that of Muster's own parts."""
    return role == READER or role.startswith(AGENT_PREFIX)


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


class Shared(msgspec.Struct, frozen=True):
    """What the account of Muster shares with another. `services`: subject there → subject in the other account."""

    services: dict[str, str]
    streams: list[str]


def _agent_reads(node: str, prefix: str, api: str = JETSTREAM_API) -> list[str]:
    stream = log_stream(prefix)
    allowed = []
    for consumer, subject in (
        (command_consumer(node), f"{prefix}.command.{node}"),
        (readback_consumer(node), f"{prefix}.node.{node}.>"),
        (registration_consumer(node), registration_subject(node, prefix)),
    ):
        allowed += [
            f"{api}.CONSUMER.CREATE.{stream}.{consumer}.{subject}",
            f"{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            f"{api}.CONSUMER.DELETE.{stream}.{consumer}",
        ]
    return allowed


def _agent_writes(node: str, prefix: str) -> list[str]:
    return [
        *(f"{prefix}.node.{node}.{kebab(kind.__name__)}" for kind in NodeFact.__args__),
        *(f"{prefix}.{kind}.{node}" for kind in TELEMETRY_CLASSES),
        f"{prefix}.answer.{node}.*",
    ]


def _heard_by_reader(prefix: str) -> list[str]:
    classes = [f"{prefix}.{kind}.>" for kind in LOG_CLASSES]
    return [_inbox(READER), *classes, *(f"{prefix}.{kind}.*" for kind in TELEMETRY_CLASSES)]


def shared_with(role: str, prefix: str = DEFAULT_PREFIX) -> Shared:
    """All that a role with an account of its own can ask, write and hear outside of it."""
    if role == READER:
        services = dict(zip(_reading(prefix), _reading(prefix, OUTSIDE_API), strict=True))
        return Shared(services, _heard_by_reader(prefix))
    node = role.removeprefix(AGENT_PREFIX)
    services = dict(zip(_agent_reads(node, prefix), _agent_reads(node, prefix, OUTSIDE_API), strict=True))
    services |= {subject: subject for subject in _agent_writes(node, prefix)}
    return Shared(services, [f"{prefix}.ask.{node}", f"{prefix}.ask.{node}.*"])


def heard_outside(prefix: str = DEFAULT_PREFIX) -> list[str]:
    """The subjects that accounts other than Muster's may hear: all that `shared_with` says of any role."""
    return [*_heard_by_reader(prefix), f"{prefix}.ask.>"]


def _outside(role: str, prefix: str) -> Permissions:
    """In its own account: what is shared with it, its inbox, and the beats that are sent there."""
    shared = shared_with(role, prefix)
    own = [] if role == READER else [_inbox(role), f"{prefix}.heartbeat.{role.removeprefix(AGENT_PREFIX)}"]
    return Permissions(list(shared.services.values()), [*own, *shared.streams])


def permissions_of(role: str, prefix: str = DEFAULT_PREFIX) -> Permissions:
    """What a role may do. Raises KeyError for a role that there is not."""
    reads = _reading(prefix)
    lease = lease_bucket(prefix)
    hears = [f"{prefix}.{kind}.*" for kind in TELEMETRY_CLASSES]
    if is_outside(role):
        return _outside(role, prefix)
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
        OPERATOR: Permissions(
            ["$JS.API.STREAM.CREATE.>", "$JS.API.STREAM.INFO.>", f"{prefix}.>", *reads], [_inbox(OPERATOR)]
        ),
    }[role]


def new_password() -> str:
    """A random password that every configuration language reads as a word."""
    return f"p{secrets.token_hex(20)}"


def make_credentials(roles: Iterable[str], known: Mapping[str, Credential]) -> dict[str, Credential]:
    """A credential for each role: the known one, or a new one with a random password."""
    return _placed({role: known.get(role) or Credential(role, new_password()) for role in roles})


def _placed(credentials: Mapping[str, Credential]) -> dict[str, Credential]:
    """The same, each with the API of its account: files from before there were accounts do not name it."""
    replace = msgspec.structs.replace
    return {role: replace(each, api=OUTSIDE_API) if is_outside(role) else each for role, each in credentials.items()}


def read_credentials(path: Path) -> dict[str, Credential]:
    """The credentials of a file, by role. Raises OSError or msgspec.MsgspecError."""
    return _placed(msgspec.json.decode(path.read_bytes(), type=dict[str, Credential]))


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
