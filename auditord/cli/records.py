"""``auditord records``: look at the records and export them, beside a running daemon or without one."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from auditord.cli.amending import close_command, correct_command, delete_command, history_command
from auditord.cli.daemon_client import url_option
from auditord.cli.exports import EXPORTS, Export, write_csv, write_table
from auditord.cli.installation import run_async
from auditord.cli.record_filters import INSTANT, SPAN, condition, opened_source, opened_store
from auditord.cli.tables import new_table, print_table
from auditord.store import Difference
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.terminal import output, say, write

TABLE_LIMIT = 100

_SORT = {field.value: field for field in SortField}


@click.group("records", invoke_without_command=True)
@click.option("--id", "record_id", metavar="ID", help="Only the record with this id.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Only records with this value under this key.")
@click.option("--started-since", type=INSTANT, help="Only records that started then or later.")
@click.option("--started-before", type=INSTANT, help="Only records that started earlier.")
@click.option("--stopped-since", type=INSTANT, help="Only records that stopped then or later.")
@click.option("--stopped-before", type=INSTANT, help="Only records that stopped earlier.")
@click.option("--open", "only_open", is_flag=True, help="Only records that have no stop time yet.")
@click.option("--older-than", type=SPAN, help="Only records that started at least so long ago: 12h, 7d.")
@click.option("--sort", type=click.Choice(list(_SORT)), default="stop_time", show_default=True)
@click.option("--descending", is_flag=True, help="The latest (largest) first.")
@click.option("--limit", type=click.IntRange(min=0), help=f"At most so many; a table shows {TABLE_LIMIT} if not given.")
@click.option("--output", "form", type=click.Choice(list(EXPORTS)), default="table", show_default=True)
@click.option(
    "--escape-formulas/--no-escape-formulas",
    default=True,
    show_default=True,
    help="CSV: put ' before text that a spreadsheet would take for a formula.",
)
@url_option
@click.option("--differences", is_flag=True, help="Instead: records that came again with other content.")
@click.pass_context
def records_command(  # Any: click's values
    ctx: click.Context,
    /,
    *,
    form: str,
    escape_formulas: bool,
    differences: bool,
    limit: int | None,
    url: str | None,
    **chosen: Any,
) -> None:
    """Show records, or export them as JSON, NDJSON or CSV.

    Times are in UTC. Reads the record store itself, beside a running daemon or without one; with --url, a daemon
    anywhere. The commands below change single records and show what they were before.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx)
        return
    cut = TABLE_LIMIT if form == "table" and limit is None else limit
    query = RecordQuery(condition(**chosen), Order(_SORT[chosen["sort"]], chosen["descending"]), cut)
    if differences and url is not None:
        raise click.UsageError("--differences reads the record store itself: leave --url out")
    if differences:
        run_async(_print_differences, form)
    else:
        verbatim = form == "csv" and not escape_formulas
        export = partial(write_csv, shown=lambda cell: cell) if verbatim else EXPORTS[form]
        run_async(_export, query, export, url)


for _command in (close_command, correct_command, delete_command, history_command):
    records_command.add_command(_command)


def _refuse_options(ctx: click.Context) -> None:
    """A filter in front of a command that changes records must not be lost."""
    for parameter in ctx.command.params:
        if parameter.expose_value and ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"write {parameter.opts[0]} behind '{ctx.invoked_subcommand}'", ctx)


async def _export(query: RecordQuery, export: Export, url: str | None) -> None:
    to_look_at = export is write_table
    async with opened_source(url) as source, source.stream(query) as records:
        count = await export(records, sys.stdout if to_look_at else output())
    sys.stdout.flush()
    if to_look_at:
        say(f"{count} records" + (" (there may be more: --limit)" if count == query.limit else ""), err=True)


async def _print_differences(chosen: str) -> None:
    async with opened_store() as store, store.differences() as differences:
        if chosen == "table":
            _print_table([difference async for difference in differences])
            return
        async for difference in differences:
            write(_difference_line(difference) + "\n")


def _difference_line(difference: Difference) -> str:
    stored = "null" if difference.stored is None else difference.stored.decode()
    return f'{{"seen_at":"{difference.seen_at.isoformat()}","stored":{stored},"offered":{difference.offered.decode()}}}'


def _print_table(differences: Sequence[Difference]) -> None:
    table = new_table("seen (UTC)", "from", "stored", "offered")
    for each in differences:
        seen = f"{each.seen_at:%Y-%m-%d %H:%M:%S}"
        stored = "in the archive" if each.stored is None else each.stored.decode()
        table.add_row(seen, each.principal or "", stored, each.offered.decode())
    print_table(table)
    say(f"{len(differences)} differences", err=True)
