"""Audits of a part of the log: where they enter, what they take on trust, and what they say of it."""

import asyncio
from pathlib import Path

import pytest
from cluster_script import Script, spec
from log_maker import RandomCluster, fill, fold_of, log_of

from muster.api.audit_parts import Cores, audit_mirror
from muster.api.log_views import audit_view
from muster.core.order import ENGINE_VERSION
from muster.events import types as t
from muster.events.log import Entry
from muster.projections.audit import audit
from muster.projections.audit_report import AuditReport
from muster.projections.audit_sources import LogSource
from muster.projections.mirror import Mirror
from muster.projections.replay import snapshot_of
from muster.projections.store import Store

ENTRIES = RandomCluster(seed=7, entries=1200).entries
LAST = len(ENTRIES)


async def mirror_of(path: Path, entries: list[Entry], snapshots: tuple[int, ...]) -> Path:
    store = await Store.open(path)
    await fill(store, entries, snapshots)
    await store.close()
    return path


async def audit_log(
    entries: list[Entry], mirror: Path, first: int | None = None, last: int | None = None
) -> AuditReport:
    loop = asyncio.get_running_loop()

    def work() -> AuditReport:
        with Mirror(mirror) as opened:
            return audit(LogSource(log_of(entries), loop, opened), first, last)

    return await asyncio.to_thread(work)


def script_of_two_jobs() -> Script:
    script = Script(check=False)
    script.append(t.LeaderStarted("s", 1, "fifo/best-fit"))
    script.node("node-1")
    script.submit(spec(2))
    script.submit(spec(3))
    script.run_pass()
    return script


async def test_a_range_of_the_log_begins_at_the_mirrors_snapshot_and_says_so(tmp_path: Path) -> None:
    path = await mirror_of(tmp_path / "m.db", ENTRIES, (300, 600, 900))
    report = await audit_log(ENTRIES, path, 950)
    assert report.findings == []
    assert 600 < report.first <= 901
    assert report.vouched_by >= report.first
    text = audit_view(report, "log").text[1]
    assert text.startswith(f"on trust: the state after entry {report.first - 1}, nothing before which was read; entry ")


async def test_damage_before_a_range_is_not_looked_for(tmp_path: Path) -> None:
    path = await mirror_of(tmp_path / "m.db", ENTRIES, (600,))
    hit = next(entry for entry in ENTRIES[100:] if b'"JobSubmitted.1"' in entry.payload)
    other = hit._replace(payload=hit.payload.replace(b'"user":"', b'"user":"x'))
    entries = [*ENTRIES[: hit.sequence - 1], other, *ENTRIES[hit.sequence :]]
    assert (await audit_log(entries, path, 1000)).ok
    whole = await audit_log(entries, path)
    assert (whole.first, whole.findings[0].sequence) == (1, hit.sequence)


async def test_a_forged_snapshot_is_found_from_before_it_and_by_what_was_decided_on_it(tmp_path: Path) -> None:
    """Its chain is the right one, and its state is not."""
    script = script_of_two_jobs()
    path = await mirror_of(tmp_path / "m.db", script.entries, ())
    forged = fold_of(script.entries[:4])
    forged.cluster.state.jobs[3].spec = spec(4)
    store = await Store.open(path)
    await store.save_snapshot(snapshot_of(forged))
    await store.close()
    report = await audit_log(script.entries, path, 5)
    assert report.first == 5
    finding = report.findings[0]
    assert (finding.sequence, finding.kind) == (5, "decision")
    assert finding.why.startswith("job 3: expected node-1[0-3]")
    [finding] = (await audit_log(script.entries, path)).findings
    assert (finding.sequence, finding.kind) == (4, "snapshot")
    assert finding.found == "another state in the snapshot after entry 4: other jobs"


@pytest.mark.parametrize("last", range(4, 9))
async def test_a_range_that_ends_inside_a_pass_goes_on_to_its_end(tmp_path: Path, last: int) -> None:
    script = script_of_two_jobs()
    assert len(script.entries) == 8
    script.submit(spec(1))
    path = await mirror_of(tmp_path / "m.db", script.entries, ())
    report = await audit_log(script.entries, path, 1, last)
    assert report.findings == []
    assert report.last == (last if last == 4 else 8)


