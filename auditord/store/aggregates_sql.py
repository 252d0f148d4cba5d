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
from auditord.store.columns import AMOUNT_COLUMNS, COLUMNS_OF_TWO_KEYS, OLDER_KEYS
from auditord.store.conditions import can_be_there, compile_condition
from auditord.store.dialects import (
    Columns,
    Dialect,
    Key,
    Sql,
    State,
    StoreDialect,
    any_of,
    case,
    join,
    literal,
    repeat,
    select,
    to_local_time,
)
from auditord.store.rollups.cells import (
    CORES_KEY,
    END,
    FIRST_DAY,
    LEVELS_PER_SET,
    PRESENCE,
    Level,
    zone_of_key,
)
from auditord.store.rollups.scope import Rolled, Scope, Segment
from auditord.store.work import as_json
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    ScoreValue,
    Window,
)
from auditord_hookspecs.query import AnyOf, Comparison, TimeField
from auditord_hookspecs.vocabulary import TOTALS, total_of
from auditord_hookspecs.zones import clock_changes


class CompiledAggregate(msgspec.Struct, frozen=True):
    """A statement, and a description of its rows."""

    statement: Sql
    parts: tuple[Part, ...]


class _Source(msgspec.Struct, frozen=True):
    """The input of one part.

    Args:
        tables: one table, or several that are joined.
        conditions: the conditions on its rows.
        amounts: columns, by their positions in the query's ``usage``.
        totals: columns of the totals of held amounts, likewise.
        window: limits the share of totals.
        scores: the scores of the component that is read from documents; None for a part that reads records.
        cells: the SQL of cells; None for records.
        sums: the columns of cells; None for records.
        has_records: whether records are counted; False for the cells of components without columns.
        local: a time zone whose days the cells distinguish, and SQL for the day, as an instant at 0:00 UTC.
    """

    tables: Sql
    conditions: Sequence[Sql]
    state: State
    columns: Columns
    amounts: Mapping[int, Sql]
    scores: LiteralString | None = None
    kind: Kind = Kind.RECORDS
    cells: StoreDialect | None = None
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
        keys = [_key(by, query, source, source.cells or dialect) for by in query.by]
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
    if rolled is None or not isinstance(dialect, StoreDialect):
        complete = _states(query, dialect, Columns.COMPLETE)
    else:
        columns = {
            at: Sql(AMOUNT_COLUMNS[usage.component])
            for at, usage in enumerate(query.usage)
            if usage.component in AMOUNT_COLUMNS
        }
        split = rolled.scope.split_days()
        yield _cell_source(rolled.scope, split, dialect, columns)
        for at, usage in enumerate(query.usage):
            if usage.component not in AMOUNT_COLUMNS and can_be_there(usage.component):
                yield _cell_source(rolled.scope, split, dialect, {at: Sql("amount")}, usage.component)
        yield from _unread_sources(rolled, split, dialect, totals)
        for edge in rolled.scope.edges():
            yield _complete_source(query, _states(edge, dialect, Columns.COMPLETE)[0], dialect, totals)
        complete = _states(query, dialect, Columns.COMPLETE)[1:] if query.as_of is not None else ()
    for state in complete:
        yield _complete_source(query, state, dialect, totals)
    states = _states(query, dialect, Columns.INCOMPLETE)
    for state in states:
        conditions = [*state.conditions, Sql(dialect.more)]
        yield _Source(Sql(dialect.records), conditions, state, Columns.INCOMPLETE, {})
    for at, usage in enumerate(query.usage):
        if not can_be_there(usage.component):
            continue
        # The components of this name, and those of its total, in the documents of incomplete records.
        total = totals.get(at)
        names = list(dict.fromkeys([usage.component, total or usage.component]))
        likely, named = any_of(list(map(dialect.mentions, names))), repeat("%s", ", ", len(names))
        is_named = Sql(f"{dialect.name} IN ({named})", tuple(names))
        of_name: LiteralString = f"CASE WHEN {dialect.name} = %s THEN {dialect.amount} END"
        for state in states:
            conditions = [*state.conditions, Sql(dialect.more), likely, is_named]
            yield _Source(
                Sql(f"{dialect.records}, {dialect.components}"),
                conditions,
                state,
                Columns.INCOMPLETE,
                {at: Sql(dialect.amount) if total is None else Sql(of_name, (usage.component,))},
                dialect.scores if usage.scores else "'[]'",
                totals={} if total is None else {at: Sql(of_name, (total,))},
                window=query.window,
            )


