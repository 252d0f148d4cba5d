"""Pieces of SQL with their parameters, and those in which databases differ: conditions, dimensions and sums.

Parameters are written as ``%s`` for every database. User input never becomes SQL text.

Documents and parameters have the same JSON encoding, so a cheap search for the encoded text can precede the parsing of
a document.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import ClassVar, Final, LiteralString, Self

import msgspec
from typing_extensions import override

from auditord.database.instants import EPOCH, MICROS_PER_DAY, MICROSECOND, to_micros
from auditord.store.aggregates import Limbs
from auditord.store.columns import CELL_META_COLUMNS, META_COLUMNS
from auditord_hookspecs import AggregateQuery, CalendarUnit, Window
from auditord_hookspecs.query import Comparison, SortField, TimeField
from auditord_hookspecs.zones import ClockChange


class Sql(msgspec.Struct, frozen=True):
    """A piece of SQL with placeholders, and the values for them."""

    sql: LiteralString
    parameters: tuple[object, ...] = ()

    def to_query(self) -> tuple[LiteralString, tuple[object, ...]]:
        """Return the statement with question marks as placeholders, and its parameters."""
        return self.sql.replace("%s", "?"), self.parameters


class Columns(Enum):
    """The records that a piece of SQL applies to, by their column ``more``."""

    COMPLETE = "complete"
    """``more`` is NULL: the columns have the only site, group, user and amounts, and no component name occurs twice."""
    INCOMPLETE = "incomplete"
    """``more`` is set: the document must be read."""
    EITHER = "either"


OPERATORS: Final[Mapping[Comparison, LiteralString]] = {
    Comparison.GT: ">",
    Comparison.GTE: ">=",
    Comparison.LT: "<",
    Comparison.LTE: "<=",
    Comparison.EQUALS: "=",
}

_DIGITS: Final[Sequence[LiteralString]] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
_CHARACTERS: Final[Sequence[LiteralString]] = (*_DIGITS, "+", "-", ".", ":", "T", "E")
_NO_TEXT: Final[LiteralString] = ""

TRUE: Final = Sql("TRUE")
FALSE: Final = Sql("FALSE")


def join(separator: LiteralString, pieces: Sequence[Sql]) -> Sql:
    """Join pieces and their parameters."""
    parameters = tuple([parameter for piece in pieces for parameter in piece.parameters])
    return Sql(separator.join([piece.sql for piece in pieces]), parameters)


def select(columns: Sequence[Sql], tables: Sql, conditions: Sequence[Sql], end: LiteralString) -> Sql:
    """Return a query for columns of the rows that meet all conditions (at least one is given)."""
    wanted, where = join(", ", columns), join(" AND ", conditions)
    return Sql(
        f"SELECT {wanted.sql} FROM {tables.sql} WHERE {where.sql}{end}",  # noqa: S608 literals
        (*wanted.parameters, *tables.parameters, *where.parameters),
    )


def all_of(conditions: Sequence[Sql]) -> Sql:
    """Return the condition that all are true."""
    return _in_brackets(join(" AND ", conditions)) if conditions else TRUE


def any_of(conditions: Sequence[Sql]) -> Sql:
    """Return the condition that at least one is true."""
    return _in_brackets(join(" OR ", conditions)) if conditions else FALSE


def case(condition: Sql, then: Sql, otherwise: Sql) -> Sql:
    """Return a CASE expression for one of two values."""
    text: LiteralString = f"CASE WHEN {condition.sql} THEN {then.sql} ELSE {otherwise.sql} END"
    return Sql(text, (*condition.parameters, *then.parameters, *otherwise.parameters))


def column_or_document(columns: Columns, column: Sql, document: Sql) -> Sql:
    """Return the column if it is complete, else the expression over the document."""
    match columns:
        case Columns.COMPLETE:
            return column
        case Columns.INCOMPLETE:
            return document
        case Columns.EITHER:
            return case(Sql("more IS NULL"), column, document)


def quote_json(text: str) -> str:
    """Return the JSON encoding of a string in a document, with quotation marks."""
    return msgspec.json.encode(text).replace(b"\\\\", b"\\u005c").decode()


def literal(text: str) -> LiteralString:
    """Return a number or an instant as text of a statement, since SQLite's time is quadratic in parameters.

    Raises:
        ValueError: the text has any other characters.
    """
    characters: list[LiteralString] = [_CHARACTERS[_CHARACTERS.index(character)] for character in text]
    return _NO_TEXT.join(characters)


def repeat(part: LiteralString, separator: LiteralString, count: int) -> LiteralString:
    """Return the part, repeated ``count`` times."""
    parts: list[LiteralString] = [part] * count
    return separator.join(parts)


def _in_brackets(piece: Sql) -> Sql:
    return Sql(f"({piece.sql})", piece.parameters)


TIMES: Final[Mapping[TimeField, tuple[LiteralString, SortField]]] = {
    TimeField.START: ("start_time", SortField.START),
    TimeField.STOP: ("stop_time", SortField.STOP),
}
"""The column of each time, and the order that its index gives."""


class Key(msgspec.Struct, frozen=True):
    """A column to group by.

    Args:
        column: the expression over a record.
        shown: the expression for the answer, computed once per group; the braces stand for the column's name.
        costly: whether documents are read.
        over_amounts: an expression over the named amounts that are summed up, used instead of ``column``.
    """

    column: Sql
    shown: LiteralString = "{}"
    costly: bool = False
    over_amounts: LiteralString | None = None


class State(msgspec.Struct, frozen=True):
    """Finished records, or open ones.

    Args:
        stop: the stop time: a column, or the instant at which open records count as stopped.
        runtime: the expression that is summed: seconds, or microseconds if the query has a window.
        conditions: the conditions on the records that count.
        costly: whether the runtime takes long to compute.
    """

    stop: Sql
    runtime: Sql
    conditions: Sequence[Sql]
    costly: bool


class CellSum(msgspec.Struct, frozen=True):
    """A sum that is stored in the cells of roll-ups.

    Args:
        column: the column of the cells.
        value: the value of a version, from its columns; ``counted`` is its sign.
        merged: the new value, from the stored cell and ``excluded``; the braces stand for the table.
    """

    column: LiteralString
    value: LiteralString
    merged: LiteralString


CELL_ENDS: Final[Sequence[LiteralString]] = ("first_stop", "last_stop", "first_gone", "last_gone")
"""The columns of cells for the stop times of their records."""


class Dialect(ABC):
    """The SQL of one database. Sums are over columns of a subquery: ``ran``, ``stopped``, and the amounts."""

    records: ClassVar[LiteralString]
    joined_sets: ClassVar[LiteralString]
    """A join that adds the texts of score sets to the groups, ``counted``, which have their numbers."""
    scores_of_set: ClassVar[LiteralString]
    """The text of a score set, from that join."""
    document: ClassVar[LiteralString]
    """The wire text, in the form that answers need."""
    more: ClassVar[LiteralString]
    """The condition that columns are incomplete, written like that of the index on such records."""
    no_more: ClassVar[LiteralString]
    """The negation of ``more``."""
    sealed: ClassVar[LiteralString]
    """The end of a subquery whose columns must be computed only once."""
    no_text: ClassVar[LiteralString]
    """NULL as a text."""
    no_number: ClassVar[LiteralString]
    """NULL as a sum."""
    text_of: ClassVar[LiteralString]
    """A value of a dimension as text; the braces stand for its name."""
    components: ClassVar[LiteralString]
    """The components in a document, as a table."""
    name: ClassVar[LiteralString]
    """The component's name in that table."""
    amount: ClassVar[LiteralString]
    """The component's amount."""
    scores: ClassVar[LiteralString]
    """The component's scores as JSON."""
    runtime_in_index: ClassVar[LiteralString | None]
    """The runtime from columns of an index, if it is faster to sort positions by it and then fetch the records."""
    other_index: ClassVar[LiteralString] = ""
    """Written before a time to keep its index from being used, if the answer is in another order."""
    has_numbers: ClassVar[bool]
    """True if positions are row numbers, which can be sorted before documents are fetched by them."""
    meta_is_long: ClassVar[bool]
    """True if reading meta costs as much as reading the document."""

    @property
    def meta_columns(self) -> Mapping[str, LiteralString]:
        """The columns for meta keys. Other keys are looked up in meta."""
        return CELL_META_COLUMNS

    @abstractmethod
    def amounts_of(self, component: str) -> Sql:
        """Return all amounts of one component, in the form that :class:`auditord.store.aggregates.Folding` reads."""

    @abstractmethod
    def first_scores(self, component: str) -> Sql:
        """Return the scores of the first component with a name, as JSON."""

    @abstractmethod
    def mentions(self, text: str) -> Sql:
        """Return a cheap condition that is true for all records with this text anywhere."""

    def amount_of_one(self, component: str) -> Sql:
        """Return the amount of a component, or NULL, for records that have no name twice."""
        likely = self.mentions(component)
        return Sql(
            f"CASE WHEN {likely.sql} THEN (SELECT {self.amount} FROM {self.components} WHERE {self.name} = %s) END",  # noqa: S608 literals
            (*likely.parameters, component),
        )

    def lists(self, component: str, comparison: Comparison, amount: int) -> Sql:
        """Return the condition that a record has a component with this name whose amount meets the comparison."""
        likely = self.mentions(component)
        return Sql(
            f"({likely.sql} AND EXISTS (SELECT 1 FROM {self.components}"  # noqa: S608 literals
            f" WHERE {self.name} = %s AND {self.amount} {OPERATORS[comparison]} %s))",
            (*likely.parameters, component, amount),
        )

    def time_column(self, field: TimeField, order: SortField | None) -> LiteralString:
        """Return the column of a time in a condition, given the order of the answer (None if no records are listed)."""
        column, own = TIMES[field]
        return column if order in {None, SortField.RUNTIME, own} else f"{self.other_index}{column}"

    def moment(self, moment: datetime) -> object:
        """Return an instant as a parameter: microseconds since 1970, unless the database has a type for instants."""
        return (moment - EPOCH) // MICROSECOND

    def literal_moment(self, moment: datetime) -> LiteralString:
        """Return an instant as text of the statement."""
        return literal(str(to_micros(moment)))

    def literal_span(self, span: timedelta) -> LiteralString:
        """Return a span of whole seconds, to be added to an instant, as text of the statement."""
        return literal(str(span // MICROSECOND))

    @abstractmethod
    def has_key(self, key: str) -> Sql:
        """Return the condition that a record has a meta key; never NULL."""

    @abstractmethod
    def first_value(self, key: str) -> Sql:
        """Return the first value under a meta key, or NULL."""

    @abstractmethod
    def contains(self, key: str, values: Sequence[str]) -> Sql:
        """Return the condition that the list under a meta key has one of the values (at least one is given)."""

    @abstractmethod
    def one_of(self, column: LiteralString, values: Sequence[str]) -> Sql:
        """Return the condition that a column has one of the values."""

    def dimension_contains(self, column: Sql, document: Sql, columns: Columns, *, has_few_values: bool) -> Sql:
        """Choose between two forms of the condition that a record has one of several sites, groups or users."""
        del has_few_values
        return column_or_document(columns, column, document)

    def dimension_lacks(self, column: Sql, document: Sql, columns: Columns) -> Sql:
        """Choose between two forms of the condition that a record has another site, group or user, or none."""
        return column_or_document(columns, column, document)

    @abstractmethod
    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        """Return the first day of the calendar period of an instant in UTC."""

    @abstractmethod
    def states(self, query: AggregateQuery, where: Sql) -> Sequence[State]:
        """Return finished records, and open ones if they count, for which ``where`` is true."""

    @abstractmethod
    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Return columns for the number of records, first and last stop time in microseconds, and sum of runtimes."""

    @abstractmethod
    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Return columns for the sum of amounts and of their products with runtimes."""

    @abstractmethod
    def total(self, total: LiteralString, window: Window | None) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Return columns for the sum of totals, with the limbs of seconds and of ticks.

        Without a window there are only seconds. Else ticks are the shares of the records that cross its borders
        (:func:`auditord_hookspecs.vocabulary.share_of`), and the subquery also has the column ``started``.
        """


@dataclass(frozen=True, slots=True)
class StoreDialect(Dialect):
    """The SQL of a database that is a record store, including its feed and the cells of its roll-ups.

    Args:
        is_exact: whether sums and products of any size fit; if not, ordinary ones do, which is faster.
        windowed: whether runtimes are microseconds of a window.
        of_cells: whether conditions are on cells of roll-ups, whose labels have no index.
    """

    is_exact: bool = False
    windowed: bool = False
    of_cells: bool = False

    schema: ClassVar[LiteralString]
    """The prefix of table names."""
    feed: ClassVar[LiteralString]
    """The table of records, for reading by positions."""
    removals: ClassVar[LiteralString]
    """The table of former versions of records."""
    labels: ClassVar[LiteralString]
    """The column with all labels of a record."""
    text_parameter: ClassVar[LiteralString]
    """A placeholder for a text."""
    empty_text: ClassVar[LiteralString]
    cell_sums: ClassVar[Sequence[CellSum]]
    """The sums in the table ``rollups``."""
    component_sums: ClassVar[Sequence[CellSum]]
    """The sums in the table ``rollup_components``."""
    counted: ClassVar[LiteralString]
    """The sign of a version; NULL if its amounts are too large for cells."""
    present: ClassVar[LiteralString]
    """The components that a version has; the braces stand for the sum of their numbers."""
    has_one_writer: ClassVar[bool]
    """True if other writers wait for a transaction that folds."""
    upserts_repeat: ClassVar[bool]
    """True if one statement may insert or update the same row several times."""
    digest: ClassVar[LiteralString | None]
    """A hash of texts that may be too long for an index; None if indexes accept texts of any length."""
    each_value: ClassVar[LiteralString]
    """The object ``label_values`` as a table ``label`` with the columns ``key`` and ``value``."""
    day: ClassVar[LiteralString]
    """The UTC day of an instant (the braces), as a number since 1970."""
    first_of_month: ClassVar[LiteralString]
    """The first day of the month of a day (the braces), both as numbers since 1970."""
    earlier: ClassVar[LiteralString]
    """The earlier of two instants; either may be NULL."""
    later: ClassVar[LiteralString]
    """The later of two instants; either may be NULL."""
    name_or_none: ClassVar[LiteralString]
    """The stored form of a name (the braces) in cells."""
    no_name: ClassVar[LiteralString]
    """The value that stands for a missing name in cells."""
    by_no_position: ClassVar[LiteralString]
    """A condition on positions (the braces), written so that it is not looked up in an index."""
    rolled_cells: ClassVar[LiteralString]
    """A query for the cells of a level, with columns named like those of records, and with sums.

    The braces stand for the sums, the table and a condition on the periods. The first parameter is the number of days
    from the begin of a cell's period to its stop time.
    """
    rolled_periods_of_users: ClassVar[LiteralString]
    """The condition that period and user are in lists, which are JSON parameters."""
    rolled_day: ClassVar[LiteralString]
    """The time of a cell plus a number of days (the braces), which is a text, or NULL for 0."""

    @property
    @override
    def meta_columns(self) -> Mapping[str, LiteralString]:
        return CELL_META_COLUMNS if self.of_cells else META_COLUMNS

    @abstractmethod
    def entries(self, key: str) -> tuple[Sql, Sql]:
        """Return a table ``entry`` of a version's values under a meta key, and a condition that removes duplicates."""

    @abstractmethod
    def label_values(self, keys: Mapping[str, str]) -> Sql:
        """Return the values of a version under several keys, as an object that ``each_value`` reads.

        Args:
            keys: meta keys, or :data:`CORES_KEY`, by the numbers of their sets.
        """

    @abstractmethod
    def cell_labels(self, keys: Mapping[str, str], zone_part: str | None) -> Sql:
        """Return the labels of a cell, from its ``number`` and ``value``, and ``ahead``, the days of a zone."""

    @abstractmethod
    def cell_counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Return columns like :meth:`counts`, but with removed stop times and the number of left-out records."""

    @abstractmethod
    def cell_usage(self, column: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Return columns of cells like :meth:`usage`."""

    def literal_day(self, day: int) -> LiteralString:
        """Return the instant at which a day of UTC begins, given as a number since 1970, as text of the statement."""
        return literal(str(day * MICROS_PER_DAY))

    def for_cells(self) -> Self:
        """Return the dialect for conditions on cells."""
        return replace(self, of_cells=True)

    def cell_columns(self, *, of_components: bool) -> LiteralString:
        """Return the names of the cells' columns for sums and stop times (or the component)."""
        sums = self.component_sums if of_components else self.cell_sums
        ends: Sequence[LiteralString] = ("component",) if of_components else CELL_ENDS
        return ", ".join([*[each.column for each in sums], *ends])


def to_local_time(moment: Sql, changes: Sequence[ClockChange], dialect: Dialect) -> Sql:
    """Add the offset of a zone's clocks from UTC to an instant. The clocks change at least once."""
    ahead = _ahead(moment, ClockChange(changes[0].moment, timedelta(0)), changes, dialect)
    return Sql(f"({moment.sql} + {ahead.sql})", (*moment.parameters, *ahead.parameters))


def _ahead(moment: Sql, known: ClockChange, changes: Sequence[ClockChange], dialect: Dialect) -> Sql:
    """Return the offset of the clocks, found by binary search: 261 changes since 1970 take nine comparisons."""
    if not changes:
        return Sql(dialect.literal_span(known.ahead))
    middle = len(changes) // 2
    is_earlier = Sql(f"{moment.sql} < {dialect.literal_moment(changes[middle].moment)}", moment.parameters)
    earlier = _ahead(moment, known, changes[:middle], dialect)
    later = _ahead(moment, changes[middle], changes[middle + 1 :], dialect)
    return case(is_earlier, earlier, later)
