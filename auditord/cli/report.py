"""``auditord report`` and ``auditord top``: usage and efficiency as tables, charts in the terminal, and files."""

import io
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial, wraps
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import fields, replace

from auditord.cli.daemons import ca_option, note_server, token_file_option
from auditord.cli.frame import ExtensibleGroup, config_paths
from auditord.cli.installation import load_configuration, run_async, utc_now
from auditord.cli.option_types import LOCAL_PERIOD_INSTANT, ZONE, parse_filters, split_pair
from auditord.cli.record_listing import ask_labels, open_lake, open_records
from auditord.cli.tables import Table, new_table, print_table
from auditord.config.merging import Place, plain_place
from auditord.errors import DaemonError
from auditord.reporting import MEASURES, Figure, Measure, Question, Report, Row
from auditord.reporting.measures import DEFAULT_SCORE, UNKNOWN, text
from auditord.reporting.periods import PERIODS
from auditord.reporting.pledges import Pledge, compare_with_pledges, remark_on_pledges, sum_pledges
from auditord.reporting.report import (
    explain_empty,
    has_implausible,
    make_report,
    missing_labels,
    parts_of,
    remarks,
    zero,
)
from auditord.reporting.writing import Grid, csv_pieces, grid_of, json_pieces, write_parquet, write_xlsx
from auditord.store.opening import open_store_for_reading
from auditord.store.reading import StoredRecords
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import AllOf, Order, SortField, Window, match_stopped
from auditord_hookspecs.terminal import check_period, escape, say, write
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.zones import UTC_NAME, zone_named

_ALL: Final = "all"
_WITHOUT_DIGITS: Final = 1_000


def format_figure(figure: Figure, measure: Measure) -> str:
    """Return a figure as text; ``-`` without a value."""
    value = figure.value
    if value is None:
        return "-"
    # few decimals, but enough that no small value is shown as zero
    is_whole = not measure.unit or abs(value) >= _WITHOUT_DIGITS or not value
    return text(value, 0 if is_whole else 1 if abs(value) >= 1 else 3)


def largest(report: Report, most: int) -> Sequence[tuple[str, Row]]:
    """Return the ``most`` largest rows with their names, and one row with the sum of the others, if any."""
    rows, rest, count = report.largest(most)
    named = [(row.name or _ALL, row) for row in rows]
    return named if rest is None else [*named, (f"{count} more", rest)]


def period(report: Report) -> str:
    """Return the period of a report after a comma; empty without a period."""
    window = report.question.window
    span = "" if window is None else f", {window.start:%Y-%m-%d %H:%M} to {window.stop:%Y-%m-%d %H:%M}"
    return f"{span} {report.question.zone}" if span else ""


if TYPE_CHECKING:
    from rich.console import Console

    from auditord.client import AsyncClient
    from auditord.config.model import Configuration

F = TypeVar("F", bound=Callable[..., Any])


class ReportOptions(msgspec.Struct, frozen=True):
    """The options that reports have in common.

    Args:
        period: the name of the period of the stop times.
        zone: the time zone of the calendar; None for ``ui.timezone`` or, with ``url``, UTC.
        filters: labels and values that records must have.
        among: further filters, in the grammar of the API.
        co2_per_kwh: the CO2 per kWh, in kg; None for the configured value.
        url: the server to query; None for the store of this host.
        token_file: contains a token for the server.
        ca: contains the CA of the server; None: the system's CAs.
    """

    period: str
    since: datetime | None
    until: datetime | None
    zone: str | None
    filters: tuple[tuple[str, str], ...]
    among: str
    score: str
    co2_per_kwh: float | None
    url: str | None
    token_file: Path | None
    ca: Path | None
    source: Literal["store", "lake"]


class Answered(msgspec.Struct, frozen=True):
    """A report and the configured pledges."""

    report: Report
    pledges: Sequence[Pledge]


