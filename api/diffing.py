"""`GET /v1/diff`: what changed between two moments, of jobs, nodes, devices, queues and rules."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from muster.api.answers import answer
from muster.api.configuring import FieldChange, field_changes
from muster.api.forecasting import beside_the_loop
from muster.api.parameters import integer
from muster.api.problems import bad_parameter
from muster.api.queue_views import queue_rows
from muster.api.service import SERVICE, Service, placed, see_minimum
from muster.api.times import rfc3339_or_none
from muster.core.cluster import Cluster
from muster.core.queues import with_default
from muster.core.state import ENDED, Job, State
from muster.projections.diff import DeviceChange, JobChange, NodeChange, difference, unsettled
from muster.projections.read_models import PAGE_LIMIT, JobQuery, decode_job

LIMIT_DEFAULT: Final = 100
LIMIT_MOST: Final = 1000
PASSING_MOST: Final = 5000
"""So many jobs that came and left the state in between are looked at, the newest of them."""


class EntryView(msgspec.Struct, frozen=True):
    """A moment: the last entry by then, and the time that was asked for, or where it was none, that entry's."""

    sequence: int
    time: str | None


class QueueHolds(msgspec.Struct, frozen=True):
    """What is in a queue and in those below it, and what it holds, in thousandths of devices."""

    running: int
    pending: int
    devices_held_milli: int


class QueueChange(msgspec.Struct, frozen=True):
    """A queue before (None = it was not there) and after (None = it is gone), and the settings that differ."""

    name: str
    changes: list[FieldChange]
    before: QueueHolds | None
    after: QueueHolds | None


class DiffView(msgspec.Struct, frozen=True):
    """What changed from `before` to `after`; `swapped`: `from` was the later one. `what` counts the words for what
    became of jobs, `ended` the states in which they ended, both of all jobs that changed: `jobs_changed`, of which
    `jobs` are the newest. `passed_over`: there were more jobs that came, ended and left the state in between."""

    sequence: int
    before: EntryView
    after: EntryView
    swapped: bool
    jobs_changed: int
    passed_over: bool
    what: dict[str, int]
    ended: dict[str, int]
    jobs: list[JobChange]
    nodes: list[NodeChange]
    devices: list[DeviceChange]
    queues: list[QueueChange]
    policy: list[FieldChange]


async def show_diff(request: web.Request) -> web.Response:
    """What changed between two moments; the later one is now where it is left out."""
    service = request.app[SERVICE]
    await see_minimum(request)
    limit = integer(request, "limit", LIMIT_DEFAULT, 1, LIMIT_MOST)
    if "from" not in request.query:
        raise bad_parameter("from", "it is needed: the moment to compare with, such as -10m")
    asked = [await placed(service, request.query.get(name, "now"), name, may_precede=True) for name in ("from", "to")]
    (first, first_ns), (second, second_ns) = sorted(asked)
    before, after = (await service.past.state_at(first)).cluster, (await service.past.state_at(second)).cluster
    left, passed_over = await _left(service, before.state, after.state)
    found = await beside_the_loop(lambda: difference(before.state, after.state, left))
    view = DiffView(
        sequence=second,
        before=_entry_view(before.state, first_ns),
        after=_entry_view(after.state, second_ns),
        swapped=asked[0] > asked[1],
        jobs_changed=len(found.jobs),
        passed_over=passed_over,
        what=_counts(word.partition(" ")[0] for change in found.jobs for word in change.what),
        ended=_counts(change.after.state for change in found.jobs if "ended" in change.what),
        jobs=found.jobs[: -limit - 1 : -1],
        nodes=found.nodes,
        devices=found.devices,
        queues=_queue_changes(before, after),
        policy=field_changes(before.state.policy, after.state.policy),
    )
    return answer(view, second)


async def _left(service: Service, before: State, after: State) -> tuple[dict[int, Job], bool]:
    """The jobs that left the state by the later moment, as they ended, and whether there were more of those that came
    in between than are looked at."""
    left: dict[int, Job] = {}
    for job_id in unsettled(before, after):
        job = await service.store.job(job_id)
        if job is not None and job.phase in ENDED:
            left[job_id] = job
    following = after.sequence + 1
    while following > before.sequence + 1:
        page = await service.store.jobs(JobQuery(before=following, limit=PAGE_LIMIT))
        came = [row for row in page if row.id > before.sequence]
        left.update((row.id, decode_job(row.job)) for row in came if row.id not in after.jobs)
        if len(came) < PAGE_LIMIT:
            break
        if len(left) >= PASSING_MOST:
            return left, True
        following = came[-1].id
    return left, False


def _counts(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _entry_view(state: State, time_ns: int) -> EntryView:
    return EntryView(state.sequence, rfc3339_or_none(max(time_ns, state.timestamp_ns)))


def _queue_changes(before: Cluster, after: Cluster) -> list[QueueChange]:
    held_before, held_after = _holds(before), _holds(after)
    specs_before, specs_after = with_default(before.state.queues), with_default(after.state.queues)
    found = []
    for name in sorted(held_before.keys() | held_after.keys(), key=lambda name: name.split("/")):
        was, now = specs_before.get(name), specs_after.get(name)
        then, since = held_before.get(name), held_after.get(name)
        changes = field_changes(was, now) if was is not None and now is not None else []
        if changes or then != since:
            found.append(QueueChange(name, changes, then, since))
    return found


def _holds(cluster: Cluster) -> dict[str, QueueHolds]:
    return {row.name: QueueHolds(row.running, row.pending, row.devices_held_milli) for row in queue_rows(cluster)}
