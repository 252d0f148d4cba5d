"""Aggregates compiled to SQLite's SQL: sums of 64-bit integers over the index on stop times, as far as it tells.

No sum is ever wrong by overflow. A query is asked with plain sums first. If one does not fit 64 bits, SQLite raises, or
gives a floating point number, which :func:`take_rows` notices; the query is asked again with every number split
(:mod:`auditord.store.sqlite.sums`). :mod:`auditord.store.aggregates` puts them together in numbers of any size.

One statement, so that all is answered from one state of the records, has these parts: finished records and open ones,
each as far as columns tell; then, for each component, finished and open records whose amounts only documents tell.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from auditord.store.aggregates import Limbs, Part, Row
from auditord.store.rows import to_micros
from auditord.store.sqlite.compiler import AMOUNT_COLUMNS, Compiled, Parameter, compile_condition, encoded
from auditord.store.sqlite.dimensions import compile_dimension
from auditord.store.sqlite.sums import Arithmetic, Overflow, product_sum, sum_of
from auditord_hookspecs import AggregateQuery, ScoreValue

_ROWS_AT_ONCE: Final = 1_000

_DIGITS: Final[tuple[LiteralString, ...]] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")

_SCORES_OF_SET: Final = "(SELECT score_sets.scores FROM score_sets WHERE score_sets.score_set = counted.score_set)"


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """A statement, and what its rows are."""

    statement: Compiled
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What one part reads.

    Args:
        rows: the tables, and the condition on them.
        stop: the stop time: a column, or the instant at which open records count as stopped.
        amounts: columns, by their positions in the query's ``usage``.
        scores: of the one component that is read from documents, as text.
        counts: whether records and runtimes are summed up, too.
    """

    rows: Compiled
    stop: Compiled
    amounts: tuple[tuple[int, LiteralString], ...]
    scores: LiteralString | None
    counts: bool


def compile_aggregate(query: AggregateQuery, arithmetic: Arithmetic) -> CompiledAggregate:
    """One statement for the whole query."""
    sources = list(_sources(query))
    sums = [_sums(source, arithmetic) for source in sources]
    width = max(len(columns) for _, columns in sums)
    statements = [
        _select(query, source, _name("", number), _padded(columns, width))
        for number, (source, (_, columns)) in enumerate(zip(sources, sums, strict=True))
    ]
    sql = " UNION ALL ".join([statement.sql for statement in statements])
    return CompiledAggregate(Compiled(sql, _parameters(statements)), tuple([part for part, _ in sums]))


def take_rows(cursor: sqlite3.Cursor) -> list[Row]:
    """The next rows of a statement.

    Raises:
        Overflow: a sum did not fit.
    """
    rows: list[Row] = cursor.fetchmany(_ROWS_AT_ONCE)
    if any(isinstance(value, float) for row in rows for value in row):
        raise Overflow
    return rows


def _sources(query: AggregateQuery) -> Iterator[_Source]:
    amounts = tuple(_amounts_in_columns(query))
    for stop, condition in _states(query):
        yield _Source(
            Compiled(f"records WHERE {condition.sql}", condition.parameters), stop, amounts, None, counts=True
        )
    for at in range(len(query.usage)):
        for stop, condition in _states(query):
            yield _component_source(query, at, stop, condition)


def _amounts_in_columns(query: AggregateQuery) -> Iterator[tuple[int, LiteralString]]:
    for at, usage in enumerate(query.usage):
        if usage.component in AMOUNT_COLUMNS:
            yield at, _unless_more(AMOUNT_COLUMNS[usage.component])


def _component_source(query: AggregateQuery, at: int, stop: Compiled, condition: Compiled) -> _Source:
    component, scores = query.usage[at].component, query.usage[at].scores
    likely = Compiled("instr(document, ?) > 0", (encoded(component),))
    if component in AMOUNT_COLUMNS:
        likely = Compiled("more IS NOT NULL")
    named = Compiled("json_extract(component.value, '$.name') = ?", (component,))
    every = _all_of([condition, likely, named])
    rows = Compiled(f"records, json_each(document, '$.components') AS component WHERE {every.sql}", every.parameters)
    text: LiteralString = "json_extract(component.value, '$.scores')" if scores else "'[]'"
    return _Source(rows, stop, ((at, "json_extract(component.value, '$.amount')"),), text, counts=False)


def _states(query: AggregateQuery) -> Iterator[tuple[Compiled, Compiled]]:
    """Stop times and conditions of finished records, then of open ones if they count."""
    where = compile_condition(query.where)
    stop = Compiled("stop_time")
    yield stop, _all_of([Compiled("stop_time >= start_time"), *_in_window(query, stop), where])
    if query.as_of is not None:
        stop = Compiled("?", (to_micros(query.as_of),))
        started = Compiled("stop_time IS NULL AND start_time <= ?", stop.parameters)
        yield stop, _all_of([started, *_in_window(query, stop), where])


