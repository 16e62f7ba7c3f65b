"""A job that can be preempted: it counts steps, and on USR2 it saves how far it came and ends.

Started again with the same file, it goes on from there:

    muster submit FILE.toml     # command = "python examples/checkpointing.py /shared/progress --steps 600"
                                # preemption.signal = "USR2@60": that signal, and 60 s to save and end

The handler only sets a flag; the loop looks at it between two steps, where the state is whole.
"""

# ruff: noqa: INP001, T201 - a program for people to run and read, no part of the package

import argparse
import os
import signal
import time
from pathlib import Path


class Notice:
    """Whether this process was told to save and end."""

    def __init__(self) -> None:
        self.given = False
        signal.signal(signal.SIGUSR2, self._give)

    def _give(self, *_: object) -> None:
        self.given = True


def load(progress: Path) -> int:
    """The steps done by the runs before."""
    try:
        return int(progress.read_text())
    except FileNotFoundError:
        return 0


def save(progress: Path, steps_done: int) -> None:
    """Durable when this returns; whoever reads meanwhile, or after a crash, finds the old number or the new one."""
    new = progress.with_name(f"{progress.name}.new")
    with new.open("w") as file:
        file.write(f"{steps_done}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(progress)
    folder = os.open(progress.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def main() -> None:
    """Count to the end, or to the notice."""
    notice = Notice()
    parser = argparse.ArgumentParser(description="Count steps, with a checkpoint on USR2.")
    parser.add_argument("progress", type=Path, help="the file that holds the steps done")
    parser.add_argument("--steps", type=int, default=100, help="how many steps there are")
    parser.add_argument("--step-ms", type=int, default=100, help="how long a step takes")
    arguments = parser.parse_args()

    step = load(arguments.progress)
    print(f"starting from step {step} of {arguments.steps}", flush=True)
    while step < arguments.steps and not notice.given:
        time.sleep(arguments.step_ms / 1000)  # the work
        step += 1
    save(arguments.progress, step)
    print(f"{'done' if step >= arguments.steps else 'saved'} at step {step}", flush=True)


main()
