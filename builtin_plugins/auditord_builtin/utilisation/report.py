"""A report, and its formats: CSV, JSON, HTML, and a table for terminals and plain mails."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import jinja2
import msgspec
from msgspec.structs import fields

from auditord_builtin.utilisation.config import Level, UtilisationConfig
from auditord_builtin.utilisation.periods import Period
from auditord_builtin.utilisation.usage import (
    Estimator,
    Question,
    Totals,
    Usage,
    Usages,
    Who,
    read_intensity,
    totals_of,
)
from auditord_hookspecs import AggregateQuery, MetaValue, Records
from auditord_hookspecs.aggregates import nearest_float
from auditord_hookspecs.query import Comparison, TimeCompares, TimeField
from auditord_hookspecs.spreadsheets import csv_line, no_formula
from auditord_hookspecs.wording import counted

TOTALS: Final[Mapping[Level | None, Level]] = {Level.GROUP_TOTAL: Level.GROUP, Level.USER_TOTAL: Level.USER}
"""The levels over all sites, each with the level of a single site that it sums up."""

TOO_EFFICIENT: Final = 2
"""The CPU time per core time above which milliseconds were probably mistaken for seconds."""


class Row(msgspec.Struct, frozen=True):
    """The totals of a site, group or user, or of all jobs of the report if the level is None."""

    level: Level | None
    who: Who
    totals: Totals


class Report(msgspec.Struct, frozen=True):
    """A report on a period.

    Args:
        period: the month or week.
        benchmark: the score behind ``khs23h``.
        complete: True if the period had ended.
        total: the totals of all jobs.
        rows: the sites, groups, users, and the totals of groups and users over all sites, in this order and as
            configured. Within each, the most core hours come first.
        notes: remarks for the reader.
    """

    title: str
    period: Period
    benchmark: str
    complete: bool
    total: Row
    rows: Sequence[Row]
    notes: Sequence[str]

    def of(self, level: Level, site: str | None) -> Sequence[Row]:
        """Return the rows of a site's groups or users, or of the site itself."""
        return [row for row in self.rows if row.level is level and row.who.site == site]

    @property
    def sites(self) -> Sequence[str | None]:
        """All sites, in the order of their rows."""
        return list(dict.fromkeys(row.who.site for row in self.rows if row.level not in TOTALS))

    def totals(self, level: Level) -> Sequence[Row]:
        """Return the totals over all sites, but none if they would only repeat the rows of a single site."""
        rows = [row for row in self.rows if row.level is level]
        single = [row for row in self.rows if row.level is TOTALS[level]]
        return rows if len(self.sites) > 1 or len(rows) != len(single) else []


async def ask(config: UtilisationConfig, records: Records, period: Period) -> Usages:
    """Query the store for the usage of a period, by site, group and user.

    Raises:
        BadIntensity: the file with the grid's CO2 intensity cannot be used.
    """
    options = config.energy.grid_intensity
    intensity = None if options is None else await anyio.to_thread.run_sync(read_intensity, options)
    question = Question(config, Estimator(config.energy, intensity))
    return question.usages(await records.aggregate(question.query(period)))


async def silent_sites(usages: Usages, config: UtilisationConfig, records: Records, period: Period) -> Sequence[str]:
    """Return the sites without a job after the period, whose records of the period may still be missing.

    These are sites of the report: the configured ones or, if none is configured, those with jobs in the period. If
    there are none, since jobs have no site or there are no jobs, return ``any site`` unless there is a later job.
    """
    query = AggregateQuery(TimeCompares(TimeField.STOP, Comparison.GTE, period.stop), (MetaValue(*config.site_keys),))
    later = {group.key[0] for group in (await records.aggregate(query)).groups}
    expected = set(config.sites) or {who.site for who in usages if who.site is not None}
    if not (expected or later):
        return ["any site"]
    return sorted(expected - later)