_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (  # Any: click's commands
    click.option(
        "--from",
        "since",
        type=LOCAL_PERIOD_INSTANT,
        help="Only records that stopped at or after this time, instead of a period.",
    ),
    click.option("--to", "until", type=LOCAL_PERIOD_INSTANT, help="Only records that stopped before this time."),
    click.option(
        "--timezone",
        "zone",
        type=ZONE,
        help="Time zone of days, months and periods, such as Europe/Berlin; default: ui.timezone, with --url UTC.",
    ),
    click.option(
        "--filter",
        "filters",
        multiple=True,
        metavar="LABEL=VALUE",
        help="Only records with this site, group, user or value of a meta key; LABEL= selects records without one. "
        "Repeat it to require several.",
    ),
    click.option(
        "--where",
        "among",
        default="",
        metavar="QUERY",
        help="Only records with these filters of the API, such as 'component[Cores][gte]=64&runtime[gte]=60'.",
    ),
    click.option("--score", default=DEFAULT_SCORE, show_default=True, help="The benchmark of score-hours."),
    click.option(
        "--co2-per-kwh",
        type=click.FloatRange(min=0),
        metavar="KG",
        help="kg of CO2 per kWh, for the measure co2; default: ui.co2_per_kwh.",
    ),
    click.option("--url", metavar="URL", help="Ask the server at http://host:port or https://host."),
    token_file_option,
    ca_option,
    click.option(
        "--source",
        type=click.Choice(["store", "lake"]),
        default="store",
        show_default=True,
        help="Sum up the records of the store, or those of the lake as of its last commit.",
    ),
)


def report_options(default_period: str) -> Callable[[F], F]:
    """Return a decorator that gives a command the common options as one argument ``options``."""

    def decorate(command: F) -> F:
        @wraps(command)
        def wrapper(**chosen: Any) -> Any:  # Any: click's values
            context = click.get_current_context()
            has_period = context.get_parameter_source("period") is ParameterSource.COMMANDLINE
            if has_period and (chosen["since"] is not None or chosen["until"] is not None):
                raise click.UsageError("give --period, or --from and --to, not both")
            filters = tuple(split_pair(text, "--filter", "LABEL=VALUE") for text in chosen.pop("filters"))
            values = {each.name: chosen.pop(each.name) for each in fields(ReportOptions) if each.name != "filters"}
            return command(**chosen, options=ReportOptions(filters=filters, **values))

        choose_period = click.option(
            "--period",
            type=click.Choice(list(PERIODS)),
            default=default_period,
            show_default=True,
            metavar="PERIOD",
            help=f"{', '.join(PERIODS)}.",
        )
        for option in reversed((choose_period, *_OPTIONS)):
            wrapper = option(wrapper)
        return wrapper  # type: ignore[return-value] # click looks at its options, not at its type

    return decorate


def query_report(
    options: ReportOptions,
    measures: tuple[Measure, ...],
    by: str | None,
    unit: CalendarUnit | None,
    then: str | None = None,
) -> Answered:
    note_server(options.url, options.token_file, options.ca)
    among = parse_filters(options.among)
    wanted = Question(measures, by, unit, filters=options.filters, score=options.score, among=among, then=then)
    if options.url is not None:
        if not options.url.startswith(("http://", "https://")):
            raise click.UsageError(f"--url: '{options.url}' is neither http://host:port nor https://host")
        question = replace(
            _in_zone(wanted, options, options.zone or UTC_NAME),
            co2_per_kwh=_intensity(options.co2_per_kwh),
            keys=run_async(ask_labels, options.url),
        )
        return Answered(make_report(question, _print_snapshot(run_async(_ask_server, question.query(), options))), ())
    place = plain_place(config_paths(), os.environ, needed=("labels", "lake", "pledges", "ui"))
    if place is not None and options.source == "store":
        question = replace(
            _in_zone(wanted, options, options.zone or UTC_NAME), co2_per_kwh=_intensity(options.co2_per_kwh)
        )
        return Answered(make_report(question, run_async(_ask_store_alone, question.query(), place)), ())
    configuration = load_configuration()
    here = _in_zone(wanted, options, options.zone or configuration.ui.timezone)
    intensity = _intensity(options.co2_per_kwh, configuration.ui.co2_per_kwh)
    question = replace(here, keys=configuration.labels.keys(), co2_per_kwh=intensity)
    ask = _ask_lake if options.source == "lake" else _ask_store
    report = make_report(question, _print_snapshot(run_async(ask, question.query(), configuration)))
    return Answered(report, [each.pledge() for each in configuration.pledges])


