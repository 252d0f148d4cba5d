"""Fold slices of the feed into cells, by statements that read no record into the daemon.

Folding groups the versions of a slice by everything that cells distinguish, and adds their sums to the cells of days
and months. Cells only contain versions whose columns are complete (``more`` is not set) and that do not stop before
they start. Aggregates read the few others from the records.

After versions have been removed, a cell no longer knows its earliest and latest stop time. So it stores the first and
last stop time of removed versions, unless the same slice adds a version that stops as early or as late.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Final, LiteralString

from auditord.store.columns import AMOUNT_COLUMNS
from auditord.store.counting import PREFIX, count_slice
from auditord.store.dialects import CellSum, Sql, StoreDialect, join, literal, to_local_time
from auditord.store.feed import (
    Slice,
    clear_removals,
    end_of_slice,
    last_version,
    lock_consumers,
    move_consumers,
    of_slice,
    versions_between,
)
from auditord.store.rollups.cells import LEVELS_PER_SET, PRESENCE, CellSet, Level, is_of_zone, list_sets, zone_of_key
from auditord.store.work import Work, ask, execute
from auditord_hookspecs.zones import clock_changes

_SETS_AT_ONCE: Final = 50
"""The maximum number of sets in one statement. A function of PostgreSQL takes at most 100 arguments, two for each."""

_DIMENSIONS: Final[Sequence[LiteralString]] = ("user_name", "site", "user_group", "labels")

_FIRST: Final[LiteralString] = "min(CASE WHEN sign {} 0 THEN stop_time END)"
_LAST: Final[LiteralString] = "max(CASE WHEN sign {} 0 THEN stop_time END)"

_ENDS: Final[Mapping[LiteralString, LiteralString]] = {
    "first_stop": _FIRST.format(">"),
    "last_stop": _LAST.format(">"),
    "first_gone": f"CASE WHEN {_FIRST.format('>')} <= {_FIRST.format('<')} THEN NULL ELSE {_FIRST.format('<')} END",
    "last_gone": f"CASE WHEN {_LAST.format('>')} >= {_LAST.format('<')} THEN NULL ELSE {_LAST.format('<')} END",
}

_PRESENT: Final[Mapping[LiteralString, LiteralString]] = {
    "coalesce(cores, core_seconds)": PRESENCE["Cores"],
    "coalesce(memory, memory_seconds)": PRESENCE["Memory"],
    "coalesce(gpu, gpu_seconds)": PRESENCE["GPU"],
    "total_cpu": PRESENCE["TotalCPU"],
}
"""The bit of the column ``present`` that each amount sets."""


def replace_sets(set_keys: Sequence[str], released_to: int) -> Work[bool]:
    """Add and drop sets of cells so that exactly these set keys have one. Return whether anything changed.

    Args:
        set_keys: in any order.
        released_to: the day after the last released record. The feed lacks some records of earlier days.
    """
    sets = yield from list_sets()
    unwanted = [each for each in sets if each.key is not None and each.key not in set_keys]
    for each in unwanted:  # first, since this waits for other processes that fold
        yield from ask("forget_consumer", name=each.consumer)
    for each in unwanted:
        yield from _drop_cells(each)
        yield from ask("forget_rolled_key", number=each.number)
    numbers = {each.number for each in sets if each not in unwanted}
    new = [key for key in dict.fromkeys(set_keys) if key not in {each.key for each in sets}]
    for key in new:
        number = min(set(range(1, len(numbers) + 2)) - numbers)
        numbers.add(number)
        yield from ask("add_rolled_key", number=number, meta_key=key, filled_from=released_to)
        yield from ask("add_consumer", name=CellSet(number, key).consumer, position=0)
    return bool(unwanted or new)


def start_over(released_to: int) -> Work[None]:
    """Drop all cells, so that they are folded again from the feed."""
    sets = yield from list_sets()
    for each in sets:  # first, since this waits for other processes that fold
        yield from ask("forget_consumer", name=each.consumer)
    for each in sets:
        yield from _drop_cells(each)
        yield from ask("add_consumer", name=each.consumer, position=0)
    yield from ask("set_filled_from", filled_from=released_to)


def fold_slices(limit: int, dialect: StoreDialect) -> Work[bool]:
    """Fold the next slices of consumers inside the database. Return whether the consumers have read everything.

    Consumers at the same position read their slice together. All read up to the last version and no further, so those
    that lag behind reach the position of the others.

    Args:
        limit: the approximate number of records in each slice.
        dialect: the SQL of the database.
    """
    locked = yield from lock_consumers(list((yield from _positions())))
    sets = {each.consumer: each for each in (yield from list_sets())}  # now, since another key may have got a number
    end = yield from last_version()
    behind: dict[int, list[str]] = {}
    for consumer in locked:
        if consumer.position < end and (consumer.name not in sets or _can_fold(sets[consumer.name])):
            behind.setdefault(consumer.position, []).append(consumer.name)
    is_all = True
    for after, names in behind.items():
        bounds = Slice(after, (yield from end_of_slice(after, end, limit)))
        for name in names:
            if name not in sets:
                yield from count_slice(name.removeprefix(PREFIX), bounds, dialect)
        alike: dict[tuple[bool, str | None], list[CellSet]] = {}
        for each in [sets[name] for name in names if name in sets]:
            alike.setdefault((each.has_users, each.zone_part), []).append(CellSet(each.number, each.key))
        together = [
            some[at : at + _SETS_AT_ONCE] for some in alike.values() for at in range(0, len(some), _SETS_AT_ONCE)
        ]
        for some, of_components in product(together, (False, True)):
            yield from execute(of_slice(_fold(tuple(some), dialect, of_components=of_components), bounds))
        if together and (yield from ask("has_removals")):
            yield from ask("drop_empty_cells")
            yield from ask("drop_empty_component_cells")
        yield from move_consumers(names, bounds.upto)
        is_all = is_all and bounds.upto == end
    yield from clear_removals()
    return is_all


def is_behind() -> Work[bool]:
    """Return whether a consumer inside the database lacks versions.

    After :func:`fold_slices`, these are versions of transactions that are not final yet, or that another process folds.
    """
    return bool((yield from ask("has_versions_behind", position=min((yield from _positions()).values()))))


def _positions() -> Work[Mapping[str, int]]:
    """Return the positions of the consumers inside the database that this host can fold."""
    found = {each.consumer: each.position for each in (yield from list_sets()) if _can_fold(each)}
    return found | {PREFIX + key: position for key, position in (yield from ask("list_counted_keys"))}


def _drop_cells(cells: CellSet) -> Work[None]:
    first = cells.level(Level.DAY_AND_USER)
    for name in ("drop_cells", "drop_component_cells"):
        yield from ask(name, first=first, behind=first + LEVELS_PER_SET)


def _can_fold(cells: CellSet) -> bool:
    """Return whether this host has the same time zone data as the host that made the key."""
    return cells.key is None or not is_of_zone(cells.key) or zone_of_key(cells.key) is not None


@lru_cache(64)
def _fold(sets: Sequence[CellSet], dialect: StoreDialect, *, of_components: bool) -> Sql:
    """Return the statement that folds the columns of versions, or components without columns from their documents.

    Args:
        sets: sets by user, or further sets of one time zone.
        dialect: the SQL of the database.
        of_components: whether to fold components.
    """
    table: LiteralString = "rollup_components" if of_components else "rollups"
    sums = dialect.component_sums if of_components else dialect.cell_sums
    ends: Mapping[LiteralString, LiteralString] = {} if of_components else _ENDS
    names: Sequence[LiteralString] = [each.column for each in sums]
    component: Sequence[LiteralString] = ["component"] if of_components else []
    dimensions: Sequence[LiteralString] = (*_DIMENSIONS, *component, "score_set", "present")
    keys = {str(each.number): each.parts[-1] for each in sets}
    read, labels = _read(sets[0], keys, dialect, sums, component), dialect.cell_labels(keys, sets[0].zone_part)
    # The columns that differ most are first, since a sort compares in this order.
    grouped: LiteralString = ", ".join(
        ["label.value", "user_name", "user_group", *component, "day", "label.key", "site", "ahead", *dimensions[-2:]]
    )
    added: LiteralString = ", ".join(
        [*[f"sum({name}) AS {name}" for name in names], *[f"{end} AS {name}" for name, end in ends.items()]]
    )
    rows = _rows(dimensions, names, list(ends), dialect, has_users=sets[0].has_users)
    identity: LiteralString = ", ".join([*_DIMENSIONS, *component])
    digest = None if dialect.digest is None else dialect.digest.format(identity)
    columns: LiteralString = ", ".join(["level", "period", *dimensions, *names, *ends])
    merges: list[LiteralString] = [f"{each.column} = {each.merged.format(table)}" for each in sums]
    for end in ends:
        wider = dialect.earlier if end.startswith("first") else dialect.later
        merges.append(f"{end} = {wider.format(f'{table}.{end}', f'excluded.{end}')}")
    return Sql(
        f"WITH grouped AS (SELECT label.key AS number, {grouped}, {added}"  # noqa: S608 literals
        f" FROM ({read.sql}) AS version, {dialect.each_value} GROUP BY {grouped}),"
        f" slice AS MATERIALIZED (SELECT grouped.*, {labels.sql} AS labels FROM grouped)"
        f" INSERT INTO {dialect.schema}{table} ({'' if digest is None else 'digest, '}{columns})"
        f" SELECT {'' if digest is None else f'{digest}, '}{columns} FROM ({rows}) AS folded WHERE TRUE"
        f" ON CONFLICT (level, period, {identity if digest is None else 'digest'}, score_set, present)"
        f" DO UPDATE SET {', '.join(merges)}",
        (*read.parameters, *labels.parameters),
    )


def _rows(
    dimensions: Sequence[LiteralString],
    names: Sequence[LiteralString],
    ends: Sequence[LiteralString],
    dialect: StoreDialect,
    *,
    has_users: bool,
) -> LiteralString:
    """Return the query for the changes of the cells of all sizes.

    It has one row per cell, unless an upsert may repeat rows: then adding each row to its cell is faster than a sort.
    """
    month = dialect.first_of_month.format("day + ahead")
    periods: dict[Level, LiteralString] = {Level.DAY: "day", Level.MONTH: month}
    if has_users:
        periods |= {Level.DAY_AND_USER: "day", Level.MONTH_AND_USER: month}
    sums: Sequence[LiteralString] = [
        *[f"sum({each}) AS {each}" for each in names],
        *[f"{'min' if each.startswith('first') else 'max'}({each}) AS {each}" for each in ends],
    ]
    ordinals: LiteralString = ", ".join([literal(str(number)) for number in range(1, len(dimensions) + 3)])
    grouping: LiteralString = f" GROUP BY {ordinals}"
    if dialect.upserts_repeat:
        sums, grouping = [*names, *ends], ""
    rows: list[LiteralString] = []
    for level, period in periods.items():
        is_of_users = level in {Level.DAY_AND_USER, Level.MONTH_AND_USER}
        columns: Sequence[LiteralString] = [
            f"{literal(str(LEVELS_PER_SET))} * CAST(number AS INTEGER) + {literal(str(int(level)))} AS level",
            f"{period} AS period",
            *[each if is_of_users or each != "user_name" else f"{dialect.no_name} AS user_name" for each in dimensions],
            *sums,
        ]
        rows.append(f"SELECT {', '.join(columns)} FROM slice{grouping}")  # noqa: S608 literals
    return " UNION ALL ".join(rows)


def _read(
    cells: CellSet,
    keys: Mapping[str, str],
    dialect: StoreDialect,
    sums: Sequence[CellSum],
    component: Sequence[LiteralString],
) -> Sql:
    """Return the query for the versions of a slice, with the columns that cells group by and sum.

    Args:
        cells: one of the sets.
        keys: the keys of all sets by their numbers.
        dialect: the SQL of the database.
        sums: the sums to which versions add.
        component: the column for a component, if there is a row for each.
    """
    amounts: LiteralString = ", ".join(AMOUNT_COLUMNS.values())
    columns: LiteralString = f"stop_time, runtime, site, user_group, user_name, score_set, others, {amounts}, document"
    if dialect.labels != "document":
        columns = f"{columns}, {dialect.labels}"
    where: LiteralString = f"stop_time >= start_time AND {dialect.no_more}"
    if component:
        where = f"{where} AND others IS NOT NULL"
    dated = _add_days(cells, versions_between(columns, where, dialect.feed, dialect.removals), dialect)
    present: LiteralString = " + ".join(
        [f"CASE WHEN {column} IS NULL THEN 0 ELSE {bit} END" for column, bit in _PRESENT.items()]
    )
    user_name = dialect.name_or_none.format("user_name") if cells.has_users else f"{dialect.no_name} AS user_name"
    names: LiteralString = ", ".join(
        [user_name, *[dialect.name_or_none.format(each) for each in ("site", "user_group")]]
    )
    values = dialect.label_values(keys)
    tail = Sql(") AS dated")
    if component:
        others: LiteralString = ", ".join(["%s" for _ in AMOUNT_COLUMNS])
        tail = Sql(f") AS dated, {dialect.components} WHERE {dialect.name} NOT IN ({others})", tuple(AMOUNT_COLUMNS))
        amounts = f"{dialect.name} AS component, {dialect.amount} AS amount"
    counted = join(
        "",
        [
            Sql(
                f"SELECT sign, {dialect.counted} AS counted, stop_time, runtime, day, ahead, {names},"
                f" coalesce(score_set, 0) AS score_set, {dialect.present.format(present)} AS present, {amounts}, "
            ),
            values,
            Sql(" AS label_values FROM ("),
            dated,
            tail,
        ],
    )
    dimensions: LiteralString = ", ".join(["day, ahead, user_name, site, user_group, score_set, present", *component])
    added: LiteralString = ", ".join([f"{each.value} AS {each.column}" for each in sums])
    return Sql(
        f"SELECT sign, stop_time, label_values, {dimensions}, {added} FROM ({counted.sql}) AS counted{dialect.sealed}",  # noqa: S608 literals
        counted.parameters,
    )


def _add_days(cells: CellSet, versions: Sql, dialect: StoreDialect) -> Sql:
    """Add to versions the UTC day of their stop time, and by how many days the date in the set's zone is ahead."""
    ahead = Sql("0")
    if cells.zone_part is not None and (zone := zone_of_key(cells.zone_part)) is not None:
        local = to_local_time(Sql("stop_time"), clock_changes(zone), dialect)
        local_day, utc_day = dialect.day.format(local.sql), dialect.day.format("stop_time")
        ahead = Sql(f"({local_day} - {utc_day})", local.parameters)
    day = dialect.day.format("stop_time")
    return join(
        "",
        [Sql(f"SELECT version.*, {day} AS day, "), ahead, Sql(" AS ahead FROM ("), versions, Sql(") AS version")],
    )
