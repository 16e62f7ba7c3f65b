"""The audit: a sound log passes; each flipped byte, lost entry and rewritten decision is found where it is."""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_script import Script, spec
from log_maker import RandomCluster, fill, log_of

from muster.core.order import ENGINE_VERSION
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror
from muster.projections.store import Store

CLUSTER = RandomCluster(seed=7, entries=1200)
ENTRIES = CLUSTER.entries
KINDS = {
    "decision": next(e.sequence for e in ENTRIES[300:] if b'"JobAllocated.1"' in e.payload),
    "command": next(e.sequence for e in ENTRIES[300:] if b'"StartWorker.1"' in e.payload),
    "fact": next(e.sequence for e in ENTRIES[300:] if b'"JobSubmitted.1"' in e.payload),
    "observation": next(e.sequence for e in ENTRIES[300:] if b'"ClockAdvanced.1"' in e.payload),
}


async def make(path: Path, entries: list[Entry], snapshots: tuple[int, ...] = ()) -> Path:
    store = await Store.open(path)
    await fill(store, entries, snapshots)
    await store.close()
    return path


@pytest.fixture
async def mirrored(tmp_path: Path) -> Path:
    return await make(tmp_path / "muster.db", ENTRIES)


def audit_file(path: Path, first: int = 1, last: int | None = None, **more: str) -> AuditReport:
    with Mirror(path) as mirror:
        return audit(mirror, first, last, **more)  # type: ignore[arg-type]


async def audit_log(entries: list[Entry], expect: str = "") -> AuditReport:
    source = LogSource(log_of(entries), asyncio.get_running_loop())
    return await asyncio.to_thread(audit, source, expect=expect)


def flipped(data: bytes, place: int, bit: int = 1) -> bytes:
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def damage(path: Path, sequence: int, column: str, change: Callable[[bytes], bytes]) -> None:
    connection = sqlite3.connect(path)
    [value] = connection.execute(f"SELECT {column} FROM entries WHERE sequence = ?", (sequence,)).fetchone()
    connection.execute(f"UPDATE entries SET {column} = ? WHERE sequence = ?", (change(value), sequence))
    connection.commit()
    connection.close()


# -- sound logs -------------------------------------------------------------------------------------------------


def test_a_sound_mirror_passes_and_every_pass_is_decided_again(mirrored: Path) -> None:
    seen: list[int] = []
    with Mirror(mirrored) as mirror:
        report = audit(mirror, progress=seen.append)
    assert report.findings == []
    assert (report.ok, report.exit_status, report.entries) == (True, 0, len(ENTRIES))
    assert report.passes.passes == report.passes.redecided == CLUSTER.passes
    counted = report.passes.decisions + report.passes.commands + report.passes.observations
    assert counted == sum(entry.subject.split(".")[1] in ("decision", "command") for entry in ENTRIES)
    assert report.refused == CLUSTER.cluster.state.refused_count
    assert report.chain == CLUSTER.cluster.state.chain.hex()
    assert seen[-1] == len(ENTRIES)
    assert report.entries_per_s > 0


async def test_a_sound_log_passes_without_a_mirror() -> None:
    report = await audit_log(ENTRIES)
    assert report.findings == []
    assert report.passes.redecided == CLUSTER.passes


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
async def test_any_log_that_the_engine_writes_passes(seed: int) -> None:
    assert (await audit_log(RandomCluster(seed, 600).entries)).findings == []


async def test_an_empty_log_passes() -> None:
    report = await audit_log([])
    assert report.ok
    assert report.entries == 0


async def test_a_range_is_entered_at_a_snapshot_that_loses_no_pass(tmp_path: Path) -> None:
    path = await make(tmp_path / "muster.db", ENTRIES, (200, 400, 600, 800, 1000))
    for first in (1, 150, 650, 801, 1001, 1150):
        report = audit_file(path, first)
        assert report.findings == []
        assert report.first <= first
        assert report.first > first - 450
        in_range = {
            codec.decode(entry.payload).basis.sequence  # type: ignore[union-attr]
            for entry in ENTRIES[first - 1 :]
            if b'"basis"' in entry.payload
        }
        assert report.passes.redecided >= len(in_range)
        assert report.chain == CLUSTER.cluster.state.chain.hex()


