"""The SQL of SQLite: times are microseconds since 1970, meta and components are looked up in the document.

Overflow never makes a sum wrong. A query first runs with sums that are likely to fit 64 bits. If a sum does not fit,
``sum()`` raises. A product that does not fit silently becomes a floating point number, and so does every sum that
includes it; :func:`auditord.store.sqlite.store.take_rows` detects that. Then the query runs again with every number
split into parts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeAlias

from msgspec.structs import replace
from typing_extensions import override

from auditord.database.instants import to_micros
from auditord.store.aggregates import WHOLE, Limbs
from auditord.store.dialects import OPERATORS, TIMES, CellSum, Key, Sql, State, StoreDialect, join, quote_json, repeat
from auditord.store.rollups.cells import CORES_KEY
from auditord.store.rows import SMALL_AMOUNTS
from auditord.store.work import as_json
from auditord_hookspecs import AggregateQuery, CalendarUnit, RecordQuery, Window
from auditord_hookspecs.query import Leaf, SortField, TimeCompares, fold
from auditord_hookspecs.vocabulary import share_of

Pieces: TypeAlias = Sequence[tuple[LiteralString, int]]
"""A factor of a product, split into columns, each with the number of bits by which it is shifted."""


_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_.:/ -]*")
"""Keys that can be used in a JSON path. Paths have no escapes, so other keys are compared instead."""

_FIRST_DAYS: Final[dict[CalendarUnit, LiteralString]] = {
    CalendarUnit.MONTH: "strftime('%Y-%m-01', {0}, 'unixepoch')",
    CalendarUnit.QUARTER: "strftime('%Y-', {0}, 'unixepoch')"
    " || substr('01040710', (strftime('%m', {0}, 'unixepoch') - 1) / 3 * 2 + 1, 2) || '-01'",
    CalendarUnit.YEAR: "strftime('%Y-01-01', {0}, 'unixepoch')",
}

_TOO_LARGE: Final[LiteralString] = (
    "(others IS 2 OR runtime >= 2147483648"
    " OR max(ifnull(cores, 0), ifnull(gpu, 0), ifnull(total_cpu, 0)) * 1.0 * runtime >= 4e18)"
)
"""Condition for a version to be left out of cells: its products, or sums of a million such, might not fit 64 bits."""


def _sums(column: LiteralString, total: LiteralString | None = None, *, is_small: bool) -> Sequence[CellSum]:
    """Return the sums of an amount and of amount times runtime, the latter as multiples of 2^40 and a remainder.

    Args:
        column: the column of the amount.
        total: the column that replaces the product in other records.
        is_small: whether the product fits 64 bits, see ``_TOO_LARGE``. Otherwise the amount is multiplied in two parts.
    """
    if is_small:
        product: LiteralString = f"({column} * runtime)"
        high: LiteralString = f"({product} >> 40)"
        low: LiteralString = f"({product} & 1099511627775)"
    else:
        rest: LiteralString = f"(({column} & 1048575) * runtime)"
        product = f"(({column} >> 20) * runtime + ({rest} >> 20))"  # in units of 2^20
        high = f"({product} >> 20)"
        low = f"((({product} & 1048575) << 20) + ({rest} & 1048575))"
    value: LiteralString = column
    if total is not None:
        value, high = f"ifnull({column}, {total} * 0)", f"ifnull({high}, {total} >> 40)"
        low = f"ifnull({low}, {total} & 1099511627775)"
    lows: LiteralString = f"{{0}}.{column}_low + excluded.{column}_low"
    return (
        CellSum(column, f"counted * {value}", f"{{0}}.{column} + excluded.{column}"),
        CellSum(
            f"{column}_high",
            f"counted * {high}",
            f"{{0}}.{column}_high + excluded.{column}_high + (({lows}) >> 40)",
        ),
        CellSum(f"{column}_low", f"counted * {low}", f"(({lows}) & 1099511627775)"),
    )


@dataclass(frozen=True, slots=True)
class SqliteDialect(StoreDialect):
    """The SQL of SQLite.

    By default, sums are of plain integers, except that bytes and microseconds are multiplied in two parts (the last 20
    bits and the others). This is fast and suffices for ordinary amounts. Exact sums add up limbs of at most 32 bits,
    which suffices for two billion numbers of any size.
    """

    has_one_writer = True
    upserts_repeat = True
    schema = ""
    records = "records"
    feed = "records NOT INDEXED"  # only row numbers are used
    removals = "removals"
    labels = "document"
    text_parameter = "%s"
    empty_text = "''"
    joined_sets = " LEFT JOIN score_sets ON score_sets.score_set = counted.score_set"
    scores_of_set = "score_sets.scores"
    document = "CAST(document AS BLOB)"
    more = "more IS NOT NULL"
    no_more = "more IS NULL"
    # Without a limit, SQLite would flatten the subquery and compute each expression again at every use.
    sealed = " LIMIT -1"
    no_text = "NULL"
    no_number = "NULL"
    text_of = "{}"
    components = "json_each(document, '$.components') AS component"
    name = "json_extract(component.value, '$.name')"
    amount = "json_extract(component.value, '$.amount')"
    scores = "json_extract(component.value, '$.scores')"
    cell_sums = (
        CellSum("records", "ifnull(counted, 0)", "{0}.records + excluded.records"),
        CellSum("runtime", "ifnull(counted * runtime, 0)", "{0}.runtime + excluded.runtime"),
        CellSum("left_out", "CASE WHEN counted IS NULL THEN sign ELSE 0 END", "{0}.left_out + excluded.left_out"),
        *_sums("cores", "core_seconds", is_small=True),
        *_sums("memory", "memory_seconds", is_small=False),
        *_sums("gpu", "gpu_seconds", is_small=True),
        *_sums("total_cpu", is_small=True),
    )
    component_sums = (
        CellSum("records", "ifnull(counted, 0)", "{0}.records + excluded.records"),
        *[replace(each, value=f"ifnull({each.value}, 0)") for each in _sums("amount", is_small=False)],
    )
    counted = f"CASE WHEN {_TOO_LARGE} THEN NULL ELSE sign END"
    present = f"CASE WHEN {_TOO_LARGE} THEN 0 ELSE {{}} END"
    digest = None
    each_value = "json_each(label_values) AS label"
    # Division truncates toward zero, so days are counted from the year 1.
    day = "(({} + 62135596800000000) / 86400000000 - 719162)"
    first_of_month = "CAST(julianday(({}) * 86400, 'unixepoch', 'start of month') - 2440587.5 AS INTEGER)"
    earlier = "coalesce(min({0}, {1}), {0}, {1})"
    later = "coalesce(max({0}, {1}), {0}, {1})"
    name_or_none = "ifnull({0}, '') AS {0}"
    no_name = "''"
    by_no_position = "+{}"
    rolled_cells = (
        "SELECT (period + %s) * 86400000000 AS stop_time, nullif(site, '') AS site,"
        " nullif(user_group, '') AS user_group, nullif(user_name, '') AS user_name, labels AS document,"
        " nullif(score_set, 0) AS score_set, present, {0}"
        " FROM {1} WHERE level = %s AND {2}"
    )
    rolled_periods_of_users = (
        "period IN (SELECT value FROM json_each(%s)) AND user_name IN (SELECT value FROM json_each(%s))"
    )
    rolled_day = "(stop_time + coalesce(CAST({} AS INTEGER), 0) * 86400000000)"
    runtime_in_index = "(stop_time - start_time) / 1000000"  # no index covers the generated column
    # The answer streams from the index of its order, since sorting whole records costs more than skipping index entries
    # (0.1 µs each). If few records match, their row numbers are sorted: see other_times.
    other_index = "+"
    has_numbers = True
    meta_is_long = True

    @override
    def mentions(self, text: str) -> Sql:
        return Sql("instr(document, %s) > 0", (quote_json(text),))

    @override
    def amounts_of(self, component: str) -> Sql:
        """Return all amounts, separated by commas, since their sum might not fit 64 bits."""
        return Sql(f"(SELECT group_concat({self.amount}) FROM {self.components} WHERE {self.name} = %s)", (component,))  # noqa: S608 literals

    @override
    def first_scores(self, component: str) -> Sql:
        named: LiteralString = f"SELECT {self.scores} FROM {self.components} WHERE {self.name} = %s"  # noqa: S608 literals
        return Sql(f"({named} ORDER BY component.key LIMIT 1)", (component,))

    @override
    def has_key(self, key: str) -> Sql:
        if _PLAIN_KEY.fullmatch(key):
            return Sql("(json_type(document, %s) IS NOT NULL)", (f'$.meta."{key}"',))
        return Sql("EXISTS (SELECT 1 FROM json_each(document, '$.meta') AS meta WHERE meta.key = %s)", (key,))

    @override
    def first_value(self, key: str) -> Sql:
        if _PLAIN_KEY.fullmatch(key):
            return Sql("json_extract(document, %s)", (f'$.meta."{key}"[0]',))
        first: LiteralString = "SELECT json_extract(meta.value, '$[0]') FROM json_each(document, '$.meta') AS meta"
        return Sql(f"({first} WHERE meta.key = %s)", (key,))

    @override
    def contains(self, key: str, values: Sequence[str]) -> Sql:
        is_one_of = _is_one_of(values)
        likely = repeat("instr(document, %s) > 0", " OR ", len(values))
        return Sql(
            f"(({likely}) AND EXISTS (SELECT 1 FROM json_each(document, '$.meta') AS meta,"  # noqa: S608 literals only
            f" json_each(meta.value) AS entry WHERE meta.key = %s AND entry.value {is_one_of}))",
            (*map(quote_json, values), key, *values),
        )

    @override
    def one_of(self, column: LiteralString, values: Sequence[str]) -> Sql:
        return Sql(f"{column} {_is_one_of(values)}", tuple(values))

    @override
    def first_day(self, moment: Sql, unit: CalendarUnit) -> Key:
        # Division truncates toward zero, so days are counted from 0001-01-01, a Monday, 719,162 days before 1970.
        day = f"({moment.sql} + 62135596800000000) / 86400000000"
        if unit is CalendarUnit.DAY:  # days and weeks have one length, and numbers are faster to group by
            return Key(Sql(day, moment.parameters), "strftime('%Y-%m-%d', ({} - 719162) * 86400, 'unixepoch')")
        if unit is CalendarUnit.WEEK:
            week = f"({day}) / 7"
            return Key(Sql(week, moment.parameters), "strftime('%Y-%m-%d', ({} * 7 - 719162) * 86400, 'unixepoch')")
        seconds = f"({moment.sql} + 62135596800000000) / 1000000 - 62135596800"
        first_day = _FIRST_DAYS[unit]
        return Key(Sql(first_day.format(seconds), moment.parameters * first_day.count("{0}")))

    @override
    def states(self, query: AggregateQuery, where: Sql) -> Sequence[State]:
        finished = _state(query, Sql("stop_time"), [Sql("stop_time >= start_time"), where])
        if query.as_of is None:
            return [finished]
        as_of = self.literal_moment(query.as_of)
        opened = Sql(f"stop_time IS NULL AND start_time <= {as_of}")
        return [finished, _state(query, Sql(as_of), [opened, where])]

    @override
    def counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        columns, limbs = sum_of("ran", is_exact=self.is_exact)
        return ["count(*)", "min(stopped)", "max(stopped)", *columns], limbs

    @override
    def entries(self, key: str) -> tuple[Sql, Sql]:
        is_first: LiteralString = (
            "meta.key = %s AND NOT EXISTS (SELECT 1 FROM json_each(meta.value) AS earlier"
            " WHERE earlier.value = entry.value AND earlier.key < entry.key)"
        )
        values: LiteralString = "json_each(version.document, '$.meta') AS meta, json_each(meta.value) AS entry"
        return Sql(values), Sql(is_first, (key,))

    @override
    def label_values(self, keys: Mapping[str, str]) -> Sql:
        cores: LiteralString = "CASE WHEN cores IS NOT NULL THEN json_array(CAST(cores AS TEXT)) END"
        searched: LiteralString = (
            "json((SELECT meta.value FROM json_each(document, '$.meta') AS meta WHERE meta.key = %s))"
        )
        values: list[Sql] = []
        for number, key in keys.items():
            if key == CORES_KEY:
                values.append(Sql(f"%s, {cores}", (number,)))
            elif _PLAIN_KEY.fullmatch(key):
                values.append(Sql("%s, json_extract(document, %s)", (number, f'$.meta."{key}"')))
            else:
                values.append(Sql(f"%s, {searched}", (number, key)))
        members = join(", ", values)
        return Sql(f"json_object({members.sql})", members.parameters)

    @override
    def cell_labels(self, keys: Mapping[str, str], zone_part: str | None) -> Sql:
        """Return the labels of a cell, in the form of a document with meta."""
        key: LiteralString = "json_quote(json_extract(%s, '$.\"' || number || '\"'))"
        members = Sql(f"coalesce(',' || {key} || ':' || value, '')", (as_json(keys),))
        if zone_part is not None:
            ahead = "CASE ahead WHEN 0 THEN '' ELSE ',' || json_quote(%s) || ':[\"' || ahead || '\"]' END"
            members = join(" || ", [Sql(ahead, (zone_part,)), members])
        return Sql(f"'{{\"meta\":{{' || substr({members.sql}, 2) || '}}}}'", members.parameters)

    @override
    def cell_counts(self) -> tuple[Sequence[LiteralString], Limbs]:
        runtimes, limbs = sum_of("runtime", is_exact=self.is_exact)
        stops: Sequence[LiteralString] = ["min(first_stop)", "max(last_stop)", "min(first_gone)", "max(last_gone)"]
        return ["sum(records)", *stops, "sum(left_out)", *runtimes], limbs

    @override
    def cell_usage(self, column: LiteralString) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        amounts, limbs = sum_of(column, is_exact=self.is_exact)
        highs, high_limbs = sum_of(f"{column}_high", is_exact=self.is_exact)
        lows, low_limbs = sum_of(f"{column}_low", is_exact=self.is_exact)
        return [*amounts, *highs, *lows], limbs, (*[40 + limb for limb in high_limbs], *low_limbs)

    @override
    def usage(self, amount: LiteralString, component: str) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        amounts, amount_limbs = sum_of(amount, is_exact=self.is_exact)
        if self.is_exact:
            products, product_limbs = split_product_sum(amount, "ran")
        else:
            runtime = pieces("ran") if self.windowed else whole("ran")  # seconds, or microseconds of a window
            products, product_limbs = product_sum(
                whole(amount) if component in SMALL_AMOUNTS else pieces(amount), runtime
            )
        return [*amounts, *products], amount_limbs, product_limbs

    @override
    def total(self, total: LiteralString, window: Window | None) -> tuple[Sequence[LiteralString], Limbs, Limbs]:
        if window is None:
            columns, limbs = sum_of(total, is_exact=self.is_exact)
            return columns, limbs, ()
        first, end = self.literal_moment(window.start), self.literal_moment(window.stop)
        crosses: LiteralString = f"(started < {first} OR stopped > {end})"
        columns, limbs = sum_of(f"CASE WHEN NOT {crosses} THEN {total} END", is_exact=self.is_exact)
        shares: LiteralString = f"sum_of_shares({total}, started, stopped, {first}, {end})"
        return [*columns, f"{shares} FILTER (WHERE {crosses} AND {total} IS NOT NULL)"], limbs, WHOLE


def other_times(query: RecordQuery) -> Sql | None:
    """Return the required conditions on times; None if there are none, or the order is by one of these or runtime."""
    order = query.order.field
    compared = fold(query.where, _list_times, _concatenate, lambda _: [])
    if order is SortField.RUNTIME or not compared or any(TIMES[each.field][1] is order for each in compared):
        return None
    dialect = SqliteDialect()
    conditions = [
        Sql(f"{TIMES[each.field][0]} {OPERATORS[each.comparison]} %s", (dialect.moment(each.moment),))
        for each in compared
    ]
    return join(" AND ", conditions)


def perhaps_of(users: Sequence[str]) -> Sql:
    """Return the condition that a record is of one of the users or has incomplete columns, by a scan of an index."""
    among: LiteralString = f"more IS NOT NULL OR user_name {_is_one_of(users)}"
    return Sql(f"position IN (SELECT position FROM records INDEXED BY records_by_stop WHERE {among})", tuple(users))  # noqa: S608 literals


def _list_times(leaf: Leaf) -> Sequence[TimeCompares]:
    return [leaf] if isinstance(leaf, TimeCompares) else []


def _concatenate(parts: Sequence[Sequence[TimeCompares]]) -> Sequence[TimeCompares]:
    return [each for part in parts for each in part]


class SumOfShares:
    """The function ``sum_of_shares`` of SQLite. Its products have more than 64 bits, so it returns a text."""

    def __init__(self) -> None:
        self._sum: int | None = None

    def step(self, *numbers: int) -> None:
        """Add the share of one record, given the arguments of :func:`share_of`."""
        self._sum = (self._sum or 0) + share_of(*numbers)

    def finalize(self) -> Any:  # Any: a text or None; mypy's stubs know only integers
        """Return the sum, or NULL without records."""
        return None if self._sum is None else str(self._sum)


def _is_one_of(values: Sequence[str]) -> LiteralString:
    return "= %s" if len(values) == 1 else f"IN ({repeat('%s', ', ', len(values))})"


def _state(query: AggregateQuery, stop: Sql, conditions: Sequence[Sql]) -> State:
    if query.window is None:
        runtime = Sql(f"({stop.sql} - start_time) / 1000000", stop.parameters)
        return State(stop, runtime, conditions, costly=False)
    begin, end = to_micros(query.window.start), to_micros(query.window.stop)
    runtime = Sql(f"min({stop.sql}, %s) - max(start_time, %s)", (*stop.parameters, end, begin))
    # The plus sign keeps SQLite from using the index on start times: few jobs are long, so fewer records
    # stopped after the window's begin than started before its end.
    overlaps = Sql(
        f"{stop.sql} >= %s AND +start_time < %s AND ({stop.sql} > %s OR +start_time >= %s)",
        (*stop.parameters, begin, end, *stop.parameters, begin, begin),
    )
    return State(stop, runtime, [overlaps, *conditions], costly=True)


def sum_of(number: LiteralString, *, is_exact: bool) -> tuple[Sequence[LiteralString], Limbs]:
    """Return the columns that sum up non-negative whole numbers, and their limbs."""
    return (_split(number), (31, 0)) if is_exact else ([f"sum({number})"], WHOLE)


def whole(number: LiteralString) -> Pieces:
    """Return a column as a single piece."""
    return ((number, 0),)


def pieces(number: LiteralString) -> Pieces:
    """Split a column into its last 20 bits and all higher bits.

    If both factors are split, a sum holds 500,000 products of up to 4 TB and 50 days in microseconds.
    """
    return ((f"({number} >> 20)", 20), (f"({number} & 1048575)", 0))


def product_sum(amount: Pieces, runtime: Pieces) -> tuple[Sequence[LiteralString], Limbs]:
    """Return the columns that sum up the product of both, and their limbs."""
    products = [(left, right) for left in amount for right in runtime]
    columns: list[LiteralString] = [f"sum({left} * {right})" for (left, _), (right, _) in products]
    return columns, tuple([shift + other for (_, shift), (_, other) in products])


def split_product_sum(amount: LiteralString, runtime: LiteralString) -> tuple[Sequence[LiteralString], Limbs]:
    """Return the columns that sum up the product of an amount of up to 63 bits and any runtime, and their limbs.

    Runtimes have at most 59 bits (microseconds between the years 1 and 9999), and products of halves 62 bits. These
    are split once more, so that each summand has at most 32 bits.
    """
    halves: tuple[tuple[LiteralString, int], ...] = (
        (f"({amount} >> 31) * ({runtime} >> 30)", 61),
        (f"({amount} >> 31) * ({runtime} & 1073741823)", 31),
        (f"({amount} & 2147483647) * ({runtime} >> 30)", 30),
        (f"({amount} & 2147483647) * ({runtime} & 1073741823)", 0),
    )
    columns: list[LiteralString] = [column for product, _ in halves for column in _split(product)]
    return columns, tuple([limb for _, shift in halves for limb in (shift + 31, shift)])


def _split(number: LiteralString) -> list[LiteralString]:
    return [f"sum(({number}) >> 31)", f"sum(({number}) & 2147483647)"]
