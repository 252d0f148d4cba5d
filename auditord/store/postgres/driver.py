"""Run work on a record store in PostgreSQL: execute its steps on one connection, which is in autocommit mode.

Many rows are sent as one parameter, a JSON array; very many records are sent by a binary COPY.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from operator import attrgetter
from typing import Any, Final, LiteralString, TypeVar

import msgspec
from psycopg import errors

from auditord.database.postgres import Connection
from auditord.database.postgres.faults import is_passing, is_permanent
from auditord.errors import StoreUnavailable
from auditord.store.changes import add_bulk, change_each
from auditord.store.columns import POSTGRES_VALUES, compile_function
from auditord.store.planning import Change, Outcome
from auditord.store.postgres.copied_rows import BEGIN, END, CopiedRows
from auditord.store.protocol import Verdict
from auditord.store.rows import BETWEEN_PAUSES, Bulk, PendingRecord
from auditord.store.statements import postgres_statements
from auditord.store.work import (
    Atomic,
    Compiled,
    Computation,
    ForEach,
    Overtaken,
    Records,
    Refused,
    Rows,
    Statement,
    Step,
    Work,
    as_json,
)
from auditord_hookspecs import Record

T = TypeVar("T")

_ATTEMPTS: Final = 10

_FEW: Final = 200
"""Up to this number of records, one statement with a JSON parameter is faster than COPY within a transaction."""


QUERIES: Final = postgres_statements()
"""All statements of the store."""

_make_row: Final = compile_function(
    f"Row({', '.join(POSTGRES_VALUES.values())})",
    Row=msgspec.defstruct("Row", list(POSTGRES_VALUES), frozen=True, gc=False),
)
"""Makes a row of JSON with named columns; a dictionary would take longer to encode."""


async def run(connection: Connection, work: Work[T]) -> T:
    """Do work. If it begins its own transaction, the connection must not be in one."""
    try:
        step = next(work)
        while True:
            try:
                answer = await _do(connection, step)
            except Exception as error:  # noqa: BLE001 not swallowed: the work decides
                step = work.throw(error)
            else:
                step = work.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def record_rows(pending: Iterable[PendingRecord]) -> str:
    """Encode records as one parameter."""
    return as_json([_make_row(each, each.record, row := each.row, row.labels, row.amounts) for each in pending])


async def _do(connection: Connection, step: Step) -> Any:  # Any: of the step's type
    if not isinstance(step, Atomic):
        with _translate_refusals():
            match step:
                case Statement(name, parameters):
                    return await _rows(connection, QUERIES[name], parameters)
                case ForEach(name, rows):
                    return (await connection.execute(QUERIES[name], (as_json(rows),))).rowcount
                case Records(name, pending):
                    return (await connection.execute(QUERIES[name], (record_rows(pending),))).rowcount
                case Compiled(statement):
                    return await _rows(connection, statement.sql, statement.parameters)
                case Computation(call):
                    return await asyncio.to_thread(call)
    for _ in range(_ATTEMPTS):
        try:
            with _translate_refusals():
                async with connection.transaction():
                    return await run(connection, step.make())
        except Overtaken:
            continue
    raise StoreUnavailable(f"Other transactions committed first {_ATTEMPTS} times in a row: try again.")


async def make_changes(connection: Connection, changes: Sequence[Change] | Bulk) -> Sequence[Outcome]:
    """Make changes in one transaction, and return their outcomes; see :func:`run`.

    Nearly all records are new, so they are first inserted without a plan. If that fails, a plan is made.
    """
    if isinstance(changes, Bulk):
        if changes.are_distinct and await _succeeds(_add_bulk(connection, changes)):
            return [Verdict.ADDED] * len(changes)
        async for _ in changes.parts(changes.records):  # with pauses; the plan would make all of them at once
            pass
        return await run(connection, add_bulk(changes))
    new = {each.row.record_id: each for each in changes if isinstance(each, PendingRecord)}
    if len(new) == len(changes) and await _succeeds(_add(connection, list(new.values()))):
        return [Verdict.ADDED] * len(new)
    return await run(connection, change_each(changes))


async def _succeeds(addition: Awaitable[None]) -> bool:
    """Add records if all are new. Add nothing and return False if one of them is known or refused."""
    try:
        with _translate_refusals():
            await addition
    except (errors.UniqueViolation, Overtaken, Refused):
        return False
    return True


# Records are always added in the same order, so that concurrent transactions do not deadlock.


async def _add_bulk(connection: Connection, bulk: Bulk) -> None:
    if len(bulk) <= _FEW:
        await _add(connection, bulk.pending())
    else:
        ordered = sorted(bulk.records, key=attrgetter("record_id"))
        await _copy(connection, _encode_in_parts(bulk, ordered), [each.record_id for each in ordered])


async def _encode_in_parts(bulk: Bulk, records: Sequence[Record]) -> AsyncGenerator[Sequence[bytes], None]:
    rows = CopiedRows()
    for first in range(0, len(records), BETWEEN_PAUSES):
        yield rows.bulk_rows(bulk, records[first : first + BETWEEN_PAUSES])
        await asyncio.sleep(0)


async def _add(connection: Connection, new: Sequence[PendingRecord]) -> None:
    ordered = sorted(new, key=attrgetter("row.record_id"))
    if len(new) > _FEW:
        await _copy(connection, _in_one_part(CopiedRows().pending_rows(ordered)), [each.record_id for each in ordered])
    else:
        await connection.execute(QUERIES["add_records"], {"records": record_rows(ordered)})


async def _in_one_part(rows: Sequence[bytes]) -> AsyncGenerator[Sequence[bytes], None]:
    yield rows


async def _copy(connection: Connection, parts: AsyncGenerator[Sequence[bytes], None], ids: Sequence[str]) -> None:
    """Copy rows in parts, in one transaction, so that the database adds one part while the next is made.

    Raises:
        Overtaken: one of them is released. This is checked after the copy, which blocks further releases.
    """
    async with connection.transaction(), aclosing(parts):
        async with connection.cursor() as cursor, cursor.copy(QUERIES["copy_records"]) as copy:
            await copy.write(BEGIN)
            async for part in parts:
                await copy.write(b"".join(part))
            await copy.write(END)
        has_released = await _rows(connection, QUERIES["has_any_released"], ())  # spares nearly all the array of ids
        if has_released and await _rows(connection, QUERIES["released_among"], {"ids": list(ids)}):
            raise Overtaken


async def _rows(
    connection: Connection, query: LiteralString, parameters: Mapping[str, object] | Sequence[object]
) -> Rows:
    cursor = await connection.execute(query, parameters or None)
    has_rows = cursor.rownumber is not None  # cheaper than cursor.description, which makes an object of each column
    return await cursor.fetchall() if has_rows else ()


@contextmanager
def _translate_refusals() -> Generator[None, None, None]:
    """Translate errors about values and about other transactions into :class:`Refused` and :class:`Overtaken`."""
    try:
        yield
    except (errors.Error, UnicodeError, OverflowError) as error:
        if is_passing(error):
            raise Overtaken from error
        if is_permanent(error):
            raise Refused(str(error).partition("\n")[0]) from error
        raise
