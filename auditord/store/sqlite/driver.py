"""Work on a record store in SQLite: its steps as statements, in the thread that has the connection."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from auditord.store.changes import outbox_row
from auditord.store.rows import PendingRecord, to_micros
from auditord.store.sqlite.counting import QUERIES, count_arrivals, count_changes
from auditord.store.work import AddNew, Atomic, Count, ForEach, Overtaken, Records, Refused, Statement, Step, Work

T = TypeVar("T")

# What the database says about values that it cannot take: the same record would fail again. Faulty SQL and a database
# that is away are something else.
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


def _do(connection: sqlite3.Connection, step: Step) -> Any:  # Any: the answer is of the step's type
    try:
        match step:
            case Statement(name, parameters):
                bound = {key: _bound(value) for key, value in parameters.items()}
                return connection.execute(QUERIES[name], bound).fetchall()
            case ForEach(name, rows):
                values = [tuple(map(_bound, msgspec.structs.astuple(row))) for row in rows]
                return connection.executemany(QUERIES[name], values).rowcount
            case Records(name, pending):
                return connection.executemany(QUERIES[name], record_values(pending)).rowcount
            case AddNew(pending):
                return _add_new(connection, pending)
            case Count():
                return count_changes(connection, step)
            case Atomic(make):
                with _savepoint(connection):
                    return run(connection, make())
    except _REFUSALS as error:
        raise Refused(str(error)) from error


def _add_new(connection: sqlite3.Connection, pending: Sequence[PendingRecord]) -> bool:
    try:
        with _savepoint(connection):
            _insert(connection, pending)
            count_arrivals(connection)
            if forwarded := [outbox_row("insert", each) for each in pending if each.forwarded]:
                _do(connection, ForEach("put_outbox", forwarded))
    except Overtaken:
        return False
    return True


def _insert(connection: sqlite3.Connection, pending: Sequence[PendingRecord]) -> None:
    if connection.executemany(QUERIES["insert_records"], record_values(pending)).rowcount < len(pending):
        raise Overtaken


def record_values(pending: Sequence[PendingRecord]) -> list[tuple[object, ...]]:
    """The values of records in the order of all statements for records, see ``insert_records``."""
    return [
        (*msgspec.structs.astuple(each.row), each.score_set, to_micros(each.provenance.received_at), each.source)
        for each in pending
    ]


def _bound(value: object) -> object:
    if isinstance(value, datetime):
        return to_micros(value)
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Generator[None, None, None]:
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # else SQLite has undone everything itself
            connection.execute("ROLLBACK TO part")
            connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")
