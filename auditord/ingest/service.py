"""The path of a client's records from decoding to the answer.

Entries queued in the spool count as stored. A record whose id has queued entries gets the verdict that the store would
give after applying them, and is queued behind them. All changes of one record id in this process are serialised. The
spool is read before the store, because an entry that has left the spool has reached the store.
"""

import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

import anyio

from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.ingest.delivery import add_each
from auditord.ingest.submission import (
    Forbidden,
    Outcome,
    Roles,
    Stopped,
    Submission,
    depends_on_stored,
    may_update,
    project_changes,
)
from auditord.spool import Spool
from auditord.store import Provenance
from auditord.store.planning import ChangePlan
from auditord.store.store import RecordStore
from auditord_hookspecs import Close, Entry, Permission, Principal, Record, RecordUpdate, Transform
from auditord_hookspecs.wording import counted

_log: Final = logging.getLogger(__name__)

_Waiting: TypeAlias = Mapping[str, Sequence[Entry]]


class Claims:
    """Locks on the record ids of requests in progress.

    All ids of a request are taken at once, so that two requests never wait for each other.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._released: anyio.Event | None = None

    def take_now(self, ids: Collection[str]) -> bool:
        """Take the ids and return True if all of them are free, else return False."""
        if self._taken.isdisjoint(ids):
            self._taken.update(ids)
            return True
        return False

    async def take(self, ids: Collection[str]) -> None:
        """Take the ids as soon as all of them are free."""
        while not self.take_now(ids):
            self._released = self._released or anyio.Event()
            await self._released.wait()

    def release(self, ids: Collection[str]) -> None:
        """Release the ids, and wake all waiting requests."""
        self._taken.difference_update(ids)
        if self._released is not None:
            self._released.set()
            self._released = None


class Ingest:
    """Accepts records and updates of clients. They are durable in the store or the spool when a method returns.

    Every method raises :class:`StoreUnavailable` if neither store nor spool can write.

    Args:
        spool: takes records while the store is unavailable.
        destinations: the senders that forward the spool's entries; without any, the spool takes nothing.
        queue_updates: whether updates of unknown records are queued in the spool while the store is unavailable.
        transform: applied to every record, exactly once.
    """

    def __init__(
        self,
        store: RecordStore,
        spool: Spool,
        destinations: Sequence[str],
        *,
        queue_updates: bool = True,
        transform: Transform | None = None,
    ) -> None:
        self.store = store
        self.spool = spool
        self.destinations = destinations
        self._queue_updates = queue_updates
        self._transform = transform
        self._claims = Claims()
        self.spooled = 0
        """Number of records and updates that were queued in the spool."""

    def accept(
        self,
        records: Sequence[Record],
        principal: Principal | None,
        provenance: Provenance,
        *,
        atomic: bool,
        duplicates: Duplicates,
    ) -> Awaitable[Sequence[Outcome]]:
        """Store or queue records, and return one outcome each, in order.

        ``principal`` is the sender, or None without authentication. If ``atomic``, a single record that is invalid,
        forbidden or of another run keeps out all of them.

        Raises:
            InvalidRecord: a record is refused for good, and ``atomic`` is set.
            Forbidden: the principal may not write a record, and ``atomic`` is set.
        """
        roles = writing_roles(principal)
        if roles is None and atomic and len(records) == 1:
            return self._accept_one(records[0], provenance, duplicates)
        return self._accept(Submission(dict(enumerate(records)), roles, provenance, duplicates, atomic))

    async def _accept(self, submission: Submission) -> Sequence[Outcome]:
        count = len(submission.records)
        if self._transform is not None:
            await submission.transform(self._transform)
        ids = submission.ids
        await self._claims.take(ids)
        try:
            await self._keep(submission, await self._waiting(ids))
        finally:
            self._claims.release(ids)
        return [submission.outcomes[position] for position in range(count)]

    async def _accept_one(self, record: Record, provenance: Provenance, duplicates: Duplicates) -> Sequence[Outcome]:
        """Accept one record that its sender may write regardless of the stored one, as in most requests."""
        changed = record if self._transform is None else self._transform(record)
        ids, outage = (record.record_id,), None
        if not self._claims.take_now(ids):
            await self._claims.take(ids)
        try:
            if self.spool.occupied.isdisjoint(self.destinations):
                try:
                    return (await self.store.add(changed, provenance, duplicates),)
                except StoreUnavailable as error:
                    outage = error
            submission = Submission({0: changed}, None, provenance, duplicates, atomic=True)
            await self._keep(submission, await self._waiting(ids), outage)
            return (submission.outcomes[0],)
        finally:
            self._claims.release(ids)

    async def stop(self, update: RecordUpdate, principal: Principal | None, provenance: Provenance) -> Stopped:
        """Set the stop time of a record, behind all queued entries of the record.

        Raises:
            Forbidden: by its id, the record is not the principal's.
            StoreUnavailable: also if the store is unavailable and such updates are not queued.
        """
        roles = updating_roles(principal, update.record_id)
        if roles is not None and not roles:
            raise Forbidden(f"record {update.record_id!r} has a prefix that its sender may not write")
        await self._claims.take((update.record_id,))
        try:
            waiting = await self._waiting((update.record_id,))
            try:
                if waiting or roles is not None:
                    record = (await self._project_changes((update.record_id,), waiting, provenance)).record(
                        update.record_id
                    )
                    if record is None or (roles is not None and not may_update(roles, record)):
                        return Stopped.MISSING if roles is None else Stopped.HIDDEN
                if not waiting:
                    return Stopped.DONE if await self.store.stop(update, provenance) else Stopped.MISSING
            except StoreUnavailable as error:
                if not waiting and not self._queue_updates:
                    raise
                _log.warning("the record store is unavailable (%s): an update is queued in the spool", error)
                record = project_changes({}, waiting, provenance).record(update.record_id)
                if roles is not None and record is not None and not may_update(roles, record):
                    return Stopped.HIDDEN
            await self._queue([Close(update.record_id, update.stop_time, None, roles)], provenance)
            return Stopped.DONE
        finally:
            self._claims.release((update.record_id,))

    async def waiting(self, ids: Collection[str]) -> Collection[str]:
        """Return the ids that have changes queued for the store."""
        return (await self._waiting(ids)).keys()

    # -- records --------------------------------------------------------------------------------------------------

    async def _keep(self, submission: Submission, waiting: _Waiting, outage: StoreUnavailable | None = None) -> None:
        queued: Sequence[Entry] = ()
        if outage is None:
            try:
                queued = await self._store_now(submission, waiting)
            except StoreUnavailable as error:
                outage = error
        if outage is not None:
            count = len(submission.records)
            _log.warning(
                "the record store is unavailable (%s): %s queued in the spool",
                outage,
                counted(count, "posted record is", "posted records are"),
            )
            plan = project_changes({}, waiting, submission.provenance)
            submission.permit(plan)
            if await submission.classify(plan, submission.records):
                submission.mark_queued()
                queued = submission.make_entries(submission.records)
        await self._queue(queued, submission.provenance)

    async def _store_now(self, submission: Submission, waiting: _Waiting) -> Sequence[Entry]:
        """Store the records that need not wait, and return entries for the rest."""
        if waiting or submission.roles is not None:
            looked_up = submission.ids if depends_on_stored(submission.roles) else waiting.keys()
            plan = await self._project_changes(looked_up, waiting, submission.provenance)
            submission.permit(plan)
            behind = [at for at, record in submission.records.items() if record.record_id in waiting]
            if not await submission.classify(plan, behind):
                return ()
        else:
            behind = []
        direct = [at for at in submission.records if at not in submission.outcomes]
        records = [submission.records[at] for at in direct]
        provenance, duplicates = submission.provenance, submission.duplicates
        added: Sequence[Outcome] = ()
        if not submission.atomic:
            added = await add_each(self.store, records, provenance, duplicates)
        elif len(records) == 1:
            added = (await self.store.add(records[0], provenance, duplicates),)
        elif records:
            added = await self.store.add_all(records, provenance, duplicates, atomic=True)
        submission.outcomes |= zip(direct, added, strict=True)
        return submission.make_entries(behind) if submission.apply_atomicity() else ()

    # -- both -----------------------------------------------------------------------------------------------------

    async def _waiting(self, ids: Collection[str]) -> _Waiting:
        if self.spool.occupied.isdisjoint(self.destinations):
            return {}
        return await self.spool.waiting(ids, self.destinations)

    async def _project_changes(self, ids: Collection[str], waiting: _Waiting, provenance: Provenance) -> ChangePlan:
        stored = await self.store.documents(list(ids)) if ids else dict[str, bytes]()
        return project_changes(stored, waiting, provenance)

    async def _queue(self, entries: Sequence[Entry], provenance: Provenance) -> None:
        if entries:
            await self.spool.accept(entries, provenance, self.destinations)
            self.spooled += len(entries)


def writing_roles(principal: Principal | None) -> Roles:
    """Return the roles by which a principal may write records."""
    if principal is None:
        return None
    roles = principal.having(Permission.WRITE)
    return None if any(role.sites is None and role.prefixes is None for role in roles) else roles


def updating_roles(principal: Principal | None, record_id: str) -> Roles:
    """Return the roles by which a record may be updated, judging by its id alone."""
    if principal is None:
        return None
    roles = tuple(role for role in principal.having(Permission.UPDATE) if role.may_write_id(record_id))
    return None if any(role.sites is None and role.rows is None for role in roles) else roles
