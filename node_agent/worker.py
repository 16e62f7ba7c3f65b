"""One worker, as the agent has it in mind, and who hears of what becomes of it."""

import asyncio
from typing import NamedTuple, Protocol

from muster.events.types import ExitStatus
from muster.node_agent.worker_folder import Ticket, WorkerFolder


class Key(NamedTuple):
    """Which worker."""

    job: int
    attempt: int
    rank: int


class Worker:
    """One worker. `command` is the sequence of the command that began it and `incarnation` the agent's
    life it was for (0 and "" = adopted); `exit` is set at its end."""

    def __init__(self, ticket: Ticket, folder: WorkerFolder, command: int, incarnation: str) -> None:
        self.ticket = ticket
        self.folder = folder
        self.command = command
        self.incarnation = incarnation
        self.key = Key(ticket.job, ticket.attempt, ticket.rank)
        self.pid = 0
        self.keeper_pid = 0  # while its keeper is followed
        self.exit: ExitStatus | None = None
        self.gone = asyncio.Event()

    def end(self, status: ExitStatus) -> None:
        """Nothing of its tree is left; `gone` is set once that has been reported."""
        self.exit = status


class Reports(Protocol):
    """Who is told what becomes of the workers."""

    def started(self, worker: Worker) -> None:
        """Its program runs."""
        ...

    def exited(self, worker: Worker) -> None:
        """Nothing of its tree is left."""
        ...

    def refused(self, worker: Worker, reason: str) -> None:
        """It never ran and never will."""
        ...

    def stop_failed(self, worker: Worker, detail: str) -> None:
        """Its tree outlives every signal."""
        ...
