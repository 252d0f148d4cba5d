"""Records on the command line: the options that select them, their source, and their output.

Records are written as a table, JSON, NDJSON or CSV; all formats except the table are streamed.
"""

import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, TypeVar

import click
from msgspec.structs import astuple

from auditord.cli.daemons import daemon_at
from auditord.cli.frame import config_paths
from auditord.cli.installation import load_configuration, load_place, run_async, utc_now
from auditord.cli.option_types import INSTANT, SPAN, split_pair
from auditord.cli.tables import Table, new_table, print_table
from auditord.config.merging import plain_place
from auditord.reporting import LabelKeys
from auditord.store.opening import open_store_for_reading
from auditord.store.reading import StoredRecords, decode_pages
from auditord.store.store import RecordStore
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs import query as queries
from auditord_hookspecs.aggregates import amount_of, compute_held_amount
from auditord_hookspecs.query import Order, SortField
from auditord_hookspecs.spreadsheets import csv_line, no_formula
from auditord_hookspecs.terminal import check_period, escape, output, say
from auditord_hookspecs.vocabulary import HELD, TOTALS
from auditord_hookspecs.wire import encode_record, format_time
from auditord_hookspecs.wording import counted

if TYPE_CHECKING:
    from auditord.config.model import Configuration
    from auditord.lake.opening import ConfiguredLake


Cell: TypeAlias = str | int | None
Export: TypeAlias = Callable[[AsyncIterator[Record], TextIO], Awaitable[int]]

COMPONENT_COLUMNS: Final = (*TOTALS, *HELD, "TotalCPU", "MaxRSS")
META_COLUMNS: Final = (("site_id", "site"), ("group_id", "group"), ("user_id", "user"))
"""The meta keys of site, group and user, each with its older name."""
CSV_COLUMNS: Final = (
    *("record_id", "start_time", "stop_time", "runtime"),
    *(names[0] for names in META_COLUMNS),
    *COMPONENT_COLUMNS,
    *("meta", "components"),
)


async def ask_labels(url: str) -> LabelKeys:
    """Return the labels that the server calls site, group and user."""
    async with daemon_at(url) as daemon:
        return await daemon.labels()


def find_label_keys(url: str | None) -> LabelKeys:
    """Return the labels that the server at a URL calls site, group and user; without a URL, those of this host."""
    if url is not None:
        return run_async(ask_labels, url)
    if plain_place(config_paths(), os.environ, needed=("labels",)) is None:
        return load_configuration().labels.keys()
    return LabelKeys()


def tabulate(records: Iterable[Record], keys: LabelKeys) -> Table:
    wanted = [names if key == names[0] else (key,) for key, names in zip(astuple(keys), META_COLUMNS, strict=True)]
    table = new_table("record", "site", "group", "user", "start (UTC)", "runtime", "cores")
    for column in table.columns[-2:]:
        column.right = True
    for record in records:
        runtime = "open" if record.runtime is None else f"{record.runtime} s"
        cores = compute_held_amount(record, "Cores")
        table.add_row(
            record.record_id,
            *(first_value(record, names) for names in wanted),
            f"{record.start_time:%Y-%m-%d %H:%M:%S}",
            runtime,
            "" if cores is None else f"{float(cores):.2f}".removesuffix(".00"),
        )
    return table


async def write_table(records: AsyncIterator[Record], out: TextIO, keys: LabelKeys) -> int:
    """Print a table and return the number of rows. It is built in memory, so it is meant for few records."""
    table = tabulate([record async for record in records], keys)
    print_table(table, out)
    return table.row_count


async def write_ndjson(records: AsyncIterator[Record], out: TextIO) -> int:
    """Write a JSON object per line, as the REST API does; return their number."""
    count = 0
    async for record in records:
        out.write(encode_record(record).decode() + "\n")
        count += 1
    return count


async def write_json(records: AsyncIterator[Record], out: TextIO) -> int:
    """Write a JSON array; return the number of records."""
    count = 0
    out.write("[")
    async for record in records:
        out.write(("," if count else "") + "\n" + encode_record(record).decode())
        count += 1
    out.write("\n]\n" if count else "]\n")
    return count


