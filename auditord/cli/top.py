"""``auditord top``: the sites, groups or users with the most core hours."""

import click

from auditord.cli.report_options import ReportOptions, answered, report_options
from auditord.cli.report_output import OUTPUTS
from auditord.reporting import MEASURES

_SHOWN = ("core-hours", "jobs", "gpu-hours", "wall-hours", "cpu-efficiency")


@click.command("top")
@click.argument("label", type=click.Choice(["users", "groups", "sites"]), default="users")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many rows.")
@report_options(default_period="this-month")
@click.option("--output", "form", type=click.Choice(list(OUTPUTS)), default="table", show_default=True)
def top_command(form: str, label: str, limit: int, options: ReportOptions) -> None:
    """Show who used the most core hours this month, or in another period.

    A record counts in the period in which it stopped. Reads the record store itself, beside a running daemon or without
    one; with --url, a server anywhere.
    """
    measures = tuple(MEASURES[name] for name in _SHOWN)
    OUTPUTS[form](answered(options, measures, label.removesuffix("s"), None), limit)
