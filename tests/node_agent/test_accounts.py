"""Workers under accounts of their own: what they are, what they reach, and who is refused."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import FakeLink, NewNode, start

from muster.events.types import WorkerExited, WorkerRefused
from muster.node_agent.accounts import Account, person_for, unreachable
from muster.node_agent.refusal import RefusalError

NAME = "daemon"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A data folder that others may pass, which pytest's own is not in."""
    folder = Path(tempfile.mkdtemp(prefix="muster-accounts-"))
    folder.chmod(0o711)
    yield folder / "data"
    shutil.rmtree(folder)


async def run(
    new_node: NewNode, link: FakeLink, data: Path, command: str, **settings: object
) -> tuple[int | None, str]:
    """A job's exit code and output, under the account."""
    life = (await new_node(data, **{"run_as": NAME, **settings}).registered()).incarnation
    await link.command(start(life, command, user=NAME, env={"SECRET": "s3cret"}))
    exited = await link.fact(WorkerExited, job=5)
    return exited.exit.exit_code, (data / "workers/5.1.0/output").read_text()


@as_root
@pytest.mark.parametrize("run_as", ["same", NAME])
async def test_a_worker_is_its_account(new_node: NewNode, link: FakeLink, open_folder: Path, run_as: str) -> None:
    entry = pwd.getpwnam(NAME)
    told = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; grep NoNewPrivs /proc/self/status; pwd; touch made"

    code, output = await run(new_node, link, open_folder, told, run_as=run_as)

    lines = output.splitlines()
    assert code == 0
    assert lines[:2] == [str(entry.pw_uid), str(entry.pw_gid)]
    assert set(map(int, lines[2].split())) == set(os.getgrouplist(NAME, entry.pw_gid))
    assert lines[3] == f"{entry.pw_dir} {NAME} {NAME}"
    assert lines[4].split() == ["NoNewPrivs:", "1"]
    work = open_folder / "workers/5.1.0/work"
    assert lines[5] == str(work)
    assert (work / "made").stat().st_uid == entry.pw_uid


@as_root
async def test_a_worker_reaches_neither_its_ticket_nor_its_keeper(
    new_node: NewNode, link: FakeLink, open_folder: Path
) -> None:
    hostile = (
        "cat ../claimed; cat ../started; ls ..; ls ../..; kill -9 $PPID; rm -f ../exit.new ../lock; touch ../made; "
        "cat ../../../journal.sqlite; echo to the device >> /dev/stdout; echo still here"
    )

    code, output = await run(new_node, link, open_folder, hostile)

    folder = open_folder / "workers/5.1.0"
    assert code == 0
    assert output.splitlines()[-2:] == ["to the device", "still here"]
    assert "s3cret" not in output
    assert output.lower().count("denied") + output.count("not permitted") >= 8
    assert not (folder / "made").exists()
    assert b"s3cret" in (folder / "claimed").read_bytes()
    closed = {path.name for path in folder.iterdir() if not path.stat().st_mode & 0o077}
    assert {"claimed", "started", "exit", "lock", "control", "output", "work", "cache"} <= closed


@as_root
async def test_a_folder_that_the_account_may_not_enter_is_no_place_to_work(
    new_node: NewNode, link: FakeLink, open_folder: Path
) -> None:
    closed = open_folder.parent / "closed"
    closed.mkdir(mode=0o700)
    life = (await new_node(open_folder, run_as=NAME).registered()).incarnation

    await link.command(start(life, "true", user=NAME, workdir=str(closed)))
    exited = await link.fact(WorkerExited, job=5)

    assert exited.exit.reason == "start_failed"
    assert exited.exit.detail == f"{closed}: Permission denied"


@as_root
@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("no-such-account", "there is no account 'no-such-account' on this node"),
        ("root", "the account 'root' is root"),
    ],
)
async def test_nobody_falls_back_to_root(
    new_node: NewNode, link: FakeLink, open_folder: Path, user: str, reason: str
) -> None:
    life = (await new_node(open_folder, run_as="same").registered()).incarnation

    await link.command(start(life, "true", user=user))
    refused = await link.fact(WorkerRefused, job=5)

    assert reason in refused.reason
    assert not (open_folder / "workers/5.1.0").exists()


@as_root
async def test_root_is_root_where_the_agent_allows_it(new_node: NewNode, link: FakeLink, open_folder: Path) -> None:
    code, output = await run(new_node, link, open_folder, "id -u", run_as="root", allow_root=True)

    assert (code, output) == (0, "0\n")


@as_root
async def test_a_data_folder_on_a_way_that_is_closed_refuses_with_its_name(
    new_node: NewNode, link: FakeLink, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    life = (await new_node(data, run_as=NAME).registered()).incarnation

    await link.command(start(life, "true", user=NAME))
    refused = await link.fact(WorkerRefused, job=5)

    assert refused.reason.startswith(f"{NAME} cannot get to {data / 'workers'} on this node: /")
    assert list((data / "workers").iterdir()) == []


def test_the_way_is_judged_by_owner_group_and_others(tmp_path: Path) -> None:
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    (tmp_path / "one").chmod(0o710)
    found = tmp_path.stat()
    others = Account(found.st_uid + 1, found.st_gid + 1, [])

    assert unreachable(inner, Account(0, 0, [])) is None
    assert unreachable(inner, others) is not None
    assert unreachable(inner, Account(found.st_uid, found.st_gid, [])) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root can be anybody")
def test_an_agent_that_is_not_root_is_nobody_else() -> None:
    with pytest.raises(RefusalError, match="only an agent that is root"):
        person_for(NAME, "ada", allow_root=False)
