"""Commands about nodes and their devices: nodes, cordon, uncordon."""

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, examples, width
from muster.api.client import Json
from muster.api.device_text import node_table, node_text, smi, topology
from muster.api.times import today

_DEVICE = click.option(
    "--device", metavar="INDEX", type=click.IntRange(min=0), help="Only this device of the node, by its number."
)


@click.command(
    epilog=examples(
        "muster nodes",
        "muster nodes node-1",
        "muster nodes --smi                       # as nvidia-smi prints devices",
        "muster nodes node-1 --topology",
        "muster nodes --at -10m",
    )
)
@click.argument("node", required=False)
@click.option("--smi", "as_smi", is_flag=True, help="The devices as nvidia-smi --query-gpu ... --format=csv has them.")
@click.option(
    "--topology", "as_topology", is_flag=True, help="How devices are connected, as nvidia-smi topo -m has it."
)
@client_command(reads=True)
def nodes(session: Session, node: str | None, *, as_smi: bool, as_topology: bool) -> None:
    """List the nodes, or show one with its devices: what holds them, what is wrong with them, what they are doing."""
    if as_smi and as_topology:
        raise CommandError("--smi and --topology are two answers", Exit.USAGE, "give one of them")
    if node is None and as_topology:
        node = _only_node(session)
    if node is None:
        page = session.read("/v1/nodes")
        session.show(page, lambda page: _smi(page["nodes"]) if as_smi else node_table(page["nodes"], width()))
        return
    answer = session.read(f"/v1/nodes/{segment(node)}")
    session.show(answer, lambda found: _one(found, as_smi=as_smi, as_topology=as_topology))


def _one(node: Json, *, as_smi: bool, as_topology: bool) -> str:
    if as_smi:
        return _smi([node])
    return topology(node) if as_topology else node_text(node, today())


def _smi(found: list[Json]) -> str:
    return smi(found, named=len(found) > 1)


def _only_node(session: Session) -> str:
    names = [str(node["name"]) for node in session.read("/v1/nodes")["nodes"]]
    if len(names) != 1:
        raise CommandError(
            "--topology is of one node", Exit.USAGE, f"name it: {', '.join(names[:10]) or 'there is none'}"
        )
    return names[0]


def segment(text: str) -> str:
    """A name as a part of a path."""
    from urllib.parse import quote  # noqa: PLC0415 - few commands need it, and every command waits for imports

    return quote(text, safe="")


def _path(node: str, device: int | None, verb: str) -> str:
    return (
        f"/v1/nodes/{segment(node)}/{verb}" if device is None else f"/v1/nodes/{segment(node)}/devices/{device}/{verb}"
    )


def _named(node: str, device: int | None) -> str:
    return node if device is None else f"device {device} of {node}"


@click.command(
    epilog=examples(
        "muster cordon node-1 --reason 'fan 3 is loud'", "muster cordon node-1 --device 3 --reason 'Xid 48'"
    )
)
@click.argument("node")
@_DEVICE
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
@client_command()
def cordon(session: Session, node: str, device: int | None, reason: str) -> None:
    """Give a node, or one of its devices, no new work. What runs there goes on."""
    answer = session.client.post(_path(node, device, "cordon"), {"reason": reason})
    session.show(answer, lambda _: f"{_named(node, device)} is cordoned")


@click.command(epilog=examples("muster uncordon node-1", "muster uncordon node-1 --device 3"))
@click.argument("node")
@_DEVICE
@client_command()
def uncordon(session: Session, node: str, device: int | None) -> None:
    """Give a node, or one of its devices, work again. You vouch for the device: whatever was wrong is forgotten."""
    answer = session.client.post(_path(node, device, "uncordon"), {})
    session.show(answer, lambda _: f"{_named(node, device)} takes work")
