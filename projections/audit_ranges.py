"""Where an audit begins and ends, and where it can be cut in parts: in the middle of no pass."""

from contextlib import suppress

from muster.events.log import BATCH_LIMIT
from muster.events.subjects import writer_class
from muster.projections.audit_passes import bases_in, basis_of, pass_end
from muster.projections.audit_sources import Source, first_of, fold_before
from muster.projections.fold import FOLD_VERSION, Fold
from muster.projections.mirror import Mirror, MirrorRow
from muster.projections.schema import HoleError


def bounds(source: Source, first: int | None, last: int | None) -> tuple[int, int]:
    """The first and the last entry of an audit: all that there are where they are None, and to the end of the pass that
    `last` is in. Raises ValueError for entries that are not there, LogError."""
    position = source.position()
    first = first_of(source) if first is None else first
    last = position if last is None else last
    if not first_of(source) <= first <= last + 1 <= position + 1:
        begin = f"which begins at entry {first_of(source)} and ends" if first_of(source) > 1 else "which ends"
        raise ValueError(f"entries {first} to {last} are not in the log, {begin} at entry {position}")
    return first, _end_of_pass(source, last, position)


def _end_of_pass(source: Source, last: int, position: int) -> int:
    """The last entry of the pass that entry `last` is in, or `last`."""
    if not 0 < last < position:
        return last
    following: list[MirrorRow] = []
    with suppress(HoleError):
        for rows in source.rows(last, min(last + BATCH_LIMIT, position)):
            following += rows
    return pass_end(last, following)


def enter(source: Source, first: int, last: int) -> Fold:
    """The fold to begin with: a state at or before `first` - 1 and every basis in the range, which stands in the
    middle of no pass. Raises StoreError."""
    start = first - 1
    if start >= first_of(source):
        start = min(start, min(bases_between(source, first, last), default=first))
    while True:
        fold = fold_before(source, start)
        entered = fold.cluster.state.sequence
        start = min(bases_between(source, entered + 1, first - 1), default=entered)
        if start >= entered or entered < first_of(source):
            return fold


def bases_between(source: Source, first: int, last: int) -> set[int]:
    """The bases in a range, up to the first entry that cannot be read: there the audit comes to its end."""
    bases: set[int] = set()
    try:
        for rows in source.rows(first, last):
            bases |= bases_in(rows)
    except HoleError:
        pass
    return bases


def cuts(mirror: Mirror, start: int, last: int, parts: int) -> list[int]:
    """Where the entries after `start` up to `last` can be audited apart, in so many parts of about one size or in
    fewer: snapshots that stand in the middle of no pass."""
    found: list[int] = []
    if parts < 2 or last - start < parts:  # noqa: PLR2004 - there is nothing to cut
        return found
    size = (last - start) // parts
    places = mirror.snapshot_places(start + size // 2, last - size // 2, FOLD_VERSION)
    for due in range(start + size, start + size * parts, size):
        after = found[-1] if found else start
        near = [place for place in places if after < place and abs(place - due) <= size // 2]
        near.sort(key=lambda place: abs(place - due))
        place = next((place for place in near if _between_passes(mirror, place, last)), None)
        if place is not None:
            found.append(place)
    return found


def _between_passes(mirror: Mirror, sequence: int, last: int) -> bool:
    """Whether what follows an entry belongs to no pass that began before: later decisions are held to the fence."""
    try:
        for rows in mirror.rows(sequence + 1, last):
            for row in rows:
                writer = writer_class(row.subject)
                if writer == "command":
                    return False
                if writer == "decision":
                    basis = basis_of(row.payload)
                    return basis is None or basis.sequence >= sequence
    except HoleError:
        return False
    return True
