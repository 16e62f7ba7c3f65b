"""An agent's world in memory: a log, a clock of beats that can be cut, and a place for what the agent sent."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from muster.events import codec
from muster.events.beats import Beat
from muster.events.log import Ack, Entry, LogUnavailableError, Message
from muster.events.subjects import registration_subject, subject_of
from muster.events.telemetry import GpuSampled, Heartbeat
from muster.events.types import Command, DeviceBinding, Event, NodeRegistered, StartWorker, StopWorker
from muster.node_agent.agent import Agent, AgentSettings
from muster.node_agent.devices import DeviceSource
from muster.node_agent.inventory import Site, simulated
from muster.node_agent.link import Answer

DEADLINE_S = 15.0
Fact = TypeVar("Fact")


class FakeLink:
    """A log and telemetry in memory. `broker_up` cuts both; `beats_heard` cuts the beats alone, `registrations_heard`
    what is heard of registrations. `listened` counts who listened for other agents' beats."""

    prefix = "muster"

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ids: dict[str, int] = {}
        self.sent: list[str] = []
        self.beaten: list[Heartbeat] = []
        self.samples: list[GpuSampled] = []
        self.answer: Answer | None = None
        self.broker_up = True
        self.beats_heard = True
        self.registrations_heard = True
        self.listened = 0
        self.failures: list[Exception] = []
        self.changed = asyncio.Condition()

    def _store(self, subject: str, payload: bytes, message_id: str) -> Ack:
        if message_id in self.ids:
            return Ack(self.ids[message_id], duplicate=True)
        sequence = len(self.entries) + 1
        self.ids[message_id] = sequence
        self.entries.append(Entry(sequence, sequence * 1_000_000, subject, payload))
        return Ack(sequence, duplicate=False)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def append_batch(self, messages: Sequence[Message], timeout_s: float = 30.0) -> list[Ack]:
        self.sent.extend(message.message_id for message in messages)
        if self.failures:
            raise self.failures.pop(0)
        if not self.broker_up:
            await self._notify()
            raise LogUnavailableError("no broker")
        acks = [self._store(*message) for message in messages]
        await self._notify()
        return acks

    def commands(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        return self._followed(f"muster.command.{node}", after)

    def registrations(self, node: str, after: int) -> AsyncIterator[list[Entry]]:
        return self._followed(registration_subject(node) if self.registrations_heard else "nothing", after)

    async def last_registration(self, node: str) -> Entry | None:
        if not self.broker_up:
            await self._notify()
            raise LogUnavailableError("no broker")
        return next((e for e in reversed(self.entries) if e.subject == registration_subject(node)), None)

    async def beats(self, node: str) -> AsyncIterator[Beat]:
        self.listened += 1
        await self._notify()
        heard = len(self.beaten)
        while True:
            await self.until(lambda heard=heard: len(self.beaten) > heard)  # type: ignore[misc]
            heard += 1
            yield Beat(node, self.beaten[heard - 1].incarnation, 0)

    async def _followed(self, subject: str, after: int) -> AsyncIterator[list[Entry]]:
        while True:
            found = [e for e in self.entries[after:] if e.subject == subject]
            if found:
                after = found[-1].sequence
                yield found
            else:
                async with self.changed:
                    size = len(self.entries)
                    await self.changed.wait_for(lambda size=size: len(self.entries) > size)  # type: ignore[misc]

    async def beat(self, beat: Heartbeat) -> bool:
        if self.broker_up and self.beats_heard:
            self.beaten.append(beat)
            await self._notify()
            return True
        return False

    async def sample(self, sample: GpuSampled) -> None:
        self.samples.append(sample)
        await self._notify()

    async def serve_asks(self, node: str, answer: Answer) -> None:
        self.answer = answer
        await asyncio.Event().wait()

    async def command(self, command: Command) -> int:
        return await self.put(command)

    async def put(self, event: Event) -> int:
        """Somebody else's entry."""
        ack = self._store(subject_of(event), codec.encode(event), f"other-{len(self.entries)}")
        await self._notify()
        return ack.sequence

    def facts(self, kind: type[Fact]) -> list[Fact]:
        return [event for event in map(codec.decode, (e.payload for e in self.entries)) if isinstance(event, kind)]

    async def until(self, condition: Callable[[], Any]) -> Any:
        """The condition's value once it is true, looked at whenever something came in."""
        async with asyncio.timeout(DEADLINE_S), self.changed:
            return await self.changed.wait_for(condition)

    async def fact(self, kind: type[Fact], **values: object) -> Fact:
        """The first fact of a kind with these values, waited for."""

        def first() -> Fact | None:
            wanted = values.items()
            return next((f for f in self.facts(kind) if all(getattr(f, k) == v for k, v in wanted)), None)

        found: Fact = await self.until(first)
        return found


NewNode = Callable[..., "Node"]
"""The fixture `new_node`: an agent on the test's data folder, with these settings."""


class Node:
    """A node with a running agent on a data folder; its devices are simulated unless there are others."""

    def __init__(self, data: Path, link: FakeLink, devices: DeviceSource | None = None, **settings: Any) -> None:
        devices = devices or simulated("1x8xA100-80GB", Site())["node-1"]
        values = {"node": "node-1", "data": data, "beat_ms": 20, "lease_ms": 60_000, "stop_grace_ms": 2_000, **settings}
        self.link = link
        self.agent = Agent(AgentSettings(**values), link, devices)
        self.before = len(link.facts(NodeRegistered))
        self.task = asyncio.create_task(self.agent.run())

    async def registered(self) -> NodeRegistered:
        """This agent's first registration."""
        found = await self.link.until(lambda: self.link.facts(NodeRegistered)[self.before :])
        registration: NodeRegistered = found[0]
        return registration

    async def stop(self, *, kill_jobs: bool = True) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.agent.stop(kill_jobs=kill_jobs)
            await self.task

    async def crash(self) -> None:
        """What kill -9 leaves: nobody says goodbye."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def start(incarnation: str, command: str | list[str], **values: Any) -> StartWorker:
    """A StartWorker of one worker on the node's device 0, but for `values`."""
    indices = values.pop("indices", [0])
    defaults: dict[str, Any] = {
        "job": 5,
        "attempt": 1,
        "rank": 0,
        "world": 1,
        "node": "node-1",
        "incarnation": incarnation,
        "name": "test",
        "user": "ada",
        "command": command,
        "devices": [DeviceBinding(index, f"GPU-sim-node-1-{index}") for index in indices],
        "device_memory_mib": 0,
        "compute": 1000,
        "cpus": 8,
        "memory_mib": 1024,
        "master_address": "127.0.0.1",
        "master_port": 42_017,
        "start_by_ns": 0,
        "leased": True,
    }
    return StartWorker(**{**defaults, **values})


def stop(incarnation: str, grace_ms: int = 2_000, **values: Any) -> StopWorker:
    defaults: dict[str, Any] = {"job": 5, "attempt": 1, "rank": 0, "node": "node-1", "cause": "cancelled"}
    return StopWorker(**{**defaults, "incarnation": incarnation, "grace_ms": grace_ms, **values})


def python(source: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", source]


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
