"""The statement of an aggregate, as far as it is the same in the SQL of every database.

One statement, so that all is answered from one state of the records, has these parts: finished records and open ones,
each as far as columns tell, and documents where that needs no rows of their own; then, for each component that is left,
finished and open records whose amounts only documents tell. Its rows are what :mod:`auditord.store.aggregates` puts
together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString, Protocol

from auditord.store.aggregates import Limbs, Part
from auditord.store.rows import AMOUNT_COLUMNS, META_COLUMNS, can_be_there
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    MetaValue,
    ScoreValue,
)


@dataclass(frozen=True, slots=True)
class Sql:
    """A piece of SQL with placeholders, and what they stand for."""

    sql: LiteralString
    parameters: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """A statement, and what its rows are."""

    statement: Sql
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """What is grouped by, and how a value is shown, once per group, with its name in the place of the braces."""

    column: Sql
    shown: LiteralString = "{}"


@dataclass(frozen=True, slots=True)
class State:
    """Finished records, or open ones.

    Args:
        stop: the stop time: a column, or the instant at which open records count as stopped.
        runtime: what is summed up as runtime.
        condition: which of them count.
    """

    stop: Sql
    runtime: Sql
    condition: Sql


@dataclass(frozen=True, slots=True)
class Listing:
    """The components of one name, as documents list them.

    Args:
        table: what is joined to the records.
        condition: which records are looked into, and which of their components.
        amount: column with its amount.
        scores: column with its scores as JSON.
    """

    table: LiteralString
    condition: Sql
    amount: LiteralString
    scores: LiteralString


class Dialect(Protocol):
    """What one database says in its own words. Sums are over columns of a subquery: ``ran``, ``stopped``, amounts."""

    @property
    def records(self) -> LiteralString:
        """The table of records."""
        ...

    @property
    def sealed(self) -> LiteralString:
        """What ends the subquery."""
        ...

    @property
    def scores_of_set(self) -> LiteralString:
        """The text of a score set, by ``counted.score_set``."""
        ...

    @property
    def no_text(self) -> LiteralString:
        """NULL as a text."""
        ...

    @property
    def no_number(self) -> LiteralString:
        """NULL as a sum."""
        ...

    def states(self, query: AggregateQuery) -> Sequence[State]:
        """Finished records, and open ones if they count."""
        ...

    def key(self, dimension: Dimension, stop: Sql) -> Key:
        """What is grouped by, as :class:`auditord.store.aggregates.Folding` wants it; of names that can be there."""
        ...

    def listing(self, component: str) -> Listing:
        """The components of a name in documents, where columns do not tell."""
        ...

    def looked_up(self, component: str) -> Sql | None:
        """The sum of amounts of a name in a record's document, NULL if it has none of this name.

        None if such a sum might not fit; a :meth:`listing` tells then.
        """
        ...

    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        """Columns for the number of records, first and last stop time in microseconds, and the sum of runtimes."""
        ...

    def usage(self, amount: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        """Columns for the sum of amounts and of their products with runtimes."""
        ...


@dataclass(frozen=True, slots=True)
class _Source:
    """What one part reads.

    Args:
        rows: the tables, and the condition on them.
        state: of the records.
        amounts: by their positions in the query's ``usage``.
        scores: of the one component that is read from documents; None for a part that reads columns.
    """

    rows: Sql
    state: State
    amounts: tuple[tuple[int, Sql], ...]
    scores: LiteralString | None


# These columns hold the first value under the first of both keys that a record has.
_COLUMNS_OF_TWO: Final[Mapping[tuple[str, ...], LiteralString]] = {
    ("site_id", "site"): "site",
    ("group_id", "group"): "user_group",
    ("user_id", "user"): "user_name",
}

_DIGITS: Final[tuple[LiteralString, ...]] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")


def compile_aggregate(query: AggregateQuery, dialect: Dialect) -> CompiledAggregate:
    """One statement for the whole query."""
    sources = list(_sources(query, dialect))
    sums = [_sums(source, dialect) for source in sources]
    width = max(len(columns) for _, columns in sums)
    statements = [
        _select(query, source, dialect, _name("", number), _padded(columns, width, dialect.no_number))
        for number, (source, (_, columns)) in enumerate(zip(sources, sums, strict=True))
    ]
    return CompiledAggregate(join(" UNION ALL ", statements), tuple([part for part, _ in sums]))


def join(separator: LiteralString, pieces: Sequence[Sql]) -> Sql:
    """The pieces, one after the other."""
    parameters = tuple([parameter for piece in pieces for parameter in piece.parameters])
    return Sql(separator.join([piece.sql for piece in pieces]), parameters)


def column_of_keys(keys: tuple[str, ...], looked_up: Sql) -> Sql:
    """The first value under the first of the keys that a record has, from a column as far as one tells.

    Args:
        keys: at least one.
        looked_up: the same from the record's meta.
    """
    if keys in _COLUMNS_OF_TWO:
        return Sql(_COLUMNS_OF_TWO[keys])
    if keys[0] not in META_COLUMNS:
        return looked_up
    column = META_COLUMNS[keys[0]]
    told: LiteralString = "more IS NULL" if len(keys) == 1 else f"more IS NULL AND {column} IS NOT NULL"
    return Sql(f"CASE WHEN {told} THEN {column} ELSE {looked_up.sql} END", looked_up.parameters)


def _sources(query: AggregateQuery, dialect: Dialect) -> Iterator[_Source]:
    states = dialect.states(query)
    looked_up = dict(_looked_up(query, dialect))
    amounts = (*_amounts_in_columns(query), *looked_up.items())
    for state in states:
        yield _Source(_rows(dialect.records, [state.condition]), state, amounts, None)
    for at, usage in enumerate(query.usage):
        if can_be_there(usage.component) and at not in looked_up:
            listing = dialect.listing(usage.component)
            table = f"{dialect.records}, {listing.table}"
            for state in states:
                rows = _rows(table, [state.condition, listing.condition])
                yield _Source(rows, state, ((at, Sql(listing.amount)),), listing.scores if usage.scores else "'[]'")


def _rows(tables: LiteralString, conditions: Sequence[Sql]) -> Sql:
    every = join(" AND ", conditions)
    return Sql(f"{tables} WHERE {every.sql}", every.parameters)


def _amounts_in_columns(query: AggregateQuery) -> Iterator[tuple[int, Sql]]:
    for at, usage in enumerate(query.usage):
        if usage.component in AMOUNT_COLUMNS:
            yield at, Sql(_unless_more(AMOUNT_COLUMNS[usage.component]))


def _looked_up(query: AggregateQuery, dialect: Dialect) -> Iterator[tuple[int, Sql]]:
    """What documents tell while their records are passed anyway: components that need not be kept apart by scores."""
    for at, usage in enumerate(query.usage):
        if usage.component not in AMOUNT_COLUMNS and not usage.scores and can_be_there(usage.component):
            amount = dialect.looked_up(usage.component)
            if amount is not None:
                yield at, amount


def _sums(source: _Source, dialect: Dialect) -> tuple[Part, list[LiteralString]]:
    columns: list[LiteralString] = []
    runtime: Limbs | None = None
    if source.scores is None:
        counts, runtime = dialect.counts()
        columns.extend(counts)
    usage: list[tuple[int, Limbs, Limbs]] = []
    for at, _ in source.amounts:
        sums, amount, product = dialect.usage(_name("amount", at))
        columns.extend(sums)
        usage.append((at, amount, product))
    return Part(runtime, tuple(usage)), columns


def _select(
    query: AggregateQuery, source: _Source, dialect: Dialect, part: LiteralString, sums: Sequence[LiteralString]
) -> Sql:
    """The statement of one part: sums over a subquery whose columns have names."""
    keys = [_key(by, source.state.stop, dialect) for by in query.by]
    names: list[LiteralString] = [_name("key", at) for at in range(len(keys))]
    shown: list[LiteralString] = [key.shown.format(name) for key, name in zip(keys, names, strict=True)]
    by_set: list[LiteralString] = ["score_set"] if _needs_score_sets(query) else []
    by_text: list[LiteralString] = [] if source.scores is None else ["scores"]
    scores: list[LiteralString] = [
        dialect.scores_of_set if by_set else dialect.no_text,
        "scores" if by_text else dialect.no_text,
    ]
    columns, groups = _listed([part], shown, scores, sums), _listed(names, by_set, by_text)
    grouping = f" GROUP BY {groups}" if groups else ""
    inner = _inner(source, [_named(key.column, name) for key, name in zip(keys, names, strict=True)], dialect)
    return Sql(f"SELECT {columns} FROM ({inner.sql}{dialect.sealed}) AS counted{grouping}", inner.parameters)  # noqa: S608 literals


def _key(dimension: Dimension, stop: Sql, dialect: Dialect) -> Key:
    possible = _possible(dimension)
    return Key(Sql(dialect.no_text)) if possible is None else dialect.key(possible, stop)


def _possible(dimension: Dimension) -> Dimension | None:
    """The dimension without keys that no record can have; None if nothing is left."""
    match dimension:
        case MetaValue(keys):
            possible = [key for key in keys if can_be_there(key)]
            return MetaValue(*possible) if possible else None
        case ComponentAmount(component) | ComponentPresent(component) | ScoreValue(component):
            return dimension if can_be_there(component) else None
        case CalendarPeriod():
            return dimension


def _inner(source: _Source, keys: Sequence[Sql], dialect: Dialect) -> Sql:
    columns = [
        *keys,
        Sql(f"{_unless_more('score_set')} AS score_set, {source.scores or dialect.no_text} AS scores"),
        _named(source.state.runtime, "ran"),
        _named(source.state.stop, "stopped"),
        *[_named(amount, _name("amount", at)) for at, amount in source.amounts],
    ]
    selected = join(" FROM ", [join(", ", columns), source.rows])
    return Sql(f"SELECT {selected.sql}", selected.parameters)


def _needs_score_sets(query: AggregateQuery) -> bool:
    return any(usage.scores for usage in query.usage) or any(isinstance(by, ScoreValue) for by in query.by)


def _unless_more(column: LiteralString) -> LiteralString:
    return f"CASE WHEN more IS NULL THEN {column} END"


def _named(column: Sql, name: LiteralString) -> Sql:
    return Sql(f"{column.sql} AS {name}", column.parameters)


def _listed(*columns: Sequence[LiteralString]) -> LiteralString:
    return ", ".join([column for some in columns for column in some])


def _padded(columns: Sequence[LiteralString], width: int, no_number: LiteralString) -> list[LiteralString]:
    missing: list[LiteralString] = [no_number] * (width - len(columns))
    return [*columns, *missing]


def _name(what: LiteralString, number: int) -> LiteralString:
    return what + "".join([_DIGITS[int(digit)] for digit in str(number)])
