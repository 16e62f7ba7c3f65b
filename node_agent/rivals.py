"""Other agents of the same name: a node has one, and the log says which.

Rules: the agent whose registration is the last one in the log is the node's, and every other ends at once, with all of
its workers: they are not running, as the log has it. So of any number of agents exactly one stays. What is read before
registering may lag and only spares people the worse surprise; what is read after it, in order from the own
registration on, is what counts. A command for another's life is no proof: it may be older than the own registration.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

from muster.events import codec
from muster.events.log import Entry, LogError
from muster.events.types import NodeRegistered
from muster.node_agent.journal import Journal
from muster.node_agent.link import AgentLink

logger = logging.getLogger(__name__)

LISTENED_BEATS: Final = 2
"""For so many of its own beats' intervals an agent listens for another, where the node was another's last."""
RETRY_S: Final = 0.5


class NameTakenError(Exception):
    """Another agent has this node's name."""


class Rivals:
    """What one agent knows of others of its node."""

    def __init__(self, node: str, beat_ms: int, link: AgentLink, journal: Journal) -> None:
        self._node = node
        self._beat_ms = beat_ms
        self._link = link
        self._journal = journal

    async def check_start(self) -> None:
        """Return when this agent may register: at once where the node was its own last, or nobody's; otherwise once
        no other has been heard for a while. Raises NameTakenError."""
        if await self._last_foreign() and await self._is_heard():
            raise NameTakenError(f"another agent of {self._node} runs; two agents must not have one name")

    async def check_again(self) -> None:
        """Return when a later life of this agent may register. Raises NameTakenError."""
        if await self._last_foreign():
            raise self._taken()

    async def watch(self, registered: int) -> None:
        """Never return. Raises NameTakenError when another registers this node after entry `registered`."""
        while True:
            found = self._link.registrations(self._node, registered)
            try:
                async for entries in found:
                    if any(map(self._is_foreign, entries)):
                        raise self._taken()
                    registered = entries[-1].sequence
            except (LogError, OSError, TimeoutError) as error:
                logger.warning("registrations cannot be read: %s", error)
            finally:
                if isinstance(found, AsyncGenerator):
                    await found.aclose()
            await asyncio.sleep(RETRY_S)

    def _taken(self) -> NameTakenError:
        return NameTakenError(f"{self._node} was registered by another agent; two agents must not have one name")

    async def _last_foreign(self) -> bool:
        level = logging.WARNING
        while True:
            try:
                last = await self._link.last_registration(self._node)
            except (LogError, OSError, TimeoutError) as error:
                logger.log(level, "the last registration cannot be read: %s", error)
                level = logging.DEBUG
                await asyncio.sleep(RETRY_S)
            else:
                return last is not None and self._is_foreign(last)

    def _is_foreign(self, entry: Entry) -> bool:
        """Whether it is another's registration. What cannot be read is none, as for everybody who folds the log."""
        try:
            event = codec.decode(entry.payload)
        except codec.UnreadableEventError as error:
            logger.warning("registration %d is not understood: %s", entry.sequence, error)
            return False
        if not isinstance(event, NodeRegistered) or event.node != self._node:
            return False
        return not self._journal.is_own(event.incarnation)

    async def _is_heard(self) -> bool:
        """Whether another agent of this node beats now."""
        listen_s = LISTENED_BEATS * self._beat_ms / 1000
        logger.warning("%s was another agent's last; listening for it for %.1f s", self._node, listen_s)
        beats = self._link.beats(self._node)
        try:
            async with asyncio.timeout(listen_s):
                async for beat in beats:
                    if not self._journal.is_own(beat.incarnation):
                        return True
        except TimeoutError:
            return False
        except (LogError, OSError) as error:
            logger.warning("beats cannot be heard: %s", error)
        finally:
            if isinstance(beats, AsyncGenerator):
                await beats.aclose()
        return False