def _in_window(query: AggregateQuery, stop: Compiled) -> list[Compiled]:
    if query.window is None:
        return []
    begin, end = to_micros(query.window.start), to_micros(query.window.stop)
    return [
        Compiled(f"{stop.sql} >= ?", (*stop.parameters, begin)),
        # The plus sign keeps this away from the index on start times: few jobs are long, so what stopped after the
        # window's begin is nearer to what is asked for than all that started before its end.
        Compiled(f"+start_time < ? AND ({stop.sql} > ? OR +start_time >= ?)", (end, *stop.parameters, begin, begin)),
    ]


def _select(query: AggregateQuery, source: _Source, part: LiteralString, sums: Sequence[LiteralString]) -> Compiled:
    """The statement of one part: sums over a subquery whose columns have names.

    ``LIMIT -1`` keeps SQLite from putting the subquery's expressions into the outer query, where each would be computed
    as often as it is used.
    """
    keys: list[LiteralString] = [_name("key", at) for at in range(len(query.by))]
    by_set: list[LiteralString] = ["score_set"] if _needs_score_sets(query) else []
    by_text: list[LiteralString] = ["scores"] if source.scores is not None else []
    scores: list[LiteralString] = [_SCORES_OF_SET if by_set else "NULL", "scores" if by_text else "NULL"]
    columns, groups = _listed([part], keys, scores, sums), _listed(keys, by_set, by_text)
    grouping = f" GROUP BY {groups}" if groups else ""
    inner = _inner(query, source)
    return Compiled(f"SELECT {columns} FROM ({inner.sql} LIMIT -1) AS counted{grouping}", inner.parameters)  # noqa: S608 literals


def _inner(query: AggregateQuery, source: _Source) -> Compiled:
    columns = [
        *[_named(compile_dimension(by, source.stop), _name("key", at)) for at, by in enumerate(query.by)],
        Compiled(f"{_unless_more('score_set')} AS score_set, {source.scores or 'NULL'} AS scores"),
        _named(_runtime(query, source.stop), "ran"),
        _named(source.stop, "stopped"),
        *[Compiled(f"{amount} AS {_name('amount', at)}") for at, amount in source.amounts],
    ]
    selected = ", ".join([column.sql for column in columns])
    return Compiled(f"SELECT {selected} FROM {source.rows.sql}", _parameters([*columns, source.rows]))  # noqa: S608 same


def _runtime(query: AggregateQuery, stop: Compiled) -> Compiled:
    if query.window is None:
        return Compiled(f"({stop.sql} - start_time) / 1000000", stop.parameters)
    begin, end = to_micros(query.window.start), to_micros(query.window.stop)
    return Compiled(f"min({stop.sql}, ?) - max(start_time, ?)", (*stop.parameters, end, begin))


def _sums(source: _Source, arithmetic: Arithmetic) -> tuple[Part, list[LiteralString]]:
    columns: list[LiteralString] = []
    runtime: Limbs | None = None
    if source.counts:
        sql, runtime = sum_of("ran", arithmetic)
        columns.extend(("count(*)", "min(stopped)", "max(stopped)"))
        columns.extend(sql)
    usage: list[tuple[int, Limbs, Limbs]] = []
    for at, _ in source.amounts:
        amounts, products = sum_of(_name("amount", at), arithmetic), product_sum(_name("amount", at), "ran", arithmetic)
        columns.extend(amounts[0])
        columns.extend(products[0])
        usage.append((at, amounts[1], products[1]))
    return Part(runtime, tuple(usage)), columns


def _listed(*columns: Sequence[LiteralString]) -> LiteralString:
    return ", ".join([column for some in columns for column in some])


def _padded(columns: Sequence[LiteralString], width: int) -> list[LiteralString]:
    missing: list[LiteralString] = ["NULL"] * (width - len(columns))
    return [*columns, *missing]


def _needs_score_sets(query: AggregateQuery) -> bool:
    return any(usage.scores for usage in query.usage) or any(isinstance(by, ScoreValue) for by in query.by)


def _unless_more(column: LiteralString) -> LiteralString:
    return f"CASE WHEN more IS NULL THEN {column} END"


def _named(column: Compiled, name: LiteralString) -> Compiled:
    return Compiled(f"{column.sql} AS {name}", column.parameters)


def _all_of(conditions: Sequence[Compiled]) -> Compiled:
    return Compiled(" AND ".join([condition.sql for condition in conditions]), _parameters(conditions))


def _parameters(pieces: Sequence[Compiled]) -> tuple[Parameter, ...]:
    return tuple([parameter for piece in pieces for parameter in piece.parameters])


def _name(what: LiteralString, number: int) -> LiteralString:
    return what + "".join([_DIGITS[int(digit)] for digit in str(number)])
