"""Telemetry: beats and device samples, written by agents, read by schedulers. Never an input of decisions.

Rules: every publish waits for its acknowledgement, because the broker drops a flood that asks for none in silence. A
beat that arrives carries no time of the broker's; the last stored beat of a node does.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from muster.events.connection import ApiError, Connection, NoAnswerError, raise_for_error
from muster.events.credentials import telemetry_stream
from muster.events.log import Entry, LogUnavailableError
from muster.events.pull import LONGEST_RETRY_S, Pull, PullLostError, retry_level
from muster.events.reading import RETRY_S, read_direct
from muster.events.subjects import DEFAULT_PREFIX
from muster.events.telemetry import GpuSampled, Heartbeat
from muster.events.wire import format_time_ns, parse_time_ns

ARRIVALS_LIMIT: Final = 65_536
PUBLISH_TIMEOUT_S: Final = 2.0
NODES_AT_ONCE: Final = 500
"""Half of the subjects that the broker finds the last messages of at once."""
SAMPLES_KEPT: Final = 10_000
_ATTEMPTS: Final = 5

_logger: Final = logging.getLogger("muster.events.beats")

_encode: Final = msgspec.json.Encoder().encode
_decode_beat: Final = msgspec.json.Decoder(Heartbeat).decode
_decode_sample: Final = msgspec.json.Decoder(GpuSampled).decode


class Beat(NamedTuple):
    """A node's beat. `timestamp_ns` is the server's, 0 where it only just arrived."""

    node: str
    incarnation: str
    timestamp_ns: int


class Beats(Protocol):
    """What is heard of the nodes."""

    def arriving(self) -> AsyncIterator[Beat]:
        """Beats as they arrive, for ever."""
        ...

    async def last(self) -> list[Beat]:
        """Each node's last stored beat, by node. Raises LogUnavailableError."""
        ...


class Sampled(NamedTuple):
    """A node's devices as its agent saw them. `timestamp_ns` is the server's."""

    sample: GpuSampled
    timestamp_ns: int


class KeptSamples(NamedTuple):
    """Of each node the last sample that is kept of a moment, and since when samples are kept (None = there are none).
    Where that is after the moment, those of then are gone, if there were any."""

    by_node: dict[str, Sampled]
    since_ns: int | None


class Samples(Protocol):
    """What the nodes' devices are doing, and did."""

    def follow(self) -> AsyncIterator[Sampled]:
        """Each node's last stored sample, then those that come, for ever: a broker that is away is waited for, and some
        may then be given again, or be missing."""
        ...

    async def at(self, nodes: Sequence[str], timestamp_ns: int) -> KeptSamples:
        """These nodes' last samples not after a time. Raises LogUnavailableError."""
        ...


class Telemetry(Protocol):
    """Where an agent's beats and samples go."""

    async def beat(self, beat: Heartbeat) -> bool:
        """Publish a beat; whether the broker acknowledged it."""
        ...

    async def sample(self, sample: GpuSampled) -> None:
        """Publish the devices' samples. Raises LogUnavailableError."""
        ...


class NatsTelemetry:
    """See `Telemetry`."""

    def __init__(self, connection: Connection, prefix: str = DEFAULT_PREFIX) -> None:
        self._connection = connection
        self._prefix = prefix

    async def beat(self, beat: Heartbeat) -> bool:
        """See `Telemetry.beat`."""
        try:
            await self._publish(f"{self._prefix}.heartbeat.{beat.node}", _encode(beat))
        except LogUnavailableError as error:
            _logger.warning("a beat was not acknowledged: %s", error)
            return False
        return True

    async def sample(self, sample: GpuSampled) -> None:
        """See `Telemetry.sample`."""
        await self._publish(f"{self._prefix}.gpu.{sample.node}", _encode(sample))

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            answer = await self._connection.request(subject, payload, timeout_s=PUBLISH_TIMEOUT_S)
            raise_for_error(answer.payload)
        except (ApiError, NoAnswerError) as error:
            raise LogUnavailableError(f"{subject} was not acknowledged: {error}") from None


