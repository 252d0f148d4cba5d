"""The statement of an aggregate, as far as it is the same in the SQL of every database.

One statement, so that all is answered from one state of the records, has these parts, of finished records and of open
ones each: those whose columns are complete, as nearly all are, which are read as if there were no others; the others;
and of these, for each component, what their documents list. Its rows are what :mod:`auditord.store.aggregates` puts
together.

Each part is a query in three steps. The innermost names what is read of a record (``key0``, ``amount0``, ``ran``,
``stopped``), the next groups and sums, and the outermost shows once per group what groups are shown by.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from auditord.store.aggregates import Limbs, Part
from auditord.store.conditions import can_be_there, compile_condition
from auditord.store.dialects import Dialect, Key, State
from auditord.store.dimensions import compile_dimension, key_of_amount
from auditord.store.rollups.cells import OF_A_KEY, WITHOUT_CPU_TIME, Level
from auditord.store.rollups.deltas import CORES_KEY, LOW_BITS, RECORD
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.segments import Segment
from auditord.store.rollups.split_days import first_moment
from auditord.store.rollups.zone_keys import zone_of_key
from auditord.store.rows import AMOUNT_COLUMNS
from auditord.store.sql import Columns, Sql, join, literal, repeated
from auditord.store.work import as_json
from auditord_hookspecs import AggregateQuery, CalendarPeriod, ComponentAmount, ComponentPresent, Dimension, ScoreValue


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """A statement, and what its rows are."""

    statement: Sql
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """The input of one part.

    Args:
        rows: the tables, and the condition on them.
        state: of the records.
        columns: whether they are complete.
        amounts: columns, by their positions in the query's ``usage``.
        scores: of the one component that is listed from documents; None for a part that reads records.
        is_rolled: whether it reads roll-ups; the amounts then tell the components apart.
        local: the zone whose days the roll-ups tell apart, and an instant of its day as if it were one of UTC.
    """

    rows: Sql
    state: State
    columns: Columns
    amounts: Mapping[int, Sql]
    scores: LiteralString | None = None
    is_rolled: bool = False
    local: tuple[str, Sql] | None = None


@dataclass(frozen=True, slots=True)
class _Shown:
    """The columns of a part beside its keys: its number, and its sums in so many columns as the widest part has."""

    part: int
    sums: Sequence[LiteralString]
    width: int


_DAYS: Final = {Level.DAY_AND_USER, Level.DAY}

_MOST_DAYS: Final = 1_000
"""Days up to which the cells of some users are looked up one by one, instead of passing over those of all users."""

_ROLLED: Final = (
    "component, records, amount, runtime_high, runtime_low, first_stop, last_stop, gone_first, gone_last, left_out"
)


def compile_aggregate(query: AggregateQuery, dialect: Dialect, scope: Scope | None = None) -> CompiledAggregate:
    """One statement for the whole query; what is in the scope is read from roll-ups."""
    sources = list(_sources(query, dialect, scope))
    sums = [_sums(query, source, dialect) for source in sources]
    width = max(len(columns) for _, columns in sums)
    statements = [
        _shown(query, source, dialect, _Shown(number, columns, width))
        for number, (source, (_, columns)) in enumerate(zip(sources, sums, strict=True))
    ]
    return CompiledAggregate(join(" UNION ALL ", statements), tuple([part for part, _ in sums]))


def _sources(query: AggregateQuery, dialect: Dialect, scope: Scope | None) -> Iterator[_Source]:
    if scope is not None:
        yield _rolled_source(scope, dialect)
    for state in _complete_states(query, dialect, scope):
        rows = _rows(dialect.records, [state.condition, Sql(dialect.no_more)])
        yield _Source(rows, state, Columns.COMPLETE, dict(_amounts(query, dialect)))
    states = _states(query, dialect, Columns.INCOMPLETE)
    for state in states:
        rows = _rows(dialect.records, [state.condition, Sql(dialect.more)])
        yield _Source(rows, state, Columns.INCOMPLETE, {})
    for at, usage in enumerate(query.usage):
        if can_be_there(usage.component):
            scores: LiteralString = dialect.scores if usage.scores else "'[]'"
            likely = dialect.mentions(usage.component)
            named = Sql(f"{dialect.name} = %s", (usage.component,))
            for state in states:
                conditions = [state.condition, Sql(dialect.more), likely, named]
                rows = _rows(f"{dialect.records}, {dialect.components}", conditions)
                yield _Source(rows, state, Columns.INCOMPLETE, {at: Sql(dialect.amount)}, scores)


def _complete_states(query: AggregateQuery, dialect: Dialect, scope: Scope | None) -> Iterator[State]:
    """The records whose columns are complete, as far as roll-ups do not answer for them."""
    finished, *opened = _states(query, dialect, Columns.COMPLETE)
    if scope is None:
        yield finished
    else:
        for edge in scope.edges():
            yield _states(edge, dialect, Columns.COMPLETE)[0]
    yield from opened


def _rolled_source(scope: Scope, dialect: Dialect) -> _Source:
    query = scope.query
    cells = [_of_dates(_cells(each, scope.users(), dialect), each, scope, dialect) for each in scope.segments()]
    changes = dialect.rolled_changes if scope.key is None else dialect.rolled_changes_of_key
    tables = join(" UNION ALL ", [*cells, Sql(changes, (scope.begin, scope.end))])
    components = (RECORD, *[usage.component for usage in query.usage if can_be_there(usage.component)])
    named = Sql(f"component IN ({repeated('%s', ', ', len(components))})", components)
    conditions = [named, compile_condition(scope.rest, dialect, Columns.COMPLETE)]
    split: list[LiteralString] = [dialect.literal_moment(first_moment(day)) for day in scope.split_days()]
    if split:
        conditions.append(Sql(f"stop_time NOT IN ({', '.join(split)})"))
    where = join(" AND ", conditions)
    rows = Sql(f"({tables.sql}) AS rolled WHERE {where.sql}", (*tables.parameters, *where.parameters))
    state = State(Sql("stop_time"), Sql("NULL"), where, costly=False)
    is_of = {
        at: Sql("component = %s", (usage.component,))
        for at, usage in enumerate(query.usage)
        if can_be_there(usage.component)
    }
    return _Source(rows, state, Columns.COMPLETE, is_of, is_rolled=True, local=_local(scope, dialect))


def _local(scope: Scope, dialect: Dialect) -> tuple[str, Sql] | None:
    if scope.key is None or (zone := zone_of_key(scope.key.key)) is None:
        return None
    return zone, _date(scope.key.parts[0], dialect)


def _date(of_zone: str, dialect: Dialect) -> Sql:
    """The begin of the date of a cell as if it were one of UTC."""
    days = dialect.first_value(of_zone)
    return Sql(dialect.rolled_day.format(days.sql), days.parameters)


def _of_dates(cells: Sql, segment: Segment, scope: Scope, dialect: Dialect) -> Sql:
    """The cells of the dates of a segment."""
    if scope.key is None or scope.key.of_zone is None:
        return cells
    date, conditions = _date(scope.key.of_zone, dialect), list[Sql]()
    if segment.first_date is not None:
        first = dialect.literal_moment(first_moment(segment.first_date))
        conditions.append(Sql(f"{date.sql} >= {first}", date.parameters))
    if segment.end_date is not None:
        end = dialect.literal_moment(first_moment(segment.end_date))
        conditions.append(Sql(f"{date.sql} < {end}", date.parameters))
    if not conditions:
        return cells
    where = join(" AND ", conditions)
    return Sql(f"SELECT * FROM ({cells.sql}) AS dated WHERE {where.sql}", (*cells.parameters, *where.parameters))  # noqa: S608 literals


def _cells(segment: Segment, users: Sequence[str] | None, dialect: Dialect) -> Sql:
    without = segment.level + WITHOUT_CPU_TIME
    # The date of a zone, if one is told apart, may be a day before or behind the time: all are in the period.
    levels = (0 if segment.level % OF_A_KEY in _DAYS else 1, without, segment.level, without)
    if users is None or segment.level != Level.DAY_AND_USER or segment.end - segment.begin > _MOST_DAYS:
        return Sql(dialect.rolled_cells, (*levels, segment.begin, segment.end))
    days = as_json(list(range(segment.begin, segment.end)))
    return Sql(dialect.rolled_cells_of_users, (*levels, days, as_json([each for each in users if can_be_there(each)])))


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


def _sums(query: AggregateQuery, source: _Source, dialect: Dialect) -> tuple[Part, list[LiteralString]]:
    if source.is_rolled:
        return _rolled_sums(source, dialect)
    columns: list[LiteralString] = []
    runtime: Limbs | None = None
    if source.scores is None:
        counts, runtime = dialect.counts()
        columns.extend(counts)
    usage: list[tuple[int, Limbs, Limbs]] = []
    for at in source.amounts:
        sums, amount, product = dialect.usage(_name("amount", at), query.usage[at].component)
        columns.extend(sums)
        usage.append((at, amount, product))
    return Part(runtime, tuple(usage)), columns


def _rolled_sums(source: _Source, dialect: Dialect) -> tuple[Part, list[LiteralString]]:
    of_records: LiteralString = "component = ''"
    products, runtime = _rolled_products(of_records, dialect)
    stops: list[LiteralString] = ["min(first_stop)", "max(last_stop)", "min(gone_first)", "max(gone_last)"]
    records: LiteralString = f"sum(CASE WHEN {of_records} THEN records END)"
    columns: list[LiteralString] = [records, *stops, "sum(left_out)", *products]
    usage: list[tuple[int, Limbs, Limbs]] = []
    for at in source.amounts:
        is_of = _name("amount", at)
        amounts, limbs = dialect.rolled_sum(f"CASE WHEN {is_of} THEN amount END")
        products, product_limbs = _rolled_products(is_of, dialect)
        is_there = f"sum(CASE WHEN {is_of} THEN records END) > 0"
        columns.extend([f"CASE WHEN {is_there} THEN {column} END" for column in (*amounts, *products)])
        usage.append((at, limbs, product_limbs))
    return Part(runtime, tuple(usage), is_rolled=True), columns


def _rolled_products(of: LiteralString, dialect: Dialect) -> tuple[Sequence[LiteralString], Limbs]:
    highs, limbs = dialect.rolled_sum(f"CASE WHEN {of} THEN runtime_high END")
    lows, low_limbs = dialect.rolled_sum(f"CASE WHEN {of} THEN runtime_low END")
    return [*highs, *lows], (*[LOW_BITS + limb for limb in limbs], *low_limbs)


def _shown(query: AggregateQuery, source: _Source, dialect: Dialect, shown: _Shown) -> Sql:
    """The statement of one part: its groups as they are shown."""
    keys = [_key(by, query, source, dialect) for by in query.by]
    by_set = _needs_score_sets(query) and source.columns is Columns.COMPLETE
    grouped = _grouped(source, keys, shown.sums, dialect, by_set=by_set)
    columns: list[LiteralString] = [
        _name("", shown.part),
        *[key.shown.format(_name("key", at)) for at, key in enumerate(keys)],
        dialect.scores_of_set if by_set else dialect.no_text,
        dialect.no_text if source.scores is None else "scores",
        *[_name("sum", at) if at < len(shown.sums) else dialect.no_number for at in range(shown.width)],
    ]
    sets = dialect.joined_sets if by_set else ""
    return Sql(f"SELECT {', '.join(columns)} FROM ({grouped.sql}) AS counted{sets}", grouped.parameters)  # noqa: S608 literals


def _grouped(
    source: _Source, keys: Sequence[Key], sums: Sequence[LiteralString], dialect: Dialect, *, by_set: bool
) -> Sql:
    """The sums of one part."""
    by_text = source.scores is not None
    names: list[LiteralString] = [_name("key", at) for at in range(len(keys))]
    groups: list[LiteralString] = [*names, *(["score_set"] if by_set else []), *(["scores"] if by_text else [])]
    columns: list[LiteralString] = [
        *[f"{key.over_amounts} AS {name}" if key.over_amounts else name for key, name in zip(keys, names, strict=True)],
        *groups[len(names) :],
        *[f"{column} AS {_name('sum', at)}" for at, column in enumerate(sums)],
    ]
    read = _read(source, keys, dialect, by_set=by_set)
    # Queries name what is coarse first. Where rows are sorted, the first column that differs ends a comparison.
    finest_first = [*range(len(names), 0, -1), *range(len(names) + 1, len(groups) + 1)]
    places: list[LiteralString] = [literal(str(place)) for place in finest_first]
    grouping = f" GROUP BY {', '.join(places)}" if places else ""
    return Sql(f"SELECT {', '.join(columns)} FROM ({read.sql}) AS read{grouping}", read.parameters)  # noqa: S608 literals


def _read(source: _Source, keys: Sequence[Key], dialect: Dialect, *, by_set: bool) -> Sql:
    """The columns that one part reads of each record."""
    measured = [_named(source.state.runtime, "ran"), _named(source.state.stop, "stopped")]
    columns = [
        *[_named(key.column, _name("key", at)) for at, key in enumerate(keys) if not key.over_amounts],
        *([Sql("score_set")] if by_set else []),
        *([] if source.scores is None else [Sql(f"{source.scores} AS scores")]),
        *([Sql(_ROLLED)] if source.is_rolled else measured),
        *[_named(amount, _name("amount", at)) for at, amount in source.amounts.items()],
    ]
    selected = join(" FROM ", [join(", ", columns), source.rows])
    looked_up = source.scores is not None or any(amount.parameters for amount in source.amounts.values())
    looked_up = looked_up and not source.is_rolled
    costly = looked_up or source.state.costly or any(key.costly for key in keys)
    return Sql(f"SELECT {selected.sql}{dialect.sealed if costly else ''}", selected.parameters)


def _key(dimension: Dimension, query: AggregateQuery, source: _Source, dialect: Dialect) -> Key:
    if isinstance(dimension, ComponentPresent) and source.is_rolled:
        return Key(Sql("has_cpu_time"), dialect.text_of)
    if isinstance(dimension, CalendarPeriod) and source.local is not None and source.local[0] == dimension.zone:
        return dialect.first_day(source.local[1], dimension.unit)
    if isinstance(dimension, ComponentAmount) and source.is_rolled:
        return Key(dialect.first_value(CORES_KEY), costly=dialect.meta_is_long)
    if isinstance(dimension, ComponentAmount | ComponentPresent) and source.columns is Columns.COMPLETE:
        for at in source.amounts:
            if query.usage[at].component == dimension.component:
                return key_of_amount(dimension, _name("amount", at), dialect)
    return compile_dimension(dimension, source.state.stop, dialect, source.columns)


def _needs_score_sets(query: AggregateQuery) -> bool:
    return any(usage.scores for usage in query.usage) or any(isinstance(by, ScoreValue) for by in query.by)


def _named(column: Sql, name: LiteralString) -> Sql:
    return Sql(f"{column.sql} AS {name}", column.parameters)


def _name(what: LiteralString, number: int) -> LiteralString:
    return what + literal(str(number))
