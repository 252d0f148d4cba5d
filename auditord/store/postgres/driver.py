"""Work on a record store in PostgreSQL: its steps as statements on one connection, in autocommit mode at the beginning.

Many rows travel as one parameter, a JSON array; very many records through a binary COPY.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, LiteralString, NamedTuple, TypeAlias, TypeVar

import msgspec
from psycopg import errors

from auditord.database.instants import to_micros
from auditord.database.postgres import Connection
from auditord.database.postgres.faults import is_passing, is_permanent
from auditord.errors import StoreUnavailable
from auditord.store.changes import add_bulk, change_each, outbox_row
from auditord.store.planning import Addition, Bulk, Change, Outcome
from auditord.store.postgres.counting import QUERIES
from auditord.store.postgres.counting import changes as counts_of
from auditord.store.protocol import Provenance, Verdict
from auditord.store.rollups.changes import changes_of_records
from auditord.store.rows import PendingRecord
from auditord.store.work import (
    Atomic,
    Count,
    ForEach,
    Overtaken,
    Records,
    Refused,
    RolledKeys,
    Rows,
    Statement,
    Step,
    Work,
    as_json,
)
from auditord_hookspecs.records import Meta

T = TypeVar("T")

_ATTEMPTS: Final = 10

_FEW: Final = 200
"""Records up to which one statement with a JSON parameter beats COPY and the transaction around it."""

_encoder: Final = msgspec.json.Encoder()

_TO_2000: Final = to_micros(datetime(2000, 1, 1, tzinfo=UTC))  # where PostgreSQL begins to count microseconds

_JSONB_VERSION: Final = b"\x01"

COPY_TYPES: Final = (
    # A timestamptz is an int8 on the wire, and jsonb its text behind a version number: both spare a conversion.
    *["int8"] * 5,  # start_time, stop_time, runtime, content, received_at
    *["int8"] * 4,  # cores, memory, gpu, total_cpu
    *("int4", "int4", "bool"),  # source_id, score_set, more
    *("text", "text", "text", "text", "bytea", "text"),  # record_id, site, user_group, user_name, meta, document
)

_Field: TypeAlias = str | int | bytes | bool | None


class Keys(NamedTuple):
    """Meta keys whose values are counted, and keys that changes of the roll-ups tell apart."""

    counted: Sequence[str] = ()
    rolled: Sequence[str] = ()


_NO_KEYS: Final = Keys()


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A record under the names of its columns; ``received_at`` is of this arrival."""

    start_time: datetime
    stop_time: datetime | None
    runtime: int | None
    content: int
    received_at: datetime
    cores: int | None
    memory: int | None
    gpu: int | None
    total_cpu: int | None
    source_id: int
    score_set: int | None
    more: bool | None
    record_id: str
    site: str | None
    user_group: str | None
    user_name: str | None
    meta: Meta | None
    document: str


async def run(connection: Connection, work: Work[T], keys: Keys = _NO_KEYS) -> T:
    """Do work.

    Args:
        connection: outside a transaction, for work that begins its own.
        work: of any kind.
        keys: what is kept up with the records, for work that changes these.
    """
    try:
        step = next(work)
        while True:
            try:
                answer = await _do(connection, step, keys)
            except Exception as error:  # noqa: BLE001 not swallowed: the work decides
                step = work.throw(error)
            else:
                step = work.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def record_rows(pending: Iterable[PendingRecord]) -> str:
    """Records as one parameter."""
    return as_json([_row(each) for each in pending])


def copy_rows(pending: Iterable[PendingRecord]) -> Iterator[tuple[_Field, ...]]:
    """The fields of records for a binary COPY, of :data:`COPY_TYPES`."""
    provenance: Provenance | None = None
    received_at = 0
    for each in pending:
        if each.provenance is not provenance:  # as nearly never: a bulk has one
            provenance = each.provenance
            received_at = to_micros(provenance.received_at) - _TO_2000
        record, row = each.record, each.row
        yield (
            row.start_time - _TO_2000, since_2000(row.stop_time), record.runtime, row.content, received_at,
            row.cores, row.memory, row.gpu, row.total_cpu, each.source, each.score_set, row.more,
            row.record_id, row.site, row.user_group, row.user_name,
            None if record.meta is None else _JSONB_VERSION + _encoder.encode(record.meta), row.document,
        )  # fmt: skip


def since_2000(micros: int | None) -> int | None:
    """Microseconds since 1970 as PostgreSQL counts them."""
    return None if micros is None else micros - _TO_2000


async def _do(connection: Connection, step: Step, keys: Keys) -> Any:  # Any: of the step's type
    if not isinstance(step, Atomic):
        with _named_refusals():
            return await _execute(connection, step, keys)
    for _ in range(_ATTEMPTS):
        try:
            with _named_refusals():
                async with connection.transaction():
                    return await run(connection, step.make(), keys)
        except Overtaken:
            continue
    raise StoreUnavailable(f"Other transactions were faster {_ATTEMPTS} times in a row: try again.")


