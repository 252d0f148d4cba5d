"""Panels of hook modules on the web page: data without HTML, which the host renders."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

import msgspec

from auditord_hookspecs.aggregates import AggregateQuery, Aggregates
from auditord_hookspecs.batches import RunReport
from auditord_hookspecs.roles import Permission

CellValue: TypeAlias = str | int | float | Decimal | datetime | None
"""The value of a table cell. A datetime is aware; None means unknown."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Args:
        title: the column's heading.
        unit: the unit of its numbers, such as ``core h``.
    """

    title: str
    unit: str = ""


class Table(msgspec.Struct, frozen=True):
    """A table. At most 500 rows are shown.

    Args:
        columns: the columns, at most 20.
        rows: the rows, with one value per column.
        title: a heading, if a panel has several tables.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[CellValue]]
    title: str = ""


class Series(msgspec.Struct, frozen=True):
    """A series of a chart.

    Args:
        name: the name in the legend.
        values: one value per label, not negative; None is a gap.
    """

    name: str
    values: Sequence[float | Decimal | None]


class Chart(msgspec.Struct, frozen=True):
    """A chart with an axis of labels, such as months.

    Args:
        title: the heading.
        labels: the labels of the axis, at most 400.
        series: the series, at most 8. They are stacked bars unless ``lines`` is set.
        unit: the unit of all values.
        lines: draw lines with dots instead, for values that cannot be added up.
    """

    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: str = ""
    lines: bool = False


PanelPart: TypeAlias = Table | Chart | str
"""A part of a panel. A text is a note."""


class PanelContext(Protocol):
    """The context of a panel that is shown to one visitor."""

    @property
    def instance(self) -> str | None:
        """The instance's name if the panel belongs to a kind, else None."""
        ...

    @property
    def config(self) -> Any:  # Any: the kind's own model
        """The instance's section of the configuration if the panel belongs to a kind."""
        ...

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        ...

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the matching records that the visitor may see."""
        ...

    async def state(self) -> Any:  # Any: the JSON that the instance itself saved
        """Return the JSON that the instance has saved (a plugin's state, a collector's checkpoint), or None.

        Raises:
            AuditordError: the panel is not declared with ``whole``, or belongs to no kind.
        """
        ...

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector itself stored
        """Return the values that a collector keeps between runs (``Batch.pending``), by key.

        Raises:
            AuditordError: as for :meth:`state`.
        """
        ...

    async def last_runs(self) -> Sequence[RunReport]:
        """Return the reports of the instance's last runs, the newest first.

        Raises:
            AuditordError: as for :meth:`state`.
        """
        ...


class Panel(msgspec.Struct, frozen=True):
    """A panel of the page.

    Args:
        name: letters, digits and ``_``; unique in the module.
        title: the heading.
        show: returns the panel's content; called for each visit, with a time limit of five seconds.
        kind: a kind of collectors or plugins; each of its enabled instances gets a panel. None: a single panel.
        whole: the content is not limited to the records that a visitor may see. Only with this option do
            :meth:`PanelContext.state` and similar methods work. Visitors with limited roles do not see the panel.
        permission: the permission that visitors need besides ``read``.
    """

    name: str
    title: str
    show: Callable[[PanelContext], Awaitable[Sequence[PanelPart]]]
    kind: str | None = None
    whole: bool = False
    permission: Permission = Permission.READ


def table_of_runs(reports: Sequence[RunReport]) -> Table:
    """Return a table of an instance's last runs, as returned by :meth:`PanelContext.last_runs`."""
    columns = ("Started", "Took", "Records", "Quarantined", "Made no record", "Error")
    units = {"Took": "s"}
    rows = [
        (
            report.started,
            report.duration.total_seconds(),
            report.records,
            report.quarantined,
            sum(report.skipped.values()),
            report.error or "",
        )
        for report in reports
    ]
    return Table([Column(name, units.get(name, "")) for name in columns], rows, "Last runs")
