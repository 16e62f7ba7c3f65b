"""Nodes for the tests of this folder: each is stopped, and its workers ended, when its test is over."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agent_world import FakeLink, NewNode, Node


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture(params=["cgroup", "walk"])
def held_by(request: pytest.FixtureRequest) -> dict[str, bool]:
    """Settings for both ways of holding a tree."""
    return {"cgroups": request.param == "cgroup"}


@pytest.fixture
async def new_node(tmp_path: Path, link: FakeLink) -> AsyncIterator[NewNode]:
    nodes: list[Node] = []

    def make(data: Path = tmp_path / "data", **settings: Any) -> Node:
        nodes.append(Node(data, link, **settings))
        return nodes[-1]

    yield make
    link.broker_up = link.beats_heard = True
    for node in nodes:
        if not node.task.done():
            await node.stop()
