"""An agent may write what it likes on its own subjects: it stops nothing, and harms no other node's work."""

import sys

import msgspec
import pytest
from cluster_script import Script, inventory, spec

from muster.api.log_views import event_view
from muster.events import types as t
from muster.events.codec import DEEPEST, UnreadableEventError, decode, is_too_deep
from muster.projections.audit_passes import basis_of
from muster.projections.fold import Fold
from muster.projections.read_models import mentioned_jobs

REPORT = "muster.node.node-1.worker-started"
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("payload", [DEEP, b'{"type":"WorkerStarted.1","x":' + DEEP + b"}", b'{"x":' + DEEP + b"}"])
def test_a_payload_that_no_decoder_can_descend_is_refused_by_every_reader(payload: bytes) -> None:
    script = Script()

    script.append_raw(REPORT, payload)
    entry = script.entries[-1]

    assert script.cluster.state.refused_count == 1
    assert mentioned_jobs(entry) == set()
    assert event_view(entry).type == "muster.unreadable"
    assert basis_of(payload) is None
    with pytest.raises(UnreadableEventError):
        decode(payload)


def test_how_deep_a_payload_may_be_does_not_depend_on_the_readers_stack() -> None:
    event = t.WorkerStarted("node-1", "life", 1, 1, 0, 7)
    states = set()
    for depth in (DEEPEST - 1, DEEPEST, DEEPEST + 1, 200):
        padding = b" " * 300
        more = b',"later":' + b"[" * depth + b"]" * depth + padding + b"}"
        payload = msgspec.json.encode(event)[:-1] + more

        def folded(payload: bytes = payload) -> bytes:
            script = Script()
            script.append_raw(REPORT, payload)
            return script.fold.state_bytes()

        limit = sys.getrecursionlimit()
        shallow = folded()
        sys.setrecursionlimit(limit * 4)
        try:
            assert folded() == shallow
        finally:
            sys.setrecursionlimit(limit)
        states.add(shallow)
    assert len(states) == 4


def test_brackets_in_text_do_not_count_and_those_after_unclosed_text_are_not_looked_for() -> None:
    assert not is_too_deep(msgspec.json.encode({"x": '[{"' * 1000}))
    assert not is_too_deep(msgspec.json.encode([{"x": [1]}] * 1000))
    assert not is_too_deep(b'"' + b'\\"[' * 500_000)
    assert is_too_deep(b'{"\\\\":' * 100)


def test_a_type_that_an_agent_made_up_does_not_end_the_schedulers_leading() -> None:
    script = Script()
    script.append_raw("muster.node.node-1.later", b'{"type":"FromTheFuture.7"}')
    script.append_raw("muster.admin.x", b'{"type":"io.nats.jetstream.api.v1.stream_info_response"}')

    assert script.cluster.state.unknown_since == 0
    assert script.cluster.state.refused_count == 2


def test_what_is_kept_of_a_refused_entry_is_short() -> None:
    script = Script()
    script.append_raw(REPORT, b'{"type":"' + b"A" * 1_000_000 + b'"}')

    assert len(script.fold.state_bytes()) < 2000


def test_a_lease_of_ages_and_an_empty_range_of_ports_are_refused() -> None:
    script = Script()
    script.append(t.NodeRegistered("node-1", "life", inventory(), [], (1 << 53) - 1))
    ports = msgspec.structs.replace(inventory(), first_port=50_000, last_port=40_000)
    script.append(t.NodeRegistered("node-2", "life", ports, [], 1000))

    assert script.cluster.state.nodes == {}
    assert Fold.restore(script.fold.state_bytes()).state_bytes() == script.fold.state_bytes()


def test_a_node_that_claims_to_run_another_nodes_worker_does_not_touch_the_job() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(8))
    script.settle()
    script.start(job)

    script.node("node-2", workers=[t.WorkerReport(job, 1, 0, 77)])
    stops = [event for event in script.settle() if isinstance(event, t.StopWorker)]

    assert [stop.node for stop in stops] == ["node-2"]
    assert script.job(job).phase == "RUNNING"
    script.exit(job, 0)
    assert script.job(job).phase == "COMPLETED"


def test_more_strays_than_one_pass_can_stop_are_all_stopped_once() -> None:
    script = Script(check=False)
    script.node("node-1", workers=[t.WorkerReport(1_000_000 + number, 1, 0, 77) for number in range(1000)])

    first = script.run_pass()
    gone = next(event for event in first if isinstance(event, t.StopWorker))
    ended = t.ExitStatus("stopped")
    script.append(t.WorkerExited("node-1", gone.incarnation, gone.job, gone.attempt, gone.rank, ended))
    stops = [event.job for event in [*first, *script.settle()] if isinstance(event, t.StopWorker)]

    assert sorted(stops) == [1_000_000 + number for number in range(1000)]
    assert len(script.cluster.state.nodes["node-1"].strays) == 999


def test_a_node_without_ports_left_leaves_the_others_to_the_jobs_behind() -> None:
    script = Script()
    ports = msgspec.structs.replace(inventory(8), last_port=21_001)
    script.append(t.NodeRegistered("node-1", "life", ports, [], 1000))
    jobs = [script.submit(spec(1)) for _ in range(4)]
    script.settle()
    assert [script.job(job).phase for job in jobs] == ["STARTING", "STARTING", "PENDING", "PENDING"]

    script.node("node-2", 16)
    script.settle()

    assert [list(script.placed(job)) for job in jobs] == [["node-1"], ["node-1"], ["node-2"], ["node-2"]]


def test_an_agent_that_begins_life_after_life_gets_a_job_a_few_times_and_then_others_do() -> None:
    script = Script()
    script.node("node-1")
    job = script.submit(spec(1))
    for _ in range(20):
        script.settle()
        script.node("node-1")
    script.settle()
    assert (script.job(job).phase, script.job(job).attempts, script.job(job).tries) == ("PENDING", 4, 0)

    script.node("node-2", 16)
    script.settle()

    assert list(script.placed(job)) == ["node-2"]
