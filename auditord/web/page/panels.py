"""The page ``/panels``: panels of hook modules. Each has its own error boundary and time limit."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import msgspec
from aiohttp import web

from auditord.contexts.plugins import HostPanelContext, PanelInstance, Panels
from auditord.reporting.measures import NOTHING, digits_of, text
from auditord.web.page.charts import Axis, Mark, Picture, bars, lines
from auditord.web.page.charts import Series as Drawn
from auditord.web.page.figures import Figures
from auditord.web.page.rendering import Renderer, Visitors, instant, may
from auditord.web.requests import client_key, principal_of
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AuditordError,
    CellValue,
    Chart,
    Column,
    Panel,
    PanelPart,
    Permission,
    Table,
)
from auditord_hookspecs.zones import zone_named

MOST_ROWS: Final = 500
_MOST_COLUMNS: Final = 20
_MOST_LABELS: Final = 400
_MOST_SERIES: Final = 8
_MOST_PARTS: Final = 20
_LONGEST: Final = 500


class DrawnPart(msgspec.Struct, frozen=True):
    """A part of a panel as the template shows it: a note, a table, or a chart.

    Args:
        title: the title of a table or a chart.
        columns: title and unit of each column, and whether it holds numbers.
        rows: the texts of the cells.
        left_out: the number of rows that are not shown.
        svg: a chart.
        keys: the legend: the name of each series, None, and the number of its colour.
    """

    note: str = ""
    title: str = ""
    columns: Sequence[tuple[str, str, bool]] = ()
    rows: Sequence[Sequence[str]] = ()
    left_out: int = 0
    svg: Picture | None = None
    keys: Sequence[tuple[str, None, int]] = ()


def draw(parts: Sequence[PanelPart], zone: tzinfo = UTC) -> list[DrawnPart]:
    """Check the parts of a panel and format them, with instants in a time zone.

    Raises:
        ValueError: a part violates the contract.
    """
    given: Any = parts  # Any: a hook module made it
    if not isinstance(given, list | tuple) or len(parts) > _MOST_PARTS:
        raise ValueError(f"a panel is a list of up to {_MOST_PARTS} tables, charts and notes")
    drawn: list[DrawnPart] = []
    for part in parts:
        match part:
            case str():
                drawn.append(DrawnPart(note=part[:_LONGEST]))
            case Table():
                drawn.append(_draw_table(part, zone))
            case Chart():
                drawn.append(_draw_chart(part))
            case _:
                raise ValueError(f"{part!r} is neither a table, a chart nor a note")
    return drawn


def _draw_table(table: Table, zone: tzinfo) -> DrawnPart:
    columns, rows = table.columns, table.rows[:MOST_ROWS]
    if not 0 < len(columns) <= _MOST_COLUMNS:
        raise ValueError(f"a table has 1 to {_MOST_COLUMNS} columns, not {len(columns)}")
    for at, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(f"row {at} has {len(row)} values for {len(columns)} columns")
    numbers = [
        any(isinstance(row[at], int | float | Decimal) and not isinstance(row[at], bool) for row in rows)
        for at in range(len(columns))
    ]
    return DrawnPart(
        title=table.title,
        columns=[(each.title, each.unit, is_number) for each, is_number in zip(columns, numbers, strict=True)],
        rows=[[_cell(value, column, zone) for value, column in zip(row, columns, strict=True)] for row in rows],
        left_out=len(table.rows) - len(rows),
    )


def _cell(value: CellValue, column: Column, zone: tzinfo) -> str:
    match value:
        case None:
            return NOTHING
        case str():
            return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"an instant in the column '{column.title}' has no time zone")
            return instant(value, zone)
        case int():
            return f"{value:,}"
        case float() | Decimal():
            exact = _exact(value, column.title)
            return text(exact, digits_of(exact, column.unit or "number"))
        case _:
            raise ValueError(f"the column '{column.title}' has {value!r}, which is not a text, number or instant")


def _exact(value: float | Decimal, where: str) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"'{where}' has {value}, which is not a number") from error


def _draw_chart(chart: Chart) -> DrawnPart:
    if len(chart.labels) > _MOST_LABELS or len(chart.series) > _MOST_SERIES:
        raise ValueError(f"a chart has up to {_MOST_SERIES} series and {_MOST_LABELS} labels")
    series: list[Drawn] = []
    for colour, each in enumerate(chart.series):
        if len(each.values) != len(chart.labels):
            raise ValueError(f"the series '{each.name}' has {len(each.values)} values for {len(chart.labels)} labels")
        marks: list[Mark] = []
        for label, value in zip(chart.labels, each.values, strict=True):
            exact = None if value is None else _exact(value, each.name)
            if exact is not None and exact < 0:
                raise ValueError(f"the series '{each.name}' has {value}: values below 0 cannot be drawn")
            digits = 0 if exact is None or exact.denominator == 1 else digits_of(exact, chart.unit)
            shown = "" if exact is None else f"{text(exact, digits)} {chart.unit}".strip()
            marks.append(Mark(None if exact is None else float(exact), f"{each.name}, {label}: {shown}"))
        series.append(Drawn(each.name, colour, marks))
    draw = lines if chart.lines else bars
    return DrawnPart(
        title=chart.title,
        svg=draw(chart.title, Axis(chart.labels, unit=chart.unit), series),
        keys=[(each.name, None, each.colour) for each in series],
    )


log: Final = logging.getLogger(__name__)

PATH: Final = "/panels"
LONGEST: Final = timedelta(seconds=5)
"""The time limit of one panel."""
_LONGEST_ERROR: Final = 300
"""The most characters of an error's text that are shown."""


