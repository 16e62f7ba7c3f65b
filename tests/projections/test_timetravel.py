"""Past states: the same as folding from the start; moments as people write them."""

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster_script import SECOND
from log_maker import RandomCluster, fill, fold_of, log_of

from muster.core.decide import decide
from muster.events.memory import MemoryLog
from muster.projections import timetravel
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.follower import Follower
from muster.projections.moments import MomentError
from muster.projections.snapshots import SPACING_ENTRIES
from muster.projections.store import Store
from muster.projections.timetravel import TimeTravel, resolve_moment, state_at

CLUSTER = RandomCluster(seed=11, entries=1500)
ENTRIES = CLUSTER.entries
MIRRORED = 1400
NOW_NS = ENTRIES[-1].timestamp_ns + 100 * SECOND


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "muster.db")
    await fill(opened, ENTRIES[:MIRRORED], (300, 700, 1200))
    yield opened
    await opened.close()


@pytest.fixture
def log() -> MemoryLog:
    return log_of(ENTRIES)


async def test_every_past_state_equals_the_fold_from_the_start(store: Store, log: MemoryLog) -> None:
    for sequence in (1, 2, 299, 300, 301, 650, 700, 701, 1199, 1200, 1399, 1400, 1401, 1500):
        fold = await state_at(store, log, sequence)
        assert fold.state_bytes() == fold_of(ENTRIES[:sequence]).state_bytes()
    with pytest.raises(MomentError, match="ends at entry"):
        await state_at(store, log, len(ENTRIES) + 1)


def test_a_state_that_nobody_has_any_more_is_gone_without_the_collector() -> None:
    """Past states are large and many: what waits for the collector makes the next moments slow."""
    fold = fold_of(ENTRIES)
    decide(fold.cluster)
    left = weakref.ref(fold), weakref.ref(fold.cluster)
    gc.disable()
    try:
        del fold
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("entries", "spacing"), [(6_000, 500), pytest.param(100_000, SPACING_ENTRIES, marks=pytest.mark.slow)]
)
async def test_two_hundred_moments_of_a_mirror_equal_the_fold_from_the_start(
    tmp_path: Path, entries: int, spacing: int
) -> None:
    log = log_of(RandomCluster(seed=12, entries=entries).entries)
    store = await Store.open(tmp_path / "long.db")
    following = asyncio.create_task((follower := Follower(log, store, snapshot_entries=spacing)).run())
    await follower.wait_for(len(log.entries), 300)
    following.cancel()
    await asyncio.wait({following})
    at_random = random.Random(13)
    brute, begun = Fold.empty(), 0
    for sequence in sorted(at_random.randint(1, len(log.entries)) for _ in range(200)):
        brute.apply_all(log.entries[begun:sequence])
        begun = sequence
        assert (await state_at(store, log, sequence)).state_bytes() == brute.state_bytes()
    await store.close()


async def test_what_is_far_from_any_snapshot_is_near_one_when_it_is_visited_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timetravel, "SPACING_ENTRIES", 100)
    monkeypatch.setattr(timetravel, "spacing_entries", lambda _: 100)
    store = await Store.open(tmp_path / "thinned.db")
    await fill(store, ENTRIES, (1200,))
    for sequence, near in ((199, 0), (700, 700), (850, 700), (1250, 1200)):
        await state_at(store, log_of(ENTRIES), sequence)
        found = await store.nearest_snapshot(sequence, FOLD_VERSION)
        assert (found.sequence if found else 0) == near
    assert (await state_at(store, log_of(ENTRIES), 701)).state_bytes() == fold_of(ENTRIES[:701]).state_bytes()
    await store.close()


async def test_asking_again_gives_the_kept_state_and_few_are_kept(store: Store, log: MemoryLog) -> None:
    travel = TimeTravel(store, log, cached_states=2)
    first = await travel.state_at(500)
    await travel.state_at(600)
    assert await travel.state_at(500) is first
    await travel.state_at(700)
    assert await travel.state_at(500) is first
    assert (await travel.state_at(600)).cluster.state.sequence == 600
    again = await travel.state_at(700)
    assert again.cluster.state.sequence == 700
    assert await travel.state_at(500) is not first


async def test_states_with_many_jobs_are_not_kept_beside_each_other(store: Store, log: MemoryLog) -> None:
    travel = TimeTravel(store, log, cached_jobs=1)
    first = await travel.state_at(500)
    assert len(first.cluster.state.jobs) > 1
    assert await travel.state_at(500) is first
    await travel.state_at(600)
    assert await travel.state_at(500) is not first


async def test_moments_are_sequences_times_and_spans(store: Store, log: MemoryLog) -> None:
    async def at(text: str) -> int:
        return await resolve_moment(store, log, text, NOW_NS)

    assert await at("1") == 1
    assert await at("1450") == 1450
    assert await at("-1s") == len(ENTRIES)
    before = (NOW_NS - 2 * 3600 * SECOND, NOW_NS - 600 * SECOND)
    assert await at("-2h") == sum(entry.timestamp_ns <= before[0] for entry in ENTRIES)
    assert await at("-10m") == sum(entry.timestamp_ns <= before[1] for entry in ENTRIES)

    # the script's clock begins 1,000 s after 1970 and grows by a millisecond an entry
    assert await at("1970-01-01T00:16:40.001Z") == 1
    assert await at("1970-01-01T00:16:40.002999999Z") == 2
    assert await at("1970-01-01T01:16:40.003+01:00") == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "before the first entry"),
        ("1501000", "future"),
        ("2999-01-01T00:00:00Z", "future"),
        ("1970-01-01T00:16:40Z", "before the first entry"),
        ("1969-12-31T23:59:59Z", "before the first entry"),
        ("-99999d", "before the first entry of the log, which is of 1970-01-01 00:16:40 UTC"),
        ("2026-13-01T00:00:00Z", "no time"),
        ("1970-01-01 00:16:39", "before the first entry"),
        ("someday", "no moment: write a sequence .1042., a time"),
        ("", "no moment"),
        ("-5", "no moment"),
        ("1e3", "no moment"),
        ("٣", "no moment"),
    ],
)
async def test_what_is_no_moment_says_why(store: Store, log: MemoryLog, text: str, reason: str) -> None:
    with pytest.raises(MomentError, match=reason):
        await resolve_moment(store, log, text, NOW_NS)