def _complete_source(query: AggregateQuery, state: State, dialect: Dialect, totals: Mapping[int, str]) -> _Source:
    records, conditions = Sql(dialect.records), [*state.conditions, Sql(dialect.no_more)]
    amounts, read = dict(_amounts(query, dialect)), _columns_of(totals)
    return _Source(records, conditions, state, Columns.COMPLETE, amounts, totals=read, window=query.window)


def _unread_sources(
    rolled: Rolled, split: Sequence[int], dialect: StoreDialect, totals: Mapping[int, str]
) -> Iterator[_Source]:
    """Yield the versions of a scope's days by which the current state differs from that of the cells."""
    scope = rolled.scope
    query = scope.query
    state = dialect.states(query, compile_condition(scope.rest, dialect, Columns.COMPLETE))[0]  # finished records
    position: LiteralString = literal(str(scope.cells.position))
    conditions = [*state.conditions, Sql(dialect.no_more)]
    if scope.begin > FIRST_DAY:
        conditions.append(Sql(f"stop_time >= {dialect.literal_day(scope.begin)}"))
    if scope.end < END:
        conditions.append(Sql(f"stop_time < {dialect.literal_day(scope.end)}"))
    for day in split:
        first, end = dialect.literal_day(day), dialect.literal_day(day + 1)
        conditions.append(Sql(f"NOT (stop_time >= {first} AND stop_time < {end})"))
    amounts, read = dict(_amounts(query, dialect)), _columns_of(totals)
    behind: LiteralString = f"position > {position}"
    if rolled.is_far_behind:
        tables, unread = dialect.records, dialect.by_no_position.format(behind)
    else:
        tables, unread = dialect.feed, behind
    yield _Source(Sql(tables), [Sql(unread), *conditions], state, Columns.COMPLETE, amounts, totals=read)
    if rolled.has_removals:
        removed = [Sql(f"{behind} AND former <= {position}"), *conditions]
        tables = dialect.removals
        yield _Source(Sql(tables), removed, state, Columns.COMPLETE, amounts, kind=Kind.REMOVED, totals=read)


def _cell_source(
    scope: Scope,
    split: Sequence[int],
    dialect: StoreDialect,
    amounts: Mapping[int, Sql],
    component: str | None = None,
) -> _Source:
    is_whole = component is None
    table: LiteralString = "rollups" if is_whole else "rollup_components"
    sums = dialect.cell_columns(of_components=not is_whole)
    cells = [_cells(each, scope, dialect, sums, table) for each in scope.segments()]
    tables = join(" UNION ALL ", cells)
    of_cells = dialect.for_cells()
    conditions = [compile_condition(scope.rest, of_cells, Columns.COMPLETE)]
    if component is not None:
        conditions.append(Sql("component = %s", (component,)))
    if split:
        days: list[LiteralString] = [dialect.literal_day(day) for day in split]
        conditions.append(Sql(f"stop_time NOT IN ({', '.join(days)})"))
    rolled = Sql(f"({tables.sql}) AS rolled", tables.parameters)
    state = State(Sql("stop_time"), Sql("NULL"), conditions, costly=False)
    local: tuple[str, Sql] | None = None
    zone_part = scope.cells.zone_part
    if zone_part is not None and (zone := zone_of_key(zone_part)) is not None:
        local = zone, _date(zone_part, dialect)
    return _Source(
        rolled,
        conditions,
        state,
        Columns.COMPLETE,
        amounts,
        kind=Kind.CELLS,
        cells=of_cells,
        sums=Sql(sums),
        has_records=is_whole,
        local=local,
    )


