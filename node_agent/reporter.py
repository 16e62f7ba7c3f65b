"""An agent's words: what becomes of workers and devices, as events of the present life."""

from collections.abc import Sequence

from muster.events.types import (
    DETAIL_LIMIT,
    DeviceFault,
    DeviceFaulted,
    DeviceRecovered,
    ExitStatus,
    ForeignUsageChanged,
    ForeignUse,
    NodeDegraded,
    NodeFact,
    NodeRestored,
    StopFailed,
    WorkerExited,
    WorkerRefused,
    WorkerStarted,
)
from muster.node_agent.devices import Degraded
from muster.node_agent.outbox import Outbox
from muster.node_agent.worker import Key, Worker


class Reporter:
    """`Reports` into the outbox. Before the first life there is nothing to add to its registration."""

    def __init__(self, node: str, outbox: Outbox) -> None:
        self.incarnation = ""
        self.node = node
        self._outbox = outbox

    def started(self, worker: Worker) -> None:
        """Its program runs."""
        self._put(WorkerStarted(self.node, self.incarnation, *worker.key, pid=worker.pid))

    def exited(self, worker: Worker) -> None:
        """Nothing of its tree is left."""
        self.ended(worker.key, worker.exit or ExitStatus("lost"))

    def refused(self, worker: Worker, reason: str) -> None:
        """It never ran and never will. Where a later life's registration has listed it, that is its end."""
        if worker.incarnation == self.incarnation:
            self.refuse(worker.command, worker.key, reason)
        else:
            self.exited(worker)

    def stop_failed(self, worker: Worker, detail: str) -> None:
        """Its tree outlives every signal."""
        self._put(StopFailed(self.node, self.incarnation, *worker.key, detail=detail))

    def ended(self, key: Key, status: ExitStatus) -> None:
        """Nothing of that worker is here."""
        self._put(WorkerExited(self.node, self.incarnation, *key, exit=status))

    def refuse(self, command: int, key: Key, reason: str) -> None:
        """The command of that sequence is not obeyed."""
        self._put(WorkerRefused(self.node, self.incarnation, command, *key, reason=reason[:DETAIL_LIMIT]))

    def faulted(self, fault: DeviceFault) -> None:
        """Something is wrong with a device, or went wrong on it."""
        self._put(DeviceFaulted(self.node, self.incarnation, fault))

    def recovered(self, fault: DeviceFault) -> None:
        """What was wrong with the device is over."""
        self._put(DeviceRecovered(self.node, self.incarnation, fault.index, fault.uuid, fault.detail))

    def foreign(self, foreign: Sequence[ForeignUse]) -> None:
        """All that foreign processes hold now."""
        self._put(ForeignUsageChanged(self.node, self.incarnation, list(foreign)))

    def degraded(self, degraded: Degraded) -> None:
        """Something is wrong with the node as a whole."""
        self._put(NodeDegraded(self.node, self.incarnation, degraded.cause, degraded.detail[:DETAIL_LIMIT]))

    def restored(self) -> None:
        """Nothing is wrong with the node as a whole any more."""
        self._put(NodeRestored(self.node, self.incarnation))

    def _put(self, event: NodeFact) -> None:
        if self.incarnation:
            self._outbox.put(event)
