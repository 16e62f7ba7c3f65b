"""`make bench`: every measurement, as the table of docs/performance.md."""

import argparse
import asyncio
import os
import platform
import sys

from bench import audit, growth, openb, placement, policies, replay, service, simulation, timetravel, whatif
from bench.table import Row, as_markdown


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure Muster; nothing else should run meanwhile.")
    parser.add_argument("--entries", type=int, default=200_000, help="entries of the replays")
    parser.add_argument("--cold-entries", type=int, default=1_000_000, help="entries of the cold start")
    parser.add_argument(
        "--past-entries",
        type=int,
        nargs="+",
        default=[100_000, 1_000_000],
        help="entries of the logs whose past is visited; 10000000 takes half an hour, and 6 GB in TMPDIR",
    )
    groups = (
        "placement",
        "policies",
        "growth",
        "openb",
        "simulation",
        "replay",
        "audit",
        "timetravel",
        "service",
        "whatif",
    )
    parser.add_argument("--only", choices=groups, help="one group of measurements")
    arguments = parser.parse_args()
    rows: list[Row] = []
    if arguments.only in (None, "placement"):
        rows += [placement.decide_alone(gangs=False), placement.decide_alone(gangs=True)]
        rows += await placement.through_the_log()
    rows += [*policies.measure(), *growth.small_changes()] if arguments.only in (None, "policies") else []
    rows += growth.measure() if arguments.only in (None, "growth") else []
    rows += openb.measure() if arguments.only in (None, "openb") else []
    rows += simulation.measure() if arguments.only in (None, "simulation") else []
    if arguments.only in (None, "replay"):
        rows += await replay.measure(arguments.entries, arguments.cold_entries)
    rows += await audit.measure() if arguments.only in (None, "audit") else []
    if arguments.only in (None, "timetravel"):
        rows += await timetravel.measure(arguments.past_entries)
    if arguments.only in (None, "service"):
        rows += [*await service.measure(), *await service.bursts()]
    rows += await whatif.measure() if arguments.only in (None, "whatif") else []
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    sys.stdout.write(f"{machine}\n\n{as_markdown(rows)}\n")


if __name__ == "__main__":
    asyncio.run(main())
