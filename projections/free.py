"""Free preemption in virtual time, as papers on preemptive scheduling have it: stopping a job costs nothing, and it
goes on anywhere from where it was.

At every arrival and end all jobs that are not over are ranked by an order of the product (`muster.core.orders`), with
exact durations where the trace has no estimates, and put on an empty cluster in that order; whoever fits runs. Under
`las` that is done too whenever a job has taken so much time of devices that it falls into the second queue.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Final, Literal, get_args

import msgspec

from muster.core.orders import key_function
from muster.core.orders.las import FIRST_QUEUE_NS
from muster.core.queues import ENDLESS
from muster.core.scheme import Rule
from muster.core.standing import SortKey, Standing
from muster.events.types import Inventory
from muster.projections.free_rooms import Room, room_of
from muster.projections.traces import SECOND_NS, WHOLE, TraceJob
from muster.projections.virtual import Moment, Outcome, Run

FreeOrder = Literal["srtf", "srsf", "las"]
ORDERS: Final[tuple[FreeOrder, ...]] = get_args(FreeOrder)


class _Live(msgspec.Struct, gc=False, eq=False):
    """A job that is not over. `milli` are the devices that it takes, in thousandths of one; `left_ns` is for how long
    it has to run yet."""

    number: int
    outcome: Outcome
    kind: Hashable
    milli: int
    expected_ns: int
    left_ns: int
    ran_ns: int = 0
    runs: bool = False
    key: SortKey = ()


class FreeCluster:
    """Nodes under an order and a rule of placement, through one run."""

    def __init__(self, nodes: Mapping[str, Inventory], order: FreeOrder, rule: Rule = "best-fit") -> None:
        self._nodes: Final = nodes
        self._order: Final = order
        self._rule: Final = rule
        self._key: Final = key_function(order)
        self._now_ns = 0
        self._live: list[_Live] = []  # by rank, as of the last time that they were placed
        self._running: list[_Live] = []
        self._preemptions = 0
        self._moments: Final[list[Moment]] = []

    def run(self, jobs: Sequence[TraceJob], progress: Callable[[int], object] = lambda _: None) -> Run:
        """Let the jobs come, which are in order of time, until all that can run have run. `progress` is told how many
        have come."""
        room, empty = (room_of(self._nodes, self._rule, jobs) for _ in range(2))

        @cache
        def fits(kind: Hashable) -> bool:
            empty.keep(0)
            return empty.take(kind)

        outcomes = [Outcome(job) for job in jobs]
        come = 0
        while (now_ns := self._next_ns(jobs[come].submitted_ns if come < len(jobs) else ENDLESS)) < ENDLESS:
            self._go_on(now_ns)
            new: list[_Live] = []
            while come < len(jobs) and jobs[come].submitted_ns <= now_ns:
                come += 1
                kind = room.kind(jobs[come - 1])
                if fits(kind):
                    new.append(self._submitted(come, outcomes[come - 1], kind))
            self._place_anew(room, new)
            progress(come)
        gpus = sum(len(inventory.devices) for inventory in self._nodes.values())
        return Run(outcomes, gpus, 0, [], self._preemptions, self._moments)

    def _next_ns(self, arrival_ns: int) -> int:
        """When something happens next (`ENDLESS` = never)."""
        steady_ns = min((self._steady_ns(one) for one in self._running), default=ENDLESS)
        return min(arrival_ns, self._now_ns + steady_ns)

    def _steady_ns(self, one: _Live) -> int:
        """For how long a job that runs goes on until it ends, or until its rank changes by that alone."""
        if self._order == "las" and one.milli:
            first_ns = FIRST_QUEUE_NS * WHOLE - one.ran_ns * one.milli
            if first_ns > 0:
                return min(one.left_ns, -(-first_ns // one.milli))
        return one.left_ns

    def _go_on(self, now_ns: int) -> None:
        """Time passes: who runs has run for longer, and is over where that is all."""
        passed_ns, self._now_ns = now_ns - self._now_ns, now_ns
        for one in self._running:
            one.ran_ns += passed_ns
            one.left_ns -= passed_ns
            if one.left_ns:
                one.key = self._key_of(one)
            else:
                one.outcome.ended_ns = now_ns

    def _submitted(self, number: int, outcome: Outcome, kind: Hashable) -> _Live:
        job = outcome.job
        expected_ns = job.estimate_s * SECOND_NS or max(1, job.duration_ns)
        one = _Live(number, outcome, kind, job.gpus * job.compute, expected_ns, job.duration_ns)
        one.key = self._key_of(one)
        return one

    def _key_of(self, one: _Live) -> SortKey:
        return self._key(
            Standing(
                one.number,
                since=one.number,
                milli=one.milli,
                expected_ns=one.expected_ns,
                done_ns=one.ran_ns,
                served_ns=one.ran_ns * one.milli // WHOLE,
            )
        )

    def _place_anew(self, room: Room, new: list[_Live]) -> None:
        """Rank all, and place them from the first rank on that somebody else has now."""
        before = self._live
        live = [one for one in before if one.outcome.ended_ns < 0] + new
        live.sort(key=_rank)
        same = 0
        for one, old in zip(live, before, strict=False):
            if one is not old:
                break
            same += 1
        running = [one for one in live[:same] if one.runs]
        refused = {one.kind for one in live[:same] if not one.runs}
        room.keep(len(running))
        for one in live[same:]:
            ran, one.runs = one.runs, one.kind not in refused and room.take(one.kind)
            if one.runs:
                running.append(one)
            else:
                refused.add(one.kind)
                self._preemptions += ran
            if one.outcome.started_ns < 0 and one.runs:
                one.outcome.started_ns = self._now_ns
        self._live, self._running = live, running
        in_use = sum(one.milli for one in running)
        self._moments.append(Moment(self._now_ns, len(live) - len(running), in_use))


def _rank(one: _Live) -> SortKey:
    return one.key
