"""The leader's lease: who may stand for leader. It is for liveness only; what makes two leaders harmless is the fence.

Rules: one key of a bucket whose values vanish after the lease's time, without a marker. Taking it creates the key,
renewing it replaces the revision that this holder wrote last, giving it up leaves an empty value that anybody may
replace. An answer that does not come is no lease: the next `try_acquire` finds out.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from muster.events.connection import ApiError, Connection, NoAnswerError, raise_for_error
from muster.events.credentials import lease_bucket
from muster.events.log import LogUnavailableError
from muster.events.reading import RETRY_S, read_leader
from muster.events.streams import DEFAULT_LEASE_TTL_S
from muster.events.subjects import DEFAULT_PREFIX

RENEWALS_PER_TTL: Final = 3


class Lease(Protocol):
    """A candidate's view of the lease."""

    renew_s: float
    """How often to renew it."""

    async def try_acquire(self) -> bool:
        """Take it if nobody holds it. Raises LogUnavailableError."""
        ...

    async def renew(self) -> bool:
        """Keep it for another term of its time; False where it is lost."""
        ...

    async def release(self) -> None:
        """Give it up, if it is held. Raises LogUnavailableError; it then runs out by itself."""
        ...


class _Written(msgspec.Struct):
    seq: int


_decode_written: Final = msgspec.json.Decoder(_Written).decode


class NatsLease:
    """The lease in the broker's bucket. `holder` is unique to this process; `ttl_s` is the bucket's."""

    def __init__(
        self, connection: Connection, holder: str, prefix: str = DEFAULT_PREFIX, ttl_s: float = DEFAULT_LEASE_TTL_S
    ) -> None:
        self.renew_s = ttl_s / RENEWALS_PER_TTL
        self._connection = connection
        self._holder = holder.encode()
        self._stream = f"KV_{lease_bucket(prefix)}"
        self._key = f"$KV.{lease_bucket(prefix)}.leader"
        self._ttl_s = ttl_s
        self._revision = 0
        self._held_until_s = 0.0

    async def try_acquire(self) -> bool:
        """See `Lease.try_acquire`."""
        stored = await read_leader(self._connection, self._stream, {"last_by_subj": self._key})
        if stored is not None and stored.entry.payload not in (b"", self._holder):
            return False
        return await self._write(self._holder, stored.entry.sequence if stored else 0)

    async def renew(self) -> bool:
        """See `Lease.renew`. While the broker does not answer it goes on trying, for as long as the lease is ours."""
        while self._revision:
            try:
                return await self._write(self._holder, self._revision) or await self._is_own_write()
            except LogUnavailableError:
                if time.monotonic() > self._held_until_s:
                    self._revision = 0
            await asyncio.sleep(RETRY_S)
        return False

    async def release(self) -> None:
        """See `Lease.release`."""
        revision, self._revision = self._revision, 0
        if revision:
            await self._write(b"", revision)
        self._revision = 0

    async def _is_own_write(self) -> bool:
        """Whether the value that refused ours is ours: an earlier renewal whose answer was lost."""
        stored = await read_leader(self._connection, self._stream, {"last_by_subj": self._key})
        is_own = stored is not None and stored.entry.payload == self._holder
        self._revision = stored.entry.sequence if stored is not None and is_own else 0
        return is_own and await self._write(self._holder, self._revision)

    async def _write(self, value: bytes, revision: int) -> bool:
        sent_s = time.monotonic()
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        try:
            answer = await self._connection.request(self._key, value, headers=headers, timeout_s=self.renew_s)
            raise_for_error(answer.payload)
        except ApiError:
            return False
        except NoAnswerError as error:
            raise LogUnavailableError(f"the lease cannot be asked for: {error}") from None
        self._revision = _decode_written(answer.payload).seq
        self._held_until_s = sent_s + self._ttl_s
        return True


class MemoryLeases:
    """A lease in memory that several candidates share: `MemoryLeases().of("a")`. `clock` gives seconds."""

    def __init__(self, ttl_s: float = DEFAULT_LEASE_TTL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.ttl_s = ttl_s
        self.clock = clock
        self.holder = ""
        self.held_until_s = 0.0

    def of(self, holder: str) -> "MemoryLease":
        """One candidate's view."""
        return MemoryLease(self, holder)


class MemoryLease:
    """See `Lease`."""

    def __init__(self, shared: MemoryLeases, holder: str) -> None:
        self.renew_s = shared.ttl_s / RENEWALS_PER_TTL
        self._shared = shared
        self._holder = holder

    async def try_acquire(self) -> bool:
        """See `Lease.try_acquire`."""
        shared = self._shared
        if shared.holder not in ("", self._holder) and shared.clock() < shared.held_until_s:
            return False
        shared.holder, shared.held_until_s = self._holder, shared.clock() + shared.ttl_s
        return True

    async def renew(self) -> bool:
        """See `Lease.renew`."""
        is_held = self._shared.holder == self._holder and self._shared.clock() < self._shared.held_until_s
        return is_held and await self.try_acquire()

    async def release(self) -> None:
        """See `Lease.release`."""
        if self._shared.holder == self._holder:
            self._shared.holder = ""
