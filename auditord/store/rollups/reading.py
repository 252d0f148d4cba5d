"""The cells that answer a question, in SQL."""

from collections.abc import Iterator
from typing import Final, LiteralString

from auditord.store.conditions import can_be_there
from auditord.store.dialects import StoreDialect
from auditord.store.rollups.cells import END, FIRST_DAY, Level, Segment, first_moment
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.zone_keys import zone_of_key
from auditord.store.sql import Sql, join
from auditord.store.work import as_json

_MOST_PERIODS: Final = 1_000
"""Periods up to which the cells of some users are looked up one by one, instead of passing over those of all users."""


def on_days(scope: Scope, dialect: StoreDialect) -> Iterator[Sql]:
    """The conditions that a version stopped on one of the days that cells answer for."""
    if scope.begin > FIRST_DAY:
        yield Sql(f"stop_time >= {dialect.literal_moment(first_moment(scope.begin))}")
    if scope.end < END:
        yield Sql(f"stop_time < {dialect.literal_moment(first_moment(scope.end))}")
    for day in scope.split_days():
        begin = dialect.literal_moment(first_moment(day))
        end = dialect.literal_moment(first_moment(day + 1))
        yield Sql(f"NOT (stop_time >= {begin} AND stop_time < {end})")


def local_dates(scope: Scope, dialect: StoreDialect) -> tuple[str, Sql] | None:
    """The time zone whose dates cells of a scope tell apart, if they do, and the date of a cell."""
    if scope.cells.of_zone is None or (zone := zone_of_key(scope.cells.of_zone)) is None:
        return None
    return zone, _date(scope.cells.of_zone, dialect)


def _date(of_zone: str, dialect: StoreDialect) -> Sql:
    """The begin of the date of a cell as if it were one of UTC."""
    days = dialect.first_value(of_zone)
    return Sql(dialect.rolled_day.format(days.sql), days.parameters)


def _of_dates(cells: Sql, segment: Segment, scope: Scope, dialect: StoreDialect) -> Sql:
    """The cells of the dates of a segment."""
    if scope.cells.of_zone is None:
        return cells
    date, conditions = _date(scope.cells.of_zone, dialect), list[Sql]()
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


def _cells(segment: Segment, scope: Scope, dialect: StoreDialect, sums: LiteralString, table: LiteralString) -> Sql:
    level, users = scope.level(segment), scope.users()
    # The date of a zone, if one is told apart, may be a day before or behind the time: all are in the month.
    place = (1 if segment.is_of_months else 0, level)
    span = segment.end - segment.begin
    few = span <= _MOST_PERIODS * (28 if segment.is_of_months else 1)
    if users is None or not few or level not in {Level.DAY_AND_USER, Level.MONTH_AND_USER}:
        cells = dialect.rolled_cells.format(sums, table, "period >= %s AND period < %s")
        return Sql(cells, (*place, segment.begin, segment.end))
    periods, names = as_json(segment.periods()), as_json([each for each in users if can_be_there(each)])
    cells = dialect.rolled_cells.format(sums, table, dialect.rolled_periods_of_users)
    return Sql(cells, (*place, periods, names))


def cells_of(segment: Segment, scope: Scope, dialect: StoreDialect, sums: LiteralString, table: LiteralString) -> Sql:
    """The cells of a segment of a scope, with the columns that have their sums."""
    return _of_dates(_cells(segment, scope, dialect, sums, table), segment, scope, dialect)
