"""``auditord records``: look at the records and export them, beside a running daemon or without one."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import click

from auditord.cli.asynchronous import run_async
from auditord.cli.daemon_client import DaemonClient, daemon_at, url_option
from auditord.cli.exports import EXPORTS
from auditord.cli.installation import load_installation
from auditord.cli.tables import new_table, print_table
from auditord.store import Difference, RecordStore
from auditord.store.opening import open_store_for_reading
from auditord.store.reading import StoredRecords
from auditord_hookspecs import InvalidRecord, RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
    IdEquals,
    IsOpen,
    MetaContains,
    Order,
    SortField,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.wire import parse_time

TABLE_LIMIT = 100

_SORT = {field.value: field for field in SortField}


class Instant(click.ParamType[datetime]):
    """A date (midnight in UTC) or a time with zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:  # Any: click's
        """Read it, or fail with what is allowed."""
        if isinstance(value, datetime):
            return value
        try:
            return datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            pass
        try:
            return parse_time(value)
        except InvalidRecord:
            self.fail(
                f"'{value}' is neither a date (2026-01-31) nor a time with zone (2026-01-31T12:00:00Z)", param, ctx
            )


INSTANT = Instant()


@click.command("records")
@click.option("--id", "record_id", metavar="ID", help="Only the record with this id.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Only records with this value under this key.")
@click.option("--started-since", type=INSTANT, help="Only records that started then or later.")
@click.option("--started-before", type=INSTANT, help="Only records that started earlier.")
@click.option("--stopped-since", type=INSTANT, help="Only records that stopped then or later.")
@click.option("--stopped-before", type=INSTANT, help="Only records that stopped earlier.")
@click.option("--open", "only_open", is_flag=True, help="Only records that have no stop time yet.")
@click.option("--sort", type=click.Choice(list(_SORT)), default="stop_time", show_default=True)
@click.option("--descending", is_flag=True, help="The latest (largest) first.")
@click.option("--limit", type=click.IntRange(min=0), help=f"At most so many; a table shows {TABLE_LIMIT} if not given.")
@click.option("--output", type=click.Choice(list(EXPORTS)), default="table", show_default=True)
@url_option
@click.option("--differences", is_flag=True, help="Instead: records that came again with other content.")
def records_command(  # Any: click's values
    *, output: str, differences: bool, limit: int | None, url: str | None, **chosen: Any
) -> None:
    """Show records, or export them as JSON, NDJSON or CSV.

    Times are in UTC. Reads the record store itself, beside a running daemon or without one; with --url, a daemon
    anywhere.
    """
    cut = TABLE_LIMIT if output == "table" and limit is None else limit
    query = RecordQuery(condition(**chosen), Order(_SORT[chosen["sort"]], chosen["descending"]), cut)
    if differences and url is not None:
        raise click.UsageError("--differences reads the record store itself: leave --url out")
    run_async(_print_differences if differences else _export, query, output, url)


def condition(
    *,
    record_id: str | None = None,
    meta: Sequence[str] = (),
    started_since: datetime | None = None,
    started_before: datetime | None = None,
    stopped_since: datetime | None = None,
    stopped_before: datetime | None = None,
    only_open: bool = False,
    **_: Any,  # Any: options that are no conditions
) -> Condition:
    """What the options ask for, all of it together."""
    bounds = (
        (TimeField.START, Comparison.GTE, started_since),
        (TimeField.START, Comparison.LT, started_before),
        (TimeField.STOP, Comparison.GTE, stopped_since),
        (TimeField.STOP, Comparison.LT, stopped_before),
    )
    conditions: list[Condition] = [TimeCompares(field, how, moment) for field, how, moment in bounds if moment]
    conditions += [MetaContains(*_key_and_value(text)) for text in meta]
    conditions += [IdEquals(record_id)] if record_id is not None else []
    conditions += [IsOpen()] if only_open else []
    return AllOf(tuple(conditions))


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--meta")
    return key, value


@asynccontextmanager
async def _opened() -> AsyncGenerator[RecordStore, None]:
    async with open_store_for_reading(load_installation().configuration.store) as store:
        yield store


@asynccontextmanager
async def _source(url: str | None) -> AsyncGenerator[StoredRecords | DaemonClient, None]:
    if url is not None:
        async with daemon_at(url) as daemon:
            yield daemon
        return
    async with _opened() as store:
        yield StoredRecords(store)


async def _export(query: RecordQuery, output: str, url: str | None) -> None:
    async with _source(url) as source, source.stream(query) as records:
        count = await EXPORTS[output](records, sys.stdout)
    sys.stdout.flush()
    if output == "table":
        click.echo(f"{count} records" + (" (there may be more: --limit)" if count == query.limit else ""), err=True)


async def _print_differences(_: RecordQuery, output: str, _url: str | None) -> None:
    async with _opened() as store, store.differences() as differences:
        if output == "table":
            _print_table([difference async for difference in differences])
            return
        async for difference in differences:
            click.echo(_difference_line(difference))


def _difference_line(difference: Difference) -> str:
    return (
        f'{{"seen_at":"{difference.seen_at.isoformat()}","stored":{difference.stored.decode()},'
        f'"offered":{difference.offered.decode()}}}'
    )


def _print_table(differences: Sequence[Difference]) -> None:
    table = new_table("seen (UTC)", "from", "stored", "offered")
    for each in differences:
        seen = f"{each.seen_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(seen, each.principal or "", each.stored.decode(), each.offered.decode())
    print_table(table)
    click.echo(f"{len(differences)} differences", err=True)
