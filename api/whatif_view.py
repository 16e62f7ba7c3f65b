"""What would have been, as the server answers it: the comparison, and all that it takes for granted."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from muster.api.times import rfc3339
from muster.events.types import Inventory
from muster.projections.comparison import Comparison, Group, Mover, Whole
from muster.projections.virtual_agents import Guess
from muster.projections.whatif import Outcome


class WhatIfView(msgspec.Struct, frozen=True):
    """The window after entry `first` up to entry `last`, as recorded and as it would have been. `left_at` is the last
    entry that both have in common (null = all of them), `passes_alike` how many recorded passes were decided again
    before and came out the same, `rejected` how many jobs are not compared since under the other rules their submission
    is refused, and `same_devices` how many of the `placed`, that began in either, had the same
    devices in both. `wall_s` is how long the question was worked on."""

    first: int
    last: int
    begin: str
    end: str
    left_at: int | None
    passes_alike: int
    rejected: int
    placed: int
    same_devices: int
    jobs: Group
    recorded: Whole
    whatif: Whole
    queues: list[Group]
    users: list[Group]
    gained: list[Mover]
    lost: list[Mover]
    series: list[tuple[float, int, float, int, float]]
    assumed: list[str]
    wall_s: float


def view_of(outcome: Outcome, wall_s: float) -> WhatIfView:
    """The answer."""
    found: Comparison = outcome.comparison
    return WhatIfView(
        outcome.first,
        outcome.last,
        rfc3339(outcome.began_ns),
        rfc3339(outcome.until_ns),
        outcome.left_at,
        outcome.passes,
        found.rejected,
        found.placed,
        found.same_devices,
        found.jobs,
        found.recorded,
        found.whatif,
        found.queues,
        found.users,
        found.gained,
        found.lost,
        found.series,
        list(_assumed(outcome)),
        wall_s,
    )


def _assumed(outcome: Outcome) -> Iterator[str]:
    """What the answer takes for granted, in sentences."""
    if outcome.other_engine:
        count = outcome.other_engine
        which = "1 recorded decision is" if count == 1 else f"{count} recorded decisions are"
        yield f"{which} of another engine version: what is otherwise may be so for that alone"
    if outcome.left_at is None:
        yield "no pass comes out otherwise: the branch is the record"
        return
    yield (
        "people act as they did: submissions and cancellations keep their times, and so does what happened to nodes and"
        " devices"
    )
    yield (
        "each job runs for as long as the log saw it run, and ends as it ended; workers start and stop as quickly as"
        " they did"
    )
    if outcome.guessed:
        count = sum(outcome.guessed.values())
        parts = ", ".join(f"{number} {_GUESSES[guess]}" for guess, number in sorted(outcome.guessed.items()))
        which = (
            "1 job whose end the log never saw runs" if count == 1 else f"{count} jobs whose end the log never saw run"
        )
        yield f"{which} for a time that is guessed: {parts}"
    yield (
        "who is stopped begins anew, unless it has a checkpoint signal or is requeued by its time limit: then it goes"
        " on where it was"
    )
    yield "a job that has not started by the end of the window has waited up to there"
    changes = outcome.changes
    if changes.policy is not None:
        yield "this policy holds from the beginning on; what people set in the window is left out"
    if changes.queues:
        yield "these queues hold from the beginning on; what people set of them in the window is left out"
    for (equipment, fabric), count in Counter(map(_equipment, changes.added.values())).items():
        nodes = "1 node more is" if count == 1 else f"{count} nodes more are"
        yield f"{nodes} there from the beginning on, with {equipment}, {fabric}"
    if changes.removed:
        yield f"no new work goes to {', '.join(changes.removed)}; what runs there runs to its end"


_GUESSES: dict[Guess, str] = {
    "estimate": "by its estimate",
    "history": "by what its user's jobs of that name took",
    "time_limit": "by its time limit",
    "seen": "by the longest that it was seen to run",
    "median": "by the median of what ended",
    "unknown": "by nothing",
}


def _equipment(inventory: Inventory) -> tuple[str, str]:
    models = Counter(device.model for device in inventory.devices)
    devices = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no devices"
    where = f"on fabric {inventory.fabric}" if inventory.fabric else "on no fabric"
    return f"{devices}, {inventory.cpus} CPUs and {inventory.memory_mib // 1024} GiB", where
