"""Without backfill: what the heads that wait keep others from. Nothing passes them in their own queues, and no queue
goes beyond its share for as long as they wait."""

from typing import TYPE_CHECKING, Final

from muster.core.queues import Queue, plus

if TYPE_CHECKING:
    from muster.core.plan import Draft
    from muster.core.releasing import Asker
    from muster.core.turns import Turns


class Strictness:
    """That of one pass. `head` is the first of those heads (0 = there is none yet)."""

    def __init__(self, draft: "Draft", turns: "Turns") -> None:
        self._ledger: Final = draft.ledger
        self._turns: Final = turns
        self._under: Final[list[Queue]] = []  # where others do not go beyond their shares
        self._is_ripe = False  # whether a head comes before all shares
        self.head = 0

    def note(self, asker: "Asker", limit: str) -> None:
        """A job waits at the head of its queue, for what a queue may hold ("" = for room)."""
        tree = self._ledger.tree
        self.head = self.head or asker.job.id
        up = asker.claimant.queue.upwards()
        self._is_ripe |= any(self._turns.is_ripe(queue, asker.job, asker.least) for queue in up)
        self._under.append(tree.queues[limit] if limit else tree.root)

    def bars(self, asker: "Asker") -> bool:
        """Whether a job would bring its queue, or one that it is in, above its share, where a head waits for that."""
        if not any(asker.claimant.queue.is_under(queue) for queue in self._under):
            return False
        ledger, up = self._ledger, asker.claimant.queue.upwards()
        if self._is_ripe:
            return not any(ledger.keeps_guarantee(queue, asker.least) for queue in up)
        return any(ledger.tree.share_ppm(plus(ledger.staying(queue), asker.least)) > queue.entitled_ppm for queue in up)
