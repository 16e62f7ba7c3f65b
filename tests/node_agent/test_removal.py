"""Deleting folders as jobs leave them."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.node_agent.removal import remove_tree

DEEP = 3_000


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """This process may open no more files than a few beyond those it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def make_deep(folder: Path) -> None:
    source = f"import os\nfor _ in range({DEEP}): os.mkdir('inner'); os.chdir('inner'); open('file', 'w').close()"
    subprocess.run([sys.executable, "-c", source], cwd=folder, check=True)


@pytest.mark.usefixtures("few_descriptors")
def test_a_tree_deeper_than_any_recursion_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "other" / "and" / "another").mkdir(parents=True)
    make_deep(folder)

    remove_tree(folder)

    assert list(tmp_path.iterdir()) == []


def test_what_links_lead_to_stays(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (outside / "kept").mkdir(parents=True)
    (folder / "below").mkdir(parents=True)
    for link in (folder / "link", folder / "below" / "link", tmp_path / "itself a link"):
        link.symlink_to(outside)
    os.mkfifo(folder / "below" / "fifo")

    remove_tree(folder)
    remove_tree(tmp_path / "itself a link")
    remove_tree(tmp_path / "nothing")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "kept").is_dir()


def test_folders_that_are_closed_to_their_owner_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("read only/inner", "closed/inner"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    for name, mode in (("read only/inner", 0o555), ("read only", 0o555), ("closed", 0), (".", 0)):
        (folder / name).chmod(mode)
    tmp_path.chmod(0o777)
    imports = "from pathlib import Path; from muster.node_agent.removal import remove_tree"
    program = [sys.executable, "-c", f"{imports}; remove_tree(Path({str(folder)!r}))"]

    if os.geteuid() == 0:  # whom nothing is closed to, unless the kernel forgets it
        program = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *program]
    subprocess.run(program, check=True)

    assert not folder.exists()