@pytest.mark.parametrize(("first", "last"), [(0, None), (5, 3), (1, 1201 + 500), (5000, None)])
def test_a_range_that_is_not_in_the_log_is_refused(mirrored: Path, first: int, last: int | None) -> None:
    with pytest.raises(ValueError, match="not in the log"):
        audit_file(mirrored, first, last)


# -- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("column", ["payload", "chain"])
def test_a_flipped_byte_is_found_at_its_entry(mirrored: Path, kind: str, column: str) -> None:
    sequence = KINDS[kind]
    damage(mirrored, sequence, column, lambda value: flipped(value, len(value) // 2))
    report = audit_file(mirrored)
    assert report.exit_status == 1
    first = report.findings[0]
    assert (first.sequence, first.kind) == (sequence, "chain" if kind not in ("decision", "command") else first.kind)
    assert first.expected != first.found


def test_every_byte_of_a_decision_counts(mirrored: Path) -> None:
    sequence = KINDS["decision"]
    payload = ENTRIES[sequence - 1].payload
    for place in range(0, len(payload), 7):
        damage(mirrored, sequence, "payload", lambda _, place=place: flipped(payload, place))  # type: ignore[misc]
        report = audit_file(mirrored)
        assert report.findings[0].sequence <= sequence, payload[place : place + 1]
        assert not report.ok
    damage(mirrored, sequence, "payload", lambda _: payload)
    assert audit_file(mirrored).ok


def test_a_changed_subject_or_time_is_found(mirrored: Path) -> None:
    connection = sqlite3.connect(mirrored)
    connection.execute("UPDATE entries SET subject = 'muster.job.default.x' WHERE sequence = ?", (KINDS["fact"],))
    connection.execute("UPDATE entries SET timestamp_ns = timestamp_ns + 1 WHERE sequence = 900")
    connection.commit()
    connection.close()
    chains = [finding.sequence for finding in audit_file(mirrored).findings if finding.kind == "chain"]
    assert chains == [KINDS["fact"], 900]


async def test_a_flipped_fact_in_the_log_itself_breaks_the_next_basis() -> None:
    sequence = KINDS["fact"]
    entry = ENTRIES[sequence - 1]
    changed = entry._replace(payload=entry.payload.replace(b'"user":"', b'"user":"x'))
    report = await audit_log([*ENTRIES[: sequence - 1], changed, *ENTRIES[sequence:]])
    next_pass = next(
        e.sequence
        for e in ENTRIES
        if b'"basis"' in e.payload and codec.decode(e.payload).basis.sequence >= sequence  # type: ignore[union-attr]
    )
    assert (report.findings[0].sequence, report.findings[0].kind) == (next_pass, "chain")


async def test_random_flips_in_the_log_itself_are_found() -> None:
    """Up to the last decision; a command or decision is found by deciding again, anything else by the chain."""
    chance = random.Random(5)
    last_basis = max(
        codec.decode(e.payload).basis.sequence  # type: ignore[union-attr]
        for e in ENTRIES
        if b'"basis"' in e.payload
    )
    for _ in range(40):
        sequence = chance.randint(1, last_basis)
        entry = ENTRIES[sequence - 1]
        payload = flipped(entry.payload, chance.randrange(len(entry.payload)), 1 << chance.randrange(8))
        report = await audit_log([*ENTRIES[: sequence - 1], entry._replace(payload=payload), *ENTRIES[sequence:]])
        assert not report.ok, payload


def test_a_lost_entry_of_the_mirror_is_named(mirrored: Path) -> None:
    connection = sqlite3.connect(mirrored)
    connection.execute("DELETE FROM entries WHERE sequence = 700")
    connection.commit()
    connection.close()
    report = audit_file(mirrored)
    assert (report.findings[0].sequence, report.findings[0].kind) == (700, "sequence")
    assert "700" in report.findings[0].found


# -- decisions that do not follow -------------------------------------------------------------------------------


def simple() -> Script:
    script = Script(check=False)
    script.append(t.LeaderStarted("s", 1, "fifo/best-fit"))
    script.node("node-1")
    script.submit(spec(2))
    script.submit(spec(3))
    return script


async def test_a_decision_that_decide_would_not_make_is_shown_beside_what_it_would() -> None:
    script = simple()
    events = script.run_pass()
    assert len(events) == 4
    forged = codec.encode(events[0]).replace(b'"devices":[0,1]', b'"devices":[6,7]')
    entries = [*script.entries[:4], script.entries[4]._replace(payload=forged), *script.entries[5:]]
    report = await audit_log(entries)
    [finding] = [finding for finding in report.findings if finding.kind == "decision"]
    assert finding.sequence == 5
    assert '"devices":[0,1]' in finding.expected
    assert '"devices":[6,7]' in finding.found


async def test_a_pass_that_is_cut_short_is_found() -> None:
    script = simple()
    script.run_pass()
    report = await audit_log(script.entries[:7])
    [finding] = report.findings
    assert (finding.sequence, finding.kind) == (8, "decision")
    assert "StartWorker.1" in finding.expected


async def test_a_pass_with_too_much_and_a_stray_command_are_found() -> None:
    script = simple()
    events = script.run_pass()
    script.append(events[-1])
    script.submit(spec(1))
    script.append(events[-1])
    report = await audit_log(script.entries)
    assert [(finding.sequence, finding.kind) for finding in report.findings] == [(9, "command"), (11, "command")]


async def test_a_decision_on_a_stale_basis_is_found() -> None:
    script = simple()
    events = script.run_pass()
    script.submit(spec(1))
    for event in events:
        script.append(event)
    report = await audit_log(script.entries)
    assert (report.findings[0].sequence, report.findings[0].kind) == (10, "basis")


async def test_a_device_given_twice_is_found_by_the_ledger() -> None:
    script = simple()
    script.run_pass()
    job = script.submit(spec(2))
    state = script.cluster.state
    basis = t.Basis(state.sequence, state.chain.hex(), "fifo/best-fit", 1)
    life = state.nodes["node-1"].incarnation
    script.append(t.JobAllocated(basis, job, 1, [t.Placement(0, "node-1", life, [0, 7])], "10.0.0.1", 42500, "forged"))
    report = await audit_log(script.entries)
    assert "holding" in {finding.kind for finding in report.findings}
    assert "invariant" in {finding.kind for finding in report.findings}
    holding = next(finding for finding in report.findings if finding.kind == "holding")
    assert holding.found == "device 0 of node-1 is held past what it has, by jobs 3, 9"


async def test_passes_of_another_engine_are_told_and_not_decided_again() -> None:
    script = simple()
    script.run_pass()
    entries = [
        e._replace(payload=e.payload.replace(b'"engine":%d}' % ENGINE_VERSION, b'"engine":7}')) for e in script.entries
    ]
    report = await audit_log(entries)
    assert report.ok
    assert report.passes.other_engine == 1
    assert report.passes.redecided == 0


# -- expect -----------------------------------------------------------------------------------------------------


async def test_a_rewritten_tail_is_found_against_a_chain_kept_elsewhere() -> None:
    script = simple()
    kept = f"{script.cluster.state.sequence}:{script.cluster.state.chain.hex()}"
    assert (await audit_log(script.entries, kept)).ok
    rewritten = [
        *script.entries[:3],
        script.entries[3]._replace(payload=codec.encode(t.JobSubmitted("eve", spec(3)))),
    ]
    assert (await audit_log(rewritten)).ok
    [finding] = (await audit_log(rewritten, kept)).findings
    assert (finding.sequence, finding.kind) == (4, "expect")
    [finding] = (await audit_log(script.entries[:3], kept)).findings
    assert finding.kind == "expect"
    with pytest.raises(ValueError, match="SEQUENCE:CHAIN"):
        await audit_log(script.entries, "4:beef")
