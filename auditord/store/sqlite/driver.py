"""Run work on a record store in SQLite: execute its steps in the thread that owns the connection."""

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from auditord.database.instants import to_micros
from auditord.store.changes import add_bulk, change_each
from auditord.store.columns import SQLITE_VALUES, compile_function
from auditord.store.planning import Change, Outcome
from auditord.store.protocol import Verdict
from auditord.store.rows import Bulk, PendingRecord
from auditord.store.statements import sqlite_statements
from auditord.store.work import (
    Atomic,
    Compiled,
    Computation,
    ForEach,
    Overtaken,
    Records,
    Refused,
    Statement,
    Step,
    Work,
)

T = TypeVar("T")

QUERIES: Final = sqlite_statements()
"""All statements of the store, except :func:`insertion_of`."""

Values: TypeAlias = tuple[object, ...]

_values: Final = compile_function(f"({', '.join(SQLITE_VALUES.values())},)")
_named_values: Final = compile_function(
    f"dict({', '.join([f'{name}={value}' for name, value in SQLITE_VALUES.items()])})"
)

_TOGETHER: Final = (500, 50, 5, 1)
"""Sizes of the statements that add records; the largest that fits is used. After each statement, this thread waits for
the interpreter lock, up to 5 ms if another thread is busy. With a statement per record, a bulk could take seconds. The
largest statement takes 2 MB."""

# Errors about values that the database cannot store: the same record would fail again. Faulty SQL and an unavailable
# database raise other errors.
_REFUSALS: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeError,
)


def run(connection: sqlite3.Connection, work: Work[T]) -> T:
    """Do work inside a transaction."""
    try:
        step = next(work)
        while True:
            try:
                answer = _do(connection, step)
            except Exception as error:  # noqa: BLE001 not swallowed: the work decides
                step = work.throw(error)
            else:
                step = work.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _do(connection: sqlite3.Connection, step: Step) -> Any:  # noqa: PLR0911 one for each type of step
    try:
        match step:
            case Statement(name, parameters):
                bound = {key: _convert(value) for key, value in parameters.items()}
                return connection.execute(QUERIES[name], bound).fetchall()
            case ForEach(name, rows):
                values: Iterable[tuple[object, ...]] = map(msgspec.structs.astuple, rows)
                if not _is_plain(type(rows[0])):
                    values = (tuple(map(_convert, row)) for row in values)
                return connection.executemany(QUERIES[name], values).rowcount
            case Records("insert_records", pending):
                return _insert_rows(connection, record_values(pending))
            case Records(name, pending):
                return connection.executemany(QUERIES[name], values_by_name(pending)).rowcount
            case Compiled(statement):
                return connection.execute(*statement.to_query()).fetchall()
            case Computation(call):
                return call()
            case Atomic(make):
                with _savepoint(connection):
                    return run(connection, make())
    except _REFUSALS as error:
        raise Refused(str(error)) from error


def make_changes(connection: sqlite3.Connection, changes: Sequence[Change]) -> Sequence[Outcome]:
    """Make changes inside a transaction. Return the outcome of each.

    Nearly all records are new, so they are first inserted without a plan. If that fails, a plan is made.
    """
    new = {each.row.record_id: each for each in changes if isinstance(each, PendingRecord)}
    if len(new) < len(changes) or not has_added(connection, list(new), record_values(new.values())):
        return run(connection, change_each(changes))
    return [Verdict.ADDED] * len(new)


def change_in_bulk(connection: sqlite3.Connection, bulk: Bulk, values: Sequence[Values]) -> Sequence[Outcome]:
    """Add a bulk inside a transaction, given its :func:`record_values`. Return the outcomes."""
    if not bulk.are_distinct or not has_added(connection, bulk.ids, values):
        return run(connection, add_bulk(bulk))
    return [Verdict.ADDED] * len(bulk)


def has_added(connection: sqlite3.Connection, record_ids: Sequence[str], values: Sequence[Values]) -> bool:
    """Add records if all are new. Add nothing and return False if one of them is known or refused."""
    ids = msgspec.json.encode(record_ids).decode()
    if connection.execute(QUERIES["has_released"], {"ids": ids}).fetchone() == (1,):
        return False
    with suppress(Overtaken, *_REFUSALS), _savepoint(connection):
        if _insert_rows(connection, values) < len(values):
            raise Overtaken
        return True
    return False


def _insert_rows(connection: sqlite3.Connection, values: Sequence[Values]) -> int:
    """Add rows with as few statements as possible. Return how many were added."""
    first = added = 0
    for size in _TOGETHER:
        while len(values) - first >= size:
            bound = tuple(chain.from_iterable(values[first : first + size]))
            added += connection.execute(insertion_of(size), bound).rowcount
            first += size
    return added


@cache
def insertion_of(size: int) -> str:
    """Return the statement that adds those of ``size`` records whose ids are not in the table.

    Its parameters are :func:`record_values`. Check with ``has_released`` that no id is of a released record.
    """
    row = f"({', '.join('?' * len(SQLITE_VALUES))})"
    names, rows = ", ".join(SQLITE_VALUES), ", ".join([row] * size)
    return f"INSERT INTO records ({names}) VALUES {rows} ON CONFLICT (record_id) DO NOTHING"  # noqa: S608 of COLUMNS


def record_values(pending: Iterable[PendingRecord]) -> list[Values]:
    """Return the values of records in the order of ``{record_columns}``."""
    return [_values(each, each.record, row := each.row, row.labels, row.amounts) for each in pending]


def values_by_name(pending: Iterable[PendingRecord]) -> list[dict[str, object]]:
    return [_named_values(each, each.record, row := each.row, row.labels, row.amounts) for each in pending]


@lru_cache
def _is_plain(row: type[msgspec.Struct]) -> bool:
    """Return whether SQLite can store all fields of such rows without conversion."""
    return all(field.type in {int, str, int | None, str | None} for field in msgspec.structs.fields(row))


def _convert(value: object) -> object:
    if isinstance(value, datetime):
        return to_micros(value)
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Generator[None, None, None]:
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # else SQLite has already rolled back
            connection.execute("ROLLBACK TO part")
            connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")
