"""An engine of the lake, as those who ask it see it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from pyiceberg.table import Table

from auditord.database.instants import from_micros
from auditord.errors import StoreUnavailable
from auditord.lake.dialect import LakeDialect
from auditord.store.aggregates import Folding
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.conditions import compile_query
from auditord.store.lake import Released
from auditord.store.rollups.scope import Scope
from auditord.store.sql import Sql
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Record, RecordQuery, Score
from auditord_hookspecs.wire import encode_record

Rows: TypeAlias = Callable[[Sql], Iterator[Sequence[Any]]]  # Any: values of all types
"""Finds the rows of a statement, which has columns of a :class:`LakeDialect`."""

PAGE: Final = 64
"""Rows that are in memory at a time, with all that records have."""

_BEYOND: Final = 1 << 63


class Chosen(msgspec.Struct, frozen=True):
    """The rows of the lake that a question is about.

    Args:
        snapshot_id: of a snapshot of the table.
        daemon: whose records count; None: those of all.
        released: of this daemon, only these rows count; None: all.
        scope: without the rows that its cells answer for.
    """

    snapshot_id: int
    daemon: str | None = None
    released: Released | None = None
    scope: Scope | None = None


class Work:
    """The work on an answer, which can be ended from another thread, before and after it has begun."""

    def __init__(self) -> None:
        self._interrupt: Callable[[], None] | None = None
        self._is_left = False

    def begin(self, interrupt: Callable[[], None]) -> None:
        """Say how it is ended; an interrupt that comes before a statement has begun may be forgotten.

        Raises:
            StoreUnavailable: the caller has left.
        """
        self._interrupt = interrupt
        if self._is_left:
            raise StoreUnavailable("The caller no longer waits for the answer.")

    def interrupt(self) -> None:
        """End the work."""
        self._is_left = True
        if self._interrupt is not None:
            self._interrupt()


class Engine(ABC):
    """A program that asks the table. Its methods block."""

    dialect: ClassVar[type[LakeDialect]]

    def sums(self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work) -> Aggregates:
        """Sums over rows of a table that was just loaded.

        Args:
            table: of the lake.
            query: the question.
            chosen: the rows.
            work: is told how it is ended.

        Raises:
            StoreUnavailable: something cannot be read, or the limits are too narrow.
        """
        with self._asked(table, query, chosen, work, with_open=query.as_of is not None) as rows:
            return sums_of(rows, query, self._dialect(chosen))

    def records(self, table: Table, query: RecordQuery, chosen: Chosen, work: Work) -> Iterator[Sequence[bytes]]:
        """Pages of wire texts in the query's order, of the same; the first is asked for when it is taken."""
        with self._asked(table, AggregateQuery(query.where), chosen, work, with_open=True) as rows:
            yield from records_of(rows, query, self._dialect(chosen))

    @abstractmethod
    def _asked(
        self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work, *, with_open: bool
    ) -> AbstractContextManager[Rows]:
        """Inside, statements can be asked about the chosen rows, at least those that the query is about."""

    def close(self) -> None:  # noqa: B027 some keep nothing between questions
        """Let go of all; questions that run end with an error."""

    def _dialect(self, chosen: Chosen) -> LakeDialect:
        return self.dialect(chosen.daemon, chosen.released, chosen.scope)


def parameter(value: object) -> object:
    """A value as engines take it: columns have 64 bits, so that larger numbers compare as the first beyond them."""
    if isinstance(value, int) and not -_BEYOND < value < _BEYOND:
        return Decimal(max(-_BEYOND, min(value, _BEYOND)))
    return value


def sums_of(rows: Rows, query: AggregateQuery, dialect: LakeDialect) -> Aggregates:
    """Sums over the rows that statements find."""
    compiled = compile_aggregate(query, dialect)
    folding = Folding(query, compiled.parts)
    folding.add(rows(compiled.statement))
    return folding.result()


def records_of(rows: Rows, query: RecordQuery, dialect: LakeDialect) -> Iterator[Sequence[bytes]]:
    """Pages of wire texts of the rows that statements find."""
    found = rows(compile_query(query, dialect, dialect.own()))
    while page := [_wire_text(row) for row in islice(found, PAGE)]:
        yield page


def _wire_text(row: Sequence[Any]) -> bytes:
    record_id, start, stop, meta, components, document = row
    if document is not None:
        return str(document).encode()
    labels = None if meta is None else {key: tuple(values) for key, values in meta.items()}
    stopped = None if stop is None else from_micros(stop)
    return encode_record(Record(record_id, from_micros(start), components_of(components), stopped, labels))


def components_of(rows: Sequence[Any]) -> tuple[Component, ...]:  # Any: see below
    """Components of structures."""
    return tuple(
        Component(name, amount, tuple(Score(*_fields(each, "name", "value")) for each in scores))
        for name, amount, scores in (_fields(each, "name", "amount", "scores") for each in rows)
    )


def _fields(structure: dict[str, Any] | Sequence[Any], *names: str) -> Sequence[Any]:  # Any: values of all types
    """The values of a structure, which is a dictionary in some engines, and a row in this order in others."""
    return [structure[name] for name in names] if isinstance(structure, dict) else structure
