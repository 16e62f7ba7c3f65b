"""The command `muster`."""

import re
from typing import Any, Final

import click

from muster import __version__
from muster.api import (
    cli_audit,
    cli_cluster,
    cli_cordons,
    cli_follow,
    cli_history,
    cli_jobs,
    cli_nodes,
    cli_past,
    cli_queues,
    cli_replay,
    cli_serve,
    cli_simulate,
    cli_site,
    cli_submit,
    cli_top,
    cli_whatif,
)

_CLOCK: Final = re.compile(r"[(' ][0-9]{1,2}:[0-9]{2}(:[0-9.]+)?[)',]")


class _Muster(click.Group):
    """The commands; one that stumbles over the second word of a moment says so."""

    def invoke(self, context: click.Context) -> Any:
        """As click does."""
        try:
            return super().invoke(context)
        except click.UsageError as error:
            if _CLOCK.search(error.format_message()):
                hint = "a moment of two words is quoted: 'yesterday 14:05'"
                raise click.UsageError(f"{error.format_message().rstrip('.')}; {hint}", error.ctx) from error
            raise


@click.group(cls=_Muster, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="muster")
def main() -> None:
    """Muster: a GPU-cluster scheduler on an event log. `muster up` starts all of it on this machine."""


for _command in (
    cli_serve.up,
    cli_serve.server,
    cli_serve.scheduler,
    cli_serve.agent,
    cli_site.credentials,
    cli_submit.submit,
    cli_submit.run,
    cli_jobs.jobs,
    cli_jobs.show,
    cli_jobs.explain,
    cli_follow.logs,
    cli_jobs.cancel,
    cli_follow.wait,
    cli_jobs.queue,
    cli_queues.queues,
    cli_queues.policy,
    cli_nodes.nodes,
    cli_top.top,
    cli_cordons.cordon,
    cli_cordons.uncordon,
    cli_cluster.events,
    cli_replay.replay,
    cli_history.history,
    cli_cluster.state,
    cli_audit.audit,
    cli_past.at,
    cli_past.diff,
    cli_simulate.simulate,
    cli_whatif.whatif,
):
    main.add_command(_command)
