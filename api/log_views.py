"""What people read of the log itself: entries as CloudEvents, and what an audit found."""

from typing import Annotated, Final

import msgspec

from muster.api.times import rfc3339
from muster.events.log import Entry
from muster.projections.audit_report import AuditReport, Finding


class EventView(msgspec.Struct, frozen=True):
    """One entry of the log as a CloudEvent: `id` and `sequence` are its sequence, `time` is the server's."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str
    sequence: str
    data: msgspec.Raw


class EventPage(msgspec.Struct, frozen=True):
    """A page of the log; `next` is the `after` of the following page (None = nothing more yet)."""

    sequence: int
    events: list[EventView]
    next: int | None


class AuditView(msgspec.Struct, frozen=True):
    """What an audit found; `text` says it in lines for a terminal."""

    ok: bool
    source: str
    report: AuditReport
    text: list[str]


def audit_view(report: AuditReport, source: str) -> AuditView:
    """A report for people."""
    passes = report.passes
    last = report.first + report.entries - 1
    text = [
        f"audited the {source}: entries {report.first} to {last}, {report.entries_per_s:,.0f} a second",
        *_trusted(report),
        f"chain after entry {last}: {report.chain}",
        f"passes decided again: {passes.redecided} of {passes.passes}, with {passes.decisions} decisions",
        f"commands derived again: {passes.commands}; observations: {passes.observations}",
        *_not_redecided(report),
        f"entries refused by the fold: {report.refused}",
        *(line for finding in report.findings for line in _finding(finding)),
        *_following(report),
        "clean: everything is as it must be" if report.ok else _findings(report.findings_count),
    ]
    return AuditView(report.ok, source, report, text)


def _trusted(report: AuditReport) -> list[str]:
    """What the audit of a range believed."""
    if report.first == 1:
        return []
    state = f"on trust: the state after entry {report.first - 1}, nothing before which was read"
    if report.vouched_by:
        return [f"{state}; entry {report.vouched_by}, a decision, names a chain that follows from its own"]
    return [f"{state}; no decision in the range names a chain that follows from its own"]


def _not_redecided(report: AuditReport) -> list[str]:
    lines = [
        f"decided by engine {other.engine}, and not again: {other.passes} passes, entries {other.first} to {other.last}"
        for other in report.passes.other_engines
    ]
    if report.passes.basis_out_of_range:
        lines.append(
            f"decided before the audit's first state, and not again: {report.passes.basis_out_of_range} passes"
        )
    if passes_cut := report.passes.cut:
        which = "its last entry is" if passes_cut == 1 else f"its last {passes_cut} entries are"
        lines.append(f"the window ends inside a pass: {which} not in it, and not compared")
    return lines


def _finding(finding: Finding) -> list[str]:
    where = f"entry {finding.sequence}: {finding.kind}"
    if not finding.why:
        return [f"{where}: expected {finding.expected}; found {finding.found}"]
    return [f"{where}: {finding.why}", f"  expected {finding.expected}", f"  found    {finding.found}"]


def _following(report: AuditReport) -> list[str]:
    """What is found behind a damage may be there because of it: the fold goes on with what it is given."""
    damages = [finding.sequence for finding in report.findings if finding.kind in _DAMAGES]
    others = [finding.sequence for finding in report.findings if finding.kind not in _DAMAGES]
    if not damages or not others or others[-1] <= damages[0]:
        return []
    return [f"other findings behind entry {damages[0]} may only be because of it: they are of what follows from it now"]


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count} findings"


_DAMAGES: Final = ("chain", "sequence")
UNREADABLE: Final = "unreadable"


class _Tag(msgspec.Struct):
    type: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9]*\.[0-9]+$(?!\n)")]


_tag_decoder: Final = msgspec.json.Decoder(_Tag)


def event_view(entry: Entry) -> EventView:
    """An entry as a CloudEvent. A payload that is no tagged JSON object is given as null, as type `unreadable`."""
    try:
        tag, data = _tag_decoder.decode(entry.payload).type, entry.payload
    except (msgspec.MsgspecError, RecursionError):
        tag, data = UNREADABLE, b"null"
    return EventView(
        specversion="1.0",
        id=str(entry.sequence),
        source="/muster",
        type=f"muster.{tag}",
        subject=entry.subject,
        time=rfc3339(entry.timestamp_ns),
        datacontenttype="application/json",
        sequence=str(entry.sequence),
        data=msgspec.Raw(data),
    )
