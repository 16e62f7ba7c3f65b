"""Every command, exit code and route is in the documentation, and the documentation has no other routes."""

import re
from pathlib import Path

from muster.api.cli import main
from muster.api.cli_base import Exit
from muster.api.routes import ROUTES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_command_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    told = set(re.findall(r"^\| `muster ([a-z]+)` \|", text, re.MULTILINE))
    assert told == set(main.commands)


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert told == {int(code) for code in Exit}


def test_every_route_is_documented() -> None:
    text = (DOCS / "http.md").read_text()
    told = set(re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|", text, re.MULTILINE))
    assert told == {(route.method, route.path) for route in ROUTES}