class NatsBeats:
    """See `Beats`. `node` is the only one heard of, where it is given."""

    def __init__(self, connection: Connection, prefix: str = DEFAULT_PREFIX, node: str = "*") -> None:
        self._connection = connection
        self._subject = f"{prefix}.heartbeat.{node}"
        self._stream = telemetry_stream(prefix)

    async def arriving(self) -> AsyncIterator[Beat]:
        """See `Beats.arriving`. Raises LogUnavailableError where it cannot begin."""
        arrived: deque[tuple[bytes, bytes]] = deque(maxlen=ARRIVALS_LIMIT)
        is_news = asyncio.Event()

        def take(subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
            arrived.append((subject, payload))
            is_news.set()

        try:
            subscription = await self._connection.subscribe(self._subject, take)
        except NoAnswerError as error:
            raise LogUnavailableError(str(error)) from None
        try:
            while True:
                await is_news.wait()
                is_news.clear()
                while arrived:
                    subject, payload = arrived.popleft()
                    beat = _beat_of(subject.decode(errors="replace"), payload, 0)
                    if beat is not None:
                        yield beat
        finally:
            await self._connection.unsubscribe(subscription)

    async def last(self) -> list[Beat]:
        """See `Beats.last`."""
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                return await self._read_last()
            except PullLostError as error:
                reason = str(error)
        raise LogUnavailableError(f"the last beats cannot be read: {reason}")

    async def _read_last(self) -> list[Beat]:
        beats: dict[str, Beat] = {}
        async with Pull(self._connection, self._stream, 1, subject=self._subject, policy="last_per_subject") as pull:
            while pull.pending:
                for entry in await pull.take():
                    beat = _beat_of(entry.subject, entry.payload, entry.timestamp_ns)
                    if beat is not None:
                        beats[beat.node] = beat
        return [beats[node] for node in sorted(beats)]


class NatsSamples:
    """See `Samples`."""

    def __init__(self, connection: Connection, prefix: str = DEFAULT_PREFIX) -> None:
        self._connection = connection
        self._subject = f"{prefix}.gpu.*"
        self._stream = telemetry_stream(prefix)

    async def follow(self) -> AsyncIterator[Sampled]:
        """See `Samples.follow`."""
        pause_s = RETRY_S
        while True:
            try:
                async with Pull(
                    self._connection, self._stream, 1, subject=self._subject, policy="last_per_subject"
                ) as pull:
                    while True:
                        for entry in await pull.take():
                            sampled = _sampled_of(entry)
                            if sampled is not None:
                                yield sampled
                        pause_s = RETRY_S
            except (PullLostError, NoAnswerError) as error:
                _logger.log(retry_level(pause_s), "samples are read anew: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    async def at(self, nodes: Sequence[str], timestamp_ns: int) -> KeptSamples:
        """See `Samples.at`."""
        try:
            since_ns = await self._kept_since_ns()
            if since_ns is None or since_ns > timestamp_ns:
                return KeptSamples({}, since_ns)
            found: dict[str, Sampled] = {}
            for start in range(0, len(nodes), NODES_AT_ONCE):
                subjects = [self._subject.replace("*", node) for node in nodes[start : start + NODES_AT_ONCE]]
                query = {"multi_last": subjects, "up_to_time": format_time_ns(timestamp_ns + 1)}
                for entry in await read_direct(self._connection, self._stream, query, len(subjects)):
                    sampled = _sampled_of(entry)
                    if sampled is not None:
                        found[sampled.sample.node] = sampled
        except (ApiError, NoAnswerError) as error:
            raise LogUnavailableError(f"the samples cannot be read: {error}") from None
        return KeptSamples(found, since_ns)

    async def _kept_since_ns(self) -> int | None:
        state = (await self._connection.api(f"STREAM.INFO.{self._stream}", timeout_s=PUBLISH_TIMEOUT_S))["state"]
        return parse_time_ns(state["first_ts"]) if state["messages"] else None


class MemoryTelemetry:
    """Beats and samples in memory: what is published arrives at every `arriving` and `follow`, and so many samples are
    kept. `clock` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.samples: dict[str, GpuSampled] = {}
        self._clock = clock
        self._last: dict[str, Beat] = {}
        self._listeners: list[asyncio.Queue[Beat]] = []
        self._sampled: dict[str, Sampled] = {}
        self._followers: list[asyncio.Queue[Sampled]] = []
        self._kept: deque[Sampled] = deque(maxlen=SAMPLES_KEPT)

    async def beat(self, beat: Heartbeat) -> bool:
        """See `Telemetry.beat`."""
        self._last[beat.node] = Beat(beat.node, beat.incarnation, self._clock())
        for listener in self._listeners:
            listener.put_nowait(Beat(beat.node, beat.incarnation, 0))
        return True

    async def sample(self, sample: GpuSampled) -> None:
        """See `Telemetry.sample`."""
        self.samples[sample.node] = sample
        sampled = self._sampled[sample.node] = Sampled(sample, self._clock())
        self._kept.append(sampled)
        for follower in self._followers:
            follower.put_nowait(sampled)

    async def follow(self) -> AsyncIterator[Sampled]:
        """See `Samples.follow`."""
        follower: asyncio.Queue[Sampled] = asyncio.Queue()
        for node in sorted(self._sampled):
            follower.put_nowait(self._sampled[node])
        self._followers.append(follower)
        try:
            while True:
                yield await follower.get()
        finally:
            self._followers.remove(follower)

    async def at(self, nodes: Sequence[str], timestamp_ns: int) -> KeptSamples:
        """See `Samples.at`."""
        of_then = [each for each in self._kept if each.timestamp_ns <= timestamp_ns]
        by_node = {each.sample.node: each for each in of_then if each.sample.node in nodes}
        return KeptSamples(by_node, self._kept[0].timestamp_ns if self._kept else None)

    async def arriving(self) -> AsyncIterator[Beat]:
        """See `Beats.arriving`."""
        listener: asyncio.Queue[Beat] = asyncio.Queue()
        self._listeners.append(listener)
        try:
            while True:
                yield await listener.get()
        finally:
            self._listeners.remove(listener)

    async def last(self) -> list[Beat]:
        """See `Beats.last`."""
        return [self._last[node] for node in sorted(self._last)]


def _beat_of(subject: str, payload: bytes, timestamp_ns: int) -> Beat | None:
    """The beat; None where it is none, or speaks of another node than its subject, which is all its writer may use."""
    try:
        beat = _decode_beat(payload)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not subject.endswith(f".heartbeat.{beat.node}"):
        return None
    return Beat(beat.node, beat.incarnation, timestamp_ns)


def _sampled_of(entry: Entry) -> Sampled | None:
    """The sample; None where it is none, or speaks of another node than its subject."""
    try:
        sample = _decode_sample(entry.payload)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Sampled(sample, entry.timestamp_ns) if entry.subject.endswith(f".gpu.{sample.node}") else None
