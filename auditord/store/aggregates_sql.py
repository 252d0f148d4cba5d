"""Compile an aggregate into SQL: the code that all databases share.

An aggregate is one statement, so that it is answered from one state of the records. It has these parts, each for
finished and for open records: records whose columns are complete (nearly all are); the other records; and for each
component, its occurrences in the documents of the other records. :mod:`auditord.store.aggregates` puts the rows
together.

Each part has three nested queries. The innermost one names the columns that it reads of a record (``key0``,
``amount0``, ``ran``, ``stopped``), the next one groups and sums, and the outermost one computes the dimensions once per
group.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, LiteralString

import msgspec
from msgspec.structs import replace

from auditord.store.aggregates import Kind, Limbs, Part
from auditord.store.columns import AMOUNT_COLUMNS
from auditord.store.conditions import can_be_there, compile_condition, compile_dimension, key_of_amount
from auditord.store.dialects import Dialect, Key, State, StoreDialect
from auditord.store.rollups.cells import (
    CORES_KEY,
    END,
    FIRST_DAY,
    LEVELS_PER_SET,
    PRESENCE,
    Level,
    Segment,
    first_moment,
    zone_of_key,
)
from auditord.store.rollups.scope import Rolled, Scope
from auditord.store.sql import Columns, Sql, any_of, join, literal, repeat
from auditord.store.work import as_json
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ScoreValue,
    Window,
)
from auditord_hookspecs.query import AnyOf
from auditord_hookspecs.vocabulary import TOTALS, total_of


class CompiledAggregate(msgspec.Struct, frozen=True):
    """A statement, and a description of its rows."""

    statement: Sql
    parts: tuple[Part, ...]


class _Source(msgspec.Struct, frozen=True):
    """The input of one part.

    Args:
        rows: the tables, and the condition on them.
        amounts: columns, by their positions in the query's ``usage``.
        totals: columns of the totals of held amounts, likewise.
        window: limits the share of totals.
        scores: the scores of the component that is read from documents; None for a part that reads records.
        sums: the columns of cells; None for records.
        has_records: whether records are counted; False for the cells of components without columns.
        local: a time zone whose days the cells distinguish, and SQL for the day, as an instant at 0:00 UTC.
    """

    rows: Sql
    state: State
    columns: Columns
    amounts: Mapping[int, Sql]
    scores: LiteralString | None = None
    kind: Kind = Kind.RECORDS
    sums: Sql | None = None
    has_records: bool = True
    local: tuple[str, Sql] | None = None
    totals: Mapping[int, Sql] = msgspec.field(default_factory=dict[int, Sql])
    window: Window | None = None


def compile_aggregate(
    query: AggregateQuery, dialect: Dialect, rolled: Rolled | None = None, *, has_totals: bool = True
) -> CompiledAggregate:
    """Compile the whole query into one statement, which reads roll-ups as far as they answer it.

    Args:
        query: the query.
        dialect: the SQL of the database.
        rolled: the part that roll-ups answer, if any.
        has_totals: whether any record has the total of a held amount. If none has, reading them would take a tenth of
            the time of a sum.
    """
    if query.window is not None and query.window.start == query.window.stop:
        query = replace(query, where=AnyOf())  # without records; a job that runs at this instant has no time in it
    has_numbers = rolled is not None and rolled.has_removals
    names = {at: total for at, usage in enumerate(query.usage) if (total := total_of(usage.component)) is not None}
    sources = list(_sources(query, dialect, rolled, names if has_totals else {}))
    sums = [_sums(query, source, dialect, has_numbers=has_numbers) for source in sources]
    width = max(len(columns) for _, columns in sums)
    has_scores = any(usage.scores for usage in query.usage) or any(isinstance(by, ScoreValue) for by in query.by)
    statements: list[Sql] = []
    for number, (source, (_, summed)) in enumerate(zip(sources, sums, strict=True)):
        keys = [_key(by, query, source, dialect) for by in query.by]
        by_set = has_scores and source.columns is Columns.COMPLETE
        grouped = _group_rows(source, keys, summed, dialect, by_set=by_set)
        columns: list[LiteralString] = [
            _name("", number),
            *[key.shown.format(_name("key", at)) for at, key in enumerate(keys)],
            dialect.scores_of_set if by_set else dialect.no_text,
            dialect.no_text if source.scores is None else "scores",
            *[_name("sum", at) if at < len(summed) else dialect.no_number for at in range(width)],
        ]
        sets = dialect.joined_sets if by_set else ""
        text: LiteralString = f"SELECT {', '.join(columns)} FROM ({grouped.sql}) AS counted{sets}"  # noqa: S608 literals
        statements.append(Sql(text, grouped.parameters))
    return CompiledAggregate(join(" UNION ALL ", statements), tuple([part for part, _ in sums]))


def _sources(
    query: AggregateQuery, dialect: Dialect, rolled: Rolled | None, totals: Mapping[int, str]
) -> Iterator[_Source]:
    """Yield the input of all parts. ``totals`` has the names of totals by position in the query's ``usage``."""
    finished, *opened = _states(query, dialect, Columns.COMPLETE)
    if rolled is None or not isinstance(dialect, StoreDialect):
        yield _complete_source(query, finished, dialect, totals)
    else:
        columns = {
            at: Sql(AMOUNT_COLUMNS[usage.component])
            for at, usage in enumerate(query.usage)
            if usage.component in AMOUNT_COLUMNS
        }
        yield _cell_source(rolled.scope, dialect, columns)
        for at, usage in enumerate(query.usage):
            if usage.component not in AMOUNT_COLUMNS and can_be_there(usage.component):
                yield _cell_source(rolled.scope, dialect, {at: Sql("amount")}, usage.component)
        yield from _unread_sources(rolled, dialect, totals)
        for edge in rolled.scope.edges():
            yield _complete_source(query, _states(edge, dialect, Columns.COMPLETE)[0], dialect, totals)
    for state in opened:
        yield _complete_source(query, state, dialect, totals)
    states = _states(query, dialect, Columns.INCOMPLETE)
    for state in states:
        rows = _rows(dialect.records, [state.condition, Sql(dialect.more)])
        yield _Source(rows, state, Columns.INCOMPLETE, {})
    for at, usage in enumerate(query.usage):
        if not can_be_there(usage.component):
            continue
        # The components of this name, and those of its total, in the documents of incomplete records.
        total = totals.get(at)
        names = list(dict.fromkeys([usage.component, total or usage.component]))
        likely, named = any_of(list(map(dialect.mentions, names))), repeat("%s", ", ", len(names))
        of_name: LiteralString = f"CASE WHEN {dialect.name} = %s THEN {dialect.amount} END"
        for state in states:
            conditions = [state.condition, Sql(dialect.more), likely, Sql(f"{dialect.name} IN ({named})", tuple(names))]
            yield _Source(
                _rows(f"{dialect.records}, {dialect.components}", conditions),
                state,
                Columns.INCOMPLETE,
                {at: Sql(dialect.amount) if total is None else Sql(of_name, (usage.component,))},
                dialect.scores if usage.scores else "'[]'",
                totals={} if total is None else {at: Sql(of_name, (total,))},
                window=query.window,
            )


