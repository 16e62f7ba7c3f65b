"""The files of a site whose parts run apart: a credentials file for each part, a configuration for each broker.

Rules: what a folder has is kept: passwords never change, nodes are only added. A crash between two files loses nothing:
passwords are written before the brokers' configurations, which are made anew from them each time. All is for the
owner's eyes only.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.events.broker_config import BrokerConfig, ClusterConfig, quoted, render
from muster.events.connection import Credential
from muster.events.credentials import (
    AGENT_PREFIX,
    API,
    OPERATOR,
    READER,
    ROLES,
    SCHEDULER,
    SYSTEM,
    agent_role,
    make_credentials,
    new_password,
    read_credentials,
    write_credentials,
    write_private,
)
from muster.events.spec import NAME_PATTERN
from muster.events.subjects import DEFAULT_PREFIX

PARTS: Final = {"server": (API, OPERATOR, SYSTEM), "scheduler": (SCHEDULER,), "reader": (READER,)}
"""Credentials file → roles, beside the agents' own."""
DEFAULT_STORE: Final = "/var/lib/muster"
CLIENT_PORT: Final = 4222
CLUSTER_PORT_OFFSET: Final = 2000
MONITOR_PORT_OFFSET: Final = 4000
HIGHEST_CLIENT_PORT: Final = 65_535 - MONITOR_PORT_OFFSET
SIZES: Final = (1, 3, 5)
NODES_LIMIT: Final = 10_000
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_RECORD: Final = "site.json"


class SiteError(Exception):
    """What was asked for cannot be made, or what is there cannot be read."""


class BrokerAddress(msgspec.Struct, frozen=True):
    """Where a broker listens for clients. It meets the other brokers 2000 ports above, and answers about its health
    4000 above, on loopback."""

    host: str
    port: int = CLIENT_PORT

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.host}:{self.port}"


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a folder's files were made for. `store` is the folder of the brokers' data, on their machines."""

    brokers: list[BrokerAddress]
    store: str
    prefix: str
    route_password: str
    nodes: list[str] = []


def parse_address(text: str) -> BrokerAddress:
    """`HOST` or `HOST:PORT`. Raises SiteError."""
    host, colon, port = text.partition(":")
    is_number = not colon or (port.isascii() and port.isdecimal() and len(port) <= len("65535"))
    if not _HOST.fullmatch(host) or not is_number or (colon and not 0 < int(port) <= HIGHEST_CLIENT_PORT):
        raise SiteError(f"{text[:80]!r} is no broker: write HOST or HOST:PORT, with a port up to {HIGHEST_CLIENT_PORT}")
    return BrokerAddress(host, int(port)) if colon else BrokerAddress(host)


def make_site(
    folder: Path,
    *,
    nodes: Sequence[str] = (),
    brokers: Sequence[BrokerAddress] = (),
    store: str = "",
    prefix: str = "",
) -> Site:
    """Make or extend the files in `folder`: `nodes` are added, and what is left out is as it was. Raises SiteError,
    OSError."""
    for node in nodes:
        if not re.fullmatch(NAME_PATTERN, node):
            raise SiteError(f"{node[:80]!r} is no node's name: small letters, digits, - and _, at most 63")
    try:
        before = _read_record(folder / _RECORD)
        known = _read_known(folder)
    except msgspec.MsgspecError as error:
        raise SiteError(f"{folder} cannot be read: {error}") from error
    site = Site(
        brokers=list(brokers) or (before.brokers if before else [BrokerAddress("127.0.0.1")]),
        store=store or (before.store if before else DEFAULT_STORE),
        prefix=prefix or (before.prefix if before else DEFAULT_PREFIX),
        route_password=before.route_password if before else new_password(),
        nodes=sorted({*nodes, *(role.removeprefix(AGENT_PREFIX) for role in known if role.startswith(AGENT_PREFIX))}),
    )
    _check(site)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = msgspec.structs.replace(site, nodes=[])  # the agents' credentials tell
    write_private(folder / _RECORD, msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n")
    credentials = make_credentials([*ROLES, *map(agent_role, site.nodes)], known)
    files = {**PARTS, **{agent_role(node): (agent_role(node),) for node in site.nodes}}
    for name, roles in files.items():
        write_credentials(folder / f"{name}.json", {role: credentials[role] for role in roles})
    for number, text in enumerate(_configurations(site, credentials), start=1):
        write_private(folder / f"nats-{number}.conf", text)
    return site


def _check(site: Site) -> None:
    if len(site.brokers) not in SIZES:
        raise SiteError(f"{len(site.brokers)} brokers cannot agree well: take one, three or five")
    if len(set(site.brokers)) < len(site.brokers):
        raise SiteError("two brokers have one address")
    if len(site.nodes) > NODES_LIMIT:
        raise SiteError(f"{len(site.nodes)} nodes are more than {NODES_LIMIT}")
    if not re.fullmatch("[a-z0-9]{1,32}", site.prefix):
        raise SiteError(f"{site.prefix[:80]!r} is no prefix: small letters and digits, at most 32")


def _read_record(path: Path) -> Site | None:
    return msgspec.json.decode(path.read_bytes(), type=Site) if path.exists() else None


def _read_known(folder: Path) -> dict[str, Credential]:
    known: dict[str, Credential] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != _RECORD:
            known.update(read_credentials(path))
    return known


def _configurations(site: Site, credentials: dict[str, Credential]) -> list[str]:
    passwords = {role: quoted(credential.password) for role, credential in credentials.items()}
    routes = ", ".join(
        f"nats://route:{site.route_password}@{broker.host}:{broker.port + CLUSTER_PORT_OFFSET}"
        for broker in site.brokers
    )
    made = []
    for number, broker in enumerate(site.brokers, start=1):
        name = f"muster-{number}"
        cluster = ClusterConfig(
            "muster", broker.host, broker.port + CLUSTER_PORT_OFFSET, quoted(site.route_password), f"[{routes}]"
        )
        config = BrokerConfig(
            name=name,
            host=broker.host,
            port=broker.port,
            monitor_host="127.0.0.1",
            monitor_port=broker.port + MONITOR_PORT_OFFSET,
            store=f"{site.store}/{name}",
            passwords=passwords,
            cluster=cluster if len(site.brokers) > 1 else None,
            prefix=site.prefix,
        )
        made.append(render(config))
    return made
