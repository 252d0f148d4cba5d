"""Work on a database, written once for all of them: generators that yield steps and are sent the answers.

A driver of each database takes the steps (:func:`auditord.store.sqlite.driver.run`,
:func:`auditord.store.postgres.driver.run`). Statements go by the names in its ``.sql`` files. They take and give
the same in every database: instants are given as aware datetimes, and come back as microseconds since 1970; documents
are text.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from auditord.store.rows import PendingRecord
from auditord.store.sql import Sql

T = TypeVar("T")

Rows: TypeAlias = Sequence[tuple[Any, ...]]  # Any: columns of all types


class Statement(msgspec.Struct, frozen=True):
    """A statement with named parameters; the answer is its rows."""

    name: str
    parameters: Mapping[str, object]


class ForEach(msgspec.Struct, frozen=True):
    """A statement for each of many rows, whose fields it takes in order or by their names."""

    name: str
    rows: Sequence[msgspec.Struct]


class Records(msgspec.Struct, frozen=True):
    """A statement for each of many records, as rows of the table of records; the answer is how many rows it changed."""

    name: str
    pending: Sequence[PendingRecord]


class Compiled(msgspec.Struct, frozen=True):
    """A statement that was put together for one purpose; the answer is its rows."""

    statement: Sql


class Atomic(msgspec.Struct, frozen=True):
    """Work that is done as a whole or not at all.

    Args:
        make: begins it; once more where another transaction was faster (:class:`Overtaken`).
    """

    make: "Callable[[], Work[Any]]"  # Any: results of all types


Step: TypeAlias = Statement | ForEach | Records | Compiled | Atomic
Work: TypeAlias = Generator[Step, Any, T]  # Any: the answer is of the step's type


class Overtaken(Exception):
    """Another transaction has changed the rows that a plan rests on."""


class Refused(Exception):
    """The database refuses a value for good; the text says why. The same values would be refused again."""


def ask(name: str, /, **parameters: object) -> Work[Rows]:
    """Rows of a statement."""
    rows: Rows = yield Statement(name, parameters)
    return rows


def execute(statement: Sql) -> Work[Rows]:
    """Rows of a statement that was put together."""
    rows: Rows = yield Compiled(statement)
    return rows


def for_each(name: str, rows: Sequence[msgspec.Struct]) -> Work[None]:
    """Run a statement for each of the rows, if there are any."""
    if rows:
        yield ForEach(name, rows)


def records(name: str, pending: Sequence[PendingRecord]) -> Work[int]:
    """Run a statement for each of the records, if there are any; returns how many rows it changed."""
    if not pending:
        return 0
    changed: int = yield Records(name, pending)
    return changed


def atomic(make: Callable[[], Work[T]]) -> Work[T]:
    """Do work as a whole or not at all."""
    result: T = yield Atomic(make)
    return result


def as_json(value: object) -> str:
    """One parameter for many values."""
    return msgspec.json.encode(value).decode()