def _in_zone(question: Question, options: ReportOptions, zone: str) -> Question:
    there = zone_named(zone)
    now = utc_now().astimezone(there)
    window = PERIODS[options.period](now)
    since, until = (  # a date is midnight in the zone
        None if each is None else each.replace(tzinfo=there) if each.tzinfo is None else each.astimezone(there)
        for each in (options.since, options.until)
    )
    if since is not None or until is not None:
        begin = since or window.start
        window = Window(begin, until or max(window.stop, begin))
        check_period(window.start, window.stop)
    return replace(question, window=window, zone=zone, now=now)


def _intensity(*said: float | Decimal | None) -> Fraction | None:
    """Return the first CO2 intensity that is given."""
    return next((Fraction(str(each)) for each in said if each is not None), None)


async def _ask_store_alone(query: AggregateQuery, place: Place) -> Aggregates:
    async with open_store_for_reading(place.store) as store:
        return await store.aggregate(query)


async def _ask_store(query: AggregateQuery, configuration: "Configuration") -> Aggregates:
    from auditord.lake.opening import lake_of  # noqa: PLC0415 imports the models

    async with open_store_for_reading(configuration.store) as store:
        with lake_of(store, configuration):
            return await store.aggregate(query)


async def _ask_lake(query: AggregateQuery, configuration: "Configuration") -> Aggregates:
    with open_lake(configuration) as lake:
        return await lake.aggregate(query)


def _print_snapshot(found: Aggregates) -> Aggregates:
    """Print to standard error which snapshot of a lake answered, and return the answer."""
    if (snapshot := found.snapshot) is not None:
        say(f"as of the lake's snapshot {snapshot.number} of {format_time(snapshot.committed_at)}", err=True)
        if not snapshot.is_complete:
            say(
                "the sums are too low: a first sync to the lake has not finished yet (see `auditord lake status`)",
                err=True,
            )
    return found


async def _ask_server(query: AggregateQuery, options: ReportOptions) -> Aggregates:
    async with _at_server(options) as client:
        return await client.aggregate(query, source=options.source)


@asynccontextmanager
async def _at_server(options: ReportOptions) -> "AsyncGenerator[AsyncClient, None]":
    from auditord.cli.daemon_client import explain_unauthenticated  # noqa: PLC0415 only to query a server
    from auditord.client import AsyncClient, ConnectionFailed, Refused, Tls  # noqa: PLC0415 aiohttp, the same

    url = options.url or ""
    token = None if options.token_file is None else options.token_file.read_text().strip()
    try:
        async with AsyncClient(url, tls=Tls(options.ca), token=token) as client:
            yield client
    except Refused as error:
        if error.status != HTTPStatus.UNAUTHORIZED:
            raise
        raise explain_unauthenticated(url, has_token=token is not None) from error
    except ConnectionFailed as error:  # its text begins with the request, whose URL contains the whole query
        reason = str(error).partition(": ")[2].removeprefix("cannot connect: ")
        raise DaemonError(f"no answer from {url}: {reason.removeprefix(f'{urlsplit(url).netloc}: ')}") from error


ReportOutput: TypeAlias = Callable[[Answered, int | None], None]

_COLUMNS: Final = 5


def write_table(answered: Answered, most: int | None) -> None:
    """Print rows by bins if there is one measure, else rows by measures."""
    report = answered.report
    measure = report.question.measures[0]
    single = len(report.question.measures) == 1
    table = _by_bins(report) if single and report.bins else _by_measures(answered, most)
    for column in table.columns[1:]:
        column.right = True
    if not report.rows:
        _say_why_empty(report)
        return
    print_table(table)
    unit = f"{measure.title} ({measure.unit})" if measure.unit else measure.title
    say(f"{unit if single else 'Totals are over all rows'}{period(report)}", err=True)
    _write_pledge(answered)