async def _execute(
    connection: Connection, step: Statement | ForEach | Records | Count | RolledKeys, keys: Keys
) -> Any:  # Any: the answer is of the step's type
    match step:
        case Statement(name, parameters):
            return await _rows(connection, QUERIES[name], parameters)
        case ForEach("add_to_rollups" as name, rows):
            return (await connection.execute(QUERIES[name], _columns(rows))).rowcount
        case ForEach(name, rows):
            return (await connection.execute(QUERIES[name], (as_json(rows),))).rowcount
        case Records(name, pending):
            return (await connection.execute(QUERIES[name], (record_rows(pending),))).rowcount
        case RolledKeys():
            return keys.rolled
        case Count(added, changed, removed):
            now = [*[each.record for each in added], *[after for _, after in changed]]
            before = [*[row.record for row, _ in changed], *[row.record for row in removed]]
            return await _rows(connection, QUERIES["note_changes"], {"changes": counts_of(keys.counted, now, before)})


async def make_changes(connection: Connection, changes: Sequence[Change] | Bulk, keys: Keys) -> Sequence[Outcome]:
    """The outcomes of changes, made in one transaction; see :func:`run`.

    Nearly all records are new: they are added at once, and a plan is made only where that does not do.
    """
    each = changes.additions if isinstance(changes, Bulk) else changes
    new = {change.pending.row.record_id: change.pending for change in each if isinstance(change, Addition)}
    if len(new) == len(each) and await _has_added(connection, list(new.values()), keys):
        return [Verdict.ADDED] * len(new)
    if isinstance(changes, Bulk):
        return await run(connection, add_bulk(changes.additions, is_atomic=changes.atomic), keys)
    return await run(connection, change_each(changes), keys)


async def _has_added(connection: Connection, new: Sequence[PendingRecord], keys: Keys) -> bool:
    """Add records that are all new; False, and nothing is done, if one of them is known or refused."""
    # In one order, so that transactions which add the same records do not wait for each other in a circle.
    ordered = sorted(new, key=_record_id)
    forwarded = [outbox_row("insert", each) for each in new if each.forwarded]
    try:
        with _named_refusals():
            if len(new) <= _FEW and not forwarded:
                parameters = {**_sums_of(ordered, keys), "records": record_rows(ordered)}
                await connection.execute(QUERIES["add_records"], parameters)
            else:
                async with connection.transaction():
                    await _copy(connection, ordered, keys)
                    if forwarded:
                        await connection.execute(QUERIES["put_outbox"], (as_json(forwarded),))
    except (errors.UniqueViolation, Overtaken, Refused):
        return False
    return True


def _sums_of(pending: Sequence[PendingRecord], keys: Keys) -> Mapping[str, str]:
    counts = counts_of(keys.counted, [each.record for each in pending])
    return {"counts": counts, "rollups": as_json(changes_of_records(pending, keys.rolled).by_day())}


async def _copy(connection: Connection, pending: Sequence[PendingRecord], keys: Keys) -> None:
    """Add records, and what they change in the counts and in the roll-ups, inside a transaction.

    Raises:
        Overtaken: one of them is in the archive, looked for after it was added, when it cannot move any more.
    """
    async with connection.cursor() as cursor, cursor.copy(QUERIES["copy_records"]) as copy:
        copy.set_types(COPY_TYPES)
        for row in copy_rows(pending):
            await copy.write_row(row)
        # While the database is still busy with the rows.
        sums, ids = _sums_of(pending, keys), as_json([each.record_id for each in pending])
    if await _rows(connection, QUERIES["note_new_records"], {**sums, "ids": ids}):
        raise Overtaken


async def _rows(connection: Connection, query: LiteralString, parameters: Mapping[str, object]) -> Rows:
    cursor = await connection.execute(query, parameters or None)
    return await cursor.fetchall() if cursor.description else ()


@contextmanager
def _named_refusals() -> Generator[None, None, None]:
    """Inside, errors about values and about other transactions are raised as work knows them."""
    try:
        yield
    except (errors.Error, UnicodeError, OverflowError) as error:
        if is_passing(error):
            raise Overtaken from error
        if is_permanent(error):
            raise Refused(str(error).partition("\n")[0]) from error
        raise


def _row(pending: PendingRecord) -> _Row:
    record, row = pending.record, pending.row
    return _Row(
        record.start_time, record.stop_time, record.runtime, row.content, pending.provenance.received_at,
        row.cores, row.memory, row.gpu, row.total_cpu, pending.source, pending.score_set, row.more,
        row.record_id, row.site, row.user_group, row.user_name, record.meta, row.document,
    )  # fmt: skip


def _columns(rows: Sequence[msgspec.Struct]) -> Mapping[str, str | list[str]]:
    """Cells as an array for each column: there are many of them, and PostgreSQL reads these faster than JSON."""
    names = msgspec.structs.fields(type(rows[0]))
    columns = dict(
        zip([each.name for each in names], zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True)
    )
    components = {name: number for number, name in enumerate(dict.fromkeys(columns["component"]), start=1)}
    columns["component"] = tuple([components[name] for name in columns["component"]])
    return {"names": list(components), **{name: f"{{{as_json(column)[1:-1]}}}" for name, column in columns.items()}}


def _record_id(pending: PendingRecord) -> str:
    return pending.record_id
