"""The scheduler: stands for leader, and while it leads appends what follows from the log.

A term: hold the lease, append a fenced LeaderStarted (refolding until it is accepted), read every node's last beat,
and only then decide. A pass: fold all that has come in, decide, append in one fenced atomic write, wait until it is
folded. One append is in flight at any time. A refused or unsettled append ends the term. The lease is for liveness
only; what makes two leaders harmless is the fence.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Sequence
from itertools import count
from typing import Final

from muster.core.decide import decide, next_time
from muster.core.order import ENGINE_VERSION, policy_name
from muster.core.schedule import SECOND_NS
from muster.events import codec
from muster.events import types as t
from muster.events.beats import Beats
from muster.events.lease import Lease
from muster.events.log import AppendRefusedError, Log, LogError, Message
from muster.projections.decision_subjects import decision_subject
from muster.projections.follower import Follower
from muster.projections.watch import Watch

LOOK_S: Final = 1.0
"""How often a leader with nothing else to do looks at beats and at the time."""
CATCH_UP_S: Final = 60.0
APPEND_S: Final = 8.0
CLOCK_GAP_NS: Final = SECOND_NS
"""Least time between two ClockAdvanced."""
CLOCK_REST_NS: Final = 60 * SECOND_NS
"""Most time without an entry while something waits on time."""

logger: Final = logging.getLogger(__name__)


class _TermEndedError(Exception):
    """This scheduler leads no more."""


class Scheduler:
    """One candidate. `leading` is set while it leads, `standing_by` while it does not."""

    def __init__(
        self, name: str, log: Log, follower: Follower, lease: Lease, beats: Beats, watch: Watch | None = None
    ) -> None:
        self.name: Final = name
        self.leading: Final = asyncio.Event()
        self.standing_by: Final = asyncio.Event()
        self.standing_by.set()
        self._log: Final = log
        self._follower: Final = follower
        self._lease: Final = lease
        self._beats: Final = beats
        self._watch = watch or Watch()
        self._lease_lost = asyncio.Event()
        self._id_prefix: Final = f"{name}-{secrets.token_hex(8)}"
        self._ids: Final = count(1)
        self._next_look_s = 0.0
        self._last_entry = (0, 0)  # last sequence seen at a look, and when (monotonic)

    async def run(self) -> None:
        """Stand and lead, term after term, until cancelled. Raises only what ended the follower."""
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                if await self._acquire():
                    await self._one_term()
                await asyncio.sleep(LOOK_S)
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            with contextlib.suppress(LogError):
                await self._lease.release()

    async def _acquire(self) -> bool:
        if self._follower.fold.cluster.state.unknown_since:
            return False
        try:
            return await self._lease.try_acquire()
        except LogError as error:
            logger.warning("the lease could not be asked for: %s", error)
            return False

    async def _one_term(self) -> None:
        self._lease_lost.clear()
        renewing = asyncio.create_task(self._keep_lease())
        try:
            await self._lead()
        except (_TermEndedError, LogError, TimeoutError) as error:
            logger.warning("%s leads no more: %s", self.name, error or type(error).__name__)
        finally:
            self.leading.clear()
            self.standing_by.set()
            renewing.cancel()
            await asyncio.wait({renewing})
            with contextlib.suppress(LogError):
                await self._lease.release()

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease.renew_s)
            try:
                kept = await self._lease.renew()
            except LogError:
                kept = False
            if not kept:
                self._lease_lost.set()
                return
            self._watch.proof(time.monotonic_ns())

    async def _listen(self) -> None:
        while True:
            try:
                async for beat in self._beats.arriving():
                    self._watch.beat(beat.node, beat.incarnation, time.monotonic_ns())
            except LogError as error:
                logger.warning("beats cannot be heard, trying again: %s", error)
            await asyncio.sleep(LOOK_S)

    # -- a term -----------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        await self._follower.wait_for(await self._log.last_sequence(), CATCH_UP_S)
        await self._begin_term()
        await self._read_last_beats()
        self.standing_by.clear()
        self.leading.set()
        logger.info("%s leads from entry %d on", self.name, self._follower.position)
        while True:
            if self._lease_lost.is_set():
                raise _TermEndedError("its lease is lost")
            self._check_known()
            seen = self._follower.position
            if await self._observe() or await self._pass():
                continue
            await self._rest(seen)

    def _check_known(self) -> None:
        unknown_since = self._follower.fold.cluster.state.unknown_since
        if unknown_since:
            raise _TermEndedError(f"entry {unknown_since} is of a type unknown to this version: it follows only")

    async def _begin_term(self) -> None:
        self._check_known()
        while True:
            try:
                await self._append([t.LeaderStarted(self.name, ENGINE_VERSION, self._policy_name())])
            except AppendRefusedError:
                if self._lease_lost.is_set():
                    raise
                await self._follower.wait_for(await self._log.last_fenced_sequence(), CATCH_UP_S)
            else:
                return

    def _policy_name(self) -> str:
        return policy_name(self._follower.fold.cluster.state.policy)

    async def _read_last_beats(self) -> None:
        for beat in await self._beats.last():
            self._watch.stored_beat(*beat)

    async def _observe(self) -> bool:
        """Once in a while, append what is new of nodes and time; True = something was."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + LOOK_S
        state = self._follower.fold.cluster.state
        if self._watch.silent(state):
            await self._read_last_beats()
        observations: list[t.Event] = [*self._watch.observations(state)]
        if not observations and self._time_is_due():
            observations = [t.ClockAdvanced()]
        if observations:
            await self._append(observations)
        return bool(observations)

    def _time_is_due(self) -> bool:
        cluster = self._follower.fold.cluster
        now_ns = time.monotonic_ns()
        if self._last_entry[0] != cluster.state.sequence:
            self._last_entry = (cluster.state.sequence, now_ns)
        due_at = next_time(cluster)
        if due_at is None:
            return False
        waited_ns = now_ns - self._last_entry[1]
        return waited_ns >= min(max(due_at - cluster.state.time_at, CLOCK_GAP_NS), CLOCK_REST_NS)

    async def _pass(self) -> bool:
        """Decide and append; True = something followed."""
        events = decide(self._follower.fold.cluster)
        if events:
            await self._append(events)
        return bool(events)

    async def _append(self, events: Sequence[t.Event]) -> None:
        """Append in one write, fenced by the last decision folded, and wait until it is folded."""
        state = self._follower.fold.cluster.state
        messages = [
            Message(
                decision_subject(event, state, self._log.prefix),
                codec.encode(event),
                f"{self._id_prefix}-{next(self._ids)}",
            )
            for event in events
        ]
        last = await self._log.append_fenced(messages, state.fence, APPEND_S)
        await self._follower.wait_for(last, CATCH_UP_S)

    async def _rest(self, seen: int) -> None:
        """Sleep until an entry comes in, or it is time to look again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._follower.changed(seen)
