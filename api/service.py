"""What the handlers work with, and how a read finds its state: live from the fold, or past by replay.

Rules: `at` names the state after one entry (`muster.projections.moments` says how); `min_seq` waits until the fold
has come that far, so that a caller sees its own write. A read never changes anything.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from aiohttp import web

from muster.api.parameters import integer
from muster.api.problems import ApiError, bad_parameter
from muster.api.samples import LastSamples
from muster.api.submitting import Submitter
from muster.core.cluster import Cluster
from muster.core.state import State
from muster.events.log import Entry, Log
from muster.node_agent.link import LogAsk
from muster.projections.follower import Follower
from muster.projections.moments import BeforeLogError, MomentError, nothing_between, parse_moment
from muster.projections.read_models import mentioned_jobs
from muster.projections.store import Store
from muster.projections.timetravel import TimeTravel

MIN_SEQ_WAIT_S: Final = 10.0


class OutputError(Exception):
    """The node's agent did not give a worker's output: it is away, or does not have it any more."""


class Outputs(Protocol):
    """Workers' outputs, wherever they are."""

    def ask(self, node: str, question: LogAsk) -> AsyncGenerator[bytes, None]:
        """What a worker wrote, in chunks as they come. Raises OutputError, also in the middle."""
        ...


@dataclass(frozen=True)
class Service:
    """The parts that requests are answered from."""

    log: Log
    follower: Follower
    store: Store
    past: TimeTravel
    outputs: Outputs
    submitter: Submitter
    samples: LastSamples
    read_only: str = ""  # why nothing can be written here; the present is then the last entry's time
    configuring: asyncio.Lock = field(default_factory=asyncio.Lock)  # held from looking at what people set to a change

    @property
    def cluster(self) -> Cluster:
        """The live cluster."""
        return self.follower.fold.cluster

    @property
    def state(self) -> State:
        """The live state."""
        return self.follower.fold.cluster.state

    def now_ns(self) -> int:
        """The present: at least the last entry's time."""
        return self.state.timestamp_ns if self.read_only else max(time.time_ns(), self.state.timestamp_ns)

    async def entries(self, first: int, limit: int) -> list[Entry]:
        """Folded entries from `first` on; fewer than `limit` only where there are no more."""
        found: list[Entry] = []
        while len(found) < limit:
            chunk = await self.follower.read(first + len(found), limit - len(found))
            if not chunk:
                break
            found += chunk
        return found

    async def job_entries(self, job: int, after: int, limit: int) -> list[Entry]:
        """The entries after `after` that concern a job, also those that the mirror does not have yet."""
        mirrored = self.store.position
        found = await self.store.job_events(job, after, limit)
        following = max(mirrored, after) + 1
        while len(found) < limit and (chunk := await self.follower.read(following, limit)):
            found += [entry for entry in chunk if job in mentioned_jobs(entry)]
            following = chunk[-1].sequence + 1
        return found[:limit]


SERVICE: Final = web.AppKey("service", Service)


class Moment(NamedTuple):
    """The cluster that a read looks at; `now_ns` is until when running things have run there: the present, the time
    that was asked for, or that of the entry."""

    cluster: Cluster
    now_ns: int
    past: bool

    @property
    def state(self) -> State:
        """The state looked at."""
        return self.cluster.state

    @contextmanager
    def as_of_now(self) -> Iterator[Cluster]:
        """The cluster as a pass would find it at `now_ns`: of the live one the last entry may be minutes old. Logical
        time is put on for as long as the block runs, in which nothing may be awaited."""
        state, time_at = self.state, self.state.time_at
        if state.timestamp_ns:
            state.time_at += max(0, self.now_ns - state.timestamp_ns)
        try:
            yield self.cluster
        finally:
            state.time_at = time_at