def _say_why_empty(report: Report) -> None:
    question = report.question
    reason = explain_empty(report, is_filtered=bool(question.filters) or question.among != AllOf())
    say(reason or "", err=True)


def _write_pledge(answered: Answered) -> None:
    question, measure = answered.report.question, answered.report.question.measures[0]
    amount = None if question.window is None else sum_pledges(answered.pledges, question, question.window)
    (share,) = compare_with_pledges(answered.pledges, question, [answered.report.whole])
    if amount and share is not None:
        say(f"Pledge {text(amount)} {measure.unit}: {format_figure(Figure(share), measure)} % used", err=True)
    rows = [] if question.bin else [row.labels for row in answered.report.rows]
    if remark := remark_on_pledges(answered.pledges, question, rows):
        say(f"remark: {remark}", err=True)


def _by_bins(report: Report) -> Table:
    """Return a table with a line for each bin, so that a year fits 80 columns."""
    measure = report.question.measures[0]
    named = largest(report, _COLUMNS)
    totals = [report.whole] if len(report.rows) > 1 else []
    unit = report.question.bin
    table = new_table(unit.value if unit else "", *(escape(name) for name, _ in named), *("total" for _ in totals))
    columns = [row for _, row in named] + totals
    nothing, parts = zero(report.question.measures), parts_of(report.question, report.bins)
    for begin in report.bins:
        name = f"{begin}, {parts[begin].text()}" if begin in parts else begin.isoformat()
        table.add_row(name, *(format_figure(row.cells.get(begin, nothing)[0], measure) for row in columns))
    table.add_row("total", *(format_figure(row.total[0], measure) for row in columns), bold=True)
    return table


def _by_measures(answered: Answered, most: int | None) -> Table:
    report = answered.report
    measures = report.question.measures
    titles = [f"{each.title} ({each.unit})" if each.unit == "%" else each.title for each in measures]
    rows = largest(report, len(report.rows) if most is None else most)
    rows = [*rows, *([("total", report.whole)] if len(report.rows) > 1 else [])]
    used = compare_with_pledges(answered.pledges, report.question, [row for _, row in rows])
    has_pledges = any(each is not None for each in used[: len(report.rows)])
    table = new_table(" · ".join(report.question.groups), *titles, *(["Pledge used (%)"] if has_pledges else []))
    for at, ((name, row), share) in enumerate(zip(rows, used, strict=True)):
        is_total = at == len(report.rows)
        pledged = UNKNOWN if share is None or not (row.labels or is_total) else Figure(share)
        cells = [format_figure(pledged, measures[0])] if has_pledges else []
        table.add_row(name, *map(format_figure, row.total, measures), *cells, bold=is_total)
    return table


def write_chart(answered: Answered, most: int | None) -> None:
    """Print a bar for each bin, stacked by row; without bins, a bar for each row."""
    report = answered.report
    if not report.rows:
        _say_why_empty(report)
        return
    from rich.console import Console  # noqa: PLC0415 slow to import, needed only here
    from rich.text import Text  # noqa: PLC0415 the same

    measure = report.question.measures[0]
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, _WIDTH)
    console.print(Text(f"{measure.title}{f' ({measure.unit})' if measure.unit else ''}{period(report)}", "bold"))
    if report.bins and not measure.ratio:
        _print_bins(console, report, measure)
    else:
        named = [
            (escape(name), row.total[0].value or Fraction(0), f" {format_figure(row.total[0], measure)}")
            for name, row in largest(report, most or 20)
        ]
        label = min(max(len(name) for name, _, _ in named), 24)
        width = console.width - label - 2 - max(len(figure) for _, _, figure in named)
        longest = max(value for _, value, _ in named) or Fraction(1)
        for name, value, figure in named:
            line = Text(f"{name[:label]:<{label}}  ").append(_SHADES[0] * round(width * value / longest), _COLOURS[0])
            console.print(line.append(figure, "default"), soft_wrap=True)
    _write_pledge(answered)


