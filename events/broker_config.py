"""The broker's configuration: one template for the embedded broker and for the files in `docker/`.

Rules: `sync_interval: always` everywhere (an acknowledged write is on disk); every user has permissions; limits are
explicit. Values are written as they are given, so that a password can also be the name of an environment variable.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.events.credentials import NEVER, SYSTEM, permissions_of
from muster.events.subjects import DEFAULT_PREFIX

MAX_PAYLOAD_BYTES: Final = 2 * 1024 * 1024
MAX_CONNECTIONS: Final = 4096


class ClusterConfig(msgspec.Struct, frozen=True):
    """How a server meets its peers. `routes` are `host:port`; `password` guards the routes."""

    name: str
    host: str
    port: int
    routes: Sequence[str]
    password: str


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


def _cluster(cluster: ClusterConfig) -> str:
    routes = "".join(f"    nats://route:{cluster.password}@{route}\n" for route in cluster.routes)
    return (
        f"cluster {{\n  name: {quoted(cluster.name)}\n  listen: {quoted(f'{cluster.host}:{cluster.port}')}\n"
        f"  authorization {{ user: route, password: {quoted(cluster.password)}, timeout: 5 }}\n"
        f"  routes: [\n{routes}  ]\n}}\n"
    )


def render(config: BrokerConfig) -> str:
    """The configuration file's text."""
    roles = sorted(role for role in config.passwords if role != SYSTEM)
    users = "".join(_user(role, config.passwords[role], config.prefix) for role in roles)
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
        f"{users}    ]\n  }}\n"
        "}\n"
    )
    return text + (_cluster(config.cluster) if config.cluster else "")
