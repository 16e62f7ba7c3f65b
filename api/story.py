"""The log as a story: what each entry says, in a sentence with who, where and why.

A `Teller` folds as it goes: names, users and places are those of the state, and what an entry led to (a job has ended,
an entry was refused) is told with it. Every type of event has its sentence.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, assert_never

import msgspec

from muster.api.event_text import settings
from muster.api.log_views import UNREADABLE
from muster.api.story_words import (
    ENDS,
    FAULT_ACTIONS,
    REQUEUE_CAUSES,
    STOP_CAUSES,
    because,
    exit_words,
    gpus,
    gpus_of,
    places,
    registered,
    workers,
)
from muster.api.times import mib
from muster.core.explain_words import span
from muster.core.health import in_words
from muster.core.state import ENDED, Job
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.policy import Policy
from muster.projections.accounts import totals
from muster.projections.fold import Fold
from muster.projections.read_models import mentioned_jobs

_MS: Final = 1_000_000
ASIDES: Final = (t.StartWorker, t.StopWorker, t.ClockAdvanced)
"""What follows from something else in the log, and is left out of a story unless it is asked for."""


class Told(NamedTuple):
    """What an entry says. `kind` is its event's type (UNREADABLE where it is none); the names are of all that it
    concerns."""

    kind: str
    text: str
    aside: bool
    jobs: frozenset[int]
    users: frozenset[str]
    queues: frozenset[str]
    nodes: frozenset[str]


class Teller:
    """Tells the entries that follow a fold, which goes with them."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._state = fold.cluster.state
        self._live = {job.id for job in self._state.jobs.values() if job.phase not in ENDED}
        fold.touched.clear()

    def tell(self, entry: Entry) -> Told:
        """Fold the next entry, and say what it says. Raises SequenceGapError."""
        event = _event_of(entry)
        refused = self._state.refused_count
        self._fold.apply(entry)
        jobs = mentioned_jobs(entry)
        text = "something that cannot be read" if event is None else self._sentence(event)
        consequences = self._ended(jobs)
        if self._state.refused_count > refused:
            consequences.append(f"this changes nothing: {self._state.refusals[-1].reason}")
        known = [self._state.jobs[job] for job in jobs if job in self._state.jobs]
        actor = getattr(event, "user", "")
        return Told(
            kind=UNREADABLE if event is None else type(event).__name__,
            text="; ".join([text, *consequences]),
            aside=isinstance(event, ASIDES),
            jobs=frozenset(jobs),
            users=frozenset(filter(None, (actor, *(job.user for job in known)))),
            queues=frozenset((*_queues(event), *(job.spec.queue for job in known))),
            nodes=frozenset(_nodes(event)),
        )

    def _ended(self, jobs: set[int]) -> list[str]:
        """Which jobs have ended with the last entry; all of them are among those that it concerns."""
        sentences = []
        for job_id in sorted(self._fold.touched):
            job = self._state.jobs.get(job_id)
            if job is None:
                continue
            jobs.add(job_id)
            if job.phase not in ENDED:
                self._live.add(job_id)
            elif job_id in self._live or job_id == self._state.sequence:
                self._live.discard(job_id)
                sentences.append(self._end(job))
        self._fold.touched.clear()
        return sentences

    def _end(self, job: Job) -> str:
        sums = totals(job, self._state.timestamp_ns)
        ran = f" after {span(sums.ran_ms * _MS)} on {gpus_of(job)}" if sums.ran_ms else ""
        why = f": {job.reason}" if job.reason else ""
        return f"{self._job(job.id)} {ENDS[job.phase]}{ran}{why}"

    def _job(self, job_id: int) -> str:
        """`job 42 'llama' of ann`, as far as the state knows."""
        job = self._state.jobs.get(job_id)
        if job is None:
            return f"job {job_id}"
        return f"job {job_id}{f' {job.spec.name!r}' if job.spec.name else ''} of {job.user}"

    def _device(self, node: str, uuid: str, index: int | None) -> str:
        known = self._state.nodes.get(node)
        if index is None and known is not None and uuid in known.uuids():
            index = known.uuids().index(uuid)
        return f"device {uuid if index is None else index} of {node}"

    def _sentence(self, event: t.Event) -> str:
        if isinstance(event, t.Submission | t.JobFact | t.AdminFact):
            return self._by_people(event)
        if isinstance(event, t.NodeFact):
            return self._by_agents(event)
        if isinstance(event, t.Command):
            return self._commanded(event)
        return self._by_leader(event)

    def _by_people(self, event: t.Submission | t.JobFact | t.AdminFact) -> str:
        job = self._job
        match event:
            case t.JobSubmitted():
                return self._submitted(event)
            case t.JobCancelRequested():
                return f"{event.user} asks for an end of {job(event.job)}{because(event.reason)}"
            case t.NodeCordoned():
                return f"{event.user} keeps new work from {event.node}{because(event.reason)}"
            case t.NodeUncordoned():
                return f"{event.user} gives {event.node} new work again"
            case t.DeviceCordoned():
                device = self._device(event.node, event.uuid, event.index)
                return f"{event.user} keeps new work from {device}{because(event.reason)}"
            case t.DeviceUncordoned():
                return f"{event.user} vouches for {self._device(event.node, event.uuid, event.index)}: it takes work"
            case t.QueueConfigured():
                told = [word for word in settings(msgspec.to_builtins(event.queue)) if not word.startswith("name=")]
                return f"{event.user} sets up queue {event.queue.name}: {' '.join(told) or 'all as by default'}"
            case t.QueueRemoved():
                return f"{event.user} takes queue {event.name} away"
            case t.PolicyChanged():
                return f"{event.user} puts rules in force: {' '.join(_rules(event.policy)) or 'all as by default'}"
            case _:
                assert_never(event)

    def _by_agents(self, event: t.NodeFact) -> str:
        job = self._job
        match event:
            case t.NodeRegistered():
                return registered(event)
            case t.WorkerStarted():
                return f"{self._worker(event)} runs{self._all_run(event.job)}"
            case t.WorkerExited():
                return f"{self._worker(event)} has ended: {exit_words(event.exit)}"
            case t.WorkerRefused():
                return f"{event.node} does not start worker {event.rank} of {job(event.job)}: {event.reason}"
            case t.StopFailed():
                return f"{self._worker(event)} outlives every signal, and the node takes no new work: {event.detail}"
            case t.DeviceFaulted():
                fault = event.fault
                what = in_words(fault.cause, fault.xid, fault.detail)
                device = self._device(event.node, fault.uuid, fault.index)
                return f"{device}: {'; '.join(filter(None, (what, FAULT_ACTIONS[fault.action])))}"
            case t.DeviceRecovered():
                return f"{self._device(event.node, event.uuid, event.index)} has recovered{because(event.detail)}"
            case t.ForeignUsageChanged():
                held = ", ".join(f"{mib(use.memory_mib)} of device {use.index}" for use in event.foreign) or "nothing"
                return f"processes that are nobody's work here hold {held} on {event.node}"
            case t.NodeDegraded():
                return f"{event.node} takes no new work: {event.detail or event.cause}"
            case t.NodeRestored():
                return f"{event.node} is well again"
            case _:
                assert_never(event)

    def _by_leader(self, event: t.Observation | t.Decision) -> str:
        job = self._job
        match event:
            case t.LeaderStarted():
                return f"scheduler {event.scheduler} leads (engine {event.engine}, policy {event.policy})"
            case t.ClockAdvanced():
                return "time goes by"
            case t.NodeSuspected():
                return f"{event.node} has been silent for {span(event.silent_ms * _MS)}, and gets no new work"
            case t.NodeRecovered():
                return f"{event.node} is heard again"
            case t.JobAllocated():
                return self._allocated(event)
            case t.StopOrdered():
                return f"{workers(event.workers)} of {job(event.job)} must stop: {STOP_CAUSES[event.cause]}"
            case t.JobRequeued():
                counted = "" if event.counted else ", and the try does not count"
                return f"{job(event.job)} waits again: {REQUEUE_CAUSES[event.cause]}{counted}"
            case t.JobPreempted():
                return self._preempted(event)
            case t.JobTimedOut():
                then = "waits again" if event.action == "requeue" else "ends"
                return f"{job(event.job)} has run for its time limit: it is stopped, and {then}"
            case t.RoomReserved():
                gone = ", ".join(f"job {victim.job}" for victim in event.victims)
                stopped = f" ({gone} stopped for it)" if gone else ""
                return f"room is kept for {job(event.job)} on {places(event.placements)}{stopped}: {event.why}"
            case t.RoomReleased():
                return f"no more room is kept for {job(event.job)}: {event.detail or event.cause.replace('_', ' ')}"
            case t.NodeLost():
                over = ", ".join(f"job {ref.job}" for ref in event.ended)
                ended = f"; what ran there of {over} is over" if over else ""
                return f"{event.node} is lost: its lease of {span(event.lease_ms * _MS)} has run out{ended}"
            case t.DeviceReadmitted():
                return f"{self._device(event.node, event.uuid, event.index)} takes work again: {event.why}"
            case _:
                assert_never(event)

    def _commanded(self, event: t.Command) -> str:
        job = self._job
        match event:
            case t.StartWorker():
                return f"{event.node} is to start worker {event.rank} of {job(event.job)}"
            case t.StopWorker():
                return f"{event.node} is to stop worker {event.rank} of {job(event.job)}: {STOP_CAUSES[event.cause]}"
            case _:
                assert_never(event)

    def _submitted(self, event: t.JobSubmitted) -> str:
        spec = event.spec
        what = f"job {self._state.sequence}{f' {spec.name!r}' if spec.name else ''} of {event.user}"
        cpus = f"{spec.cpus:g} CPUs" if spec.cpus else "no GPU"
        wish = gpus(spec.gpus) if spec.gpus else cpus
        nodes = f" on {spec.nodes} nodes" if spec.nodes is not None and spec.nodes != 1 else ""
        return f"{what} comes to {spec.queue} and asks for {wish}{nodes}"

    def _allocated(self, event: t.JobAllocated) -> str:
        job = self._state.jobs.get(event.job)
        waited = span(job.account.waited_ms * _MS) if job is not None else ""
        after = f" after a wait of {waited}" if waited and event.attempt == 1 else f" (attempt {event.attempt})"
        return f"{self._job(event.job)} gets {places(event.placements)}{after}: {event.why}"

    def _preempted(self, event: t.JobPreempted) -> str:
        victim, winner = self._state.jobs.get(event.job), self._state.jobs.get(event.beneficiary)
        why = "priority" if event.cause == "priority" else "what its queue lent is asked back"
        if event.cause == "priority" and victim is not None and winner is not None:
            why = f"priority {winner.priority} before {victim.priority}"
        lost = f"{span(event.work_lost_ms * _MS)} of device time is lost"
        if victim is not None and victim.spec.preemption.signal:
            lost += " as far as its checkpoint does not keep it"
        return f"{self._job(event.job)} is stopped for {self._job(event.beneficiary)} ({why}); {lost}"

    def _worker(self, event: t.WorkerStarted | t.WorkerExited | t.StopFailed) -> str:
        return f"worker {event.rank} of {self._job(event.job)} on {event.node}"

    def _all_run(self, job_id: int) -> str:
        job = self._state.jobs.get(job_id)
        if job is None or job.phase != "RUNNING" or job.attempt is None or len(job.attempt.workers) == 1:
            return ""
        return f", and so do all {len(job.attempt.workers)} of them"


def _event_of(entry: Entry) -> t.Event | None:
    try:
        return codec.decode(entry.payload)
    except codec.UnreadableEventError:
        return None


def _queues(event: t.Event | None) -> Sequence[str]:
    match event:
        case t.QueueConfigured():
            return (event.queue.name,)
        case t.QueueRemoved():
            return (event.name,)
        case t.JobSubmitted():
            return (event.spec.queue,)
    return ()


def _rules(policy: Policy) -> list[str]:
    default = msgspec.to_builtins(Policy())
    return settings({name: rule for name, rule in msgspec.to_builtins(policy).items() if rule != default.get(name)})


def _nodes(event: t.Event | None) -> list[str]:
    """The nodes that an event names."""
    node = getattr(event, "node", "")
    places = (*getattr(event, "placements", ()), *getattr(event, "workers", ()))
    return [node] if node else [place.node for place in places]