def _complete_source(query: AggregateQuery, state: State, dialect: Dialect, totals: Mapping[int, str]) -> _Source:
    rows = _rows(dialect.records, [state.condition, Sql(dialect.no_more)])
    amounts = dict(_amounts(query, dialect))
    return _Source(rows, state, Columns.COMPLETE, amounts, totals=_columns_of(totals), window=query.window)


def _unread_sources(rolled: Rolled, dialect: StoreDialect, totals: Mapping[int, str]) -> Iterator[_Source]:
    """Yield the versions of a scope's days by which the current state differs from that of the cells."""
    scope = rolled.scope
    query = replace(scope.query, where=scope.rest, as_of=None)
    (state,) = _states(query, dialect, Columns.COMPLETE)
    position: LiteralString = literal(str(scope.cells.position))
    conditions = [state.condition, Sql(dialect.no_more)]
    if scope.begin > FIRST_DAY:
        conditions.append(Sql(f"stop_time >= {dialect.literal_moment(first_moment(scope.begin))}"))
    if scope.end < END:
        conditions.append(Sql(f"stop_time < {dialect.literal_moment(first_moment(scope.end))}"))
    for day in scope.split_days():
        first, end = dialect.literal_moment(first_moment(day)), dialect.literal_moment(first_moment(day + 1))
        conditions.append(Sql(f"NOT (stop_time >= {first} AND stop_time < {end})"))
    amounts, read = dict(_amounts(query, dialect)), _columns_of(totals)
    behind: LiteralString = f"position > {position}"
    if rolled.is_far_behind:
        rows = _rows(dialect.records, [Sql(dialect.by_no_position.format(behind)), *conditions])
    else:
        rows = _rows(dialect.feed, [Sql(behind), *conditions])
    yield _Source(rows, state, Columns.COMPLETE, amounts, totals=read)
    if rolled.has_removals:
        removed = Sql(f"{behind} AND former <= {position}")
        rows = _rows(dialect.removals, [removed, *conditions])
        yield _Source(rows, state, Columns.COMPLETE, amounts, kind=Kind.REMOVED, totals=read)


