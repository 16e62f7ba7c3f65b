"""The same log gives the same bytes: from the start, from every snapshot, whatever the process's hash seed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_script import NO_RETRY, Script, inventory, spec
from device_script import fault
from log_maker import RandomCluster, fill, fold_of

from muster.core.decide import decide
from muster.events import codec
from muster.events import types as t
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.mirror import Mirror
from muster.projections.replay import fold_at
from muster.projections.store import Store


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_a_restored_fold_goes_on_and_decides_like_the_one_that_never_stopped(seed: int) -> None:
    entries = RandomCluster(seed, 900).entries
    live = Fold.empty()
    at = {}
    for entry in entries:
        live.apply(entry)
        if entry.sequence % 45 == 0:
            at[entry.sequence] = (live.state_bytes(), [codec.encode(event) for event in decide(live.cluster)])
    for sequence, (state, decisions) in at.items():
        restored = Fold.restore(state)
        assert restored.state_bytes() == state
        assert [codec.encode(event) for event in decide(restored.cluster)] == decisions
        restored.apply_all(entries[sequence:])
        assert restored.state_bytes() == live.state_bytes()


def test_a_restored_fold_ends_jobs_in_the_order_of_the_one_that_never_stopped() -> None:
    script = Script()
    script.node("node-1", 2)
    for priority in (0, 900):
        script.submit(spec(1, priority=priority, retry=NO_RETRY))
    script.settle()
    jobs = list(script.cluster.state.jobs)
    for job in jobs:
        script.start(job)
    restored = Fold.restore(script.fold.state_bytes())

    script.node("node-1", 2)

    restored.apply(script.entries[-1])
    assert [job for _, job in script.cluster.state.ended] == jobs
    assert restored.state_bytes() == script.fold.state_bytes()


def test_a_restored_fold_stops_nobody_again_whose_worker_was_found_gone() -> None:
    script = Script()
    for name in ("node-1", "node-2"):
        script.node(name, 1, fabric="f")
    job = script.submit(spec(2, nodes=2))
    script.settle()
    script.start(job)
    fault(script, 0, "reset", "node-1")
    script.settle()
    gone = t.WorkerReport(job, 1, 1, 4001, t.ExitStatus("exited", 0))

    script.append(t.NodeRegistered("node-2", "another", inventory(1, address="10.0.0.2", fabric="f"), [gone], 120_000))

    assert script.placed(job) == {"node-1": [0]}
    assert decide(script.cluster) == []
    assert decide(Fold.restore(script.fold.state_bytes()).cluster) == []


async def test_the_mirror_gives_the_same_state_with_and_without_snapshots(tmp_path: Path) -> None:
    entries = RandomCluster(24, 900).entries
    store = await Store.open(tmp_path / "muster.db")
    await fill(store, entries, (100, 500, 850))
    await store.close()
    expected = fold_of(entries).state_bytes()
    with Mirror(store.path) as mirror:
        assert next(mirror.snapshots(900, FOLD_VERSION)).sequence == 850
        assert fold_at(mirror, len(entries)).state_bytes() == expected


PROGRAM = """
import hashlib
from log_maker import RandomCluster
cluster = RandomCluster(25, 700)
print(hashlib.sha256(cluster.fold.state_bytes()).hexdigest(), cluster.cluster.state.chain.hex())
"""


def test_the_hash_seed_of_the_process_does_not_matter() -> None:
    """The log itself is made anew in each process: what `decide` gives does not depend on the seed either."""
    cluster = RandomCluster(25, 700)
    digest = hashlib.sha256(cluster.fold.state_bytes()).hexdigest()
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.split() == [digest, cluster.cluster.state.chain.hex()]
