"""Every command, exit code and route is in the documentation, and the documentation has no other routes."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from muster.api.cli import main
from muster.api.cli_base import Exit
from muster.api.routes import ROUTES
from muster.core.policy_check import check_policy
from muster.events.policy import Backfill, Health, Lane, Policy, Preemption, QueueSpec
from muster.projections.simulation import POLICIES

DOCS = Path(__file__).parents[2] / "docs"


def _text(name: str) -> str:
    return (DOCS / name).read_text()


def test_every_command_is_documented() -> None:
    text = _text("cli.md")
    told = set(re.findall(r"^\| `muster ([a-z]+)` \|", text, re.MULTILINE))
    assert told == set(main.commands)


def test_every_exit_code_is_documented() -> None:
    text = _text("cli.md")
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert told == {int(code) for code in Exit}


def _fields(kind: type[msgspec.Struct], under: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if field.type in (Backfill, Preemption, Health):
            yield from _fields(field.type, f"{field.name}.")
        else:
            yield f"{under}{field.name}"


def test_every_field_of_a_queue_and_of_the_policy_is_documented() -> None:
    text = _text("policies.md")
    told = {
        name
        for names in re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|", text, re.MULTILINE)
        for name in names.split(", ")
    }
    fields = {*_fields(QueueSpec), *_fields(Policy), *_fields(Lane, "lanes.")}
    assert {f"`{field}`" for field in fields} <= told


def test_a_policy_that_is_simulated_can_be_put_in_force_as_the_table_says() -> None:
    row = re.compile(r"^\| `(\w+)` \| .* \| `(order = .*)`, `(backfill = .*)` \|$", re.MULTILINE)
    rows = row.findall(_text("simulation.md"))
    told = {name: check_policy(tomllib.loads(f"{order}\n{backfill}")) for name, order, backfill in rows}
    simulated = {name: (rules.order, rules.backfill) for name, rules in POLICIES.items()}
    assert {name: (rules.order, rules.backfill) for name, rules in told.items()} == simulated


def test_every_route_is_documented() -> None:
    text = _text("http.md")
    told = set(re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|", text, re.MULTILINE))
    assert told == {(route.method, route.path) for route in ROUTES}
