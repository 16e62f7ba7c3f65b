"""The fold takes whatever is in the log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_script import Script, spec, worked_case

from muster.events import types as t
from muster.events.log import Entry
from muster.projections.fold import Fold, SequenceGapError, next_chain

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("subject", "payload", "reason"),
    [
        ("muster.node.node-1.worker-started", b"not json", "unreadable"),
        ("muster.node.node-1.worker-started", b"", "unreadable"),
        ("nonsense", b'{"type":"ClockAdvanced.1"}', "another writer"),
        ("muster.submission.default", b'{"type":"JobSubmitted.1"}', "unreadable"),
        (
            "muster.node.node-1.x",
            b'{"type":"WorkerStarted.1","node":"node-2","incarnation":"i","job":1,"attempt":1,"rank":0,"pid":1}',
            "another writer",
        ),
        (
            "muster.node.node-1.x",
            b'{"type":"WorkerStarted.1","node":"node-1","incarnation":"i","job":99,"attempt":1,"rank":0,"pid":1}',
            "not expected",
        ),
        (
            "muster.submission.default",
            b'{"type":"JobSubmitted.1","user":"u","spec":{"command":"x","gpus":-1}}',
            "unreadable",
        ),
    ],
)
def test_what_cannot_be_applied_is_counted_with_a_reason(subject: str, payload: bytes, reason: str) -> None:
    script = Script()
    script.node("node-1")

    script.append_raw(subject, payload)

    assert script.cluster.state.refused_count == 1
    assert reason in script.cluster.state.refusals[0].reason
    assert script.cluster.state.sequence == 2


def test_a_submission_that_cannot_be_right_is_rejected_with_its_field() -> None:
    script = Script()

    job = script.submit(spec(0))

    assert (script.job(job).phase, script.job(job).reason.split(":")[0]) == ("REJECTED", "/gpus")


def test_an_unknown_type_is_remembered_and_the_fold_goes_on() -> None:
    script = Script()

    script.append_raw("muster.admin.later", b'{"type":"FromTheFuture.7","x":1}')
    job = script.submit(spec(1))

    assert script.cluster.state.unknown_since == 1
    assert script.job(job).phase == "PENDING"


def test_a_missing_entry_is_never_passed_over() -> None:
    fold = Fold.empty()

    with pytest.raises(SequenceGapError) as caught:
        fold.apply(Entry(2, 1, "muster.admin.x", b"{}"))

    assert (caught.value.expected, caught.value.found) == (1, 2)


def test_the_chain_binds_every_part_of_an_entry() -> None:
    entry = Entry(7, 11, "muster.admin.x", b"{}")
    others = [
        entry._replace(sequence=8),
        entry._replace(timestamp_ns=12),
        entry._replace(subject="muster.admin.y"),
        entry._replace(payload=b"[]"),
    ]

    chains = {next_chain(bytes(16), each) for each in [entry, *others]} | {next_chain(b"\1" * 16, entry)}

    assert len(chains) == 6


def test_a_snapshot_goes_on_as_the_fold_that_wrote_it() -> None:
    script, jobs = worked_case(fabric="f")
    script.start(jobs["P"])
    script.exit(jobs["X"], 1)
    script.append(t.JobCancelRequested(jobs["Y"], "ada"))
    script.settle()
    whole = Fold.empty()

    for entry in script.entries:
        whole.apply(entry)
        resumed = Fold.restore(whole.state_bytes())
        resumed.apply_all(script.entries[entry.sequence :])
        assert resumed.state_bytes() == script.fold.state_bytes()


def test_the_state_is_the_same_bytes_whatever_the_hash_seed() -> None:
    program = (
        "from cluster_script import worked_case; import hashlib;"
        "s, j = worked_case(fabric='f'); s.exit(j['X']); s.settle();"
        "print(hashlib.sha256(s.fold.state_bytes()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(digests) == 1
