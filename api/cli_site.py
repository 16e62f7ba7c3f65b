"""`muster credentials`: the files that the parts of a site need to find and to believe each other."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.api.cli_base import CommandError, Exit, examples

if TYPE_CHECKING:
    from muster.events.site_files import Site


def _words(_context: click.Context, _option: click.Parameter, text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@click.command(epilog=examples("muster credentials --nodes node-2,node-3 --brokers 10.0.0.1 --out site"))
@click.option(
    "--out",
    metavar="FOLDER",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder; what it has is kept.",
)
@click.option("--nodes", metavar="NAMES", default="", callback=_words, help="Names of nodes to add, with commas.")
@click.option(
    "--brokers",
    metavar="HOSTS",
    default="",
    callback=_words,
    help="HOST[:PORT] of one, three or five brokers, with commas.",
)
@click.option(
    "--store", metavar="FOLDER", default="", help="Where the brokers keep their data; /var/lib/muster at first."
)
@click.option("--prefix", metavar="NAME", default="", help="Of subjects and streams; muster at first.")
def credentials(*, out: Path, nodes: list[str], brokers: list[str], store: str, prefix: str) -> None:
    """Make credentials for each part, and the brokers' configuration. Run it again to add nodes."""
    from muster.events.site_files import SiteError, make_site, parse_address  # noqa: PLC0415 - a client starts quickly

    try:
        addresses = [parse_address(text) for text in brokers]
        site = make_site(out, nodes=nodes, brokers=addresses, store=store, prefix=prefix)
    except SiteError as error:
        raise CommandError(str(error), Exit.USAGE) from error
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}", Exit.FAILED) from error
    click.echo(_told(out, site))


def _told(out: Path, site: "Site") -> str:
    urls = ",".join(broker.url for broker in site.brokers)
    lines = [
        f"{out}/nats-{number}.conf  for the broker at {broker.host}, port {broker.port}"
        for number, broker in enumerate(site.brokers, start=1)
    ]
    lines += [
        f"{out}/server.json  for `muster server`",
        f"{out}/scheduler.json  for `muster scheduler`",
        *(f"{out}/agent-{node}.json  for `muster agent --node {node}`" for node in site.nodes),
        f"{out}/reader.json  for those who only read the log",
        f"connect them with: export MUSTER_NATS={urls}",
        "brokers that run read their new configuration on SIGHUP: send it to all, and then to all once more",
    ]
    return "\n".join(lines)
