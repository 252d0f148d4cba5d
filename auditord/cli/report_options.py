"""The options that reports have in common, and the question that they make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, tzinfo
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from auditord.archive.opening import archive_of
from auditord.cli.installation import load_configuration, run_async, utc_now
from auditord.cli.option_types import LOCAL_PERIOD_INSTANT, ZONE
from auditord.cli.record_filters import opened_lake
from auditord.config.model import Configuration
from auditord.reporting import LabelKeys, Measure, Question
from auditord.reporting.measures import DEFAULT_SCORE
from auditord.reporting.periods import PERIODS
from auditord.reporting.pledges import Pledge
from auditord.reporting.report import Report, make_report
from auditord.store.opening import open_store_for_reading
from auditord_hookspecs import AggregateQuery, Aggregates
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window
from auditord_hookspecs.terminal import say
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.zones import UTC_NAME, zone_named

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The records that a report is about, and where they are.

    Args:
        period: the name of the period of their stop times.
        since: instead, from then on.
        until: instead, before then.
        zone: the time zone of the calendar; None for the page's.
        filters: names and values that they have.
        score: the benchmark of weighted hours.
        co2_per_kwh: of the grid, in kg; None for what is configured.
        url: of a server; None for the store of this host.
        token_file: with a token for the server.
        source: of the records: ``store`` or ``lake``.
    """

    period: str
    since: datetime | None
    until: datetime | None
    zone: str | None
    filters: tuple[tuple[str, str], ...]
    score: str
    co2_per_kwh: float | None
    url: str | None
    token_file: Path | None
    source: Literal["store", "lake"]


@dataclass(frozen=True, slots=True)
class Answered:
    """A report, and the pledges that the configuration has."""

    report: Report
    pledges: Sequence[Pledge]


def report_options(default_period: str) -> Callable[[F], F]:
    """Let a command take the common options, as one argument ``options``."""

    def decorate(command: F) -> F:
        @wraps(command)
        def wrapped(**chosen: Any) -> Any:  # Any: click's values
            filters = tuple(_pair(text) for text in chosen.pop("filters"))
            taken = {each.name: chosen.pop(each.name) for each in fields(ReportOptions) if each.name != "filters"}
            return command(**chosen, options=ReportOptions(filters=filters, **taken))

        for option in reversed(_options(default_period)):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value] # click looks at its options, not at its type

    return decorate


def _options(default_period: str) -> Sequence[Callable[[Any], Any]]:  # Any: click's commands
    return (
        click.option(
            "--period",
            type=click.Choice(list(PERIODS)),
            default=default_period,
            show_default=True,
            metavar="PERIOD",
            help=f"{', '.join(PERIODS)}.",
        ),
        click.option("--from", "since", type=LOCAL_PERIOD_INSTANT, help="Instead: records that stopped then or later."),
        click.option("--to", "until", type=LOCAL_PERIOD_INSTANT, help="Only records that stopped earlier."),
        click.option(
            "--timezone",
            "zone",
            type=ZONE,
            help="Of days, months and periods, such as Europe/Berlin; by default ui.timezone, with --url UTC.",
        ),
        click.option(
            "--filter",
            "filters",
            multiple=True,
            metavar="LABEL=VALUE",
            help="Only records with this site, group, user or value of a meta key, or without one (LABEL=); "
            "repeated: with all of them.",
        ),
        click.option("--score", default=DEFAULT_SCORE, show_default=True, help="The benchmark of score-hours."),
        click.option(
            "--co2-per-kwh",
            type=click.FloatRange(min=0),
            metavar="KG",
            help="The CO2 of a kWh, for the measure co2; by default ui.co2_per_kwh.",
        ),
        click.option("--url", metavar="URL", help="Ask the server at http://host:port or https://host."),
        click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A token for the server at --url.",
        ),
        click.option(
            "--source",
            type=click.Choice(["store", "lake"]),
            default="store",
            show_default=True,
            help="Sum up the records of the store, or those of the lake as of its last commit.",
        ),
    )


def _window(options: ReportOptions, now: datetime) -> Window:
    """The window, in the time zone of the present."""
    named, zone = PERIODS[options.period](now), now.tzinfo
    since, until = (None if each is None else _local(each, zone) for each in (options.since, options.until))
    if since is None and until is None:
        return named
    window = (since or named.start, until or max(named.stop, since or named.stop))
    if window[1] <= window[0]:
        raise click.BadParameter("it is not behind --from", param_hint="--to")
    return Window(*window)


def _local(moment: datetime, zone: tzinfo | None) -> datetime:
    """The same instant in a zone; midnight there for a date."""
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"'{text}' is not LABEL=VALUE", param_hint="--filter")
    return name, value


def answered(
    options: ReportOptions, measures: tuple[Measure, ...], by: str | None, unit: CalendarUnit | None
) -> Answered:
    """Ask for the sums and make the report of them."""
    asked = Question(measures, by, unit, filters=options.filters, score=options.score)
    if options.url is not None:
        if not options.url.startswith(("http://", "https://")):
            raise click.UsageError(f"--url: '{options.url}' is neither http://host:port nor https://host")
        question = replace(
            _in_zone(asked, options, options.zone or UTC_NAME), co2_per_kwh=_intensity(options.co2_per_kwh)
        )
        return Answered(make_report(question, _noted(run_async(_ask_server, question.query(), options))), ())
    if options.token_file is not None:
        raise click.UsageError("--token-file is for --url: without it, the record store itself is read")
    configuration = load_configuration()
    keys = LabelKeys(*configuration.metrics.database.label_keys)
    here = _in_zone(asked, options, options.zone or configuration.ui.timezone)
    question = replace(here, keys=keys, co2_per_kwh=_intensity(options.co2_per_kwh, configuration.ui.co2_per_kwh))
    ask = _ask_lake if options.source == "lake" else _ask_store
    report = make_report(question, _noted(run_async(ask, question.query(), configuration)))
    return Answered(report, [each.pledge() for each in configuration.pledges])


def _in_zone(question: Question, options: ReportOptions, zone: str) -> Question:
    now = utc_now().astimezone(zone_named(zone))
    return replace(question, window=_window(options, now), zone=zone, now=now)


def _intensity(*said: float | Decimal | None) -> Fraction | None:
    """The first CO2 of a kWh that somebody has said."""
    return next((Fraction(str(each)) for each in said if each is not None), None)


async def _ask_store(query: AggregateQuery, configuration: Configuration) -> Aggregates:
    async with open_store_for_reading(configuration.store) as store:
        with archive_of(store, configuration):
            return await store.aggregate(query)


async def _ask_lake(query: AggregateQuery, configuration: Configuration) -> Aggregates:
    with opened_lake(configuration) as lake:
        return await lake.aggregate(query)


def _noted(found: Aggregates) -> Aggregates:
    """The answer of a lake, after a word about which state of it that is."""
    if (snapshot := found.snapshot) is not None:
        say(f"as of the lake's snapshot {snapshot.number} of {format_time(snapshot.committed_at)}", err=True)
        if not snapshot.is_complete:
            say("too low: a first sync to the lake is still under way (`auditord lake status`)", err=True)
    return found


async def _ask_server(query: AggregateQuery, options: ReportOptions) -> Aggregates:
    from auditord.client import AsyncClient  # noqa: PLC0415 aiohttp, where a server is asked

    token = None if options.token_file is None else options.token_file.read_text().strip()
    async with AsyncClient(options.url or "", token=token) as client:
        return await client.aggregate(query, source=options.source)