async def write_csv(records: AsyncIterator[Record], out: TextIO, shown: Callable[[Cell], Cell] = no_formula) -> int:
    """Write CSV (RFC 4180) with a header; return the number of records.

    Frequent fields have columns; the last two columns contain all meta and components as JSON. Text that a spreadsheet
    would take for a formula is escaped (:mod:`auditord_hookspecs.spreadsheets`), unless ``shown`` changes nothing.
    """
    out.write(csv_line(CSV_COLUMNS))
    count, on_terminal = 0, out.isatty()
    async for record in records:
        document = json.loads(encode_record(record))
        row = map(
            shown,
            [
                record.record_id,
                format_time(record.start_time),
                None if record.stop_time is None else format_time(record.stop_time),
                record.runtime,
                *(first_value(record, names) for names in META_COLUMNS),
                *(amount_of(record, name) for name in COMPONENT_COLUMNS),
                json.dumps(document["meta"], ensure_ascii=False),
                json.dumps(document["components"], ensure_ascii=False),
            ],
        )
        out.write(csv_line(escape(cell) if on_terminal and isinstance(cell, str) else cell for cell in row))
        count += 1
    return count


def first_value(record: Record, names: Sequence[str]) -> str:
    """Return the first value of the first of these meta keys that the record has; empty if there is none."""
    for name in names:
        for value in (record.meta or {}).get(name, ()):
            return value
    return ""


_TABLE: Final = "table"
EXPORTS: Final[Mapping[str, Export]] = {"json": write_json, "ndjson": write_ndjson, "csv": write_csv}


def condition(
    *,
    record_id: str | None = None,
    meta: Sequence[str] = (),
    started_since: datetime | None = None,
    started_before: datetime | None = None,
    stopped_since: datetime | None = None,
    stopped_before: datetime | None = None,
    older_than: timedelta | None = None,
    only_open: bool = False,
    implausible: bool = False,
    url: str | None = None,
    **_: Any,  # Any: other options
) -> queries.Condition:
    """Return the condition that combines all options.

    Raises:
        UsageError: a period ends before it starts.
    """
    check_period(stopped_since, stopped_before, ("--stopped-since (--from)", "--stopped-before (--to)"))
    check_period(started_since, started_before, ("--started-since", "--started-before"))
    try:
        latest_start = None if older_than is None else utc_now() - older_than
    except OverflowError as error:
        raise click.BadParameter("that is before the calendar begins", param_hint="--older-than") from error
    bounds = (
        (queries.TimeField.START, queries.Comparison.GTE, started_since),
        (queries.TimeField.START, queries.Comparison.LT, started_before),
        (queries.TimeField.STOP, queries.Comparison.GTE, stopped_since),
        (queries.TimeField.STOP, queries.Comparison.LT, stopped_before),
        (queries.TimeField.START, queries.Comparison.LT, latest_start),
    )
    conditions: list[queries.Condition] = [
        queries.TimeCompares(field, how, moment) for field, how, moment in bounds if moment
    ]
    if meta:
        pairs = [key_and_value(text) for text in meta]
        # As in reports, site, group and user stand for the configured labels; other names are keys themselves.
        is_named = any(key in LabelKeys.__struct_fields__ for key, _ in pairs)
        keys = find_label_keys(url) if is_named else LabelKeys()
        conditions += [queries.MetaContains(keys.key(key), value) for key, value in pairs]
    conditions += [queries.IdEquals(record_id)] if record_id is not None else []
    conditions += [queries.IsOpen()] if only_open else []
    conditions += [queries.ImplausibleCpuTime()] if implausible else []
    return queries.AllOf(tuple(conditions))


