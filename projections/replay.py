"""Folding from the mirror: the nearest snapshot and the entries after it. Blocking; for worker threads.

A snapshot is used only if its fold version is this program's and its chain is the one the mirror has at its place,
and the fold must end at the mirror's chain: what was read is what was written. Where damage is found, the replay
begins at the snapshot before, and in the end at the first entry.
"""

import gc
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from muster.projections.accounts import ACCOUNTS_VERSION
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.mirror import Mirror, Snapshot
from muster.projections.read_models import job_row
from muster.projections.schema import StoreError, connect, usable
from muster.projections.snapshots import SPACING_ENTRIES, spacing_entries
from muster.projections.store import SAVE_SNAPSHOT, UPSERT_JOB, ZLIB_LEVEL

if TYPE_CHECKING:
    from muster.core.state import Job


class ReplayCancelledError(Exception):
    """Nobody waits for this replay any more."""


def snapshot_of(fold: Fold) -> Snapshot:
    """The fold as a snapshot."""
    state = fold.cluster.state
    return Snapshot(state.sequence, FOLD_VERSION, state.chain, state.timestamp_ns, fold.state_bytes())


def fold_at(mirror: Mirror, sequence: int, cancelled: threading.Event | None = None) -> Fold:
    """The fold after entry `sequence`, which the mirror must have. Raises StoreError, or ReplayCancelledError once
    `cancelled` is set."""
    fold = nearest_fold(mirror, sequence)
    for chunk in mirror.entries(fold.cluster.state.sequence + 1, sequence):
        if cancelled is not None and cancelled.is_set():
            raise ReplayCancelledError
        fold.apply_all(chunk)
    if fold.cluster.state.chain != mirror.chain(sequence):
        raise StoreError(
            f"the mirror is damaged: its chain at entry {sequence} does not follow from its entries;"
            " move it away and it is made again"
        )
    fold.touched.clear()
    return fold


def nearest_fold(mirror: Mirror, sequence: int) -> Fold:
    """The fold of the newest usable snapshot at or before `sequence`, or the empty one."""
    for snapshot in mirror.snapshots(sequence, FOLD_VERSION):
        try:
            fold = Fold.restore(snapshot.state)
        except msgspec.MsgspecError:
            continue
        state = fold.cluster.state
        if state.sequence == snapshot.sequence and state.chain == snapshot.chain == mirror.chain(snapshot.sequence):
            return fold
    return Fold.empty()


class ChangedJobs:
    """The jobs that entries changed, kept from `Fold.touched` so that a job which leaves the state before its row is
    written is written as it ended. `note` is called after every entry."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}

    def note(self, fold: Fold) -> None:
        """Take over what the last entry touched."""
        for job_id in fold.touched:
            job = fold.cluster.state.jobs.get(job_id)
            if job is not None:
                self.jobs[job_id] = job
        fold.touched.clear()


def rebuild_models(path: Path, cancelled: threading.Event | None = None) -> None:
    """Make the jobs table anew by this program's fold and accounts, where another version made it, and drop another
    fold's snapshots; in one transaction. Raises StoreError, or ReplayCancelledError."""
    with Mirror(path) as mirror:
        if mirror.models_versions() == (FOLD_VERSION, ACCOUNTS_VERSION):
            return
        writer = connect(path, writable=True)
        try:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("DELETE FROM jobs")
            writer.execute("DELETE FROM snapshots WHERE fold_version <> ?", (FOLD_VERSION,))
            _fill_models(mirror, writer, cancelled)
            writer.execute("UPDATE models SET fold_version = ?, accounts_version = ?", (FOLD_VERSION, ACCOUNTS_VERSION))
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"{path} could not be written: {error}") from error
        finally:
            writer.close()


def _fill_models(mirror: Mirror, writer: sqlite3.Connection, cancelled: threading.Event | None) -> None:
    """Every job as its last entry left it, and snapshots on the way, so that this version has its past at once."""
    fold = Fold.empty()
    due = SPACING_ENTRIES
    for chunk in mirror.entries(1, mirror.position()):
        if cancelled is not None and cancelled.is_set():
            raise ReplayCancelledError
        changed = ChangedJobs()
        for entry in chunk:
            fold.apply(entry)
            if fold.touched:
                changed.note(fold)
        writer.executemany(UPSERT_JOB, [job_row(job) for job in changed.jobs.values()])
        sequence = fold.cluster.state.sequence
        if sequence >= due:
            snapshot = snapshot_of(fold)
            writer.execute(SAVE_SNAPSHOT, (*snapshot[:4], zlib.compress(snapshot.state, ZLIB_LEVEL)))
            due = sequence + spacing_entries(len(snapshot.state))


@contextmanager
def collector_at_rest(*, for_good: bool = True) -> Iterator[None]:
    """No cycle collection while a large state is built, which holds no garbage; where that is there `for_good`, it is
    taken out of the collector's sight afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if for_good:
            gc.freeze()
    finally:
        if enabled:
            gc.enable()


def cold_start(path: Path, cancelled: threading.Event | None = None) -> Fold:
    """The fold at the mirror's position, the read models of this version beside it. Raises StoreError, or
    ReplayCancelledError."""
    with usable(path):
        rebuild_models(path, cancelled)
    with usable(path), Mirror(path) as mirror, collector_at_rest():
        return fold_at(mirror, mirror.position(), cancelled)
