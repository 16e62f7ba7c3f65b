"""The jobs that wait: a line for each queue, in the queue's order."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

from muster.core.order import order_of, sort_key
from muster.core.standing import SortKey
from muster.core.state import Job, State
from muster.events.policy import OrderName


class Line:
    """One queue's waiting jobs by sort key; under `fair` also by user."""

    __slots__ = ("keys", "order", "users")

    def __init__(self, order: OrderName) -> None:
        self.order: Final = order
        self.keys: Final[list[SortKey]] = []
        self.users: Final[dict[str, list[SortKey]]] = {}

    def add(self, key: SortKey, user: str) -> None:
        """Put a job in its place."""
        _insert(self.keys, key)
        if self.order == "fair":
            _insert(self.users.setdefault(user, []), key)

    def remove(self, key: SortKey, user: str) -> bool:
        """Take a job out; whether it was there."""
        if self.order == "fair" and user in self.users:
            _delete(self.users[user], key)
            if not self.users[user]:
                del self.users[user]
        return _delete(self.keys, key)

    def walk(self, score: Callable[[str], int]) -> Iterator[int]:
        """The jobs in order. Under `fair` the next one is of the user whose score is smallest (ties: whose job has
        waited longer); a user's score is asked for again after each of the user's jobs."""
        if self.order != "fair":
            for key in self.keys:
                yield key[-1]
            return
        turns = [(score(user), keys[0], user, 0) for user, keys in self.users.items()]
        heapify(turns)
        while turns:
            _, key, user, place = turns[0]
            yield key[-1]
            keys = self.users[user]
            if place + 1 < len(keys):  # nobody else's score has changed since
                heapreplace(turns, (score(user), keys[place + 1], user, place + 1))
            else:
                heappop(turns)


class Lines:
    """Every queue's line. `milli` tells what a job takes of devices, in thousandths."""

    def __init__(self, state: State, milli: Callable[[Job], int]) -> None:
        self._state: Final = state
        self._milli: Final = milli
        self.by_queue: Final[dict[str, Line]] = {}
        self.count = 0

    def add(self, job: Job) -> None:
        """A job waits."""
        line = self.by_queue.get(job.spec.queue)
        if line is None:
            line = self.by_queue[job.spec.queue] = Line(order_of(self._state, job.spec.queue))
        line.add(self.key_of(job, line.order), job.user)
        self.count += 1

    def remove(self, job: Job) -> None:
        """A job waits no more, if it did."""
        line = self.by_queue.get(job.spec.queue)
        if line is not None and line.remove(self.key_of(job, line.order), job.user):
            self.count -= 1
            if not line.keys:
                del self.by_queue[job.spec.queue]

    def key_of(self, job: Job, order: OrderName) -> SortKey:
        """A job's place in a line of this order."""
        return sort_key(order, self._state.policy.ageing, job, self._milli(job))

    def reorder(self) -> None:
        """The rules have changed: every line anew."""
        waiting = [self._state.jobs[key[-1]] for line in self.by_queue.values() for key in line.keys]
        self.by_queue.clear()
        self.count = 0
        for job in waiting:
            self.add(job)


def _insert(keys: list[SortKey], key: SortKey) -> None:
    if not keys or keys[-1] < key:
        keys.append(key)
    else:
        insort(keys, key)


def _delete(keys: list[SortKey], key: SortKey) -> bool:
    place = 0 if keys and keys[0] == key else bisect_left(keys, key)
    if place < len(keys) and keys[place] == key:
        del keys[place]
        return True
    return False
