"""An engine of the lake, as those who ask it see it."""

from collections.abc import Callable
from typing import Protocol

from pyiceberg.table import Table

from auditord.errors import StoreUnavailable
from auditord_hookspecs import AggregateQuery, Aggregates


class Work:
    """The work on an answer, which can be ended from another thread, before and after it has begun."""

    def __init__(self) -> None:
        self._interrupt: Callable[[], None] | None = None
        self._is_left = False

    def begin(self, interrupt: Callable[[], None]) -> None:
        """Say how it is ended; an interrupt that comes before a statement has begun may be forgotten.

        Raises:
            StoreUnavailable: nobody waits for the answer any more.
        """
        self._interrupt = interrupt
        if self._is_left:
            raise StoreUnavailable("Nobody waits for the answer any more.")

    def interrupt(self) -> None:
        """End it."""
        self._is_left = True
        if self._interrupt is not None:
            self._interrupt()


class Engine(Protocol):
    """A program that makes sums. Its methods block."""

    def sums(self, table: Table, query: AggregateQuery, daemon: str | None, work: Work) -> Aggregates:
        """Sums over the newest snapshot of a table that was just loaded.

        Args:
            table: of the lake.
            query: what is asked.
            daemon: whose records count; None: those of all.
            work: is told how it is ended.

        Raises:
            StoreUnavailable: something cannot be read, or the limits are too narrow.
        """
        ...

    def close(self) -> None:
        """Let go of all; questions that run end with an error."""
        ...
