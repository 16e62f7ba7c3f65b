"""The same log gives the same bytes: from the start, from every snapshot, whatever the process's hash seed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from log_maker import RandomCluster, fill, fold_of

from muster.core.decide import decide
from muster.events import codec
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
