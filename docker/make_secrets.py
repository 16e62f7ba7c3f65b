# ruff: noqa: INP001  a script, no part of a package
"""Make the passwords of the compose file's parts: `.env` for the brokers, and one credentials file a part.

Run it once beside the compose file, with Muster installed: `python docker/make_secrets.py`. What is there is kept.
"""

import os
from pathlib import Path

from muster.events.broker_config import DOCKER_CLUSTER_PORT, DOCKER_NODE, variable_of
from muster.events.credentials import (
    ROLES,
    agent_role,
    make_credentials,
    new_password,
    read_credentials,
    write_credentials,
    write_private,
)

FOLDER = Path(__file__).parent
PARTS = {
    "server": ("api", "operator", "system"),
    "scheduler": ("scheduler",),
    "agent": (agent_role(DOCKER_NODE),),
    "reader": ("reader",),
}


def main(folder: Path = FOLDER) -> None:
    """Write what is missing, for the owner's eyes only."""
    if (folder / ".env").exists():
        return
    secrets = folder / "secrets"
    secrets.mkdir(mode=0o700, exist_ok=True)
    known = {}
    for path in sorted(secrets.glob("*.json")):
        known.update(read_credentials(path))
    credentials = make_credentials([*ROLES, agent_role(DOCKER_NODE)], known)
    for part, roles in PARTS.items():
        write_credentials(secrets / f"{part}.json", {role: credentials[role] for role in roles})
    route = new_password()
    urls = ",".join(f"nats://route:{route}@127.0.0.1:{DOCKER_CLUSTER_PORT + i}" for i in range(3))
    lines = [f"{variable_of(role)}={credential.password}" for role, credential in sorted(credentials.items())]
    lines += [f"{variable_of('route')}={route}", f"MUSTER_ROUTES=[{urls}]"]
    lines += [f"MUSTER_UID={os.getuid()}", f"MUSTER_GID={os.getgid()}"]
    write_private(folder / ".env", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
