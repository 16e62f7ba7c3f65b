"""The snapshots that a mirror keeps, against what the fold gives at their places."""

from collections.abc import Callable

import msgspec

from muster.core.state import State
from muster.projections.audit_report import Find
from muster.projections.audit_sources import Source, mirror_of
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.mirror import Snapshot
from muster.projections.schema import StoreError


def snapshot_check(source: Source, fold: Fold, last: int, find: Find) -> tuple[set[int], Callable[[], None]]:
    """Where the mirror of a source has snapshots after a fold's entry, up to `last`; and what compares one of them with
    the fold, which is at its place."""
    mirror = mirror_of(source)
    if mirror is None:
        return set(), lambda: None
    state = fold.cluster.state

    def check() -> None:
        try:
            kept = mirror.snapshot(state.sequence)
        except StoreError as error:
            find(state.sequence, "snapshot", "a snapshot that can be read", str(error))
            return
        if kept is not None and (kept.state != fold.state_bytes() or kept.chain != state.chain):
            found = f"another state in the snapshot after entry {state.sequence}{_differing(state, kept)}"
            find(state.sequence, "snapshot", "the state that follows from the entries", found)

    return set(mirror.snapshot_places(state.sequence + 1, last, FOLD_VERSION)), check


def _differing(state: State, kept: Snapshot) -> str:
    try:
        other = Fold.restore(kept.state).cluster.state
    except msgspec.MsgspecError:
        return ", which is none"
    names = [name for name in State.__struct_fields__ if getattr(state, name) != getattr(other, name)]
    return f": other {', '.join(names)}" if names else ", in other bytes"