def key_and_value(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``.

    Raises:
        BadParameter: the text has another form.
    """
    key, value = split_pair(text, "--meta", "KEY=VALUE")
    if not value:
        raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--meta")
    return key, value


@asynccontextmanager
async def open_records(*, released: bool = True) -> AsyncGenerator[RecordStore, None]:
    """Yield this host's record store, opened for reading beside a daemon; with ``released``, also its lake."""
    if not released:
        async with open_store_for_reading(load_place().store) as store:
            yield store
        return
    from auditord.lake.opening import lake_of  # noqa: PLC0415 imports the models

    configuration = load_configuration()
    async with open_store_for_reading(configuration.store) as store:
        with lake_of(store, configuration):
            yield store


@asynccontextmanager
async def stream_records(
    query: RecordQuery, source: Literal["store", "lake"], url: str | None
) -> AsyncGenerator[AsyncIterator[Record], None]:
    """Yield the matching records of the store or lake of the daemon at a URL or, without one, of this host."""
    if url is not None:
        async with daemon_at(url) as daemon, daemon.stream(query, source) as records:
            yield records
    elif source == "store":
        async with open_records(released=query.released) as store, StoredRecords(store).stream(query) as records:
            yield records
    else:
        with open_lake(load_configuration()) as lake:
            async with lake.stream(query) as pages, aclosing(decode_pages(pages)) as records:
                yield records


@contextmanager
def open_lake(configuration: "Configuration") -> "Generator[ConfiguredLake, None, None]":
    """Yield the lake of this host.

    Raises:
        UsageError: no lake is configured.
    """
    if not configuration.lake.is_there:
        raise click.UsageError("--source lake: the configuration has no lake")
    from auditord.lake.opening import ConfiguredLake  # noqa: PLC0415 imports the models, only for a lake

    with closing(ConfiguredLake(configuration)) as lake:
        yield lake


F = TypeVar("F", bound=Callable[..., Any])

TABLE_LIMIT: Final = 100

_SORT: Final = {field.value: field for field in SortField}

_OPTIONS: Final = (
    click.option("--id", "record_id", metavar="ID", help="Only the record with this id."),
    click.option(
        "--meta",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only records with this site, group, user or value of a meta key. Repeat it to require several.",
    ),
    click.option("--started-since", type=INSTANT, help="Only records that started at or after this time."),
    click.option("--started-before", type=INSTANT, help="Only records that started before this time."),
    click.option(
        "--stopped-since",
        "--from",
        "stopped_since",
        type=INSTANT,
        help="Only records that stopped at or after this time.",
    ),
    click.option(
        "--stopped-before", "--to", "stopped_before", type=INSTANT, help="Only records that stopped before this time."
    ),
    click.option("--open", "only_open", is_flag=True, help="Only open records, which have no stop time."),
    click.option(
        "--implausible", is_flag=True, help="Only records with a CPU time of more than 1.5 times runtime times cores."
    ),
    click.option("--older-than", type=SPAN, help="Only records that started at least this long ago: 12h, 7d."),
    click.option("--sort", type=click.Choice(list(_SORT)), default="stop_time", show_default=True),
    click.option("--descending", is_flag=True, help="Show the latest (largest) first."),
    click.option(
        "--limit",
        type=click.IntRange(min=0),
        help=f"The maximum number of records; default for a table: {TABLE_LIMIT}.",
    ),
    click.option("--output", "form", type=click.Choice([_TABLE, *EXPORTS]), default=_TABLE, show_default=True),
    click.option(
        "--escape-formulas/--no-escape-formulas",
        default=True,
        show_default=True,
        help="CSV: prepend ' to text that a spreadsheet would evaluate as a formula.",
    ),
)


def listing_options(command: F) -> F:
    """Add the options that :func:`query_of` and :func:`export_of` take to a command."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), command)


def query_of(  # Any: click's values
    *, sort: str, descending: bool, limit: int | None, form: str, **chosen: Any
) -> RecordQuery:
    cut = TABLE_LIMIT if form == _TABLE and limit is None else limit
    return RecordQuery(condition(**chosen), Order(_SORT[sort], descending), cut)


def export_of(*, form: str, escape_formulas: bool, url: str | None, **_: Any) -> Export:  # Any: click's values
    """Return the function that writes the records in the chosen form."""
    if form == _TABLE:
        return partial(write_table, keys=find_label_keys(url))
    verbatim = form == "csv" and not escape_formulas
    return partial(write_csv, shown=lambda cell: cell) if verbatim else EXPORTS[form]


async def write_records(records: AsyncIterator[Record], query: RecordQuery, form: str, export: Export) -> None:
    """Write records to standard output; a table ends with their number."""
    is_table = form == _TABLE
    count = await export(records, sys.stdout if is_table else output())
    sys.stdout.flush()
    if is_table:
        say(counted(count, "record") + (" (for more: --limit)" if count == query.limit else ""), err=True)
