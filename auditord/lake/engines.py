"""The interface of the lake's query engines."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from pyiceberg.table import Table

from auditord.database.instants import from_micros
from auditord.lake.dialect import LakeDialect
from auditord.store.aggregates import Folding
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.conditions import compile_query
from auditord.store.dialects import Sql
from auditord.store.lake import LakeUnavailable, Released
from auditord.store.rollups.scope import Scope
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Record, RecordQuery, Score
from auditord_hookspecs.wire import encode_record

Rows: TypeAlias = Callable[[Sql], Iterator[Sequence[Any]]]  # Any: values of all types
"""Runs a statement on the columns of a :class:`LakeDialect` and yields its rows."""

PAGE: Final = 64
"""Rows in memory at a time, each with a complete record."""

_BEYOND: Final = 1 << 63


class Chosen(msgspec.Struct, frozen=True):
    """The rows of the lake that a query reads.

    Args:
        snapshot_id: of the table.
        daemon: reads only the rows of this daemon; None for all daemons.
        released: reads only these rows of the daemon; None for all rows.
        scope: leaves out the rows that the cells of this scope cover.
    """

    snapshot_id: int
    daemon: str | None = None
    released: Released | None = None
    scope: Scope | None = None


class Work:
    """A query that another thread can interrupt, before or after it has started."""

    def __init__(self) -> None:
        self._interrupt: Callable[[], object] | None = None
        self._ended: tuple[type[Exception], ...] = ()
        self._is_left = False

    def begin(self, interrupt: Callable[[], object], *ended: type[Exception]) -> None:
        """Set the function that interrupts the query, and the errors that it raises if the query has already ended.

        Calling the function before a statement has started may have no effect.

        Raises:
            StoreUnavailable: the query was interrupted already.
        """
        self._ended = ended  # first, since another thread may interrupt at once
        self._interrupt = interrupt
        if self._is_left:
            raise LakeUnavailable("The caller no longer waits for the answer.")

    def interrupt(self) -> None:
        """Interrupt the query, or let :meth:`begin` raise if it has not started."""
        self._is_left = True
        if self._interrupt is not None:
            with suppress(*self._ended):
                self._interrupt()


class Engine(ABC):
    """A query engine for the table. Its methods block."""

    dialect: ClassVar[type[LakeDialect]]

    def sums(self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work) -> Aggregates:
        """Return sums over the chosen rows of a freshly loaded table.

        ``work`` is given the function that interrupts the query.

        Raises:
            StoreUnavailable: the lake cannot be read, or the limits are too low.
        """
        with self._ask(table, query, chosen, work, with_open=query.as_of is not None) as rows:
            return sums_of(rows, query, self._dialect(chosen))

    def records(self, table: Table, query: RecordQuery, chosen: Chosen, work: Work) -> Iterator[Sequence[bytes]]:
        """Yield pages of wire texts of the chosen rows, in the query's order. The query runs on the first iteration."""
        with self._ask(table, AggregateQuery(query.where), chosen, work, with_open=True) as rows:
            yield from records_of(rows, query, self._dialect(chosen))

    @abstractmethod
    def _ask(
        self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work, *, with_open: bool
    ) -> AbstractContextManager[Rows]:
        """Yield a function that runs statements on the chosen rows, or at least on those that may match the query."""

    def close(self) -> None:  # noqa: B027 some engines keep no state
        """Close the engine. Running queries fail."""

    def _dialect(self, chosen: Chosen) -> LakeDialect:
        return self.dialect(chosen.daemon, chosen.released, chosen.scope)


def parameter(value: object) -> object:
    """Return a parameter value for an engine.

    Columns have 64 bits. Larger numbers are replaced by the first number beyond that range, which compares the same.
    """
    if isinstance(value, int) and not -_BEYOND < value < _BEYOND:
        return Decimal(max(-_BEYOND, min(value, _BEYOND)))
    return value


def sums_of(rows: Rows, query: AggregateQuery, dialect: LakeDialect) -> Aggregates:
    """Run the statement of a query and return its sums."""
    compiled = compile_aggregate(query, dialect)
    folding = Folding(query, compiled.parts)
    folding.add(rows(compiled.statement))
    return folding.result()


def records_of(rows: Rows, query: RecordQuery, dialect: LakeDialect) -> Iterator[Sequence[bytes]]:
    """Run the statement of a query and yield pages of wire texts."""
    found = rows(compile_query(query, dialect, dialect.own()))
    while rows_of_page := list(islice(found, PAGE)):
        page: list[bytes] = []
        for record_id, start, stop, meta, components, document in rows_of_page:
            if document is not None:
                page.append(str(document).encode())
                continue
            labels = None if meta is None else {key: tuple(values) for key, values in meta.items()}
            stopped = None if stop is None else from_micros(stop)
            record = Record(record_id, from_micros(start), components_of(components), stopped, labels)
            page.append(encode_record(record))
        yield page


def components_of(rows: Sequence[Any]) -> tuple[Component, ...]:  # Any: see _fields
    """Convert structures of an engine to components."""
    return tuple(
        Component(name, amount, tuple(Score(*_fields(each, "name", "value")) for each in scores))
        for name, amount, scores in (_fields(each, "name", "amount", "scores") for each in rows)
    )


def _fields(structure: dict[str, Any] | Sequence[Any], *names: str) -> Sequence[Any]:  # Any: values of all types
    """Return the values of a structure: a dictionary in some engines, a row in this order in others."""
    return [structure[name] for name in names] if isinstance(structure, dict) else structure
