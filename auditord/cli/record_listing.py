"""Options that choose records and say how they are written, and the writing; of all commands that list records."""

import sys
from collections.abc import AsyncIterator, Callable
from functools import partial, reduce
from typing import Any, Final, TypeVar

import click

from auditord.cli.exports import EXPORTS, Export, write_csv, write_table
from auditord.cli.option_types import INSTANT, SPAN
from auditord.cli.record_filters import condition
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.terminal import output, say
from auditord_hookspecs.wording import counted

F = TypeVar("F", bound=Callable[..., Any])

TABLE_LIMIT: Final = 100

_SORT: Final = {field.value: field for field in SortField}

_OPTIONS: Final = (
    click.option("--id", "record_id", metavar="ID", help="Only the record with this id."),
    click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Only records with this value under this key."),
    click.option("--started-since", type=INSTANT, help="Only records that started then or later."),
    click.option("--started-before", type=INSTANT, help="Only records that started earlier."),
    click.option(
        "--stopped-since", "--from", "stopped_since", type=INSTANT, help="Only those that stopped then or later."
    ),
    click.option("--stopped-before", "--to", "stopped_before", type=INSTANT, help="Only those that stopped earlier."),
    click.option("--open", "only_open", is_flag=True, help="Only records that have no stop time yet."),
    click.option(
        "--implausible", is_flag=True, help="Only records with a CPU time of more than 1.5 times runtime and cores."
    ),
    click.option("--older-than", type=SPAN, help="Only records that started at least so long ago: 12h, 7d."),
    click.option("--sort", type=click.Choice(list(_SORT)), default="stop_time", show_default=True),
    click.option("--descending", is_flag=True, help="The latest (largest) first."),
    click.option(
        "--limit", type=click.IntRange(min=0), help=f"At most so many; a table shows {TABLE_LIMIT} if not given."
    ),
    click.option("--output", "form", type=click.Choice(list(EXPORTS)), default="table", show_default=True),
    click.option(
        "--escape-formulas/--no-escape-formulas",
        default=True,
        show_default=True,
        help="CSV: put ' before text that a spreadsheet would take for a formula.",
    ),
)


def listing_options(command: F) -> F:
    """Give a command the options of which :func:`query_of` and :func:`export_of` are made."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), command)


def query_of(  # Any: click's values
    *, sort: str, descending: bool, limit: int | None, form: str, **chosen: Any
) -> RecordQuery:
    """The records that are wanted."""
    cut = TABLE_LIMIT if form == "table" and limit is None else limit
    return RecordQuery(condition(**chosen), Order(_SORT[sort], descending), cut)


def export_of(*, form: str, escape_formulas: bool, **_: Any) -> Export:  # Any: click's values
    """The way in which they are written."""
    verbatim = form == "csv" and not escape_formulas
    return partial(write_csv, shown=lambda cell: cell) if verbatim else EXPORTS[form]


async def write_records(records: AsyncIterator[Record], query: RecordQuery, export: Export) -> None:
    """Write records to standard output; a table ends with their number."""
    to_look_at = export is write_table
    count = await export(records, sys.stdout if to_look_at else output())
    sys.stdout.flush()
    if to_look_at:
        say(counted(count, "record") + (" (there may be more: --limit)" if count == query.limit else ""), err=True)
