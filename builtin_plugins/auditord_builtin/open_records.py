"""Plugin ``open_records``: reports records that have been open for too long.

If a drone's last update is lost, its record stays open for ever and is missing from every sum.
"""

import json
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic import Field

from auditord_hookspecs import (
    CommandContext,
    Duration,
    PluginConfig,
    PluginContext,
    PluginKind,
    RecordQuery,
    hookimpl,
    pass_context,
)
from auditord_hookspecs.commands import run_instance
from auditord_hookspecs.query import AllOf, Comparison, IsOpen, Order, SortField, TimeCompares, TimeField
from auditord_hookspecs.terminal import output_option, write_json
from auditord_hookspecs.wire import encode_record
from auditord_hookspecs.wording import counted

if TYPE_CHECKING:  # only the daemon has prometheus_client loaded
    from prometheus_client import Gauge
    from prometheus_client.registry import Collector

LISTED: Final = 20
"""The most records that a run names in the log. A dry run prints all of them."""


@cache
def open_too_long() -> "Gauge":
    """Return the gauge, creating it on the first call."""
    from prometheus_client import Gauge  # noqa: PLC0415 only the daemon needs it

    return Gauge(
        "auditord_records_open_too_long",
        "Records without a stop time that began too long ago.",
        ("task",),
        registry=None,
    )


class OpenRecordsConfig(PluginConfig):
    """Lists records that have been open for too long, as a gauge and in the log."""

    older_than: Duration = Field(
        default=timedelta(days=7), gt=timedelta(0), description="The age from which an open record is reported."
    )


def _query(config: OpenRecordsConfig, context: PluginContext) -> RecordQuery:
    too_early = TimeCompares(TimeField.START, Comparison.LT, context.now() - config.older_than)
    return RecordQuery(where=AllOf((IsOpen(), too_early)), order=Order(SortField.START))


async def report_open_records(config: OpenRecordsConfig, context: PluginContext) -> None:
    """Report records that have been open for too long, oldest first. The gauge is only set after a complete read."""
    count = 0
    async with context.records.stream(_query(config, context)) as records:
        async for record in records:
            count += 1
            line = f"{record.record_id} has been open since {record.start_time.isoformat()}"
            if context.dry_run:
                context.show(line)
            elif count <= LISTED:
                context.log.warning("%s", line)
    if context.dry_run:
        context.show(f"{counted(count, 'record has', 'records have')} been open for too long")
        return
    open_too_long().labels(context.instance).set(count)
    if count > LISTED:
        context.log.warning(
            "%s been open for too long; only the oldest %d are named",
            counted(count, "record has", "records have"),
            LISTED,
        )


@click.command("open-records")
@click.argument("instance", required=False)
@output_option
@pass_context
def open_records_command(context: CommandContext, instance: str | None, output: str) -> None:
    """Print the records that have been open for too long, by the options of plugin INSTANCE."""

    async def look(config: OpenRecordsConfig, plugin_context: PluginContext) -> None:
        if output == "json":
            async with plugin_context.records.stream(_query(config, plugin_context)) as records:
                write_json([json.loads(encode_record(record)) async for record in records])
        else:
            await report_open_records(config, plugin_context)

    run_instance(context, "open_records", instance, look, dry_run=True)


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """Declare ``auditord open-records``."""
    yield open_records_command


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:  # Any: each kind has its own configuration model
    """Declare the kind ``open_records``."""
    yield PluginKind(name="open_records", config=OpenRecordsConfig, run=report_open_records)


@hookimpl
def auditord_metrics() -> Iterable["Collector"]:
    return (open_too_long(),)
