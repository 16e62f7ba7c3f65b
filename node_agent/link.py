"""What an agent needs of the world: the log to report to, its commands, telemetry, and questions to answer."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from muster.events.beats import Beat
from muster.events.log import Ack, Entry, Message
from muster.events.telemetry import GpuSampled, Heartbeat


class LogAsk(msgspec.Struct, frozen=True):
    """A question for a worker's output, from byte `offset` on; `follow` until the worker is gone."""

    job: Annotated[int, msgspec.Meta(ge=0)]
    attempt: Annotated[int, msgspec.Meta(ge=0)]
    rank: Annotated[int, msgspec.Meta(ge=0)]
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    follow: bool = False


Answer = Callable[[LogAsk], AsyncIterator[bytes]]
"""Answers a question in chunks. Raises LookupError where there is no such output."""


class AgentLink(Protocol):
    """An agent's connection. Whatever fails raises LogError or OSError, and is tried again."""

    prefix: str

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        """Append reports, in order, as `Log.append_batch` does."""
        ...

    def commands(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        """The node's commands after sequence `after`, in order, in chunks as they come, for ever."""
        ...

    def registrations(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        """The node's registrations after sequence `after`, whoever wrote them, in the same way."""
        ...

    async def last_registration(self, node: str) -> Entry | None:
        """The node's last registration. It may lag; `registrations` gets every one in the end."""
        ...

    def beats(self, node: str) -> AsyncIterator[Beat]:
        """The node's beats as they arrive, whoever sends them, for ever."""
        ...

    async def beat(self, beat: Heartbeat) -> bool:
        """Publish a beat; whether the server acknowledged it."""
        ...

    async def sample(self, sample: GpuSampled) -> None:
        """Publish the devices' samples."""
        ...

    async def serve_asks(self, node: str, answer: Answer) -> None:
        """Answer questions about workers of this node, for ever."""
        ...
