"""How a worker's processes are brought to their end: the job's own signal and notice, TERM and grace, KILL. Standard
library only, like the keeper.

Rules:

- The signal goes, once, to every process of the worker that has something for it: a handler, a block (for a signalfd,
  or for a thread that waits), or the explicit wish to ignore it. A process at the signal's default action is left
  alone, so that a shell, a launcher or a profiler around the program neither dies of it nor takes the notice away.
  While a process's first thread itself waits in sigwait the kernel shows no block: it needs a handler to be seen.
  What a job must do: have a handler in the process that owns the checkpoint, which writes it and ends. Children forked
  later have that handler too: it must see in which process it runs. In a script, ``trap`` makes the shell one of those
  who are told; it runs the trap when the program in its foreground has ended.
- Where no process has anything for the signal, or this machine has no such signal, nobody would use the notice: TERM
  follows at once, and the exit's detail says why.
- All may use the notice, with one exception: when the first process has ended, and none that was told is left, what
  they leave behind has no more time than after any other end.
- A later order can only hasten the end: of two moments for TERM the earlier one holds, and likewise for KILL.
"""

import signal
import time
from collections.abc import Callable

from muster.node_agent import tree

KILL_AGAIN_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def monotonic_ms() -> int:
    """The clock of notices and graces."""
    return time.monotonic_ns() // 1_000_000


def _earlier(one_ms: int | None, other_ms: int) -> int:
    return other_ms if one_ms is None else min(one_ms, other_ms)


class Ending:
    """What is to happen to a worker's processes, and when. `everything` gives their pids, `kill` is one round of
    SIGKILL. `detail` says why a signal was not used ("" = it was, or there was none)."""

    def __init__(self, everything: Callable[[], list[int]], kill: Callable[[], None]) -> None:
        self.detail = ""
        self._everything = everything
        self._kill = kill
        self._told: list[tree.ProcessStat] = []
        self._term_at_ms: int | None = None  # None = nothing is ordered
        self._kill_at_ms: int | None = None  # never before `_term_at_ms`
        self._asked = False  # TERM was sent
        self._kills = 0

    def order(self, grace_ms: int, notice_ms: int = 0, name: str = "") -> None:
        """TERM after the notice, which only who hears the signal `name` (without SIG; "" = none) has, KILL after the
        grace. To repeat an order changes nothing."""
        if name and self._term_at_ms is None:
            self._tell(name)
        term_at_ms = monotonic_ms() + (notice_ms if name and self._told else 0)
        self._term_at_ms = _earlier(self._term_at_ms, term_at_ms)
        self._kill_at_ms = _earlier(self._kill_at_ms, term_at_ms + grace_ms)

    def act(self) -> bool:
        """Do what is due; whether anything was killed. SIGCONT lets what is stopped hear TERM."""
        now_ms = monotonic_ms()
        if self._kill_at_ms is not None and now_ms >= self._kill_at_ms:
            self._kills += 1
            self._kill()
            return True
        if self._term_at_ms is not None and now_ms >= self._term_at_ms and not self._asked:
            self._asked = True
            tree.send(self._everything(), signal.SIGTERM, signal.SIGCONT)
        return False

    def due_in_ms(self) -> int | None:
        """How long nothing is to be done; None = until the next order."""
        if self._term_at_ms is None or self._kill_at_ms is None:
            return None
        at_ms = self._kill_at_ms if self._asked else self._term_at_ms
        again_ms = KILL_AGAIN_MS[min(self._kills, len(KILL_AGAIN_MS)) - 1] if self._kills else 0
        return max(at_ms - monotonic_ms(), again_ms)

    def waits_for_nobody(self) -> bool:
        """Whether no TERM was sent, and nobody who was told to end by itself is left."""
        return not (self._asked or self._kills) and not any(
            tree.is_running(stat.pid, stat.start_ticks) for stat in self._told
        )

    def _tell(self, name: str) -> None:
        everything = self._everything()
        number = tree.signal_number(name)
        if number is not None:
            self._told = tree.listening(everything, number)
            tree.send([stat.pid for stat in self._told], number)
        if self._told:
            tree.send(everything, signal.SIGCONT)
        elif everything:
            why = f"none of its processes had a handler for {name}" if number else f"there is no signal {name} here"
            self.detail = f"{why}: TERM at once"
