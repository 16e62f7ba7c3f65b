"""What is found out before a worker starts: names that tell nobody its token, and lookups that take long or hang."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import DEADLINE_S, FakeLink, NewNode, start

from muster.events.types import Inventory, WorkerRefused
from muster.node_agent import prepare
from muster.node_agent.lease import Lease
from muster.node_agent.lookups import HANGING_LIMIT, Lookups
from muster.node_agent.prepare import LaunchSettings, planned, prepared
from muster.node_agent.refusal import RefusalError
from muster.node_agent.runtime import Engine
from muster.node_agent.worker_folder import WorkerFolder


@pytest.mark.parametrize("image", ["", "pytorch:2"])
def test_a_worker_s_token_stands_in_no_name(tmp_path: Path, image: str) -> None:
    """Command lines and cgroups' names can be read by everybody: who knew the token could pass as the worker."""
    settings = LaunchSettings({}, "uuid", "/sys/fs/cgroup/muster", engine=Engine("docker", "/usr/bin/docker"))
    command = start("life", ["train"], image=image, devices=[])
    plan = planned(command, WorkerFolder(tmp_path / "5.1.0"), Inventory([], 1, 1, "127.0.0.1"), settings)
    ticket = prepared(command, plan, Lease(tmp_path / "lease", 0), {}, settings).ticket

    assert ticket.env["MUSTER_WORKER"] == ticket.token
    assert ticket.token not in " ".join([ticket.cgroup, *ticket.argv, *ticket.cleanup])
    assert ticket.cgroup.startswith("/sys/fs/cgroup/muster/5.1.0-")


def test_names_of_two_tries_of_a_worker_differ(tmp_path: Path) -> None:
    settings = LaunchSettings({}, "uuid", "/cgroup")
    command, folder = start("life", "train", devices=[]), WorkerFolder(tmp_path / "5.1.0")
    plans = [planned(command, folder, Inventory([], 1, 1, "127.0.0.1"), settings) for _ in range(2)]
    lease = Lease(tmp_path / "lease", 0)
    assert len({prepared(command, plan, lease, {}, settings).ticket.cgroup for plan in plans}) == 2


async def test_a_slow_lookup_of_an_account_holds_up_no_beat_and_keeps_the_order(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def slow(_run_as: str, user: str, *, allow_root: bool) -> None:
        if user == "slow":
            asked.set()
            answered.wait(DEADLINE_S)
        raise RefusalError(f"{user} is nobody here, {allow_root}")

    monkeypatch.setattr(prepare, "person_for", slow)
    life = (await new_node(run_as="same").registered()).incarnation
    await link.command(start(life, "true", user="slow"))
    await link.command(start(life, "true", job=6, user="quick"))
    await link.until(asked.is_set)
    before = len(link.beaten)
    await link.until(lambda: len(link.beaten) >= before + 5)
    assert link.facts(WorkerRefused) == []
    answered.set()
    await link.fact(WorkerRefused, job=6)
    assert [(fact.job, fact.reason) for fact in link.facts(WorkerRefused)] == [
        (5, "slow is nobody here, False"),
        (6, "quick is nobody here, False"),
    ]


class Hanging:
    """Calls that return when `over` is set."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def call(self) -> int:
        self.threads.append(threading.current_thread())
        self.over.wait(DEADLINE_S)
        return 1

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.end()


async def test_calls_that_hang_are_given_up_and_few(hanging: Hanging) -> None:
    lookups = Lookups(within_s=0.01)
    for _ in range(HANGING_LIMIT + 3):
        with pytest.raises(TimeoutError):
            await lookups.ask(hanging.call)
    assert len(hanging.threads) == HANGING_LIMIT
    hanging.end()
    assert await Lookups().ask(lambda: 7) == 7
    assert await lookups.ask(hanging.call) == 1


async def test_what_a_call_raises_is_raised() -> None:
    def fail() -> None:
        raise RefusalError("no")

    with pytest.raises(RefusalError, match="no"):
        await Lookups().ask(fail)


async def test_a_node_that_does_not_answer_refuses(
    new_node: NewNode, link: FakeLink, monkeypatch: pytest.MonkeyPatch, hanging: Hanging
) -> None:
    monkeypatch.setattr(prepare, "person_for", lambda *_, **__: hanging.call())
    monkeypatch.setattr(Lookups.__init__, "__defaults__", (0.05,))
    life = (await new_node(run_as="same").registered()).incarnation
    await link.command(start(life, "true"))
    refused = await link.fact(WorkerRefused, job=5)
    assert refused.reason == "the node's accounts, or its folders, do not answer"