def _states(query: AggregateQuery, dialect: Dialect, columns: Columns) -> Sequence[State]:
    return dialect.states(query, compile_condition(query.where, dialect, columns))


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
        if source.cells is not None:
            counts, runtime = source.cells.cell_counts()
        else:
            counts, runtime = dialect.counts()
        columns.extend(counts)
    usage: list[tuple[int, Limbs, Limbs]] = []
    for at, read in source.amounts.items():
        name = _name("amount", at)
        if source.cells is not None:
            sums, amount, product = source.cells.cell_usage(read.sql)
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
    looked_up = source.scores is not None or any(amount.parameters for amount in source.amounts.values())
    looked_up = looked_up and source.sums is None
    costly = looked_up or source.state.costly or any(key.costly for key in keys)
    read = select(wanted, source.tables, source.conditions, dialect.sealed if costly else "")
    # Queries name the coarsest dimension first. Sorts are faster with the finest first: a comparison ends there sooner.
    finest_first = [*range(len(names), 0, -1), *range(len(names) + 1, len(groups) + 1)]
    places: list[LiteralString] = [_name("", place) for place in finest_first]
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
                # The amount is also summed up, so it is read once.
                amount = _name("amount", at)
                is_present: LiteralString = f"CASE WHEN {amount} IS NULL THEN 0 ELSE 1 END"
                over = amount if isinstance(dimension, ComponentAmount) else is_present
                return Key(Sql(amount), dialect.text_of, over_amounts=over)
    return _compile_dimension(dimension, source.state.stop, dialect, source.columns)


def _compile_dimension(  # noqa: C901,PLR0911 one branch for each type of dimension
    dimension: Dimension, stop: Sql, dialect: Dialect, columns: Columns
) -> Key:
    """Return the key of a dimension, in the form that :class:`auditord.store.aggregates.Folding` reads.

    Args:
        dimension: the dimension.
        stop: the stop time of the records, or the instant at which open ones count as stopped.
        dialect: the SQL of the database.
        columns: the records that are grouped.
    """
    match dimension:
        case MetaValue(keys):
            possible = tuple(filter(can_be_there, keys))
            return replace(_key_of_meta(possible, dialect, columns), shown=dialect.text_of)
        case ComponentAmount(name) | ComponentPresent(name) | ScoreValue(name) if not can_be_there(name):
            return Key(Sql(dialect.no_text))
        case ExceedsRuntime(name, _, per) if not (can_be_there(name) and can_be_there(per or "")):
            return Key(Sql(dialect.no_text))
        case ComponentAmount(component):
            if component in AMOUNT_COLUMNS and columns is Columns.COMPLETE:
                return Key(Sql(AMOUNT_COLUMNS[component]), dialect.text_of)
            return Key(dialect.amounts_of(component), dialect.text_of, costly=True)
        case ComponentPresent(component) if component in AMOUNT_COLUMNS:
            # NULL only if the component is missing, also in incomplete records.
            forms: list[LiteralString] = [
                f"{AMOUNT_COLUMNS[form]} IS NULL"
                for form in dict.fromkeys((component, TOTALS.get(component, component)))
            ]
            return Key(Sql(f"CASE WHEN {' AND '.join(forms)} THEN 0 ELSE 1 END"), dialect.text_of)
        case ComponentPresent(component):
            present = dialect.lists(component, Comparison.GTE, 0)
            return Key(case(present, Sql("1"), Sql("0")), dialect.text_of, costly=True)
        case ExceedsRuntime():
            return _exceeds(dimension, dialect, columns)
        case ScoreValue(component):
            if columns is Columns.COMPLETE:  # read from the score set instead
                return Key(Sql("NULL"), dialect.text_of)
            found = dialect.first_scores(component)
            if (total := TOTALS.get(component)) is not None:
                of_total = dialect.first_scores(total)
                found = Sql(f"coalesce({found.sql}, {of_total.sql})", (*found.parameters, *of_total.parameters))
            return Key(found, dialect.text_of, costly=True)
        case CalendarPeriod(unit, field, zone):
            moment = Sql("start_time") if field is TimeField.START else stop
            changes = clock_changes(zone)
            return dialect.first_day(to_local_time(moment, changes, dialect) if changes else moment, unit)


