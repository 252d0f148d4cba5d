"""The records that a command is about, and their source."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from auditord.archive.opening import archive_of
from auditord.cli.daemons import daemon_at
from auditord.cli.installation import load_configuration, utc_now
from auditord.config.model import Configuration
from auditord.lake.opening import ConfiguredLake
from auditord.store import RecordStore
from auditord.store.opening import open_store_for_reading
from auditord.store.reading import StoredRecords, decoded
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs import query as queries

if TYPE_CHECKING:
    from auditord.cli.daemon_client import DaemonClient


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
    **_: Any,  # Any: options that are no conditions
) -> queries.Condition:
    """The condition of all options together."""
    bounds = (
        (queries.TimeField.START, queries.Comparison.GTE, started_since),
        (queries.TimeField.START, queries.Comparison.LT, started_before),
        (queries.TimeField.STOP, queries.Comparison.GTE, stopped_since),
        (queries.TimeField.STOP, queries.Comparison.LT, stopped_before),
        (queries.TimeField.START, queries.Comparison.LT, None if older_than is None else _ago(older_than)),
    )
    conditions: list[queries.Condition] = [
        queries.TimeCompares(field, how, moment) for field, how, moment in bounds if moment
    ]
    conditions += [queries.MetaContains(*key_and_value(text)) for text in meta]
    conditions += [queries.IdEquals(record_id)] if record_id is not None else []
    conditions += [queries.IsOpen()] if only_open else []
    conditions += [queries.ImplausibleCpuTime()] if implausible else []
    return queries.AllOf(tuple(conditions))


def _ago(span: timedelta) -> datetime:
    try:
        return utc_now() - span
    except OverflowError as error:
        raise click.BadParameter("that is before the calendar begins", param_hint="--older-than") from error


def key_and_value(text: str) -> tuple[str, str]:
    """``KEY=VALUE``, split.

    Raises:
        BadParameter: it is not of this form.
    """
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--meta")
    return key, value


@asynccontextmanager
async def opened_store() -> AsyncGenerator[RecordStore, None]:
    """The record store of this host, to be read beside a daemon."""
    configuration = load_configuration()
    async with open_store_for_reading(configuration.store) as store:
        with archive_of(store, configuration):
            yield store


@asynccontextmanager
async def opened_source(url: str | None) -> "AsyncGenerator[StoredRecords | DaemonClient, None]":
    """The records of the daemon at a URL or, without one, of this host."""
    if url is not None:
        async with daemon_at(url) as daemon:
            yield daemon
        return
    async with opened_store() as store:
        yield StoredRecords(store)


@asynccontextmanager
async def lake_records(query: RecordQuery, url: str | None) -> AsyncGenerator[AsyncIterator[Record], None]:
    """The matching records of the lake of the daemon at a URL or, without one, of this host's configuration."""
    if url is not None:
        async with daemon_at(url) as daemon, daemon.stream(query, "lake") as records:
            yield records
        return
    with opened_lake(load_configuration()) as lake:
        async with lake.stream(query) as pages, aclosing(decoded(pages)) as records:
            yield records


@contextmanager
def opened_lake(configuration: Configuration) -> Generator[ConfiguredLake, None, None]:
    """The lake of this host.

    Raises:
        UsageError: the configuration has none.
    """
    if not configuration.lake.is_there:
        raise click.UsageError("--source lake: the configuration has no lake")
    with closing(ConfiguredLake(configuration)) as lake:
        yield lake
