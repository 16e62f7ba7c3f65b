"""The files of a site: made once, extended without changing what is there, and such that the server takes them."""

import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from muster.api.cli import main
from muster.events.broker_process import find_server
from muster.events.credentials import read_credentials


def credentials(*words: str) -> Result:
    return CliRunner().invoke(main, ["credentials", *words], catch_exceptions=False)


def passwords(folder: Path) -> dict[str, str]:
    return {
        role: credential.password
        for path in folder.glob("*.json")
        if path.name != "site.json"
        for role, credential in read_credentials(path).items()
    }


def test_each_part_gets_its_own_roles_for_its_owner_only(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = credentials("--nodes", "node-1,node-2", "--brokers", "10.0.0.1,10.0.0.2,10.0.0.3", "--out", str(site))
    assert done.exit_code == 0
    assert "MUSTER_NATS=nats://10.0.0.1:4222,nats://10.0.0.2:4222,nats://10.0.0.3:4222" in done.output
    roles = {path.stem: set(read_credentials(path)) for path in site.glob("*.json") if path.name != "site.json"}
    assert roles == {
        "server": {"api", "operator", "system"},
        "scheduler": {"scheduler"},
        "reader": {"reader"},
        "agent-node-1": {"agent-node-1"},
        "agent-node-2": {"agent-node-2"},
    }
    assert stat.S_IMODE(site.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in site.iterdir()} == {0o600}
    text = (site / "nats-2.conf").read_text()
    for line in (
        'listen: "10.0.0.2:4222"',
        'listen: "10.0.0.2:6222"',
        'http: "127.0.0.1:8222"',
        "sync_interval: always",
    ):
        assert line in text
    assert 'store_dir: "/var/lib/muster/muster-2"' in text
    assert all(password in text for password in passwords(site).values())


def test_nodes_are_added_and_nothing_else_changes(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path)]
    credentials("--nodes", "node-1", "--brokers", "127.0.0.1:5222", "--store", str(tmp_path / "store"), *words)
    before, text = passwords(tmp_path), (tmp_path / "nats-1.conf").read_text()
    credentials(*words)
    assert (passwords(tmp_path), (tmp_path / "nats-1.conf").read_text()) == (before, text)
    credentials("--nodes", "node-2", *words)
    after = passwords(tmp_path)
    added = after.pop("agent-node-2")
    assert after == before
    extended = (tmp_path / "nats-1.conf").read_text()
    assert added in extended
    assert 'listen: "127.0.0.1:5222"' in extended
    assert all(password in extended for password in before.values())


def test_a_half_made_site_is_completed_with_the_passwords_it_has(tmp_path: Path) -> None:
    credentials("--nodes", "node-1", "--out", str(tmp_path))
    before = passwords(tmp_path)
    for name in ("site.json", "nats-1.conf", "reader.json"):
        (tmp_path / name).unlink()
    credentials("--out", str(tmp_path))
    after = passwords(tmp_path)
    assert {role: after[role] for role in before if role != "reader"} == {
        role: password for role, password in before.items() if role != "reader"
    }
    assert "agent-node-1" in (tmp_path / "nats-1.conf").read_text()


def test_the_server_accepts_what_is_made(tmp_path: Path) -> None:
    brokers = "127.0.0.1:5222,127.0.0.1:5223,127.0.0.1:5224"
    credentials("--nodes", "node-1", "--brokers", brokers, "--store", str(tmp_path / "store"), "--out", str(tmp_path))
    for number in (1, 2, 3):
        done = subprocess.run(
            [find_server(), "-t", "-c", str(tmp_path / f"nats-{number}.conf")], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "Node-1"], "no node's name"),
        (["--nodes", "../x"], "no node's name"),
        (["--nodes", "n" * 64], "no node's name"),
        (["--brokers", "a,b"], "2 brokers"),
        (["--brokers", "a,a,b"], "one address"),
        (["--brokers", "a:70000"], "no broker"),
        (["--brokers", "a b"], "no broker"),
        (["--brokers", 'a"'], "no broker"),
        (["--prefix", "a.b"], "no prefix"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(tmp_path: Path, words: list[str], told: str) -> None:
    done = credentials(*words, "--out", str(tmp_path / "site"))
    assert done.exit_code == 2
    assert told in done.output
    assert not (tmp_path / "site").exists()