def report_on(
    usages: Usages,
    config: UtilisationConfig,
    period: Period,
    *,
    complete: bool = True,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """Return the report on a period. ``title`` replaces the configured one. ``notes`` precede the report's own."""
    rows: list[Row] = []
    for level in Level:
        if level in config.levels:
            sums: defaultdict[Who, Usage] = defaultdict(Usage)
            for who, usage in usages.items():
                sums[_WHO[level](who)] += usage
            of_level = [Row(level, who, totals_of(usage)) for who, usage in sums.items()]
            rows += sorted(
                of_level, key=lambda row: (-(row.totals.core_hours or 0), *[each or "" for each in _whose(row)[1:]])
            )

    total = totals_of(sum(usages.values(), Usage()))
    told = list(notes)
    if config.only:
        chosen = "; ".join(f"{key} is {' or '.join(values)}" for key, values in config.only.items())
        told.append(f"Only jobs whose {chosen}.")
    if total.idle_core_hours and total.core_hours is not None:
        idle, timed = _count(total.idle_core_hours), _count(total.core_hours - total.untimed_core_hours)
        told.append(f"Possible savings: {idle} of {timed} core hours were allocated but not used.")
    if total.idle_memory and total.memory_requested:
        idle, measured = _count(total.idle_memory), _count(total.memory_requested - total.unmeasured_memory)
        told.append(f"Possible savings: {idle} of {measured} GiB hours of memory were never used.")
    if total.unmeasured_memory and total.memory_requested and total.memory_efficiency is not None:
        unmeasured, requested = _count(total.unmeasured_memory), _count(total.memory_requested)
        told.append(
            f"{unmeasured} of {requested} GiB hours of memory belong to jobs without a known peak and are not in the "
            "memory efficiency."
        )
    return Report(
        title=title or config.title,
        period=period,
        benchmark=config.benchmark,
        complete=complete,
        total=Row(None, Who(None, None, None), total),
        rows=rows,
        notes=[*told, *_explain_left_out(usages, total, config.benchmark)],
    )


_WHO: Final[Mapping[Level, Callable[[Who], Who]]] = {
    Level.SITE: lambda who: Who(who.site, None, None),
    Level.GROUP: lambda who: Who(who.site, who.group, None),
    Level.USER: lambda who: who,
    Level.GROUP_TOTAL: lambda who: Who(None, who.group, None),
    Level.USER_TOTAL: lambda who: Who(None, None, who.user),
}


def _explain_left_out(usages: Usages, total: Totals, benchmark: str) -> Iterator[str]:
    left_out = {
        f"have no {benchmark} score and are not in the benchmark hours": total.unscored_core_hours,
        "belong to jobs without CPU time and are not in the CPU efficiency": total.untimed_core_hours,
    }
    if total.energy is not None:
        left_out["are not in the energy: they were neither measured nor estimated"] = total.core_hours_without_energy
        if total.co2 is not None:
            left_out["are not in the CO2"] = total.core_hours_without_co2
    all_jobs = counted(total.jobs, "job")
    memoryless = 0 if total.memory_requested is None else total.jobs_without_memory
    for what, hours_of, without in (
        ("cores", "core hours", total.jobs_without_cores),
        ("requested memory", "GiB hours", memoryless),
    ):
        if without:
            has, its = ("has", "its") if without == 1 else ("have", "their")
            yield f"{without:,} of {all_jobs} {has} no {what}: {its} {hours_of} are unknown and left out."
    for what, hours in left_out.items():
        if hours > 0 and total.core_hours is not None:
            yield f"{_count(hours)} of {_count(total.core_hours)} core hours {what}."
    for missing in ("site", "group", "user"):
        jobs = sum(usage.jobs for who, usage in usages.items() if getattr(who, missing) is None)
        if jobs:
            yield f"{jobs:,} of {all_jobs} {'has' if jobs == 1 else 'have'} no {missing}."
    if total.cpu_efficiency is not None and total.cpu_efficiency > TOO_EFFICIENT:
        yield "The CPU time is more than twice the core time: is it in milliseconds (components.cpu_time_unit: ms)?"


def _count(hours: Fraction) -> str:
    return f"{float(hours):,.1f}"


UNKNOWN: Final = "-"
_NAMES: Final[Mapping[str, str]] = {
    "energy": "energy_kwh",
    "co2": "co2_kg",
    "memory_requested": "memory_requested_gib_hours",
    "memory_used": "memory_used_gib_hours",
    "idle_memory": "idle_memory_gib_hours",
    "unmeasured_memory": "unmeasured_memory_gib_hours",
}
_ROUNDING: Final = Context(prec=1_000, rounding=ROUND_HALF_UP)  # absurd scores have sums of hundreds of digits


def as_csv(report: Report, *, escape_formulas: bool = True) -> str:
    """Return all rows with all totals. Unknown totals are empty. Names that look like formulas get an apostrophe."""

    def show(name: str | None) -> str | None:
        return no_formula(name) if escape_formulas else name

    header = csv_line(["period", "level", "site", "group", "user", *_figures(report.total.totals)])
    lines = [
        csv_line([report.period.name, *map(show, _whose(row)), *_figures(row.totals).values()])
        for row in (report.total, *report.rows)
    ]
    return "".join([header, *lines])


def as_json(report: Report) -> str:
    """Return the rows and notes as JSON. Unknown totals are null."""
    rows: list[dict[str, Any]] = []  # Any: JSON
    for row in (report.total, *report.rows):
        level, site, group, user = _whose(row)
        rows.append({"level": level, "site": site, "group": group, "user": user, **_figures(row.totals)})
    document = {
        "title": report.title,
        "period": report.period.name,
        "start": report.period.start.isoformat(),
        "stop": report.period.stop.isoformat(),
        "complete": report.complete,
        "benchmark": report.benchmark,
        "notes": list(report.notes),
        "rows": rows,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_text(report: Report, most_rows: int | None = None) -> str:
    """Return a table of the main totals, with heading and notes."""
    table = [_HEADER, [label(report.total), *cells(report.total.totals)]]
    for rows in sections(report):
        shown = rows[:most_rows]
        table += [[label(row), *cells(row.totals)] for row in shown]
        table += [[f"{_INDENT[rows[0].level]}{and_more(rows, shown)}"]] if len(shown) < len(rows) else []
    widths = [max(len(line[at]) for line in table if at < len(line)) for at in range(len(_HEADER))]
    lines = [heading(report), ""]
    for line in table:  # the first cell is left-aligned, numbers are right-aligned; a line can have fewer cells
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=False)]
        lines.append("  ".join([line[0].ljust(widths[0]), *numbers]).rstrip())
    return "\n".join([*lines, *[f"\n* {note}" for note in report.notes]]) + "\n"


