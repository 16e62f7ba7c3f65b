"""The documentation's diagram of a job's life is the code's table."""

from pathlib import Path

from muster.core.state import PHASE_CODES, TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"


def diagram() -> str:
    lines = ["stateDiagram-v2", "    [*] --> PENDING"]
    for phase, following in TRANSITIONS.items():
        lines += [f"    {phase} --> {then}" for then in following]
        if not following:
            lines.append(f"    {phase} --> [*]")
    return "\n".join(lines)


def test_the_page_shows_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text(), f"docs/jobs.md should show\n{diagram()}"


def test_the_page_names_every_state_with_its_code() -> None:
    text = PAGE.read_text()
    for phase, code in PHASE_CODES.items():
        assert f"| {phase} | {code} |" in text
