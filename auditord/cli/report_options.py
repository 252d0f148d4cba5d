"""The options that reports have in common, and the question that they make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from auditord.archive.opening import archive_of
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.cli.record_filters import INSTANT
from auditord.client import AsyncClient
from auditord.reporting import LabelKeys, Measure, Question
from auditord.reporting.measures import DEFAULT_SCORE
from auditord.reporting.periods import PERIODS
from auditord.reporting.pledges import Pledge
from auditord.reporting.report import Report, make_report
from auditord.store.opening import open_store_for_reading
from auditord_hookspecs import AggregateQuery, Aggregates
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The records that a report is about, and where they are.

    Args:
        window: of their stop times.
        filters: names and values that they have.
        score: the benchmark of weighted hours.
        url: of a server; None for the store of this host.
        token_file: with a token for the server.
    """

    window: Window
    filters: tuple[tuple[str, str], ...]
    score: str
    url: str | None
    token_file: Path | None


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
            window = _window(chosen.pop("period"), chosen.pop("since"), chosen.pop("until"), utc_now())
            filters = tuple(_pair(text) for text in chosen.pop("filters"))
            taken = {name: chosen.pop(name) for name in ("score", "url", "token_file")}
            return command(**chosen, options=ReportOptions(window, filters, **taken))

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
            help=f"In UTC: {', '.join(PERIODS)}.",
        ),
        click.option("--from", "since", type=INSTANT, help="Instead: records that stopped then or later."),
        click.option("--to", "until", type=INSTANT, help="Only records that stopped earlier."),
        click.option(
            "--filter",
            "filters",
            multiple=True,
            metavar="LABEL=VALUE",
            help="Only records with this site, group, user or value of a meta key; repeated: with all of them.",
        ),
        click.option("--score", default=DEFAULT_SCORE, show_default=True, help="The benchmark of score-hours."),
        click.option("--url", metavar="URL", help="Ask the server at http://host:port or https://host."),
        click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A token for the server at --url.",
        ),
    )


def _window(period: str, since: datetime | None, until: datetime | None, now: datetime) -> Window:
    named = PERIODS[period](now)
    if since is None and until is None:
        return named
    window = (since or named.start, until or max(named.stop, since or named.stop))
    if window[1] <= window[0]:
        raise click.BadParameter("it is not behind --from", param_hint="--to")
    return Window(*window)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"'{text}' is not LABEL=VALUE", param_hint="--filter")
    return name, value


def answered(
    options: ReportOptions, measures: tuple[Measure, ...], by: str | None, unit: CalendarUnit | None
) -> Answered:
    """Ask for the sums and make the report of them."""
    given = (measures, by, unit, options.window, options.filters, options.score)
    if options.url is not None:
        if not options.url.startswith(("http://", "https://")):
            raise click.UsageError(f"--url: '{options.url}' is neither http://host:port nor https://host")
        question = Question(*given)
        return Answered(make_report(question, run_async(_ask_server, question.query(), options)), ())
    if options.token_file is not None:
        raise click.UsageError("--token-file is for --url: without it, the record store itself is read")
    installation = load_installation()
    question = Question(*given, keys=LabelKeys(*installation.configuration.metrics.database.label_keys))
    report = make_report(question, run_async(_ask_store, question.query(), installation))
    return Answered(report, [each.pledge() for each in installation.configuration.pledges])


async def _ask_store(query: AggregateQuery, installation: Installation) -> Aggregates:
    async with open_store_for_reading(installation.configuration.store) as store:
        with archive_of(store, installation.configuration):
            return await store.aggregate(query)


async def _ask_server(query: AggregateQuery, options: ReportOptions) -> Aggregates:
    token = None if options.token_file is None else options.token_file.read_text().strip()
    async with AsyncClient(options.url or "", token=token) as client:
        return await client.aggregate(query)
