"""Commands that keep new work from nodes and devices, and give it to them again: cordon, uncordon."""

import re
from collections.abc import Callable
from typing import Final

import click

from muster.api.cli_base import Session, client_command, examples, segment
from muster.api.client import Json, RefusedError

MOST_DEVICES: Final = 1024
_RANGE: Final = re.compile(r"([0-9]{1,40})(?:-([0-9]{1,40}))?")


def _numbers(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int]:
    """`0,4-7` as 0, 4, 5, 6, 7."""
    found: list[int] = []
    for part in text.split(",") if text is not None else ():
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise click.BadParameter(f"{part[:40]!r} is no device's number: write 3, or 0,4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_DEVICES:
            raise click.BadParameter(f"{part[:40]!r} is no range of devices: write 4-7")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


_DEVICES = click.option(
    "--device", "devices", metavar="INDEX", callback=_numbers,
    help="Only this device of the node, by its number; several as 0,4-7.",
)  # fmt: skip


def _each(session: Session, node: str, devices: list[int], verb: str, body: Json, said: Callable[[Json], str]) -> None:
    """Do it to the node, or to each of its devices. What one refuses keeps it from no other."""
    path, failed = f"/v1/nodes/{segment('node', node)}", None
    for place in [f"/devices/{device}" for device in devices] or [""]:
        try:
            session.show(session.client.post(f"{path}{place}/{verb}", body), said)
        except RefusedError as error:
            if failed is not None:
                click.echo(f"muster: {failed}", err=True)
            failed = error
    if failed is not None:
        raise failed


def _named(answer: Json) -> str:
    node = str(answer["node"])
    return node if answer["device"] is None else f"device {answer['device']} of {node}"


@click.command(
    epilog=examples(
        "muster cordon node-1 --reason 'fan 3 is loud'", "muster cordon node-1 --device 0,4-7 --reason 'Xid 48'"
    )
)
@click.argument("node")
@_DEVICES
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders: at most 200 letters.")
@client_command()
def cordon(session: Session, node: str, devices: list[int], reason: str) -> None:
    """Give a node, or devices of it, no new work. What runs there goes on."""
    _each(session, node, devices, "cordon", {"reason": reason}, _cordoned)


def _cordoned(answer: Json) -> str:
    return f"{_named(answer)} is cordoned" + (" already" if answer["already"] else "")


@click.command(epilog=examples("muster uncordon node-1", "muster uncordon node-1 --device 3"))
@click.argument("node")
@_DEVICES
@client_command()
def uncordon(session: Session, node: str, devices: list[int]) -> None:
    """Give a node, or devices of it, work again. You vouch for a device: whatever was wrong is forgotten."""
    _each(session, node, devices, "uncordon", {}, _uncordoned)


def _uncordoned(answer: Json) -> str:
    if not answer["still"]:
        return f"{_named(answer)} takes work"
    lifted = "is not cordoned any more" if answer["device"] is None else "is vouched for"
    return f"{_named(answer)} {lifted}, but takes no work: {answer['still']}"
