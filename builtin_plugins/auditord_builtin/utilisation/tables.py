"""A report as CSV, JSON and a table for a terminal or a plain mail.

Only the table is rounded: once, half up.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any, Final

from auditord_builtin.utilisation.config import Level
from auditord_builtin.utilisation.question import Who
from auditord_builtin.utilisation.report import TOTALS, Report, Row
from auditord_builtin.utilisation.usage import Totals
from auditord_hookspecs.spreadsheets import no_formula

UNKNOWN: Final = "-"
_NAMES: Final[Mapping[str, str]] = {
    "energy": "energy_kwh",
    "co2": "co2_kg",
    "memory_requested": "memory_requested_gib_hours",
    "memory_used": "memory_used_gib_hours",
    "idle_memory": "idle_memory_gib_hours",
}
_ROUNDING: Final = Context(prec=60, rounding=ROUND_HALF_UP)


def as_csv(report: Report, *, escape_formulas: bool = True) -> str:
    """Every row with every total; empty is unknown. Names that spreadsheets take for formulas get an apostrophe."""

    def shown(name: str | None) -> str | None:
        return no_formula(name) if escape_formulas else name

    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["period", "level", "site", "group", "user", *map(column, fields(Totals))])
    for row in (report.total, *report.rows):
        writer.writerow([report.period.name, *map(shown, _whose(row)), *map(_exact, _values(row.totals))])
    return text.getvalue()


def as_json(report: Report) -> str:
    """The tables as JSON, with what a reader must know; null is unknown."""
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
    """A table of the most important totals, under a heading."""
    table = [_HEADER, [label(report.total), *cells(report.total.totals)]]
    for rows in sections(report):
        shown = rows[:most_rows]
        table += [[label(row), *cells(row.totals)] for row in shown]
        table += [[f"{_INDENT[rows[0].level]}{and_more(rows, shown)}"]] if len(shown) < len(rows) else []
    lines = [heading(report), "", *_aligned(table)]
    return "\n".join([*lines, *[f"\n* {note}" for note in report.notes]]) + "\n"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with the first cell to the left and numbers to the right; a line may have fewer cells."""
    widths = [max(len(line[at]) for line in table if at < len(line)) for at in range(len(_HEADER))]
    for line in table:
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=False)]
        yield "  ".join([line[0].ljust(widths[0]), *numbers]).rstrip()


def heading(report: Report) -> str:
    """The report's title, in one line."""
    return f"{report.title} {report.period.name}" + ("" if report.complete else " (not over yet)")


def sections(report: Report) -> Iterator[Sequence[Row]]:
    """The rows that stand together: totals over all sites, then each site with its groups and users."""
    parts = [report.totals(level) for level in Level if level in TOTALS]
    parts += [report.of(level, site) for site in report.sites for level in Level if level not in TOTALS]
    return (rows for rows in parts if rows)


def and_more(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    """The line that stands for the rows that are not shown."""
    return f"and {len(rows) - len(shown):,} more"


_HEADER: Final = [
    *("", "jobs", "core h", "kHS23h", "CPU", "memory", "GPU h", "idle core h", "idle GiB h", "kWh", "CO2 kg"),
]


def cells(totals: Totals) -> Sequence[str]:
    """The totals of :func:`as_text`, as people read them."""
    return [
        f"{totals.jobs:,}",
        number(totals.core_hours),
        number(totals.khs23h, 3),
        percent(totals.cpu_efficiency),
        percent(totals.memory_efficiency),
        number(totals.gpu_hours),
        number(totals.idle_core_hours),
        number(totals.idle_memory),
        number(totals.energy),
        number(totals.co2),
    ]


def number(value: Fraction | None, places: int = 1) -> str:
    """A number for people, rounded half up."""
    if value is None:
        return UNKNOWN
    rounded = _ROUNDING.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{rounded.quantize(Decimal(1).scaleb(-places), context=_ROUNDING):,}"


def percent(ratio: Fraction | None) -> str:
    """A ratio for people."""
    return UNKNOWN if ratio is None else f"{number(ratio * 100)} %"


_INDENT: Final[Mapping[Level | None, str]] = {
    Level.SITE: "",
    Level.GROUP: "  ",
    Level.USER: "    ",
    Level.GROUP_TOTAL: "  ",
    Level.USER_TOTAL: "    ",
}


def label(row: Row) -> str:
    """The site, group or user of a row, indented by its level."""
    return "all" if row.level is None else _INDENT[row.level] + _name(row.level, row.who)


def _name(level: Level, who: Who) -> str:
    match level:
        case Level.SITE:
            return name_of(who.site, "site")
        case Level.GROUP:
            return name_of(who.group, "group")
        case Level.USER:
            return f"{name_of(who.user, 'user')} ({printable(who.group or '-')})"
        case Level.GROUP_TOTAL:
            return f"{name_of(who.group, 'group')} (all sites)"
        case Level.USER_TOTAL:
            return f"{name_of(who.user, 'user')} (all groups)"


def name_of(name: str | None, kind: str) -> str:
    """A name on one line, or that there is none."""
    return printable(name or f"(no {kind})")


def printable(name: str) -> str:
    """A name on one line, whatever is in it."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)


def column(field: Any) -> str:  # Any: dataclasses' Field, whose type says nothing here
    """The name of a total in CSV and JSON."""
    name: str = field.name
    return _NAMES.get(name, name)


def _whose(row: Row) -> Sequence[str | None]:
    return ["total" if row.level is None else row.level.value, row.who.site, row.who.group, row.who.user]


def _values(totals: Totals) -> Sequence[Fraction | int | None]:
    return [getattr(totals, field.name) for field in fields(Totals)]


def _exact(value: Fraction | int | None) -> float | int | None:
    """Fractions as the nearest floating point number."""
    return float(value) if isinstance(value, Fraction) else value


def _document(row: Row) -> dict[str, Any]:  # Any: JSON
    level, site, group, user = _whose(row)
    values = zip(map(column, fields(Totals)), map(_exact, _values(row.totals)), strict=True)
    return {"level": level, "site": site, "group": group, "user": user, **dict(values)}
