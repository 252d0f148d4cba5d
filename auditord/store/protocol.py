"""The protocol of record stores, for every database; one contract suite is run against all of them."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from auditord.database.memory import HeldTurn, Occasion, PluginMemory
from auditord.duplicates import Duplicates
from auditord.store.amendments import Amended, Amendment, Version
from auditord.store.answers import Difference, Outbox, OutboxEntry, RecordCounts, Verdict
from auditord.store.known_daemons import DaemonState, KnownDaemon
from auditord.store.lake import LakeRecord, LakeSource
from auditord_hookspecs import AggregateQuery, Aggregates, Provenance, Record, RecordQuery, RecordUpdate

__all__ = [
    "DaemonState",
    "Difference",
    "Duplicates",
    "HeldTurn",
    "KnownDaemon",
    "Occasion",
    "Outbox",
    "OutboxEntry",
    "PluginMemory",
    "Provenance",
    "RecordCounts",
    "RecordStore",
    "Verdict",
    "is_forwarded",
]


def is_forwarded(provenance: Provenance) -> bool:
    """Return whether senders read a change from the feed; the changes of collectors are queued for each sender."""
    return provenance.principal is None or not provenance.principal.startswith("task:")


class Listed(Protocol):
    """Records that can be listed and summed up."""

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over one consistent state of the records, in whole numbers; every store gives the same."""
        ...

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Pages of wire texts, one per record, in the query's order, with bounded memory.

        The query has begun and its first page is there (or known to be empty) when the context is entered, so that a
        fault shows before an answer is begun; a later fault raises out of the iteration. Leaving early is cheap.
        """
        ...


class Reads(Listed, Protocol):
    """Records that can be read: a store's, those visible to a principal, or a replica's."""

    async def get(self, record_id: str) -> bytes | None:
        """The wire text of one record."""
        ...


class RecordStore(Reads, LakeSource, Protocol):
    """Records, durable. Every method raises :class:`auditord.errors.StoreUnavailable` when the database does."""

    writes: int
    """Number of times that this process has changed records; grows after each commit."""

    async def add(
        self, record: Record, provenance: Provenance, duplicates: Duplicates, text: bytes | None = None
    ) -> Verdict:
        """Add one record; concurrent calls share a transaction, each gets its own verdict after the commit.

        Args:
            record: what happened.
            provenance: kept beside it.
            duplicates: what a known id means.
            text: the record's wire text, where that is known.

        Raises:
            InvalidRecord: the database refuses this record for good; others in the transaction are not harmed.
        """
        ...

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        """Add many in one transaction, one verdict each; if ``atomic``, a single EXISTS undoes all of them."""
        ...

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        """Set the stop time of a record, open or not; False if there is none with this id."""
        ...

    async def replace(self, record: Record, provenance: Provenance, alternate_id: str | None = None) -> Verdict:
        """Insert or overwrite a record on purpose; the verdict tells if it was there; the old version is kept.

        With an alternate id, a record of another start is another run and stays: the new one gets the alternate id.
        """
        ...

    async def amend(self, amendments: Sequence[Amendment], provenance: Provenance) -> Sequence[Amended]:
        """Change records on purpose in one transaction, one outcome each, and keep what they were before.

        Senders forward it as if a client had done it; but no deletion, since no protocol has a request for it.

        Raises:
            InvalidRecord: two amendments are about one record, or the database refuses a record; then nothing is done.
        """
        ...

    async def history(self, record_id: str) -> Sequence[Version]:
        """The versions of a record before each change on purpose, the oldest first; also of one that was deleted."""
        ...

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Take meta keys out of records for good, in one transaction; returns how many had any of them.

        The old values are kept neither in the history of these records nor among the differences, and
        nothing is forwarded by senders. Times, amounts and ``updated_at`` stay, and so do all sums but those by one of
        the keys. Released records come back; the next run of the lake rewrites the files that had them.
        """
        ...

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """Redact former versions, also of deleted records, and differences, which are forgotten.

        Returns how many there were of records that ended before the instant.
        """
        ...

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        """The wire texts of those of the records that are there, by id; meant for some thousands at a time."""
        ...

    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        """Those of the ids whose records were deleted on purpose, and that are not there again."""
        ...

    async def counts(self) -> RecordCounts:
        """The maintained counts; never a scan."""
        ...

    async def origin(self, record_id: str) -> LakeRecord | None:
        """One record, released or not, with its provenance."""
        ...

    async def differences_of(self, record_id: str) -> Sequence[Difference]:
        """The differences of one record, the newest first."""
        ...

    def differences(self) -> AbstractAsyncContextManager[AsyncIterator[Difference]]:
        """All differences, the newest first."""
        ...

    async def outbox(self, limit: int) -> Outbox:
        """The oldest changes that senders must forward; none unless the store was once opened with an outbox.

        From then on, what :func:`is_forwarded` names is forwarded: an ``Insert`` of the record now stored when
        one was added, closed (by a full record or a stop time) or moved to an earlier start; a ``Close`` when a stop
        time was overwritten; a ``Replace`` when a record was replaced. Changes without an effect are left out.

        Args:
            limit: the number of records of the feed to look at, roughly.
        """
        ...

    async def forget_outbox(self, position: int) -> None:
        """Note that all changes up to a position have been forwarded."""
        ...

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """The memory of a plugin, with its turn: no other user of this store has it at the same time.

        If the turn is lost (with a connection, or to another process), the caller is cancelled and StoreUnavailable or
        TurnLost raised.

        Args:
            task: the plugin.
            waiting: called once if another process has the turn, before it is waited for; None takes no turn, to look
                only.
            occasion: of a run, if it is one.

        Raises:
            RanElsewhere: another daemon has run the plugin for the same tick, or so recently that this one is left out.
        """
        ...

    async def turns(self) -> Sequence[HeldTurn]:
        """The turns that are taken, on any host; an SQLite file is of one host and has none."""
        ...

    async def note_daemon(self, daemon: DaemonState, now: datetime) -> None:
        """Keep the state of a daemon; a database on a server takes its own clock for the present instant."""
        ...

    async def daemons(self, now: datetime) -> Sequence[KnownDaemon]:
        """The daemons that have used this database within a month."""
        ...

    async def generation(self, spool_id: str) -> int:
        """The generation that the store has reached with a spool; 0 if it knows none of it."""
        ...

    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        """Note how far a spool has come with this store, and return how far it had come before (0: not known).

        Args:
            spool_id: which spool.
            generation: the next one; it is noted only if the one before is this one or its predecessor.
            adopt: note it without that condition.
        """
        ...

    async def check(self) -> None:
        """Return if a record could be written now."""
        ...

    async def close(self) -> None:
        """Finish open work and release everything."""
        ...
