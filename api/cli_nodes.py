"""The command about nodes and their devices: nodes."""

import click

from muster.api.cli_base import CommandError, Exit, Session, client_command, examples, segment, width
from muster.api.client import Json
from muster.api.device_text import node_table, node_text, smi, topology
from muster.api.table import clean
from muster.api.times import today


@click.command(
    epilog=examples(
        "muster nodes",
        "muster nodes node-1",
        "muster nodes --smi                       # as nvidia-smi prints devices",
        "muster nodes node-1 --topology",
        "muster nodes node-1 --wide               # also bus ids, uuids, clocks, ECC errors",
        "muster nodes --at -10m",
    )
)
@click.argument("node", required=False)
@click.option("--smi", "as_smi", is_flag=True, help="The devices as nvidia-smi --query-gpu ... --format=csv has them.")
@click.option("--topology", "as_topology", is_flag=True, help="How devices are connected, like nvidia-smi topo -m.")
@click.option("--wide", is_flag=True, help="All about one node's devices, however narrow the terminal.")
@client_command(reads=True)
def nodes(session: Session, node: str | None, *, as_smi: bool, as_topology: bool, wide: bool) -> None:
    """List the nodes, or show one with its devices: what holds them, what is wrong with them, what they are doing."""
    forms = {"--smi": as_smi, "--topology": as_topology, "--wide": wide}
    asked = [name for name, is_asked in forms.items() if is_asked]
    if len(asked) > 1:
        raise CommandError(f"{' and '.join(asked)} are {len(asked)} answers", Exit.USAGE, "give one of them")
    if node is None and (as_topology or wide):
        node = _only_node(session, asked[0])
    if node is None:
        page = session.read("/v1/nodes")
        session.show(page, lambda page: _smi(page["nodes"]) if as_smi else node_table(page["nodes"], width()))
        session.say_past(page)
        if as_smi:
            _say_unsampled(session, page)
        return
    answer = session.read(f"/v1/nodes/{segment('node', node)}")
    session.show(answer, lambda found: _one(found, as_smi=as_smi, as_topology=as_topology, wide=wide))
    session.say_past(answer)
    if not as_topology:
        _say_unsampled(session, answer)


def _say_unsampled(session: Session, answer: Json) -> None:
    """What devices did at a past moment may no longer be known."""
    if answer["unsampled"] and not session.as_json:
        click.echo(f"muster: {clean(answer['unsampled'])}", err=True)


def _one(node: Json, *, as_smi: bool, as_topology: bool, wide: bool) -> str:
    if as_smi:
        return _smi([node])
    return topology(node) if as_topology else node_text(node, today(), width(), wide=wide)


def _smi(found: list[Json]) -> str:
    return smi(found, named=len(found) > 1)


def _only_node(session: Session, option: str) -> str:
    names = [str(node["name"]) for node in session.read("/v1/nodes")["nodes"]]
    if len(names) != 1:
        step = f"name it: {', '.join(names[:10]) or 'there is none'}"
        raise CommandError(f"{option} is of one node", Exit.USAGE, step)
    return names[0]