def _write_text(pieces: Callable[[Grid], Iterator[str]], answered: Answered, _most: int | None) -> None:
    for piece in pieces(grid_of(answered.report)):
        write(piece)


def _write_file(
    form: str, steps: Callable[[Grid, BinaryIO], Iterator[None]], answered: Answered, _most: int | None
) -> None:
    """Write a file to standard output, unless that is a terminal."""
    if sys.stdout.isatty():
        say(f"{form} cannot be shown on a terminal: redirect it with > usage.{form}", err=True)
        raise SystemExit(2)
    out = io.BytesIO()
    for _ in steps(grid_of(answered.report), out):
        pass
    sys.stdout.buffer.write(out.getbuffer())


OUTPUTS: Final[Mapping[str, ReportOutput]] = {
    "table": write_table,
    "chart": write_chart,
    "csv": partial(_write_text, csv_pieces),
    "json": partial(_write_text, json_pieces),
    "parquet": partial(_write_file, "parquet", write_parquet),
    "xlsx": partial(_write_file, "xlsx", write_xlsx),
}


_ROWS: Final = 6
_WIDTH: Final = 100
_DATE: Final = len("2026-01-31  ")
_COLOURS: Final = ("blue", "yellow", "green", "red", "cyan", "magenta", "white")
_SHADES: Final = "█▓▒░#=+"
"""Patterns in addition to the colours, so that rows can be told apart without colour."""


def _print_bins(console: "Console", report: Report, measure: Measure) -> None:
    from rich.text import Text  # noqa: PLC0415 slow to import, needed only here

    series = largest(report, _ROWS)
    sums = {begin: _value(report.totals, begin) for begin in report.bins}
    parts = {begin: f" ({part.text()})" for begin, part in parts_of(report.question, report.bins).items()}
    figures = {
        begin: f" {format_figure(Figure(value), measure)}{parts.get(begin, '')}" for begin, value in sums.items()
    }
    width = console.width - _DATE - max(map(len, figures.values()))
    longest = max(sums.values()) or Fraction(1)
    for begin in report.bins:
        bar = Text(f"{begin.isoformat()}  ")
        reached, drawn = Fraction(0), 0
        for at, (_, row) in enumerate(series):
            reached += _value(row.cells, begin)
            until = round(width * reached / longest)
            bar.append(_SHADES[at] * (until - drawn), _COLOURS[at])
            drawn = max(drawn, until)
        console.print(bar.append(figures[begin]), soft_wrap=True)
    for at, (name, row) in enumerate(series):
        legend = Text(f"{_SHADES[at] * 2} ", _COLOURS[at]).append(f"{escape(name)} ", "default")
        console.print(legend.append(format_figure(row.total[0], measure), "default"), soft_wrap=True)


def _value(cells: Mapping[date | None, tuple[Figure, ...]], begin: date) -> Fraction:
    return (cells[begin][0].value or Fraction(0)) if begin in cells else Fraction(0)


_BY_HELP = "site, group, user, size (cores of a job), any meta key, or none."

_output = partial(
    click.option, "--output", "form", type=click.Choice(list(OUTPUTS)), default="table", show_default=True
)


@click.group("report", cls=ExtensibleGroup)
def report_command() -> None:
    """Report usage or efficiency: tables, charts in the terminal, CSV, JSON, Parquet and XLSX.

    A record counts in the period in which it stopped. Days begin at midnight, in UTC or --timezone.
    """


def _choose_measures(default: Sequence[str], repeated: str) -> Callable[[F], F]:
    return click.option(
        "--measure",
        "measures",
        type=click.Choice(list(MEASURES)),
        multiple=True,
        default=default,
        show_default=True,
        metavar="MEASURE",
        help=f"{', '.join(MEASURES)}; {repeated}",
    )


