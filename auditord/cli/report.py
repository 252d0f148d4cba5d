"""``auditord report``: usage and efficiency by site, group, user or label, and over time."""

from functools import partial

import click

from auditord.cli.frame import ExtensibleGroup
from auditord.cli.report_options import ReportOptions, answered, report_options
from auditord.cli.report_output import OUTPUTS
from auditord.reporting import MEASURES
from auditord_hookspecs.aggregates import CalendarUnit

_BY_HELP = "site, group, user, size (cores of a job), any meta key, or none."

_output = partial(
    click.option, "--output", "form", type=click.Choice(list(OUTPUTS)), default="table", show_default=True
)


@click.group("report", cls=ExtensibleGroup)
def report_command() -> None:
    """Report usage or efficiency: tables, charts in the terminal, CSV, JSON, Parquet and XLSX.

    A record counts in the period in which it stopped. Days begin at midnight, in UTC or --timezone.
    """


@report_command.command("usage")
@click.option("--by", default="group", show_default=True, metavar="LABEL", help=_BY_HELP)
@click.option(
    "--measure",
    "measures",
    type=click.Choice(list(MEASURES)),
    multiple=True,
    default=["core-hours"],
    show_default=True,
    metavar="MEASURE",
    help=f"{', '.join(MEASURES)}; repeated for several, of which a chart shows the first.",
)
@click.option(
    "--bin",
    "unit",
    type=click.Choice([*(unit.value for unit in CalendarUnit), "none"]),
    default="month",
    show_default=True,
    metavar="UNIT",
    help=f"The unit of the time axis: {', '.join(unit.value for unit in CalendarUnit)} or none.",
)
@report_options(default_period="12-months")
@_output()
def usage_command(form: str, by: str, measures: tuple[str, ...], unit: str, options: ReportOptions) -> None:
    """Report usage over time.

    Reads the record store itself, beside a running daemon or without one; with --url, a server anywhere.
    """
    chosen = tuple(MEASURES[name] for name in measures)
    calendar_unit = None if unit == "none" else CalendarUnit(unit)
    OUTPUTS[form](answered(options, chosen, None if by == "none" else by, calendar_unit), None)


@report_command.command("efficiency")
@click.option("--by", default="user", show_default=True, metavar="LABEL", help=_BY_HELP)
@click.option("--worst", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many rows.")
@report_options(default_period="30-days")
@_output()
def efficiency_command(form: str, by: str, worst: int, options: ReportOptions) -> None:
    """Report who left how many core hours unused; the largest number first.

    Records without a CPU time are left out of the efficiency and of the idle core hours.
    """
    chosen = tuple(MEASURES[name] for name in ("idle-core-hours", "cpu-efficiency", "core-hours", "jobs"))
    OUTPUTS[form](answered(options, chosen, None if by == "none" else by, None), worst)
