"""``auditord report utilisation``: the report on any month or week, at once."""

from typing import Final

import click

from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.periods import Period, last_complete, parse_period
from auditord_builtin.utilisation.report import Report, as_csv, as_html, as_json, as_text, ask, report_on
from auditord_hookspecs import CommandContext, PluginContext, pass_context
from auditord_hookspecs.commands import run_instance
from auditord_hookspecs.terminal import ReadBy, write

KIND: Final = "utilisation"

_ROWS_OF_A_PAGE: Final = 50

_PERIOD: Final = ReadBy("YYYY-MM", parse_period)


@click.group("report")
def report_group() -> None:
    """Show resource usage."""


@report_group.command("utilisation")
@click.argument("instance", required=False)
@click.option("--month", "period", type=_PERIOD, help="2026-01, or 2026-W05 for a week. Default: the last one.")
@click.option("--site", "sites", multiple=True, help="Only this site; may be repeated.")
@click.option("--output", type=click.Choice(["table", "csv", "json", "html"]), default="table", show_default=True)
@click.option(
    "--most-rows",
    type=click.IntRange(min=1),
    help=f"The maximum number of groups and users to list for each site. Default: {_ROWS_OF_A_PAGE} in html, all in a"
    " table. CSV and JSON always have all.",
)
@click.option(
    "--escape-formulas/--no-escape-formulas",
    default=True,
    show_default=True,
    help="CSV: put ' before names that a spreadsheet would evaluate as a formula.",
)
@pass_context
def utilisation_command(
    host: CommandContext,
    *,
    instance: str | None,
    period: Period | None,
    sites: tuple[str, ...],
    output: str,
    most_rows: int | None,
    escape_formulas: bool,
) -> None:
    """Show what sites, groups and users used in a month or a week.

    INSTANCE is a plugin of kind utilisation, whose options apply. It can be left out if there is only one. Nothing is
    written or mailed. A current period is shown up to now.
    """

    async def make(config: UtilisationConfig, context: PluginContext) -> Report:
        now = context.now()
        wanted = last_complete(config.period, now) if period is None else period
        chosen = config.model_copy(update={"sites": sites}) if sites else config
        return report_on(await ask(chosen, context.records, wanted), chosen, wanted, complete=wanted.stop <= now)

    report = run_instance(host, KIND, instance, make, dry_run=True)
    match output:
        case "csv":
            write(as_csv(report, escape_formulas=escape_formulas))
        case "json":
            write(as_json(report))
        case "html":
            write(as_html(report, most_rows or _ROWS_OF_A_PAGE))
        case _:
            write(as_text(report, most_rows))