@report_command.command("usage")
@click.option("--by", default="group", show_default=True, metavar="LABEL", help=_BY_HELP)
@_choose_measures(["core-hours"], "repeat it for several; a chart shows the first.")
@click.option(
    "--bin",
    "unit",
    type=click.Choice([*(unit.value for unit in CalendarUnit), "none"]),
    default="month",
    show_default=True,
    metavar="UNIT",
    help=f"The unit of the time axis: {', '.join(unit.value for unit in CalendarUnit)} or none.",
)
@click.option("--then", metavar="LABEL", help="A second label: each row has one value of either.")
@report_options(default_period="12-months")
@_output()
def usage_command(
    *, form: str, by: str, then: str | None, measures: tuple[str, ...], unit: str, options: ReportOptions
) -> None:
    """Report usage over time.

    Reads the record store directly, with or without a running daemon, or asks the server at --url.
    """
    chosen = tuple(MEASURES[name] for name in measures)
    calendar_unit = None if unit == "none" else CalendarUnit(unit)
    first, second, *_ = (*dict.fromkeys([each for each in (by, then or "none") if each != "none"]), None, None)
    _print(form, options, query_report(options, chosen, first, calendar_unit, second), None)


@report_command.command("efficiency")
@click.option("--by", default="user", show_default=True, metavar="LABEL", help=_BY_HELP)
@click.option("--worst", type=click.IntRange(min=1), default=20, show_default=True, help="The maximum number of rows.")
@report_options(default_period="30-days")
@_output()
def efficiency_command(form: str, by: str, worst: int, options: ReportOptions) -> None:
    """Report unused core hours, the largest number first.

    The efficiency and the idle core hours leave out records without a CPU time.
    """
    chosen = tuple(MEASURES[name] for name in ("idle-core-hours", "cpu-efficiency", "core-hours", "jobs"))
    _print(form, options, query_report(options, chosen, None if by == "none" else by, None), worst)


_RECENT: Final = 200
_PLURALS: Final = {"users": "user", "groups": "group", "sites": "site"}
_SHOWN = ("core-hours", "jobs", "gpu-hours", "wall-hours", "cpu-efficiency")


@click.command("top")
@click.argument("label", default="users", metavar="[users|groups|sites|LABEL]")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The maximum number of rows.")
@_choose_measures(_SHOWN, "repeat it for several columns; the first orders the rows.")
@report_options(default_period="this-month")
@click.option("--output", "form", type=click.Choice(list(OUTPUTS)), default="table", show_default=True)
def top_command(*, form: str, label: str, limit: int, measures: tuple[str, ...], options: ReportOptions) -> None:
    """Show who used the most core hours this month, or in another period: users, groups, sites, or any other label.

    A record counts in the period in which it stopped. Reads the record store directly, with or without a running
    daemon, or asks the server at --url.
    """
    chosen = tuple(MEASURES[name] for name in measures)
    _print(form, options, query_report(options, chosen, _PLURALS.get(label, label), None), limit)


def _print(form: str, options: ReportOptions, answer: Answered, most: int | None) -> None:
    OUTPUTS[form](answer, most)
    window = answer.report.question.window
    for key in missing_labels(answer.report):
        labels: Sequence[str] = ()
        if options.source == "store" and window is not None:
            query = RecordQuery(match_stopped(window), Order(SortField.STOP, descending=True), _RECENT)
            labels = run_async(_list_labels, query, options)
        others = f"; they have {', '.join(map(escape, labels))}" if labels else ""
        say(f"remark: none of these records has the label {key}{others}", err=True)
    for remark in remarks(answer.report.question, [row.total for row in answer.report.rows]):
        say(f"remark: {remark}", err=True)
    if has_implausible(answer.report):
        say("remark: an efficiency above 150 %: see auditord records --implausible", err=True)


async def _list_labels(query: RecordQuery, options: ReportOptions) -> Sequence[str]:
    async with AsyncExitStack() as stack:
        if options.url is not None:
            opened = (await stack.enter_async_context(_at_server(options))).stream(query)
        else:
            opened = StoredRecords(await stack.enter_async_context(open_records(released=False))).stream(query)
        records = await stack.enter_async_context(opened)
        return sorted({key async for record in records for key in record.meta or {}})
