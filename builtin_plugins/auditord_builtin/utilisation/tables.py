"""A report as CSV, JSON and a table for a terminal or a plain mail.

Only the table is rounded: once, half up.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any, Final

from auditord_builtin.utilisation.config import Level
from auditord_builtin.utilisation.figures import Figures
from auditord_builtin.utilisation.report import Report, Row

UNKNOWN: Final = "-"
_NAMES: Final[Mapping[str, str]] = {
    "energy": "energy_kwh",
    "co2": "co2_kg",
    "memory_requested": "memory_requested_gib_hours",
    "memory_used": "memory_used_gib_hours",
    "idle_memory": "idle_memory_gib_hours",
}
_ROUNDING: Final = Context(prec=60, rounding=ROUND_HALF_UP)


def as_csv(report: Report) -> str:
    """Every row with every figure; empty is unknown."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["period", "level", "site", "group", "user", *map(column, fields(Figures))])
    for row in (report.total, *report.rows):
        writer.writerow([report.period.name, *_whose(row), *map(_exact, _values(row.figures))])
    return text.getvalue()


def as_json(report: Report) -> str:
    """The same, with what a reader must know; null is unknown."""
    document = {
        "title": report.title,
        "period": report.period.name,
        "start": report.period.start.isoformat(),
        "stop": report.period.stop.isoformat(),
        "complete": report.complete,
        "benchmark": report.benchmark,
        "notes": list(report.notes),
        "rows": [_document(row) for row in (report.total, *report.rows)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_text(report: Report, most_rows: int | None = None) -> str:
    """A table of the most telling figures, under a heading."""
    lines = [heading(report), ""]
    rows = [report.total, *shortened(report, most_rows)]
    table = [_HEADER, *[[label(row), *cells(row.figures)] for row in rows]]
    widths = [max(len(line[at]) for line in table) for at in range(len(_HEADER))]
    for line in table:
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *numbers]).rstrip())
    return "\n".join([*lines, *[f"\n* {note}" for note in report.notes]]) + "\n"


def heading(report: Report) -> str:
    """What the report is about, in one line."""
    return f"{report.title} {report.period.name}" + ("" if report.complete else " (not over yet)")


def shortened(report: Report, most_rows: int | None) -> Sequence[Row]:
    """The rows of each site together, at most so many of its groups and of its users."""
    return [row for site in report.sites for level in Level for row in report.of(level, site)[:most_rows]]


_HEADER: Final = [
    "",
    "jobs",
    "core h",
    "kHS23h",
    "CPU",
    "memory",
    "GPU h",
    "idle core h",
    "idle GiB h",
    "kWh",
    "CO2 kg",
]


def cells(figures: Figures) -> Sequence[str]:
    """The figures of :func:`as_text`, as people read them."""
    return [
        f"{figures.jobs:,}",
        number(figures.core_hours),
        number(figures.khs23h, 3),
        percent(figures.cpu_efficiency),
        percent(figures.memory_efficiency),
        number(figures.gpu_hours),
        number(figures.idle_core_hours),
        number(figures.idle_memory),
        number(figures.energy),
        number(figures.co2),
    ]


def number(figure: Fraction | None, places: int = 1) -> str:
    """A figure for people, rounded half up."""
    if figure is None:
        return UNKNOWN
    rounded = _ROUNDING.divide(Decimal(figure.numerator), Decimal(figure.denominator))
    return f"{rounded.quantize(Decimal(1).scaleb(-places), context=_ROUNDING):,}"


def percent(ratio: Fraction | None) -> str:
    """A ratio for people."""
    return UNKNOWN if ratio is None else f"{number(ratio * 100)} %"


_INDENT: Final[Mapping[Level | None, str]] = {None: "", Level.SITE: "", Level.GROUP: "  ", Level.USER: "    "}


def label(row: Row) -> str:
    """Whom a row is about."""
    if row.level is None:
        return "all"
    name = {Level.SITE: row.who.site, Level.GROUP: row.who.group, Level.USER: row.who.user}[row.level]
    told = printable(name or f"(no {row.level.value})")
    return _INDENT[row.level] + (f"{told} ({printable(row.who.group or '-')})" if row.level is Level.USER else told)


def printable(name: str) -> str:
    """A name on one line, whatever is in it."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)


def column(field: Any) -> str:  # Any: dataclasses' Field, whose type says nothing here
    """What a figure is called in CSV and JSON."""
    name: str = field.name
    return _NAMES.get(name, name)


def _whose(row: Row) -> Sequence[str | None]:
    return ["total" if row.level is None else row.level.value, row.who.site, row.who.group, row.who.user]


def _values(figures: Figures) -> Sequence[Fraction | int | None]:
    return [getattr(figures, field.name) for field in fields(Figures)]


def _exact(value: Fraction | int | None) -> float | int | None:
    """Fractions as the nearest floating point number."""
    return float(value) if isinstance(value, Fraction) else value


def _document(row: Row) -> dict[str, Any]:  # Any: JSON
    level, site, group, user = _whose(row)
    figures = {column(field): _exact(getattr(row.figures, field.name)) for field in fields(Figures)}
    return {"level": level, "site": site, "group": group, "user": user, **figures}