def _cell_source(
    scope: Scope,
    dialect: StoreDialect,
    amounts: Mapping[int, Sql],
    component: str | None = None,
) -> _Source:
    is_whole = component is None
    table: LiteralString = "rollups" if is_whole else "rollup_components"
    sums = dialect.cell_columns(of_components=not is_whole)
    cells = [_cells(each, scope, dialect, sums, table) for each in scope.segments()]
    tables = join(" UNION ALL ", cells)
    conditions = [compile_condition(scope.rest, dialect.for_cells(), Columns.COMPLETE)]
    if component is not None:
        conditions.append(Sql("component = %s", (component,)))
    split: list[LiteralString] = [dialect.literal_moment(first_moment(day)) for day in scope.split_days()]
    if split:
        conditions.append(Sql(f"stop_time NOT IN ({', '.join(split)})"))
    where = join(" AND ", conditions)
    rows = Sql(f"({tables.sql}) AS rolled WHERE {where.sql}", (*tables.parameters, *where.parameters))
    state = State(Sql("stop_time"), Sql("NULL"), where, costly=False)
    local: tuple[str, Sql] | None = None
    zone_part = scope.cells.zone_part
    if zone_part is not None and (zone := zone_of_key(zone_part)) is not None:
        local = zone, _date(zone_part, dialect)
    return _Source(rows, state, Columns.COMPLETE, amounts, None, Kind.CELLS, Sql(sums), is_whole, local)


def _states(query: AggregateQuery, dialect: Dialect, columns: Columns) -> Sequence[State]:
    return dialect.states(query, compile_condition(query.where, dialect, columns))


def _rows(tables: LiteralString, conditions: Sequence[Sql]) -> Sql:
    every = join(" AND ", conditions)
    return Sql(f"{tables} WHERE {every.sql}", every.parameters)


def _amounts(query: AggregateQuery, dialect: Dialect) -> Iterator[tuple[int, Sql]]:
    for at, usage in enumerate(query.usage):
        if usage.component in AMOUNT_COLUMNS:
            yield at, Sql(AMOUNT_COLUMNS[usage.component])
        elif can_be_there(usage.component):
            yield at, dialect.amount_of_one(usage.component)


def _columns_of(totals: Mapping[int, str]) -> Mapping[int, Sql]:
    return {at: Sql(AMOUNT_COLUMNS[total]) for at, total in totals.items()}


def _sums(
    query: AggregateQuery, source: _Source, dialect: Dialect, *, has_numbers: bool
) -> tuple[Part, list[LiteralString]]:
    columns: list[LiteralString] = []
    runtime: Limbs | None = None
    if source.scores is None and source.has_records:
        if source.kind is Kind.CELLS and isinstance(dialect, StoreDialect):
            counts, runtime = dialect.cell_counts()
        else:
            counts, runtime = dialect.counts()
        columns.extend(counts)
    usage: list[tuple[int, Limbs, Limbs]] = []
    for at, read in source.amounts.items():
        name = _name("amount", at)
        if source.kind is Kind.CELLS and isinstance(dialect, StoreDialect):
            sums, amount, product = dialect.cell_usage(read.sql)
            number: LiteralString = f"sum(CASE WHEN {read.sql} IS NOT NULL THEN records END)"
        else:
            sums, amount, product = dialect.usage(name, query.usage[at].component)
            number = f"count({name})"
        columns.extend([*sums, number] if has_numbers else sums)
        usage.append((at, amount, product))
    totals: list[tuple[int, Limbs, Limbs]] = []
    for at in source.totals:
        name = _name("total", at)
        sums, seconds, ticks = dialect.total(name, source.window)
        columns.extend([*sums, f"count({name})"] if has_numbers else sums)
        totals.append((at, seconds, ticks))
    return Part(runtime, tuple(usage), source.kind, has_numbers, tuple(totals)), columns


def _group_rows(
    source: _Source, keys: Sequence[Key], sums: Sequence[LiteralString], dialect: Dialect, *, by_set: bool
) -> Sql:
    by_text = source.scores is not None
    names: list[LiteralString] = [_name("key", at) for at in range(len(keys))]
    groups: list[LiteralString] = [*names, *(["score_set"] if by_set else []), *(["scores"] if by_text else [])]
    columns: list[LiteralString] = [
        *[f"{key.over_amounts} AS {name}" if key.over_amounts else name for key, name in zip(keys, names, strict=True)],
        *groups[len(names) :],
        *[f"{column} AS {_name('sum', at)}" for at, column in enumerate(sums)],
    ]
    measured = [_alias(source.state.runtime, "ran"), _alias(source.state.stop, "stopped")]
    wanted = [  # of each record
        *[_alias(key.column, _name("key", at)) for at, key in enumerate(keys) if not key.over_amounts],
        *([Sql("score_set")] if by_set else []),
        *([] if source.scores is None else [Sql(f"{source.scores} AS scores")]),
        *([source.sums] if source.sums is not None else measured),
        *(
            []
            if source.sums is not None
            else [_alias(amount, _name("amount", at)) for at, amount in source.amounts.items()]
        ),
        *[_alias(total, _name("total", at)) for at, total in source.totals.items()],
        *([Sql("start_time AS started")] if source.totals and source.window is not None else []),
    ]
    selected = join(" FROM ", [join(", ", wanted), source.rows])
    looked_up = source.scores is not None or any(amount.parameters for amount in source.amounts.values())
    looked_up = looked_up and source.sums is None
    costly = looked_up or source.state.costly or any(key.costly for key in keys)
    read = Sql(f"SELECT {selected.sql}{dialect.sealed if costly else ''}", selected.parameters)
    # Queries name the coarsest dimension first. Sorts are faster with the finest first: a comparison ends there sooner.
    finest_first = [*range(len(names), 0, -1), *range(len(names) + 1, len(groups) + 1)]
    places: list[LiteralString] = [literal(str(place)) for place in finest_first]
    grouping = f" GROUP BY {', '.join(places)}" if places else ""
    return Sql(f"SELECT {', '.join(columns)} FROM ({read.sql}) AS read{grouping}", read.parameters)  # noqa: S608 literals


