"""The words in which databases differ, of conditions, dimensions and sums; all else is said once.

Documents and parameters are encoded by one encoder, so that a cheap search for the encoded text goes before the parsing
of a document.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Final, LiteralString, Self

import msgspec
from typing_extensions import override

from auditord.database.instants import EPOCH, MICROSECOND, to_micros
from auditord.store.aggregates import Limbs
from auditord.store.columns import CELL_META_COLUMNS, META_COLUMNS
from auditord.store.sql import OPERATORS, Columns, Sql, column_or_document, literal
from auditord_hookspecs import AggregateQuery, CalendarUnit
from auditord_hookspecs.query import Comparison, SortField, TimeField

_TIMES: Final[dict[TimeField, LiteralString]] = {TimeField.START: "start_time", TimeField.STOP: "stop_time"}


class Key(msgspec.Struct, frozen=True):
    """A column to group by.

    Args:
        column: of a record.
        shown: its value in the answer, once per group, with its name in the place of the braces.
        costly: whether documents are looked into.
        over_amounts: if it is not of the record, but of the amounts that are summed up, with their names.
    """

    column: Sql
    shown: LiteralString = "{}"
    costly: bool = False
    over_amounts: LiteralString | None = None


class State(msgspec.Struct, frozen=True):
    """Finished records, or open ones.

    Args:
        stop: the stop time: a column, or the instant at which open records count as stopped.
        runtime: the expression that is summed as runtime.
        condition: on the records that count.
        costly: whether the runtime is long to compute.
    """

    stop: Sql
    runtime: Sql
    condition: Sql
    costly: bool


class CellSum(msgspec.Struct, frozen=True):
    """A sum that the cells of roll-ups keep.

    Args:
        column: of the cells.
        read: the aggregate over columns of versions; ``counted`` is their sign.
        merged: the new value, of the stored cell and ``excluded``; the braces stand for the table.
    """

    column: LiteralString
    read: LiteralString
    merged: LiteralString


CELL_ENDS: Final[Sequence[LiteralString]] = ("first_stop", "last_stop", "first_gone", "last_gone")
"""The columns of cells for the stop times of their records."""


class Dialect(ABC):
    """The SQL of one database. Sums are over columns of a subquery: ``ran``, ``stopped``, amounts."""

    records: ClassVar[LiteralString]
    joined_sets: ClassVar[LiteralString]
    """A join of the texts of score sets to groups, ``counted``, that have their numbers."""
    scores_of_set: ClassVar[LiteralString]
    """The text of a score set there."""
    document: ClassVar[LiteralString]
    """The wire text, as answers are made of it."""
    more: ClassVar[LiteralString]
    """That columns are incomplete; as the index on such records has it."""
    no_more: ClassVar[LiteralString]
    """The opposite: each record has one of both."""
    sealed: ClassVar[LiteralString]
    """The end of a subquery whose columns are to be computed just once."""
    no_text: ClassVar[LiteralString]
    """NULL as a text."""
    no_number: ClassVar[LiteralString]
    """NULL as a sum."""
    text_of: ClassVar[LiteralString]
    """A value of a dimension as text, with its name in the place of the braces."""
    components: ClassVar[LiteralString]
    """The components in a document, as a table."""
    name: ClassVar[LiteralString]
    """Of this table, the component's name."""
    amount: ClassVar[LiteralString]
    """The component's amount."""
    scores: ClassVar[LiteralString]
    """The component's scores as JSON."""
    runtime_in_index: ClassVar[LiteralString | None]
    """The runtime in columns of an index, if records are better sorted by it with their positions alone."""
    has_numbers: ClassVar[bool]
    """True if positions are row numbers, by which documents are fetched once these are sorted."""
    meta_is_long: ClassVar[bool]
    """True if looking into meta costs as much as looking into the document."""

    @property
    def meta_columns(self) -> Mapping[str, LiteralString]:
        """The columns for meta keys. Other keys are looked up in meta."""
        return CELL_META_COLUMNS

    @abstractmethod
    def amounts_of(self, component: str) -> Sql:
        """All amounts of the components of one name, as :class:`auditord.store.aggregates.Folding` reads them."""

    @abstractmethod
    def first_scores(self, component: str) -> Sql:
        """The scores of the first component of a name as JSON."""

    @abstractmethod
    def mentions(self, text: str) -> Sql:
        """A cheap condition that is true of all records that have this text anywhere."""

    def amount_of_one(self, component: str) -> Sql:
        """The amount of a component of a record that has no two of one name; NULL if it has none."""
        likely = self.mentions(component)
        return Sql(
            f"CASE WHEN {likely.sql} THEN (SELECT {self.amount} FROM {self.components} WHERE {self.name} = %s) END",  # noqa: S608 literals
            (*likely.parameters, component),
        )

    def lists(self, component: str, comparison: Comparison, amount: int) -> Sql:
        """The condition that a record lists a component of this name whose amount compares so."""
        likely = self.mentions(component)
        return Sql(
            f"({likely.sql} AND EXISTS (SELECT 1 FROM {self.components}"  # noqa: S608 literals
            f" WHERE {self.name} = %s AND {self.amount} {OPERATORS[comparison]} %s))",
            (*likely.parameters, component, amount),
        )

    def time_column(self, field: TimeField, order: SortField | None) -> LiteralString:
        """A time to be compared, in an answer of this order (None: no records are listed)."""
        del order
        return _TIMES[field]

    def moment(self, moment: datetime) -> object:
        """An instant as a parameter: microseconds since 1970, unless a database has a type for it."""
        return (moment - EPOCH) // MICROSECOND

    def literal_moment(self, moment: datetime) -> LiteralString:
        """An instant as text of the statement."""
        return literal(str(to_micros(moment)))

    def literal_span(self, span: timedelta) -> LiteralString:
        """A time in whole seconds to be added to an instant, as text of the statement."""
        return literal(str(span // MICROSECOND))

    @abstractmethod
    def has_key(self, key: str) -> Sql:
        """The condition that a record has a meta key; never NULL."""

    @abstractmethod
    def first_value(self, key: str) -> Sql:
        """The first value under a meta key, or NULL."""

    @abstractmethod
    def contains(self, key: str, values: Sequence[str]) -> Sql:
        """The condition that the list under a meta key has one of the values (at least one is given)."""

    @abstractmethod
    def one_of(self, column: LiteralString, values: Sequence[str]) -> Sql:
        """The condition that a column has one of the values."""

    def dimension_contains(self, column: Sql, document: Sql, columns: Columns, *, has_few_values: bool) -> Sql:
        """The better of both ways to say that a site, group or user is wanted, and an index finds few."""
        del has_few_values
        return column_or_document(columns, column, document)

    def dimension_lacks(self, column: Sql, document: Sql, columns: Columns) -> Sql:
        """The better of both ways to say that a site, group or user is not wanted, or none at all."""
        return column_or_document(columns, column, document)

    @abstractmethod
    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        """The first day of a calendar period, of an instant in UTC."""

    @abstractmethod
    def states(self, query: AggregateQuery, where: Sql) -> Sequence[State]:
        """Finished records, and open ones if they count; those for which ``where`` is true."""

    @abstractmethod
    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Columns for the number of records, first and last stop time in microseconds, and the sum of runtimes."""

    @abstractmethod
    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Columns for the sum of amounts and of their products with runtimes."""


@dataclass(frozen=True, slots=True)
class StoreDialect(Dialect):
    """The SQL of a database that is a record store: of its feed and of the cells of its roll-ups as well.

    Args:
        is_exact: whether sums and products of any size fit; else likely ones do, which takes less time.
        windowed: whether runtimes are microseconds of a window.
        of_cells: whether conditions are on cells of roll-ups, whose labels no index has.
    """

    is_exact: bool = False
    windowed: bool = False
    of_cells: bool = False

    schema: ClassVar[LiteralString]
    """In front of the names of tables."""
    feed: ClassVar[LiteralString]
    """The records, to be read by their positions."""
    removals: ClassVar[LiteralString]
    """The former versions of records."""
    labels: ClassVar[LiteralString]
    """The column that has all labels of a record."""
    text_parameter: ClassVar[LiteralString]
    """A parameter that is a text."""
    empty_text: ClassVar[LiteralString]
    cell_sums: ClassVar[Sequence[CellSum]]
    """The sums in the table ``rollups``."""
    component_sums: ClassVar[Sequence[CellSum]]
    """The sums in the table ``rollup_components``."""
    counted: ClassVar[LiteralString]
    """The sign of a version; NULL if its amounts are too large for cells."""
    present: ClassVar[LiteralString]
    """The components that a version has: the sum of the numbers in the place of the braces."""
    has_one_writer: ClassVar[bool]
    """True if a transaction that folds keeps others from writing."""
    upserts_repeat: ClassVar[bool]
    """True if one statement may insert or update the same row several times."""
    digest: ClassVar[LiteralString | None]
    """A key of texts that may be too long for an index; None where an index takes them."""
    day: ClassVar[LiteralString]
    """The day in UTC of an instant in the place of the braces, as its number since 1970."""
    first_of_month: ClassVar[LiteralString]
    """The number of the first day of the month of a day."""
    earlier: ClassVar[LiteralString]
    """The earlier one of two instants; either may be NULL."""
    later: ClassVar[LiteralString]
    """The later one."""
    name_or_none: ClassVar[LiteralString]
    """A name as cells have it."""
    no_name: ClassVar[LiteralString]
    """The value that cells have instead of a missing name."""
    by_no_position: ClassVar[LiteralString]
    """A condition on positions, in the place of the braces, by which no index is chosen."""
    rolled_cells: ClassVar[LiteralString]
    """The cells of a level, with the columns of records and with their sums.

    The braces stand for the sums, the table and a condition on the periods. The first parameter is the number of days
    between the begin of a cell's period and its time.
    """
    rolled_periods_of_users: ClassVar[LiteralString]
    """The condition that period and user are in lists, which are JSON."""
    rolled_day: ClassVar[LiteralString]
    """The time of a cell, days later: their number, a text or NULL for none, in the place of the braces."""

    @property
    @override
    def meta_columns(self) -> Mapping[str, LiteralString]:
        return CELL_META_COLUMNS if self.of_cells else META_COLUMNS

    @abstractmethod
    def entries(self, key: str) -> tuple[Sql, Sql]:
        """The values of a version under a meta key as a table ``entry``, and a condition by which each comes once."""

    @abstractmethod
    def labels_of(self, parts: Sequence[str]) -> Sql:
        """The labels of cells that tell these keys apart, of columns of versions with ``ahead``, the days of a zone."""

    @abstractmethod
    def rolled_counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Columns of cells: as :meth:`counts`, but with the removed stop times and the number of left-out records."""

    @abstractmethod
    def rolled_usage(self, column: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Columns of cells: as :meth:`usage`."""

    def for_cells(self) -> Self:
        """The words for conditions on cells."""
        return replace(self, of_cells=True)

    def cell_columns(self, *, of_components: bool) -> LiteralString:
        """The columns of cells with their sums."""
        sums = self.component_sums if of_components else self.cell_sums
        ends: Sequence[LiteralString] = ("component",) if of_components else CELL_ENDS
        return ", ".join([*[each.column for each in sums], *ends])
