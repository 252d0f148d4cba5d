"""Work on any database: generators that yield steps and receive the results.

Each database has a driver that executes the steps (:func:`auditord.store.sqlite.driver.run`,
:func:`auditord.store.postgres.driver.run`). Statements are named in its ``.sql`` files. Parameters and results are the
same for every database: instants are passed as aware datetimes, and returned as microseconds since 1970; documents are
text.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from auditord.store.dialects import Sql
from auditord.store.rows import PendingRecord

T = TypeVar("T")

Rows: TypeAlias = Sequence[tuple[Any, ...]]  # Any: columns of all types


class Statement(msgspec.Struct, frozen=True):
    """A statement with named parameters; the result is its rows."""

    name: str
    parameters: Mapping[str, object]


class ForEach(msgspec.Struct, frozen=True):
    """A statement to be run for each of many rows, whose fields are its parameters in order or by name."""

    name: str
    rows: Sequence[msgspec.Struct]


class Records(msgspec.Struct, frozen=True):
    """A statement to be run for each of many records; the result is the number of rows that it changed."""

    name: str
    pending: Sequence[PendingRecord]


class Compiled(msgspec.Struct, frozen=True):
    """A statement that was compiled at run time; the result is its rows."""

    statement: Sql


class Computation(msgspec.Struct, frozen=True):
    """A call that may take long; the result is what it returns. It never runs on the event loop."""

    call: Callable[[], Any]  # Any: results of all types


class Atomic(msgspec.Struct, frozen=True):
    """Work that is done completely or not at all.

    Args:
        make: returns the work; called again for each retry after :class:`Overtaken`.
    """

    make: "Callable[[], Work[Any]]"  # Any: results of all types


Step: TypeAlias = Statement | ForEach | Records | Compiled | Computation | Atomic
Work: TypeAlias = Generator[Step, Any, T]  # Any: the answer is of the step's type


class Overtaken(Exception):
    """Another transaction has changed rows that the work depends on."""


class Refused(Exception):
    """The database refuses a value, and would refuse it again. The text says why."""


def ask(name: str, /, **parameters: object) -> Work[Rows]:
    """Execute a named statement and return its rows."""
    rows: Rows = yield Statement(name, parameters)
    return rows


def execute(statement: Sql) -> Work[Rows]:
    rows: Rows = yield Compiled(statement)
    return rows


def compute(call: Callable[[], T]) -> Work[T]:
    """Call a function that may take long, and return its result."""
    result: T = yield Computation(call)
    return result


def for_each(name: str, rows: Sequence[msgspec.Struct]) -> Work[None]:
    """Run a statement for each of the rows, if there are any."""
    if rows:
        yield ForEach(name, rows)


def records(name: str, pending: Sequence[PendingRecord]) -> Work[int]:
    """Run a statement for each of the records, if there are any. Return the number of rows that it changed."""
    if not pending:
        return 0
    changed: int = yield Records(name, pending)
    return changed


def atomic(make: Callable[[], Work[T]]) -> Work[T]:
    """Do work completely or not at all."""
    result: T = yield Atomic(make)
    return result


def as_json(value: object) -> str:
    """Encode many values as one parameter."""
    return msgspec.json.encode(value).decode()
