"""Transactions that change records. Two daemons may run them on one database at the same time.

Nearly all records are new: they are added in one statement that fails as a whole if an id is known. Then, and for all
other changes, what is there is read and classified in memory; what this rests on is locked and compared before
anything is written, and if another transaction has been faster, everything begins anew.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from psycopg import errors

from auditord.database.postgres import Connection
from auditord.database.postgres.faults import is_passing, is_permanent
from auditord.errors import StoreUnavailable
from auditord.store.amendments import COLLECTED_AGAIN, Action
from auditord.store.ledger import (
    Addition,
    Change,
    ChangePlan,
    Outcome,
    Replacement,
    Stop,
    StoredRow,
    ids_of,
    pending_of,
    provenance_of,
)
from auditord.store.postgres import outbox
from auditord.store.postgres.counting import QUERIES as COUNTING
from auditord.store.postgres.counting import CountChanges
from auditord.store.postgres.rows import COPY_TYPES, as_json, copy_rows, make_move, make_row
from auditord.store.postgres.sources import QUERIES, Numbers, Sources
from auditord.store.postgres.versions import Kept, keep_versions
from auditord.store.protocol import Verdict
from auditord.store.rows import PendingRecord
from auditord.store.verdicts import Identity
from auditord_hookspecs import InvalidRecord

T = TypeVar("T")

_FEW: Final = 200
"""Records up to which one statement with a JSON parameter beats COPY and the transaction around it."""

_ATTEMPTS: Final = 10


class Transactions:
    """Changes records through connections that are lent for each call.

    Args:
        sources: numbers of those who bring records.
        counted_keys: the meta keys that are counted at the moment.
    """

    def __init__(self, sources: Sources, counted_keys: Callable[[], Sequence[str]]) -> None:
        self._sources = sources
        self._counted_keys = counted_keys

    async def change_each(self, connection: Connection, changes: Sequence[Change]) -> Sequence[Outcome]:
        """Make changes in order and in one transaction; one that the database refuses harms no other."""
        numbers = await self._numbers(connection, changes)
        try:
            return await self._change_together(connection, changes, numbers)
        except _PERMANENT as error:
            _raise_unless_permanent(error)
        return [await self._change_alone(connection, change, numbers) for change in changes]

    async def add_all(
        self, connection: Connection, pending_records: Sequence[PendingRecord], *, atomic: bool
    ) -> Sequence[Verdict]:
        """Add records in one transaction, all or none; if ``atomic``, a single EXISTS undoes it.

        Raises:
            InvalidRecord: the database refuses one of them for good.
        """
        numbers = await self._numbers_of(connection, pending_records)
        try:
            if await self._add_new(connection, pending_records, numbers):
                return [Verdict.ADDED] * len(pending_records)
            changes = [Addition(pending) for pending in pending_records]
            outcomes = await again(lambda: self._settle(connection, changes, numbers, atomic=atomic))
        except _PERMANENT as error:
            _raise_unless_permanent(error)
            raise await _refusal(connection, pending_records, numbers, error) from error
        return [outcome for outcome in outcomes if isinstance(outcome, Verdict)]

    async def _numbers(self, connection: Connection, changes: Sequence[Change]) -> Numbers:
        pending_records = _additions(changes)
        if len(pending_records) == len(changes):
            return await self._numbers_of(connection, pending_records)
        scores = [pending.scores for change in changes for pending in pending_of(change)]
        return await self._sources.learn(connection, map(provenance_of, changes), scores)

    async def _numbers_of(self, connection: Connection, pending_records: Sequence[PendingRecord]) -> Numbers:
        provenances = [pending.provenance for pending in pending_records]
        return await self._sources.learn(connection, provenances, [pending.scores for pending in pending_records])

    async def _change_together(
        self, connection: Connection, changes: Sequence[Change], numbers: Numbers
    ) -> Sequence[Outcome]:
        pending_records = _additions(changes)
        if len(pending_records) == len(changes) and await self._add_new(connection, pending_records, numbers):
            return [Verdict.ADDED] * len(pending_records)
        return await again(lambda: self._settle(connection, changes, numbers, atomic=False))

    async def _change_alone(self, connection: Connection, change: Change, numbers: Numbers) -> Outcome:
        try:
            (outcome,) = await self._change_together(connection, [change], numbers)
        except _PERMANENT as error:
            _raise_unless_permanent(error)
            return _invalid(ids_of(change)[0], error)
        return outcome

    # -- records that are all new ---------------------------------------------------------------------------------

    async def _add_new(
        self, connection: Connection, pending_records: Sequence[PendingRecord], numbers: Numbers
    ) -> bool:
        """Add records that are all new; otherwise change nothing and say False."""
        if len({pending.record.record_id for pending in pending_records}) < len(pending_records):
            return False
        forwarded = [pending for pending in pending_records if pending.forwarded]
        # In one order, so that transactions which add the same records do not wait for each other in a circle.
        pending_records = sorted(pending_records, key=_record_id)
        tally = CountChanges(self._counted_keys()).add(pending.record for pending in pending_records).as_json()
        try:
            if len(pending_records) <= _FEW and not forwarded:
                await connection.execute(QUERIES["insert_records"], (tally, _rows(pending_records, numbers)))
            else:
                async with connection.transaction():
                    await _copy(connection, pending_records, numbers)
                    await connection.execute(COUNTING["note_changes"], (tally,))
                    await outbox.put(connection, [("insert", pending) for pending in forwarded], numbers)
        except (errors.UniqueViolation, errors.DeadlockDetected):
            return False
        return True

    # -- everything else ------------------------------------------------------------------------------------------

    async def _settle(
        self, connection: Connection, changes: Sequence[Change], numbers: Numbers, *, atomic: bool
    ) -> Sequence[Outcome]:
        async with connection.transaction():
            ledger = ChangePlan(await _find(connection, changes))
            outcomes = [ledger.apply(change) for change in changes]
            if not (atomic and Verdict.EXISTS in outcomes):
                await self._write(connection, ledger, numbers)
            return outcomes

    async def _write(self, connection: Connection, ledger: ChangePlan, numbers: Numbers) -> None:
        new, overwritten = (
            sorted(pending_records, key=_record_id) for pending_records in (ledger.new, ledger.overwritten)
        )
        noted = list(ledger.differences.values())
        if new:
            await _insert(connection, new, numbers)
        if ledger.touched:
            await _lock(connection, ledger)
        if ledger.replaced:
            await keep_versions(connection, _kept(ledger, numbers))
        if overwritten:
            await connection.execute(QUERIES["overwrite_records"], (_rows(overwritten, numbers),))
        if moved := sorted(ledger.moved, key=_record_id):
            await connection.execute(QUERIES["move_records"], (as_json([make_move(pending) for pending in moved]),))
        if ledger.settled:
            await connection.execute(QUERIES["settle_differences"], (as_json(sorted(ledger.settled)),))
        if noted:
            await connection.execute(QUERIES["note_differences"], (_rows(noted, numbers),))
        if new or overwritten:
            await connection.execute(COUNTING["note_changes"], (self._tally(ledger),))
        await outbox.put(connection, ledger.forwarded, numbers)

    def _tally(self, ledger: ChangePlan) -> str:
        tally = CountChanges(self._counted_keys()).add(pending.record for pending in (*ledger.new, *ledger.overwritten))
        for pending in ledger.overwritten:
            tally.remove(ledger.before[pending.record.record_id].record)
        return tally.as_json()


class _Overtaken(Exception):
    """Another transaction has changed what the classification rested on."""


_PERMANENT: Final = (errors.Error, UnicodeError, OverflowError)


def _raise_unless_permanent(error: Exception) -> None:
    if not is_permanent(error):
        raise error


def _invalid(record_id: str, error: Exception) -> InvalidRecord:
    reason = str(error).partition("\n")[0]
    return InvalidRecord(f"The record {record_id!r} cannot be stored: {reason}.")


def _additions(changes: Sequence[Change]) -> list[PendingRecord]:
    return [change.pending for change in changes if isinstance(change, Addition)]


def _record_id(pending: PendingRecord) -> str:
    return pending.record.record_id


async def again(work: Callable[[], Awaitable[T]]) -> T:
    """Do work until no other transaction is in the way."""
    for _ in range(_ATTEMPTS):
        try:
            return await work()
        except _Overtaken:
            continue
        except errors.Error as error:
            if not is_passing(error):
                raise
    raise StoreUnavailable(f"Other transactions were faster {_ATTEMPTS} times in a row: try again.")


def _kept(ledger: ChangePlan, numbers: Numbers) -> Sequence[Kept]:
    return [
        Kept(record_id, Action.CORRECT.value, COLLECTED_AGAIN, by.received_at, numbers.source(by))
        for record_id, by in sorted(ledger.replaced.items())
    ]


def _rows(pending_records: Sequence[PendingRecord], numbers: Numbers) -> str:
    return as_json([make_row(pending, numbers) for pending in pending_records])


async def _insert(connection: Connection, new: Sequence[PendingRecord], numbers: Numbers) -> None:
    """Add records that nobody else has added meanwhile.

    Raises:
        _Overtaken: somebody has.
    """
    inserted = await (await connection.execute(QUERIES["insert_missing"], (_rows(new, numbers),))).fetchall()
    if len(inserted) < len(new):
        raise _Overtaken


async def _refusal(
    connection: Connection, pending_records: Sequence[PendingRecord], numbers: Numbers, error: Exception
) -> InvalidRecord:
    """Say which record it is that the database refuses, trying ever smaller parts of them."""
    while len(pending_records) > 1:
        half = pending_records[: len(pending_records) // 2]
        pending_records = half if await _is_refused(connection, half, numbers) else pending_records[len(half) :]
    return _invalid(pending_records[0].record.record_id, error)


async def _is_refused(connection: Connection, pending_records: Sequence[PendingRecord], numbers: Numbers) -> bool:
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(QUERIES["insert_missing"], (_rows(pending_records, numbers),))
    except _PERMANENT as error:
        _raise_unless_permanent(error)
        return True
    return False


async def _copy(connection: Connection, pending_records: Sequence[PendingRecord], numbers: Numbers) -> None:
    async with connection.cursor() as cursor, cursor.copy(QUERIES["copy_records"]) as copy:
        copy.set_types(COPY_TYPES)
        for row in copy_rows(pending_records, numbers):
            await copy.write_row(row)


async def _find(connection: Connection, changes: Sequence[Change]) -> Mapping[str, StoredRow]:
    wanted: dict[str, bool] = {}
    for change in changes:
        for record_id in ids_of(change):
            wanted[record_id] = wanted.get(record_id, False) or isinstance(change, Stop | Replacement)
    rows = as_json([{"record_id": record_id, "whole": whole} for record_id, whole in wanted.items()])
    found = await (await connection.execute(QUERIES["find_records"], (rows,))).fetchall()
    return {
        record_id: StoredRow(Identity(start, stop, content), document)
        for record_id, start, stop, content, document in found
    }


async def _lock(connection: Connection, ledger: ChangePlan) -> None:
    """Keep what has been classified as it was.

    Raises:
        _Overtaken: it is not as it was.
    """
    touched = ledger.touched
    rows = await (await connection.execute(QUERIES["lock_records"], (as_json(sorted(touched)),))).fetchall()
    locked = {record_id: Identity(start, stop, content) for record_id, start, stop, content in rows}
    if locked != {record_id: ledger.before[record_id].identity for record_id in touched}:
        raise _Overtaken
