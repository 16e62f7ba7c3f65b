"""The files of docker/: what the code renders, what the server accepts, what the compose file starts."""

import importlib.util
import os
import re
import stat
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner

from muster.api.cli import main
from muster.events.broker_config import docker_files
from muster.events.broker_process import find_server
from muster.events.credentials import read_credentials

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    load("make_secrets").main(tmp_path)
    return tmp_path


def variables(folder: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())


@pytest.mark.parametrize("name", sorted(docker_files()))
def test_the_brokers_files_are_what_the_code_renders(name: str) -> None:
    assert (DOCKER / name).read_text() == docker_files()[name], "run docker/render.py"


@pytest.mark.parametrize("name", sorted(docker_files()))
def test_the_server_accepts_the_brokers_files(name: str, secrets: Path, tmp_path: Path) -> None:
    text = (DOCKER / name).read_text().replace('"/data/jetstream"', f'"{tmp_path}/jetstream"')
    (tmp_path / name).write_text(text)
    environment = {**os.environ, **variables(secrets)}
    done = subprocess.run(
        [find_server(), "-t", "-c", str(tmp_path / name)], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_server_syncs_each_write_and_listens_on_loopback() -> None:
    for text in docker_files().values():
        assert "sync_interval: always" in text
        assert all(host == "127.0.0.1" for host in re.findall(r'(?:listen|http): "([^:]+):', text))


def test_a_shell_reads_the_variables_as_compose_does(secrets: Path) -> None:
    told = subprocess.run(["sh", "-c", f". {secrets}/.env; echo $MUSTER_ROUTES"], capture_output=True, check=True)
    assert (told.stdout.decode().strip(), told.stderr) == (variables(secrets)["MUSTER_ROUTES"], b"")


def test_secrets_are_made_once_for_the_owner_only_and_each_part_gets_its_own(secrets: Path) -> None:
    before = variables(secrets)
    load("make_secrets").main(secrets)
    assert variables(secrets) == before
    for path in (secrets / ".env", *secrets.glob("secrets/*.json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    roles = {path.stem: set(read_credentials(path)) for path in secrets.glob("secrets/*.json")}
    assert roles == {
        "server": {"api", "operator", "system"},
        "scheduler": {"scheduler"},
        "agent": {"agent-node-1"},
        "reader": {"reader"},
    }
    agent = read_credentials(secrets / "secrets" / "agent.json")["agent-node-1"]
    assert before["MUSTER_PASSWORD_AGENT_NODE_1"] == agent.password


def test_the_compose_file_starts_the_distributed_form() -> None:
    services = COMPOSE["services"]
    assert list(services) == ["nats-1", "nats-2", "nats-3", "server", "scheduler-1", "scheduler-2", "agent"]
    assert set(COMPOSE["volumes"]) == set(services)
    for name, service in services.items():
        assert service["network_mode"] == "host"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            is_made = source.startswith("./secrets/")
            assert source in COMPOSE["volumes"] or is_made or (DOCKER / source).exists(), f"{name}: {source}"


@pytest.mark.parametrize("name", ["server", "scheduler-1", "scheduler-2", "agent"])
def test_the_compose_file_calls_commands_that_there_are(name: str) -> None:
    command, *options = COMPOSE["services"][name]["command"]
    shown = CliRunner().invoke(main, [command, "--help"]).output
    for option in options:
        if option.startswith("--"):
            assert f"{option} " in shown