@pytest.mark.parametrize("last", range(4, 9))
async def test_a_window_that_was_cut_inside_a_pass_is_not_blamed_for_what_is_not_in_it(
    tmp_path: Path, last: int
) -> None:
    """Entries 5 to 8 are one pass. Of a log that goes on, no pass can be in it in part."""
    path = await mirror_of(tmp_path / "m.db", script_of_two_jobs().entries[:last], ())
    with Mirror(path) as mirror:
        cut, whole = audit(mirror, may_be_cut=True), audit(mirror)
    assert (cut.ok, cut.passes.cut, cut.passes.redecided) == (True, 8 - last if last > 4 else 0, int(last > 4))
    assert whole.ok is (last in (4, 8))
    told = [line for line in audit_view(cut, "mirror").text if "ends inside a pass" in line]
    assert len(told) == int(4 < last < 8)


async def test_a_cut_window_is_audited_alike_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = await mirror_of(tmp_path / "m.db", script_of_two_jobs().entries[:6], ())
    report = audit_mirror(path, may_be_cut=True, cores=Cores(1, 1))
    assert (report.findings, report.passes.cut) == ([], 2)


async def test_what_was_forged_in_a_cut_pass_is_found(tmp_path: Path) -> None:
    entries = script_of_two_jobs().entries[:6]
    forged = entries[4]._replace(payload=entries[4].payload.replace(b'"devices":[0,1]', b'"devices":[6,7]'))
    path = await mirror_of(tmp_path / "m.db", [*entries[:4], forged, entries[5]], ())
    with Mirror(path) as mirror:
        [finding] = audit(mirror, may_be_cut=True).findings
    assert (finding.sequence, finding.kind) == (5, "decision")


async def test_passes_of_another_engine_are_told_with_their_version_and_place(tmp_path: Path) -> None:
    script = script_of_two_jobs()
    ours = b'"engine":%d}' % ENGINE_VERSION
    entries = [entry._replace(payload=entry.payload.replace(ours, b'"engine":99}')) for entry in script.entries]
    path = await mirror_of(tmp_path / "m.db", entries, ())
    report = await audit_log(entries, path)
    assert report.ok
    [other] = report.passes.other_engines
    assert (other.engine, other.passes, other.first, other.last) == (99, 1, 5, 5)
    assert "decided by engine 99, and not again: 1 passes, entries 5 to 5" in audit_view(report, "log").text


async def test_the_first_divergent_reason_is_said_in_words(tmp_path: Path) -> None:
    script = script_of_two_jobs()
    allocation = script.entries[4]
    forged = allocation._replace(payload=allocation.payload.replace(b'"devices":[0,1]', b'"devices":[6,7]'))
    entries = [*script.entries[:4], forged, *script.entries[5:]]
    path = await mirror_of(tmp_path / "m.db", entries, ())
    [finding] = [each for each in (await audit_log(entries, path)).findings if each.kind == "decision"]
    why = "(best-fit: 8 idle on node-1)"
    assert finding.why == f"job 3: expected node-1[0-1] {why}, found node-1[6-7] {why}"
    text = audit_view(await audit_log(entries, path), "log").text
    assert f"entry 5: decision: {finding.why}" in text


async def test_what_only_the_mirror_still_has_at_the_end_is_told(tmp_path: Path) -> None:
    path = await mirror_of(tmp_path / "m.db", ENTRIES, ())
    cut = next(n for n in range(1000, LAST) if b'"JobSubmitted.1"' in ENTRIES[n - 1].payload)
    report = await audit_log(ENTRIES[:cut], path)
    [finding] = report.findings
    assert (finding.sequence, finding.kind) == (cut + 1, "sequence")
    assert (
        finding.found
        == f"entries {cut + 1} to {LAST} are missing from the end of the stream; the mirror has what is missing"
    )


async def test_a_broken_invariant_is_found_at_the_entry_that_broke_it_and_told_once(tmp_path: Path) -> None:
    script = script_of_two_jobs()
    job = script.submit(spec(2))
    state = script.cluster.state
    basis = t.Basis(state.sequence, state.chain.hex(), "priority/easy/best-fit", ENGINE_VERSION)
    place = t.Placement(0, "node-1", state.nodes["node-1"].incarnation, [0, 7])
    forged = script.append(t.JobAllocated(basis, job, 1, [place], "10.0.0.1", 42500, "forged"))
    script.start(3)
    script.advance(1)
    path = await mirror_of(tmp_path / "m.db", script.entries, ())
    findings = (await audit_log(script.entries, path)).findings
    broken = [(each.sequence, each.found) for each in findings if each.kind == "invariant"]
    assert broken[0] == (forged, f"after entry {forged}, device 0 of node-1: 2000 thousandths promised")
    assert len(broken) == len({text.partition(",")[2] for _, text in broken})
