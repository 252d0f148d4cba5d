"""The queues that may hold something, known without asking the database."""

from collections import Counter
from collections.abc import Collection, Iterable


class Occupancy:
    """The senders whose queues may hold entries; wrong in one direction only: an occupied queue is never called empty.

    A writer says so before it queues something; a queue is empty again when a write transaction has seen it
    empty and nobody has begun to queue anything since that was asked for. (Writes are done in the order in which they
    are asked for.)
    """

    def __init__(self, senders: Iterable[str] = ()) -> None:
        self._occupied = set(senders)
        self._begun = Counter[str]()

    def __contains__(self, sender: str) -> bool:
        return sender in self._occupied

    def any(self, senders: Collection[str]) -> bool:
        """Tell if any of the queues may hold something."""
        return not self._occupied.isdisjoint(senders)

    def queueing(self, senders: Iterable[str]) -> None:
        """Note that something is about to be queued."""
        for sender in senders:
            self._occupied.add(sender)
            self._begun[sender] += 1

    def mark(self, sender: str) -> int:
        """The count of what was queued for the sender; to be taken before a write looks for what is left."""
        return self._begun[sender]

    def empty(self, sender: str, mark: int) -> None:
        """Note that the write which was asked for after the mark was taken has seen the queue empty."""
        if self._begun[sender] == mark:
            self._occupied.discard(sender)