def _key(dimension: Dimension, query: AggregateQuery, source: _Source, dialect: Dialect) -> Key:
    if isinstance(dimension, ComponentPresent) and source.kind is Kind.CELLS:
        bit = PRESENCE[dimension.component]
        return Key(Sql(f"CASE WHEN (present & {bit}) > 0 THEN 1 ELSE 0 END"), dialect.text_of)
    if isinstance(dimension, CalendarPeriod) and source.local is not None and source.local[0] == dimension.zone:
        return dialect.first_day(source.local[1], dimension.unit)
    if isinstance(dimension, ComponentAmount) and source.kind is Kind.CELLS:
        return Key(dialect.first_value(CORES_KEY), costly=dialect.meta_is_long)
    if isinstance(dimension, ComponentAmount | ComponentPresent) and source.columns is Columns.COMPLETE:
        is_read = isinstance(dimension, ComponentAmount) or dimension.component not in TOTALS
        for at in source.amounts if is_read else ():
            if query.usage[at].component == dimension.component:
                return key_of_amount(dimension, _name("amount", at), dialect)
    if source.kind is Kind.CELLS and isinstance(dialect, StoreDialect):
        dialect = dialect.for_cells()
    return compile_dimension(dimension, source.state.stop, dialect, source.columns)


def _alias(column: Sql, name: LiteralString) -> Sql:
    return Sql(f"{column.sql} AS {name}", column.parameters)


@lru_cache(1024)
def _name(what: LiteralString, number: int) -> LiteralString:
    return what + literal(str(number))


_MOST_PERIODS: Final = 1_000
"""Up to this number of periods, the cells of users are looked up one by one instead of scanning those of all users."""


def _date(zone_part: str, dialect: StoreDialect) -> Sql:
    """Return SQL for the date of a cell in a zone, as an instant at 0:00 UTC."""
    days = dialect.first_value(zone_part)
    return Sql(dialect.rolled_day.format(days.sql), days.parameters)


def _cells(segment: Segment, scope: Scope, dialect: StoreDialect, sums: LiteralString, table: LiteralString) -> Sql:
    """Return the query for the cells of a segment, restricted to its dates if it limits them."""
    level, users = scope.level(segment), scope.users()
    # The date in a zone may differ by a day. On the second day of a month, it is in the month in any case.
    place = (1 if segment.is_of_months else 0, level)
    span = segment.end - segment.begin
    few = span <= _MOST_PERIODS * (28 if segment.is_of_months else 1)
    if users is None or not few or level % LEVELS_PER_SET not in {Level.DAY_AND_USER, Level.MONTH_AND_USER}:
        text = dialect.rolled_cells.format(sums, table, "period >= %s AND period < %s")
        cells = Sql(text, (*place, segment.begin, segment.end))
    else:
        periods, names = as_json(segment.periods()), as_json([each for each in users if can_be_there(each)])
        text = dialect.rolled_cells.format(sums, table, dialect.rolled_periods_of_users)
        cells = Sql(text, (*place, periods, names))
    conditions: list[Sql] = []
    limits: Sequence[tuple[int | None, LiteralString]] = ((segment.first_date, ">="), (segment.end_date, "<"))
    for day, operator in limits:
        if day is not None and scope.cells.zone_part is not None:
            date, moment = _date(scope.cells.zone_part, dialect), dialect.literal_moment(first_moment(day))
            conditions.append(Sql(f"{date.sql} {operator} {moment}", date.parameters))
    if not conditions:
        return cells
    where = join(" AND ", conditions)
    return Sql(f"SELECT * FROM ({cells.sql}) AS dated WHERE {where.sql}", (*cells.parameters, *where.parameters))  # noqa: S608 literals
