"""The logs of each release, as this program reads them."""

import hashlib
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from golden.make_golden import Golden, Log

from muster.core.order import ENGINE_VERSION
from muster.events import codec
from muster.events.log import Entry
from muster.projections.audit import audit
from muster.projections.exports import ExportSource, checked_rows
from muster.projections.fold import FOLD_VERSION, Fold

HERE = Path(__file__).parent
RELEASES = {
    path.parent.name: msgspec.json.decode(path.read_bytes(), type=Golden) for path in sorted(HERE.glob("*/golden.json"))
}
LOGS = [(release, name) for release, golden in RELEASES.items() for name in golden.logs]


def known(release: str, name: str) -> tuple[Golden, Log, ExportSource]:
    golden = RELEASES[release]
    return golden, golden.logs[name], ExportSource(HERE / release / f"{name}.jsonl.xz")


def entries_of(source: ExportSource) -> list[Entry]:
    return [row.entry for row in chain.from_iterable(checked_rows(source))]


@pytest.mark.parametrize(("release", "name"), LOGS)
def test_a_golden_log_comes_to_the_state_that_it_came_to(release: str, name: str) -> None:
    golden, log, source = known(release, name)
    fold = Fold.empty()
    fold.apply_all(entries_of(source))
    state = fold.cluster.state
    assert (state.sequence, state.chain.hex()) == (log.entries, log.chain)
    assert (state.refused_count, state.unknown_since) == (log.refused, 0), state.refusals[-5:]
    assert {job.id: job.phase for job in state.jobs.values()} == log.phases
    if golden.fold == FOLD_VERSION:
        assert hashlib.blake2b(fold.state_bytes(), digest_size=16).hexdigest() == log.state


@pytest.mark.parametrize(("release", "name"), LOGS)
def test_a_golden_log_is_clean_and_of_the_same_engine_decided_again(release: str, name: str) -> None:
    golden, log, source = known(release, name)
    report = audit(source, expect=f"{log.entries}:{log.chain}")
    assert report.findings == []
    assert report.passes.passes == log.passes > 0
    if golden.engine == ENGINE_VERSION:
        assert report.passes.redecided == log.passes
    else:
        [other] = report.passes.other_engines
        assert (other.engine, other.passes) == (golden.engine, log.passes)


def test_every_type_of_event_is_in_some_golden_log() -> None:
    sources = [known(release, name)[2] for release, name in LOGS]
    found = {type(codec.decode_known(entry.payload)) for source in sources for entry in _events_of(source)}
    missing = codec.KNOWN_TAGS - {str(kind.__struct_config__.tag) for kind in found}
    assert not missing, f"tests/golden/README.md says how a log with {', '.join(sorted(missing))} is added"


def _events_of(source: ExportSource) -> list[Entry]:
    return [entry for entry in entries_of(source) if b'"job":"x"' not in entry.payload]