async def moment_of(request: web.Request) -> Moment:
    """The state that a request asks for with `at` and `min_seq`."""
    service = request.app[SERVICE]
    await see_minimum(request)
    text = request.query.get("at")
    if text is None:
        return Moment(service.cluster, service.now_ns(), past=False)
    sequence, time_ns = await placed(service, text)
    cluster = (await service.past.state_at(sequence)).cluster
    return Moment(cluster, max(time_ns, cluster.state.timestamp_ns), past=True)


class Range(NamedTuple):
    """The entries from one moment to another; of what it was asked for by times, these (ns; else 0). In an `empty` one
    the last entry is the one before the first."""

    first: int
    last: int
    began_ns: int
    until_ns: int
    empty: str  # that nothing happened in it, in words


async def range_of(service: Service, begin: str | None, end: str | None) -> Range:
    """The entries from the moment of a parameter `from` to that of a parameter `to`, all of them where they are None: a
    time before the log is its beginning. Raises ApiError, also where the end is before the beginning."""
    now_ns = service.now_ns()
    first, last = service.store.origin + 1, service.state.sequence
    name, began, until = "from", None, None
    try:
        if begin is not None:
            began = parse_moment(begin, now_ns)
            first = await service.past.resolve_beginning(begin, now_ns)
        name = "to"
        if end is not None:
            until = parse_moment(end, now_ns)
            last = await service.past.resolve(end, now_ns)
    except BeforeLogError:
        last = service.store.origin
    except MomentError as error:
        raise bad_parameter(name, str(error)) from error
    if began is not None and until is not None and last < first:
        if began.sequence is not None or until.sequence is not None:
            raise bad_parameter("to", f"entry {last} is before entry {first}, at which it begins")
        if until.time_ns < began.first_ns:
            raise bad_parameter("to", f"{end} is before {begin}, at which it begins")
    empty = nothing_between(begin, end) if last < first else ""
    return Range(first, max(last, first - 1), began.first_ns if began else 0, until.time_ns if until else 0, empty)


async def placed(service: Service, text: str, name: str = "at", *, may_precede: bool = False) -> tuple[int, int]:
    """The sequence that the moment of a parameter of that `name` names, and where it is a time, that time (else 0). A
    time that `may_precede` the log is before its first entry."""
    now_ns = service.now_ns()
    try:
        return await service.past.resolve(text, now_ns), parse_moment(text, now_ns).time_ns
    except MomentError as error:
        origin = service.store.origin
        if may_precede and isinstance(error, BeforeLogError):
            return origin, 0 if origin else parse_moment(text, now_ns).time_ns
        raise bad_parameter(name, str(error)) from error


async def sequence_at(service: Service, text: str, name: str = "at") -> int:
    """The sequence that a parameter's moment names."""
    sequence, _ = await placed(service, text, name)
    return sequence


async def see_job(service: Service, job: int) -> None:
    """Wait until a job that the log has is seen by the fold too: its id is the sequence of its submission."""
    if job > service.follower.position and job <= await service.log.last_sequence():
        await service.follower.wait_for(job, MIN_SEQ_WAIT_S)


async def see_minimum(request: web.Request) -> None:
    """Wait until the fold has reached the request's `min_seq`."""
    minimum = integer(request, "min_seq", 0, 0)
    follower = request.app[SERVICE].follower
    if minimum > follower.position:
        try:
            await follower.wait_for(minimum, MIN_SEQ_WAIT_S)
        except TimeoutError as error:
            step = "ask again, or leave min_seq out"
            raise _behind("state", minimum, follower.position, step) from error


async def see_mirrored(service: Service, sequence: int) -> None:
    """Wait until the mirror, with the read models, has come to an entry: it is written a moment after the fold."""
    try:
        await service.store.wait_for(sequence, MIN_SEQ_WAIT_S)
    except TimeoutError as error:
        raise _behind("mirror", sequence, service.store.position, "ask again") from error


def _behind(what: str, wanted: int, position: int, next_step: str) -> ApiError:
    title, detail = f"the {what} has not reached entry {wanted}", f"it is at {position}"
    return ApiError(503, "behind", title, detail=detail, next_step=next_step, retry_after_s=1)