class ShownPanel(msgspec.Struct, frozen=True):
    """A panel as the template shows it.

    Args:
        instance: the instance's name, if the panel belongs to a kind.
        fault: why the panel cannot be shown.
    """

    title: str
    instance: str | None
    parts: Sequence[DrawnPart] = ()
    fault: str = ""


class PanelsPage(msgspec.Struct, frozen=True):
    """The page ``/panels``.

    Args:
        figures: the records that a visitor may see.
        longest: the time limit of one panel.
    """

    panels: Panels
    figures: Figures
    renderer: Renderer
    visitors: Visitors
    longest: timedelta = LONGEST

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show every panel that the visitor may see."""
        principal = principal_of(request)
        sees_some = principal is not None and principal.visible() is not None
        visible = [
            (module, panel, instance)
            for module, panel, instance in self.panels.list_panels()
            if may(request, panel.permission) and not (panel.whole and sees_some)
        ]
        shown = await asyncio.gather(*(self._make(request, *each) for each in visible))
        navigation = self.visitors.navigation(request, PATH)
        return await self.figures.places.run(lambda: self.renderer.answer("panels.html", {"panels": shown}, navigation))

    async def _make(
        self, request: web.BaseRequest, module: str, panel: Panel, instance: PanelInstance | None
    ) -> ShownPanel:
        name, records = None if instance is None else instance.name, self.figures.records(request)

        async def aggregate(query: AggregateQuery) -> Aggregates:
            async with self.figures.places.sum_up(client_key(request), records.aggregate, query) as found:
                return found

        context = HostPanelContext(panel, instance, aggregate, self.figures.now, self.panels.memories)
        try:
            async with asyncio.timeout(self.longest.total_seconds()):
                parts = await panel.show(context)
            # Up to 200,000 cells.
            shown = await self.figures.places.run(lambda: _draw(parts, zone_named(self.figures.zone)))
            return ShownPanel(panel.title, name, shown)
        except _Misshapen as error:
            log.warning(
                "panel %s (%s) of %s has a wrong shape: %s; its author must correct it: see `auditord manual types`",
                *(panel.name, name, module, error),
            )
            fault_text = self._error_text(request, error.__cause__ or error)
        except TimeoutError:
            log.warning("panel %s (%s) of %s took longer than %s", panel.name, name, module, self.longest)
            fault_text = (
                f"This panel took longer than {self.longest.total_seconds():g} seconds. Please try again later."
            )
        except AuditordError as error:
            log.warning("panel %s (%s) of %s cannot be shown: %s", panel.name, name, module, error)
            fault_text = self._error_text(request, error)
        except (Exception, SystemExit) as error:
            log.exception("panel %s (%s) of %s failed", panel.name, name, module)
            fault_text = self._error_text(request, error)
        return ShownPanel(panel.title, name, fault=fault_text)

    def _error_text(self, request: web.BaseRequest, error: BaseException) -> str:
        """Return the text of an error. Only operators see the reason, because others may not be allowed to know it."""
        if not may(request, Permission.OPERATE):
            return "This panel cannot be shown. The log of this server has the reason."
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        return f"This panel cannot be shown: {reason}"


class _Misshapen(Exception):
    """The parts of a panel violate the contract."""


def _draw(parts: Sequence[PanelPart], zone: tzinfo) -> Sequence[DrawnPart]:
    try:
        return draw(parts, zone)
    except (ValueError, TypeError, AttributeError) as error:
        raise _Misshapen(str(error)) from error
