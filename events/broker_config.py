"""The broker's configuration: one template for the embedded broker and for the files in `docker/`.

Rules: `sync_interval: always` everywhere (an acknowledged write is on disk); every user has permissions; limits are
explicit. Values are written as they are given, so that a password can also be the name of an environment variable.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.events.credentials import (
    NEVER,
    READER,
    ROLES,
    SYSTEM,
    agent_role,
    heard_outside,
    is_outside,
    permissions_of,
    shared_with,
)
from muster.events.subjects import DEFAULT_PREFIX

MAX_PAYLOAD_BYTES: Final = 2 * 1024 * 1024
MAX_CONNECTIONS: Final = 4096
ANSWER_LIFE_S: Final = 40
"""How long the broker waits for more of an answer to another account: longer than any pull request of ours lives."""

DOCKER_NODE: Final = "node-1"
DOCKER_STORE: Final = "/data/jetstream"
DOCKER_CLIENT_PORT: Final = 4222
DOCKER_MONITOR_PORT: Final = 8222
DOCKER_CLUSTER_PORT: Final = 6222


class ClusterConfig(msgspec.Struct, frozen=True):
    """How a server meets its peers. `password` and `routes` (a list of URLs with that password) are as written."""

    name: str
    host: str
    port: int
    password: str
    routes: str


class BrokerConfig(msgspec.Struct, frozen=True):
    """One server. `passwords` are by role, quoted by `quoted` or `$VARIABLE`."""

    name: str
    host: str
    port: int
    monitor_host: str
    monitor_port: int
    store: str
    passwords: Mapping[str, str]
    cluster: ClusterConfig | None = None
    prefix: str = DEFAULT_PREFIX


def quoted(text: str) -> str:
    """A string as the configuration language writes it."""
    return json.dumps(text)


def _list(items: Sequence[str], indent: str) -> str:
    return "[\n" + "".join(f"{indent}  {quoted(item)}\n" for item in items) + f"{indent}]"


def _user(role: str, password: str, prefix: str) -> str:
    allowed = permissions_of(role, prefix)
    indent = " " * 10
    return (
        f"      {{\n        user: {quoted(role)}, password: {password}\n        permissions {{\n"
        f"          publish {{ allow: {_list(allowed.publish, indent)}\n"
        f"            deny: {_list(NEVER, indent + '  ')}\n          }}\n"
        f"          subscribe {{ allow: {_list(allowed.subscribe, indent)} }}\n        }}\n      }}\n"
    )


def _exports(prefix: str) -> str:
    """What Muster's account lets others import. Which of it each one has, its own imports say.

    All services are one export: the server passes no answer from one import on to another of the same export, so a
    reply subject that its account could publish to leads nowhere either.
    """
    service = f'{{ service: ">", response: stream, response_threshold: "{ANSWER_LIFE_S}s" }}'
    return _lines([service, *(f"{{ stream: {quoted(subject)} }}" for subject in heard_outside(prefix))])


def _lines(items: Sequence[str]) -> str:
    return "".join(f"      {item}\n" for item in items)


def _outside_account(role: str, password: str, prefix: str) -> str:
    shared = shared_with(role, prefix)
    imports = [
        f"{{ service: {{ account: MUSTER, subject: {quoted(here)} }}, to: {quoted(there)} }}"
        for here, there in shared.services.items()
    ]
    imports += [f"{{ stream: {{ account: MUSTER, subject: {quoted(subject)} }} }}" for subject in shared.streams]
    return (
        f"  {quoted('READERS' if role == READER else role)} {{\n    users: [\n{_user(role, password, prefix)}    ]\n"
        f"    imports: [\n{_lines(imports)}    ]\n  }}\n"
    )


def _cluster(cluster: ClusterConfig) -> str:
    return (
        f"cluster {{\n  name: {quoted(cluster.name)}\n  listen: {quoted(f'{cluster.host}:{cluster.port}')}\n"
        f"  authorization {{ user: route, password: {cluster.password}, timeout: 5 }}\n"
        f"  routes: {cluster.routes}\n}}\n"
    )


def render(config: BrokerConfig) -> str:
    """The configuration file's text."""
    roles = sorted(role for role in config.passwords if role != SYSTEM)
    users, outside = (
        "".join(write(role, config.passwords[role], config.prefix) for role in roles if is_outside(role) == where)
        for write, where in ((_user, False), (_outside_account, True))
    )
    text = (
        f"server_name: {quoted(config.name)}\n"
        f"listen: {quoted(f'{config.host}:{config.port}')}\n"
        f"http: {quoted(f'{config.monitor_host}:{config.monitor_port}')}\n"
        f"max_payload: {MAX_PAYLOAD_BYTES}\n"
        f"max_connections: {MAX_CONNECTIONS}\n"
        "ping_interval: 10s\n"
        "write_deadline: 10s\n"
        "jetstream {\n"
        f"  store_dir: {quoted(config.store)}\n"
        "  sync_interval: always\n"
        "  max_memory_store: 256MB\n"
        "  # Each stream has its own limit, chosen for the volume when it is made.\n"
        "  max_file_store: 16TB\n"
        "}\n"
        "system_account: SYS\n"
        "accounts {\n"
        f"  SYS {{ users: [ {{ user: {quoted(SYSTEM)}, password: {config.passwords[SYSTEM]} }} ] }}\n"
        "  MUSTER {\n    jetstream: enabled\n    users: [\n"
        f"{users}    ]\n    exports: [\n{_exports(config.prefix)}    ]\n  }}\n"
        f"{outside}}}\n"
    )
    return text + (_cluster(config.cluster) if config.cluster else "")


def variable_of(role: str) -> str:
    """The environment variable with a role's password, where the configuration is not written for one folder."""
    return f"MUSTER_PASSWORD_{role.upper().replace('-', '_')}"


def docker_files() -> dict[str, str]:
    """The configuration files of `docker/`, by name: one server alone, and each of three."""
    passwords = {role: f"${variable_of(role)}" for role in (*ROLES, agent_role(DOCKER_NODE))}
    loopback = "127.0.0.1"

    def config(number: int, cluster: ClusterConfig | None) -> str:
        name = f"muster-{number}"
        ports = DOCKER_CLIENT_PORT + number - 1, DOCKER_MONITOR_PORT + number - 1
        return render(BrokerConfig(name, loopback, ports[0], loopback, ports[1], DOCKER_STORE, passwords, cluster))

    clusters = {
        number: ClusterConfig(
            "muster", loopback, DOCKER_CLUSTER_PORT + number - 1, f"${variable_of('route')}", "$MUSTER_ROUTES"
        )
        for number in (1, 2, 3)
    }
    return {"nats.conf": config(1, None), **{f"nats-{n}.conf": config(n, cluster) for n, cluster in clusters.items()}}