def heading(report: Report) -> str:
    """Return the report's title on one line."""
    return f"{report.title} {report.period.name}" + ("" if report.complete else " (not over yet)")


def sections(report: Report) -> Iterator[Sequence[Row]]:
    """Return the rows by section: totals over all sites, then each site with its groups and users."""
    parts = [report.totals(level) for level in Level if level in TOTALS]
    parts += [report.of(level, site) for site in report.sites for level in Level if level not in TOTALS]
    return (rows for rows in parts if rows)


def and_more(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    return f"and {len(rows) - len(shown):,} more"


_HEADER: Final = [
    *("", "jobs", "core h", "kHS23h", "CPU", "memory", "GPU h", "idle core h", "idle GiB h", "kWh", "CO2 kg"),
]


def cells(totals: Totals) -> Sequence[str]:
    """Return a row's cells for :func:`as_text`, without the label."""
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
    """Return a number as text, rounded half up."""
    if value is None:
        return UNKNOWN
    rounded = _ROUNDING.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{rounded.quantize(Decimal(1).scaleb(-places), context=_ROUNDING):,}"


def percent(ratio: Fraction | None) -> str:
    """Return a ratio as a percentage."""
    return UNKNOWN if ratio is None else f"{number(ratio * 100)} %"


_INDENT: Final[Mapping[Level | None, str]] = {
    Level.SITE: "",
    Level.GROUP: "  ",
    Level.USER: "    ",
    Level.GROUP_TOTAL: "  ",
    Level.USER_TOTAL: "    ",
}


def label(row: Row) -> str:
    """Return the name of a row's site, group or user, indented by its level."""
    who = row.who
    match row.level:
        case None:
            return "all"
        case Level.SITE:
            name = name_of(who.site, "site")
        case Level.GROUP:
            name = name_of(who.group, "group")
        case Level.USER:
            name = f"{name_of(who.user, 'user')} ({printable(who.group or '-')})"
        case Level.GROUP_TOTAL:
            name = f"{name_of(who.group, 'group')} (all sites)"
        case Level.USER_TOTAL:
            name = f"{name_of(who.user, 'user')} (all groups)"
    return _INDENT[row.level] + name


def name_of(name: str | None, kind: str) -> str:
    """Return a name on one line, or a placeholder for a missing name."""
    return printable(name or f"(no {kind})")


def printable(name: str) -> str:
    """Return a name on one line, without control characters."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)


def _whose(row: Row) -> Sequence[str | None]:
    return ["total" if row.level is None else row.level.value, row.who.site, row.who.group, row.who.user]


def _figures(totals: Totals) -> Mapping[str, float | int | None]:
    """Return the totals by their names in CSV and JSON."""
    values = {_NAMES.get(each.name, each.name): getattr(totals, each.name) for each in fields(Totals)}
    return {name: nearest_float(value) if isinstance(value, Fraction) else value for name, value in values.items()}


_PAGES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def as_html(report: Report, most_rows: int | None = None) -> str:
    """Return the HTML page, with at most ``most_rows`` groups and users of each site."""
    totals = report.total.totals
    return _PAGES.get_template("page.html").render(
        report=report,
        most_rows=most_rows,
        title=heading(report),
        totals={
            "Jobs": f"{totals.jobs:,}",
            "Core hours": number(totals.core_hours),
            f"Benchmark hours (thousands, {report.benchmark})": number(totals.khs23h, 3),
            "CPU efficiency": percent(totals.cpu_efficiency),
            "Idle core hours": number(totals.idle_core_hours),
            "Memory efficiency": percent(totals.memory_efficiency),
            "Memory requested but not used (GiB h)": number(totals.idle_memory),
            "GPU hours": number(totals.gpu_hours) if totals.gpu_hours else UNKNOWN,
            "Energy (kWh)": number(totals.energy),
            "CO2 (kg)": number(totals.co2),
        },
        group_totals=report.totals(Level.GROUP_TOTAL),
        user_totals=report.totals(Level.USER_TOTAL),
        Level=Level,
        UNKNOWN=UNKNOWN,
        and_more=and_more,
        in_words=_in_words,
        label=label,
        name_of=name_of,
        number=number,
        percentage=_percentage,
    )


def _percentage(part: Fraction | None, most: Fraction) -> int:
    return max(round(100 * part / most), 1) if part else 0  # show even the smallest usage


def _in_words(totals: Totals) -> str:
    words = [f"{totals.jobs:,} job" + ("" if totals.jobs == 1 else "s")]
    words += [] if totals.cpu_efficiency is None else [f"CPU {percent(totals.cpu_efficiency)}"]
    words += [] if totals.memory_efficiency is None else [f"memory {percent(totals.memory_efficiency)}"]
    words += [f"{number(totals.gpu_hours)} GPU h"] if totals.gpu_hours else []
    words += [f"{number(totals.khs23h, 3)} kHS23h"] if totals.khs23h else []
    words += [] if totals.energy is None else [f"{number(totals.energy)} kWh"]
    words += [] if totals.co2 is None else [f"{number(totals.co2)} kg CO2"]
    return ", ".join(words)
