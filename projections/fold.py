"""The cluster fold: one entry after another into the state.

A fold never fails: whatever is in the log is applied, or counted as refused with a reason. Commands are passed over
(they follow from decisions). The chain binds every byte of every entry. Logical time grows from entry to entry by
the difference of the server's timestamps, at least 0 and at most 60 s, so that a clock that jumps ends no lease.
"""

import hashlib
from collections.abc import Callable, Iterable
from struct import Struct as Packer
from typing import Final, NamedTuple, assert_never

import msgspec

from muster.core.cluster import Cluster
from muster.core.schedule import SECOND_NS
from muster.core.state import Refusal, State
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.subjects import WRITERS
from muster.projections import device_rules, job_rules, node_rules, policy_rules, worker_rules

FOLD_VERSION: Final = 8
"""Grows whenever the same log gives another state; a snapshot of another version is not read."""

LONGEST_STEP_NS: Final = 60 * SECOND_NS
SWEEP_NS: Final = 60 * SECOND_NS
REFUSALS_KEPT: Final = 100
CHAIN_BYTES: Final = 16

_pack_place: Final = Packer(">QQ").pack
_state_encoder: Final = msgspec.msgpack.Encoder()
_state_decoder: Final = msgspec.msgpack.Decoder(State)
_decode_submission: Final[Callable[[bytes], t.Submission]] = codec.decoder_of(t.Submission)
_decode_job_fact: Final[Callable[[bytes], t.JobFact]] = codec.decoder_of(t.JobFact)
_decode_admin_fact: Final[Callable[[bytes], t.AdminFact]] = codec.decoder_of(t.AdminFact)
_decode_node_fact: Final[Callable[[bytes], t.NodeFact]] = codec.decoder_of(t.NodeFact)
_decode_decision: Final[Callable[[bytes], t.Observation | t.Decision]] = codec.decoder_of(t.Observation | t.Decision)
_decode_known: Final = codec.decode_known
_LONG_BYTES: Final = codec.LONG_BYTES
_new_link: Final = hashlib.blake2b(digest_size=CHAIN_BYTES).copy


class SequenceGapError(Exception):
    """The next entry was not handed over: the reader of the log must find it first."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"entry {expected} is missing: the next one at hand is {found}")
        self.expected = expected
        self.found = found


def next_chain(chain: bytes, entry: Entry) -> bytes:
    """The chain after an entry: BLAKE2b-128 over the chain before it, its sequence and timestamp (8 bytes each, big
    end first), its subject, a zero byte and its payload."""
    sequence, timestamp_ns, subject, payload = entry
    link = _new_link()
    link.update(chain + _pack_place(sequence, timestamp_ns) + subject.encode() + b"\0" + payload)
    return link.digest()


class _Subject(NamedTuple):
    """What a subject says: which of the fold's methods takes its entries (None = none does; unbound, so that a fold
    that nobody has any more is gone at once, without the collector), whether they move the fence, the node of an
    agent's subject, and its bytes in the chain."""

    apply: "Callable[[Fold, str, bytes], str | None] | None"
    is_decision: bool
    owner: str
    link: bytes


