"""Every command, exit code and route is in the documentation, and the documentation has no other routes."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from muster.api.cli import main
from muster.api.cli_base import Exit
from muster.api.routes import ROUTES
from muster.events.policy import Backfill, Health, Lane, Policy, Preemption, QueueSpec

DOCS = Path(__file__).parents[2] / "docs"


def test_every_command_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    told = set(re.findall(r"^\| `muster ([a-z]+)` \|", text, re.MULTILINE))
    assert told == set(main.commands)


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert told == {int(code) for code in Exit}


def _fields(kind: type[msgspec.Struct], under: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if field.type in (Backfill, Preemption, Health):
            yield from _fields(field.type, f"{field.name}.")
        else:
            yield f"{under}{field.name}"


def test_every_field_of_a_queue_and_of_the_policy_is_documented() -> None:
    text = (DOCS / "policies.md").read_text()
    told = {
        name
        for names in re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|", text, re.MULTILINE)
        for name in names.split(", ")
    }
    fields = {*_fields(QueueSpec), *_fields(Policy), *_fields(Lane, "lanes.")}
    assert {f"`{field}`" for field in fields} <= told


def test_every_route_is_documented() -> None:
    text = (DOCS / "http.md").read_text()
    told = set(re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|", text, re.MULTILINE))
    assert told == {(route.method, route.path) for route in ROUTES}
