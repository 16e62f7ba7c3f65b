"""Preemption: which running jobs are stopped so that a waiting one gets its room.

Who may evict whom: a job those of lower priority in its own queue, where that is its order, unless they had waited so
long that they would still come before it; a job whose queue stays within its guarantee with it those of queues that
hold more than theirs (never below it). Victims are taken by lowest priority, then by least work lost, those of other
queues first; whoever the job does not need is given back, the most work first. A job is left alone for its first while,
after its budget of preemptions, and where it does not allow it.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING, Final

from muster.core.order import duration_s
from muster.core.placement import Allotment, place
from muster.core.plan import Draft, work_lost_ms
from muster.core.queues import NOTHING, UNBOUNDED, Queue, plus, within
from muster.core.releasing import Asker, Releaser, first_fit, fits
from muster.core.schedule import SECOND_NS
from muster.core.standing import HOUR_NS
from muster.core.state import Job

if TYPE_CHECKING:
    from muster.events import types as t

Candidate = tuple[int, int, int]
"""(priority, work lost in ms, less its id): smallest first."""


class Preemptor:
    """Plans preemptions within one pass. `wake_at` is when a job that was left alone for its first while may be taken;
    `tried` whether a plan was made and led to nothing."""

    def __init__(self, draft: Draft) -> None:
        self._draft: Final = draft
        self._policy: Final = draft.cluster.state.policy.preemption
        self._on_node: Final[dict[tuple[str, int, tuple[str, ...]], dict[str, int]]] = {}
        self._by_queue: Final[dict[str, list[Candidate]]] = {}
        self.wake_at: int | None = None
        self.tried = False

    def make_room(self, asker: Asker, why: str, *, head_waits: bool) -> bool | None:
        """Stop others for a job and reserve its room. None where nobody can be stopped, or not enough, or where nobody
        need be and a head waits for what is being left (`head_waits`); False where the append is full."""
        if self._policy.mode == "none":
            return None
        branches = self.claiming_branches(asker)
        lenders = sorted({path for branch in branches for path in self.borrowers(branch)})
        own = self._own(asker)
        draft = self._draft
        if not (own or lenders) or place(draft.cluster.healthy, asker.demand, asker.excluded) is None:
            return None
        later = {name: draft.later(name) for name in sorted(draft.parting())}
        saved = {name: draft.room.put_room(name, room) for name, room in later.items()}
        plan = None
        if self._could_suffice(asker, own, lenders):
            releaser = Releaser(draft, self._candidates(own, lenders), _Permit(draft, asker))
            plan = self._choose(releaser, asker)
            if plan is not None and not self._is_guaranteed(asker, branches, *plan):
                plan = None
            releaser.close()
        for name, room in saved.items():
            draft.room.put_room(name, room)
        if plan is None:
            self.tried = True
            return None
        found, victims = plan
        if head_waits and not victims:
            return None
        causes: dict[int, t.PreemptionCause] = {
            victim.id: "priority" if victim.spec.queue == asker.job.spec.queue else "reclaim" for victim in victims
        }
        return draft.reserve(asker.job, asker.claimant, found.shares, causes, f"{found.why}; {why}")

    # -- who may be asked -------------------------------------------------------------------------------------------

    def _own(self, asker: Asker) -> list[Candidate]:
        """The jobs of lower priority in the same queue, unless they had waited for so long that they come before it."""
        queue, priority = asker.job.spec.queue, asker.job.priority
        if asker.claimant.queue.order != "priority":
            return []
        if min(self._draft.cluster.schedule.priorities.get(queue, {}), default=priority) >= priority:
            return []
        jobs = self._draft.cluster.state.jobs
        lower = [candidate for candidate in self._of_queue(queue) if candidate[0] < priority]
        found = [candidate for candidate in lower if self.outranks(asker.job, jobs[-candidate[2]])]
        if len(found) < len(lower):
            self.tried = True  # as it waits it may come before them
        return found

    def outranks(self, asking: Job, running: Job) -> bool:
        """Whether a waiting job comes before one of its queue that runs, for as long as that had waited."""
        allocated_at = running.attempt.allocated_at if running.attempt is not None else running.since_at
        return self._points(running, allocated_at) < self._points(asking, self._draft.plan.now_at)

    def _points(self, job: Job, until_at: int) -> int:
        """A job's priority with what it gained by waiting until then, in points times nanoseconds of an hour."""
        return job.priority * HOUR_NS + self._draft.cluster.state.policy.ageing * (until_at - job.since_at)

    def claiming_branches(self, asker: Asker) -> list[Queue]:
        """The queues upwards that are guaranteed what they would then hold, and may take it back."""
        ledger = self._draft.ledger
        return [
            queue
            for queue in asker.claimant.queue.upwards()
            if ledger.keeps_guarantee(queue, asker.least)
            and queue.spec.reclaim == "preempt"
            and self._step_allows(queue, asker)
        ]

    def _step_allows(self, queue: Queue, asker: Asker) -> bool:
        """Whether no more than the queue's step is being taken back."""
        if queue.step is UNBOUNDED:
            return True
        draft = self._draft
        state = draft.cluster.state
        awaited = NOTHING
        for room in state.rooms.values():
            job = state.jobs[room.job]
            if room.victims and draft.ledger.tree.queue_of(job.spec.queue).is_under(queue):
                awaited = plus(awaited, draft.vector(draft.cluster.room_claims(room)))
        for job_id in sorted(draft.benefits):
            other = Asker(draft, state.jobs[job_id], frozenset())
            if other.claimant.queue.is_under(queue):
                awaited = plus(awaited, other.least)
        return awaited == NOTHING or within(plus(awaited, asker.least), queue.step)

    def borrowers(self, branch: Queue) -> list[str]:
        """The leaf queues beside a branch that may lose something, as may all that they are in up to it."""
        ledger = self._draft.ledger
        assert branch.parent is not None
        found: list[str] = []
        open_queues = [queue for queue in branch.parent.children if queue is not branch]
        while open_queues:
            queue = open_queues.pop()
            if not ledger.may_lose(queue, devices=False):
                continue
            open_queues += queue.children
            if queue.is_leaf:
                found.append(queue.path)
        return sorted(found)

    def _could_suffice(self, asker: Asker, own: list[Candidate], lenders: list[str]) -> bool:
        """A quick look: whether enough devices would be idle if all of the candidates went, on one node where one must
        hold all of them."""
        draft, demand = self._draft, asker.demand
        if not demand.gpus or not demand.exclusive or place(draft.room, demand, asker.excluded) is not None:
            return True
        rooms = draft.room.rooms
        on_node = dict.fromkeys(draft.parting(), 0) | self._devices_by_node(asker, own, lenders)
        if demand.nodes == 1 or (demand.nodes is None and demand.gpus <= draft.room.largest):
            idle = (count + sum(map(len, rooms[name].idle.values())) for name, count in on_node.items())
            return max(idle, default=0) >= demand.gpus
        idle_anywhere = sum(pool.idle_devices for pool in draft.room.models.values())
        return idle_anywhere + sum(on_node.values()) >= demand.gpus

    def _devices_by_node(self, asker: Asker, own: list[Candidate], lenders: list[str]) -> dict[str, int]:
        """How many devices the candidates hold on each node, or held before some of them were taken in this pass."""
        key = asker.job.spec.queue if own else "", len(own), tuple(lenders)
        on_node = self._on_node.get(key)
        if on_node is None:
            on_node = self._on_node[key] = {}
            for job in self._candidates(own, lenders):
                for worker in job.attempt.workers if job.attempt is not None else ():
                    if worker.phase != "gone":
                        on_node[worker.node] = on_node.get(worker.node, 0) + len(worker.devices)
        return on_node

    def _candidates(self, own: list[Candidate], lenders: list[str]) -> Iterator[Job]:
        """Those of other queues first: a queue that may have room back does not lose its own work for it."""
        jobs = self._draft.cluster.state.jobs
        for candidate in chain(merge(*(self._of_queue(path) for path in lenders)), own):
            if -candidate[2] not in self._draft.victims:
                yield jobs[-candidate[2]]

    def _of_queue(self, path: str) -> list[Candidate]:
        """The jobs of a queue that may be stopped now, cheapest first."""
        if path not in self._by_queue:
            self._by_queue[path] = sorted(self._eligible(path))
        return self._by_queue[path]

    def _eligible(self, path: str) -> Iterator[Candidate]:
        cluster, now_at = self._draft.cluster, self._draft.plan.now_at
        least_ns = duration_s(self._policy.min_runtime) * SECOND_NS
        for _, job_id in cluster.schedule.by_queue.get(path, ()):
            job = cluster.state.jobs[job_id]
            attempt = job.attempt
            if attempt is None or job.phase == "STOPPING" or not job.spec.preemption.allowed:
                continue
            if job.preemptions >= self._policy.max_per_job:
                continue
            until = (attempt.started_at or now_at) + least_ns
            if until > now_at:
                if attempt.started_at:
                    self.wake_at = until if self.wake_at is None else min(self.wake_at, until)
                continue
            yield job.priority, work_lost_ms(cluster, job, now_at), -job.id

    def _is_guaranteed(self, asker: Asker, branches: list[Queue], found: Allotment, victims: list[Job]) -> bool:
        """Whether the queues for which others give something back stay within their guarantees with exactly this place:
        how much device memory it is shows only here."""
        draft = self._draft
        queues = draft.ledger.tree.queues
        exact = draft.vector((share, asker.demand) for share in found.shares)
        giving = [queues[victim.spec.queue] for victim in victims]
        return all(
            within(plus(draft.ledger.staying(branch), exact), branch.guarantee)
            for branch in branches
            if branch.parent is not None
            and any(queue.is_under(branch.parent) and not queue.is_under(branch) for queue in giving)
        )

    # -- who must go ----------------------------------------------------------------------------------------------

    def _choose(self, releaser: Releaser, asker: Asker) -> tuple[Allotment, list[Job]] | None:
        """The place, and the least set of victims: taking any one back would stop it."""
        draft = self._draft
        found = first_fit(draft, releaser, asker)
        if found is None:
            return None
        victims = releaser.sequence[: releaser.gone]
        nodes = {share.node for share in found.shares}
        far = [job for job in victims if all(share.node not in nodes for share, _ in draft.claims_of(job))]
        for job in far:
            releaser.put_back(job)
        fit = fits(draft, asker)
        if fit is None:  # they are needed for a bound of the queue's
            for job in far:
                releaser.let_go(job)
        else:
            found, victims = fit, [job for job in victims if job not in far]
        kept: list[Job] = []
        for job in reversed(victims):
            releaser.put_back(job)
            fit = fits(draft, asker)
            if fit is None:
                releaser.let_go(job)
                kept.append(job)
            else:
                found = fit
        releaser.sequence[:], releaser.gone = kept, len(kept)  # what is still taken to be gone
        return found, kept[::-1]


class _Permit:
    """Whether a job may be stopped after those before it were: a queue is never asked for what it is guaranteed."""

    def __init__(self, draft: Draft, asker: Asker) -> None:
        self._ledger = draft.ledger
        self._queue = asker.claimant.queue

    def __call__(self, victim: Job) -> bool:
        if victim.spec.queue == self._queue.path:
            return True
        for queue in self._ledger.tree.queue_of(victim.spec.queue).upwards():
            if queue.parent is not None and self._queue.is_under(queue):
                return True  # both are in it: it loses nothing
            if not self._ledger.may_lose(queue, devices=victim.spec.gpus > 0):
                return False
        return True