def _key_of_meta(keys: tuple[str, ...], dialect: Dialect, columns: Columns) -> Key:
    """Return the first value under the first of the keys that a record has, from a column if that is complete."""
    complete: Mapping[str, LiteralString] = {}
    if columns is Columns.COMPLETE:
        keys = tuple([key for key in keys if key not in OLDER_KEYS])  # complete records have none of these
        complete = dialect.meta_columns
    elif keys in COLUMNS_OF_TWO_KEYS:
        return Key(Sql(COLUMNS_OF_TWO_KEYS[keys]))
    if not keys:
        return Key(Sql(dialect.no_text))
    if set(keys) <= complete.keys():
        names: list[LiteralString] = [complete[key] for key in keys]
        return Key(Sql(names[0] if len(names) == 1 else f"coalesce({', '.join(names)})"))
    found: Sql | None = None
    for key in reversed(keys):
        column = complete.get(key)
        value = dialect.first_value(key) if column is None else Sql(column)
        has = dialect.has_key(key) if column is None else Sql(f"{column} IS NOT NULL")
        found = value if found is None else case(has, value, found)
    return Key(found or Sql(dialect.no_text), costly=dialect.meta_is_long)


def _exceeds(dimension: ExceedsRuntime, dialect: Dialect, columns: Columns) -> Key:
    """Return 1 or 0 for complete records; for others, the numbers to be compared, separated by semicolons."""
    ran: LiteralString = f"({dialect.runtime_in_index or 'runtime'})"
    names = [dimension.component] if dimension.per is None else [dimension.component, dimension.per]
    total = TOTALS.get(dimension.per or "")
    if columns is not Columns.COMPLETE:
        numbers = [dialect.amounts_of(names[0]), Sql(ran), *map(dialect.amounts_of, names[1:])]
        texts = [Sql(dialect.text_of.format(number.sql), number.parameters) for number in numbers]
        found = join(" || ';' || ", texts)
        if total is not None:
            of_total = dialect.amounts_of(total)
            text = Sql(f"';' || {dialect.text_of.format(of_total.sql)}", of_total.parameters)
            of_total = join(" || ';' || ", [*texts[:2], text])
            found = Sql(f"coalesce({of_total.sql}, {found.sql})", (*of_total.parameters, *found.parameters))
        return Key(found, dialect.text_of, costly=True)
    amount, *per = [
        Sql(AMOUNT_COLUMNS[name]) if name in AMOUNT_COLUMNS else dialect.amount_of_one(name) for name in names
    ]
    # With an exponent, the factor is not an integer. The product of three integers may not fit 64 bits.
    times = join(" * ", [Sql(f"({ran} + 1.0E0)"), *per])
    if total is not None:
        # The product with zero makes it NULL for open records.
        times = Sql(f"coalesce({AMOUNT_COLUMNS[total]} + 1.0E0 + 0 * {ran}, {times.sql})", times.parameters)
    most = join(" * ", [Sql(literal(f"{dimension.factor:f}E0")), times])
    exceeds = join(" > ", [amount, most])
    return Key(case(exceeds, Sql("1"), Sql("0")), dialect.text_of, costly=not AMOUNT_COLUMNS.keys() >= set(names))


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
            date, moment = _date(scope.cells.zone_part, dialect), dialect.literal_day(day)
            conditions.append(Sql(f"{date.sql} {operator} {moment}", date.parameters))
    if not conditions:
        return cells
    where = join(" AND ", conditions)
    return Sql(f"SELECT * FROM ({cells.sql}) AS dated WHERE {where.sql}", (*cells.parameters, *where.parameters))  # noqa: S608 literals
