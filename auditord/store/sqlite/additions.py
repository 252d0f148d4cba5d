"""Concurrent additions of single records, gathered without waiting: one piece of work for all that are there."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from auditord.database import Database
from auditord.store.protocol import Verdict
from auditord.store.rows import PendingRecord
from auditord.store.sqlite.changes import Outcome, add_all


@dataclass(slots=True, eq=False)
class _Gathering:
    """What one turn of the writer's thread has taken up, and the outcomes."""

    taken: list[tuple[PendingRecord, "asyncio.Future[Verdict]"]] = field(
        default_factory=list[tuple[PendingRecord, "asyncio.Future[Verdict]"]]
    )


class Additions:
    """Hands single records over to the writer's thread, all that wait at a time.

    While a transaction is being committed, further records gather; each caller gets its own verdict after the commit.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # The loop's thread appends, the writer's takes away: both are atomic, and no lock is needed.
        self._waiting: deque[tuple[PendingRecord, asyncio.Future[Verdict]]] = deque()
        self._announced = False

    def add(self, pending: PendingRecord) -> "asyncio.Future[Verdict]":
        """The record's verdict, once it is durable. Cancelling it takes nothing back."""
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((pending, verdict))
        if not self._announced:
            self._announced = True
            self._announce()
        return verdict

    def _announce(self) -> None:
        gathering = _Gathering()

        def work(connection: sqlite3.Connection) -> Sequence[Outcome]:
            # In this order: whoever appends after the last look sees that an announcement is due.
            self._announced = False
            self._take_all(gathering)
            return add_all(connection, [pending for pending, _ in gathering.taken]) if gathering.taken else ()

        def done(outcomes: "asyncio.Future[Sequence[Outcome]]") -> None:
            self._settle(gathering, outcomes)

        self._database.submit(work).add_done_callback(done)

    def _take_all(self, gathering: _Gathering) -> None:
        while self._waiting:
            gathering.taken.append(self._waiting.popleft())

    def _settle(self, gathering: _Gathering, outcomes: "asyncio.Future[Sequence[Outcome]]") -> None:
        error = outcomes.exception()
        if error is None:
            for (_, verdict), outcome in zip(gathering.taken, outcomes.result(), strict=True):
                _tell(verdict, outcome)
            return
        if not gathering.taken:  # the transaction could not even begin: those who waited for it still do
            self._announced = False
            self._take_all(gathering)
        for _, verdict in gathering.taken:
            _tell(verdict, error)


def _tell(verdict: "asyncio.Future[Verdict]", outcome: Outcome | BaseException) -> None:
    if verdict.done():  # the caller has left
        return
    if isinstance(outcome, Verdict):
        verdict.set_result(outcome)
    else:
        verdict.set_exception(outcome)
