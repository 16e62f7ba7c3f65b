"""How long a job is expected to run: what it says, else what the same user's jobs of that name took, else its limit."""

from typing import Final, Literal

from muster.core.state import Job, State

KEPT_RUNS: Final = 5
KEPT_NAMES: Final = 10_000

Source = Literal["estimate", "history", "time_limit", "unknown"]


def expected_s(state: State, job: Job) -> tuple[int, Source]:
    """Seconds (0 = unknown), and where that is from. History counts with the longest of the last runs; nothing is
    expected to run longer than its limit."""
    limits = job.spec.limits
    limit = limits.time_limit if isinstance(limits.time_limit, int) else 0
    if isinstance(limits.estimate, int) and limits.estimate:
        return limits.estimate, "estimate"
    runs = state.learned.get(name_key(job))
    if runs:
        longest = max(runs)
        return (longest, "history") if not limit or longest <= limit else (limit, "time_limit")
    return (limit, "time_limit") if limit else (0, "unknown")


def note_expected(state: State, job: Job) -> None:
    """A job begins to wait: its place may go by what is expected of it now."""
    job.expected_s = expected_s(state, job)[0]


def learn(state: State, job: Job, seconds: int) -> None:
    """A job completed after so long."""
    key = name_key(job)
    runs = state.learned.pop(key, [])
    state.learned[key] = [*runs[1 - KEPT_RUNS :], max(1, seconds)]
    if len(state.learned) > KEPT_NAMES:
        del state.learned[next(iter(state.learned))]


def name_key(job: Job) -> str:
    """Whose job of which name it is."""
    return f"{job.user}\n{job.spec.name}"