class Fold:
    """State and indexes after the entries applied so far. `touched` collects the jobs whose state changed, for
    whoever keeps read models; its reader clears it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster: Final = cluster
        self.touched: set[int] = set()
        self._subjects: dict[str, _Subject] = {}
        self._sweep_at = (cluster.state.time_at // SWEEP_NS + 1) * SWEEP_NS  # logical: each whole minute

    @classmethod
    def empty(cls) -> "Fold":
        """The state before the first entry."""
        return cls(Cluster(State()))

    @classmethod
    def restore(cls, state_bytes: bytes) -> "Fold":
        """The fold that wrote these bytes. Raises msgspec.MsgspecError for bytes that are no state."""
        return cls(Cluster(_state_decoder.decode(state_bytes)))

    def state_bytes(self) -> bytes:
        """The state in its canonical form: the same log gives the same bytes."""
        return _state_encoder.encode(self.cluster.state)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry. Raises SequenceGapError where it is not the next, and nothing else."""
        self.apply_all((entry,))

    def apply_all(self, entries: Iterable[Entry]) -> None:
        """Apply entries in order. Raises SequenceGapError at the first that is not the next. The one loop that every
        replay goes through: what it does for each entry is written out in it."""
        state, subjects = self.cluster.state, self._subjects
        new_link, pack_place, join = _new_link, _pack_place, b"".join
        chain, last, last_ns, time_at = state.chain, state.sequence, state.timestamp_ns, state.time_at
        try:
            for sequence, timestamp_ns, subject, payload in entries:
                if sequence != last + 1:
                    raise SequenceGapError(last + 1, sequence)
                apply, is_decision, owner, subject_link = subjects.get(subject) or self._classify(subject)
                link = new_link()
                link.update(join((chain, pack_place(sequence, timestamp_ns), subject_link, payload)))
                chain = link.digest()
                state.sequence = last = sequence
                elapsed_ns = timestamp_ns - last_ns
                state.timestamp_ns = last_ns = timestamp_ns
                if elapsed_ns > 0 and sequence > 1:
                    time_at += elapsed_ns if elapsed_ns < LONGEST_STEP_NS else LONGEST_STEP_NS  # noqa: FURB136  min() costs
                    state.time_at = time_at
                    if time_at >= self._sweep_at:
                        self._sweep()
                if is_decision:
                    state.fence = sequence
                if apply is None:
                    continue
                if len(payload) > _LONG_BYTES and codec.is_too_deep(payload):
                    self._refuse(f"unreadable: {codec.TOO_DEEP}")
                    continue
                try:
                    refusal = apply(self, owner, payload)
                except msgspec.MsgspecError:
                    refusal = self._apply_otherwise(subject, payload)
                if refusal is not None:
                    self._refuse(refusal)
        finally:
            state.chain = chain

    def _sweep(self) -> None:
        job_rules.forget_old(self.cluster)
        self._sweep_at = (self.cluster.state.time_at // SWEEP_NS + 1) * SWEEP_NS

    def _classify(self, subject: str) -> _Subject:
        writer, owner = _writer_and_owner(subject)
        apply = {
            "submission": Fold._apply_submission,
            "job": Fold._apply_job_fact,
            "admin": Fold._apply_admin_fact,
            "node": Fold._apply_node_fact,
            "decision": Fold._apply_decision,
            "command": None,
        }.get(writer, Fold._apply_foreign)
        found = self._subjects[subject] = _Subject(apply, writer == "decision", owner, subject.encode() + b"\0")
        return found

    def _apply_otherwise(self, subject: str, payload: bytes) -> str | None:
        """A payload that is none of its subject's writer, in this version: an older one is upcast, others refused."""
        state = self.cluster.state
        writer, owner = _writer_and_owner(subject)
        try:
            event = codec.decode(payload)
        except codec.UnknownEventError as error:
            if writer != "node":  # what a newer agent reports beside must not end the leading of this scheduler
                state.unknown_since = state.unknown_since or state.sequence
            return str(error)
        except codec.UnreadableEventError as error:
            return f"unreadable: {error}"[:500]
        apply = self._subjects[subject].apply
        if apply is None or WRITERS[type(event)] != writer:
            return _misplaced(event)
        return apply(self, owner, codec.encode(event))

    def _refuse(self, reason: str) -> None:
        state = self.cluster.state
        state.refused_count += 1
        state.refusals.append(Refusal(state.sequence, reason))
        del state.refusals[:-REFUSALS_KEPT]

    # -- one method a class of writer: each decodes only what that writer may write ------------------------------------

    def _apply_node_fact(self, owner: str, payload: bytes) -> str | None:
        event = _decode_node_fact(payload)
        if event.node != owner:
            return _misplaced(event)
        cluster, touched = self.cluster, self.touched
        match event:
            case t.WorkerStarted():
                touched.add(event.job)
                return worker_rules.worker_started(cluster, event)
            case t.WorkerExited():
                touched.add(event.job)
                return worker_rules.worker_exited(cluster, event)
            case t.WorkerRefused():
                touched.add(event.job)
                return worker_rules.worker_refused(cluster, event)
            case t.NodeRegistered():
                return node_rules.node_registered(cluster, event, touched)
            case t.StopFailed():
                return node_rules.stop_failed(cluster, event)
            case t.DeviceFaulted():
                return device_rules.device_faulted(cluster, event, touched)
            case t.DeviceRecovered():
                return device_rules.device_recovered(cluster, event)
            case t.ForeignUsageChanged():
                return device_rules.foreign_usage_changed(cluster, event)
            case t.NodeDegraded():
                return device_rules.node_degraded(cluster, event)
            case t.NodeRestored():
                return device_rules.node_restored(cluster, event)
            case _:
                assert_never(event)

    def _apply_decision(self, _owner: str, payload: bytes) -> str | None:
        event = _decode_decision(payload)
        cluster, touched = self.cluster, self.touched
        match event:
            case t.JobAllocated():
                touched.add(event.job)
                return job_rules.job_allocated(cluster, event)
            case t.StopOrdered():
                touched.add(event.job)
                return job_rules.stop_ordered(cluster, event)
            case t.JobRequeued():
                touched.add(event.job)
                return job_rules.job_requeued(cluster, event)
            case t.JobPreempted():
                touched.add(event.job)
                return job_rules.job_preempted(cluster, event)
            case t.JobTimedOut():
                touched.add(event.job)
                return job_rules.job_timed_out(cluster, event)
            case t.RoomReserved():
                touched.add(event.job)
                return job_rules.room_reserved(cluster, event)
            case t.RoomReleased():
                touched.add(event.job)
                return job_rules.room_released(cluster, event)
            case t.NodeLost():
                return node_rules.node_lost(cluster, event, touched)
            case t.DeviceReadmitted():
                return device_rules.device_readmitted(cluster, event)
            case t.NodeSuspected():
                return node_rules.node_suspected(cluster, event)
            case t.NodeRecovered():
                return node_rules.node_recovered(cluster, event)
            case t.LeaderStarted():
                return node_rules.leader_started(cluster, event)
            case t.ClockAdvanced():
                return None
            case _:
                assert_never(event)

    def _apply_submission(self, _owner: str, payload: bytes) -> str | None:
        event = _decode_submission(payload)
        self.touched.add(self.cluster.state.sequence)
        return job_rules.job_submitted(self.cluster, event)

    def _apply_job_fact(self, _owner: str, payload: bytes) -> str | None:
        event = _decode_job_fact(payload)
        self.touched.add(event.job)
        return job_rules.job_cancel_requested(self.cluster, event)

    def _apply_admin_fact(self, _owner: str, payload: bytes) -> str | None:
        event = _decode_admin_fact(payload)
        match event:
            case t.NodeCordoned():
                return node_rules.node_cordoned(self.cluster, event)
            case t.NodeUncordoned():
                return node_rules.node_uncordoned(self.cluster, event)
            case t.DeviceCordoned():
                return device_rules.device_cordoned(self.cluster, event)
            case t.DeviceUncordoned():
                return device_rules.device_uncordoned(self.cluster, event)
            case t.QueueConfigured():
                return policy_rules.queue_configured(self.cluster, event)
            case t.QueueRemoved():
                return policy_rules.queue_removed(self.cluster, event)
            case t.PolicyChanged():
                return policy_rules.policy_changed(self.cluster, event)
            case _:
                assert_never(event)

    def _apply_foreign(self, _owner: str, payload: bytes) -> str | None:
        return _misplaced(_decode_known(payload))


def _writer_and_owner(subject: str) -> tuple[str, str]:
    """The class of a subject's writer, and the node of an agent's."""
    writer, _, rest = subject.partition(".")[2].partition(".")
    return writer, rest.partition(".")[0] if writer == "node" else ""


def _misplaced(event: t.Event) -> str:
    return f"{type(event).__name__} stands under another writer's subject"
